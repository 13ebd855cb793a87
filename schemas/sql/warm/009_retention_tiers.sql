-- Retention in the cold tier and for bulky content, and holds over families. Nothing here deletes anything by itself.
--
--   trajectories.cold_dropped_*     up to where the events have left the cold tier, too: they are in no tier any more,
--                                   the head stays, so that an event that is sent again is known
--   trajectories.bulky_dropped_*    up to where events do not keep the content any more that they refer to
--   dropped_content                 content that has gone although events refer to it, and by which policy
--   deletions.tier                  warm, cold or bulky; of the cold tier `started` is the point of no return, of bulky
--                                   content it means that the sweep may take it, unless a hold comes first
--   branch_matters                  what holds a branch holds what the branch refers to in its parents
--   retention_due                   what is due in the cold tier or for bulky content, and what keeps it
--
-- Families leave together: what others descend from waits until they are due as well, or have gone. Only descendants of
-- the same tenant count, so that nobody keeps what belongs to others.

-- Existing heads get the time of this migration: later than the truth, so that they are only kept for longer.
ALTER TABLE trajectories
  ADD COLUMN made_at               timestamptz NOT NULL DEFAULT now(),   -- when the head came here first; never moves
  ADD COLUMN cold_dropped_through  bigint NOT NULL DEFAULT -1,
  ADD COLUMN cold_dropped_hash     bytea,
  ADD COLUMN cold_dropped_at       timestamptz,
  ADD COLUMN bulky_dropped_through bigint NOT NULL DEFAULT -1,
  ADD COLUMN bulky_dropped_at      timestamptz;
CREATE INDEX trajectories_bulky_dropped ON trajectories (trajectory_id) WHERE bulky_dropped_through >= 0;
CREATE INDEX trajectories_cold_dropped ON trajectories (trajectory_id) WHERE cold_dropped_through >= 0;

ALTER TABLE deletions
  DROP CONSTRAINT deletions_tier_check,
  ADD CONSTRAINT deletions_tier_check CHECK (tier IN ('warm', 'cold', 'bulky')),
  ADD COLUMN through_hash bytea,                           -- of the cold tier: the hash at `through_sequence`
  ADD COLUMN rewrite_id   uuid;                            -- of the cold tier: the rewrite that it leaves with
CREATE INDEX deletions_started ON deletions (tier) WHERE state = 'started';

-- What an undated import does: `keep` (its clocks never run) or `import` (they run from `made_at`).
ALTER TABLE retention_policies ADD COLUMN undated text NOT NULL DEFAULT 'keep' CHECK (undated IN ('keep', 'import'));
CREATE OR REPLACE VIEW policies_in_force AS
  SELECT * FROM retention_policies WHERE version = (SELECT max(version) FROM retention_versions);

CREATE TABLE dropped_content (
  tenant     text    NOT NULL,
  sha256     bytea   NOT NULL CHECK (length(sha256) = 32),
  version    integer NOT NULL,
  policy     text    NOT NULL,
  bytes      bigint  NOT NULL,
  dropped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, sha256),
  FOREIGN KEY (version, policy) REFERENCES retention_policies (version, name)
);

-- All that these descend from, and they, each once.
CREATE FUNCTION with_all_ancestors(ids uuid[]) RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
  WITH RECURSIVE family(id) AS (
    SELECT unnest(ids) UNION SELECT l.parent_id FROM family f JOIN trajectory_links l ON l.child_id = f.id)
  SELECT id FROM family
$$;

-- The matters that hold anything that descends from a trajectory, NULL if none does.
CREATE FUNCTION branch_matters(of_id uuid) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT array_agg(DISTINCT m.matter ORDER BY m.matter)
  FROM with_descendants(ARRAY[of_id]) AS d(id) LEFT JOIN trajectories c ON c.trajectory_id = d.id
  CROSS JOIN LATERAL unnest(holding_matters(d.id, coalesce(c.tenant, ''))) AS m(matter)
  WHERE d.id <> of_id
$$;

-- What a hold covers: what it names and all that descends from that; of a tenant everything.
CREATE FUNCTION covered_by(of_hold bigint) RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
  SELECT t.trajectory_id FROM holds h JOIN trajectories t ON t.tenant = h.tenant WHERE h.hold_id = of_hold
  UNION
  SELECT with_descendants(array_agg(x.trajectory_id)) FROM hold_trajectories x WHERE x.hold_id = of_hold
$$;

-- One row for each trajectory that a policy decides. The clocks run from its end: `finished_at`, of an import without
-- one its last event, of an undated import `made_at` if the policy says so. What has not ended has no end and is never
-- due. `obstacle` says what keeps it in the warm tier, apart from holds of its own; marks are set only after the events
-- were read back from the cold tier and compared. Without any hold in force none is looked for.
DROP VIEW retention_decisions;
DROP FUNCTION warm_obstacle;
CREATE VIEW retention_decisions AS
SELECT t.trajectory_id, t.tenant, t.stray, t.head_sequence, t.dropped_through, t.consolidated_through,
  t.cold_dropped_through, t.bulky_dropped_through, t.events,
  p.version, p.name AS policy, p.warm_us, p.cold_us, p.bulky_us, e.end_at,
  e.end_at + p.warm_us * interval '1 microsecond' AS warm_at,
  e.end_at + p.cold_us * interval '1 microsecond' AS cold_at,
  e.end_at + p.bulky_us * interval '1 microsecond' AS bulky_at,
  CASE
    WHEN t.consolidated_through < t.head_sequence OR t.consolidated_hash IS DISTINCT FROM t.head_hash
      THEN 'not in the cold tier yet'
    WHEN EXISTS (SELECT 1 FROM consolidation_items i JOIN consolidation_runs r USING (run_id)
                 WHERE i.trajectory_id = t.trajectory_id AND r.state = 'planned') THEN 'being consolidated'
    WHEN EXISTS (SELECT 1 FROM quarantine q WHERE q.trajectory_id = t.trajectory_id AND q.admitted_at IS NULL)
      THEN 'has events in quarantine'
    WHEN b.matters IS NOT NULL THEN 'needed by a held branch'
  END AS obstacle,
  CASE WHEN (SELECT EXISTS (SELECT 1 FROM active_holds)) THEN holding_matters(t.trajectory_id, t.tenant) END AS matters,
  b.matters AS branch_matters
FROM trajectories t
CROSS JOIN LATERAL (
  SELECT * FROM policies_in_force f
  WHERE (f.tenants IS NULL OR t.tenant = ANY (f.tenants))
    AND (f.models IS NULL OR t.model = ANY (f.models))
    AND (f.statuses IS NULL OR t.status = ANY (f.statuses))
    AND t.labels @> f.labels
  ORDER BY f.place LIMIT 1) AS p
CROSS JOIN LATERAL (
  SELECT CASE
    WHEN t.labels ->> 'undated' = 'true' THEN CASE WHEN p.undated = 'import' AND t.imported THEN t.made_at END
    ELSE coalesce(t.finished_at, CASE WHEN t.imported THEN t.last_event_at END) END AS end_at) AS e
CROSS JOIN LATERAL (
  SELECT CASE WHEN (SELECT EXISTS (SELECT 1 FROM active_holds))
               AND EXISTS (SELECT 1 FROM trajectory_links l WHERE l.parent_id = t.trajectory_id)
              THEN branch_matters(t.trajectory_id) END AS matters) AS b
WHERE t.head_sequence >= 0;

-- What is due at a moment in the tier `cold` or `bulky` and has not gone, and what keeps it (NULL: nothing does). Rows
-- must have left the warm tier before they leave the cold one; with `after_warm` those count that are about to leave it.
-- Content goes while the events stay. `among` limits what may go to these: what descends from one of them has to be one
-- of them, too, or must have gone.
CREATE FUNCTION retention_due(of_tier text, at timestamptz, after_warm boolean, among uuid[] DEFAULT NULL) RETURNS TABLE (
  trajectory_id uuid, tenant text, version integer, policy text, after_us bigint, through_sequence bigint, events bigint,
  keeps text, matters text[]) LANGUAGE sql STABLE AS $$
  WITH RECURSIVE due AS MATERIALIZED (
    SELECT r.trajectory_id, r.tenant, r.version, r.policy, x.after_us, r.consolidated_through AS through_sequence,
      r.consolidated_through - x.gone_through AS events,
      CASE WHEN r.matters IS NOT NULL THEN 'held' WHEN r.obstacle IS NOT NULL THEN r.obstacle
           WHEN of_tier = 'cold' AND r.dropped_through < r.head_sequence
             AND NOT (after_warm AND coalesce(r.warm_at <= retention_due.at, false)) THEN 'still in Postgres' END AS keeps,
      coalesce(r.matters, r.branch_matters) AS matters
    FROM retention_decisions r
    CROSS JOIN LATERAL (
      SELECT CASE of_tier WHEN 'cold' THEN r.cold_us ELSE r.bulky_us END AS after_us,
        CASE of_tier WHEN 'cold' THEN r.cold_at ELSE r.bulky_at END AS at,
        CASE of_tier WHEN 'cold' THEN r.cold_dropped_through
                     ELSE greatest(r.cold_dropped_through, r.bulky_dropped_through) END AS gone_through) AS x
    WHERE x.at <= retention_due.at AND x.gone_through < r.consolidated_through
      AND (among IS NULL OR r.trajectory_id IN (SELECT unnest(among)))
  ), stays(id, tenant) AS (
    SELECT l.parent_id, c.tenant FROM trajectory_links l JOIN trajectories c ON c.trajectory_id = l.child_id
    WHERE CASE of_tier WHEN 'cold' THEN c.cold_dropped_through
                       ELSE greatest(c.cold_dropped_through, c.bulky_dropped_through) END < c.head_sequence
      AND NOT EXISTS (SELECT 1 FROM due d WHERE d.trajectory_id = l.child_id AND d.keeps IS NULL)
    UNION
    SELECT l.parent_id, s.tenant FROM stays s JOIN trajectory_links l ON l.child_id = s.id)
  SELECT d.trajectory_id, d.tenant, d.version, d.policy, d.after_us, d.through_sequence, d.events,
    coalesce(d.keeps, CASE WHEN EXISTS (SELECT 1 FROM stays s WHERE s.id = d.trajectory_id AND s.tenant = d.tenant)
                           THEN 'needed by a branch that stays' END),
    d.matters
  FROM due d
$$;
