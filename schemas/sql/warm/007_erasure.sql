-- Erasure: what was asked for, what must not come back, and how far each place has got. And which trajectory descends
-- from which, because a branch and a sub-agent refer to what their parent holds.
--
--   trajectory_links     child and parent of each fork and sub-agent, noted when the event that says so is stored
--   trajectory_subjects  whom a trajectory is about: a keyed hash, never the name
--   subject_keys         which key the hashes were made with; the key itself is not in the database
--   erasures             the requests; neither a subject's name nor the text of a condition is kept
--   erasure_items        what a request names: `asked`, `held` (a hold wins; done once it is released) or `erased`
--   erased_trajectories  the ledger: whatever arrives of these, from whatever log, import or backup, is stored without
--                        its body. `unreadable` since `erased_at`; the other times say since when the bytes are gone
--   erased_content       bulky content that erased bodies referred to: to be looked at, or found to be needed by others
--   log_erasures         how far each hot log has followed the ledger, by `place`
--   erasure_receipts     what was done in each tier, signed
--
-- Locks: whoever adds to the ledger takes the advisory lock `stratalog.erasures` until the end of its transaction, so
-- that places become visible in their order, and after it (as every deletion) `stratalog.holds` in share mode, then the
-- heads by id. Ingest reads the ledger after it has locked the heads: either it sees the row, or the erasure sees what
-- ingest has stored.

CREATE TABLE trajectory_links (
  child_id  uuid NOT NULL,
  parent_id uuid NOT NULL,
  kind      text NOT NULL CHECK (kind IN ('fork', 'child')),
  PRIMARY KEY (child_id, parent_id),
  CHECK (child_id <> parent_id)
);
CREATE INDEX trajectory_links_parent ON trajectory_links (parent_id);

-- Those that descend from `ids`, and `ids`, each once.
CREATE FUNCTION with_descendants(ids uuid[]) RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
  WITH RECURSIVE family(id) AS (
    SELECT unnest(ids) UNION SELECT l.child_id FROM family f JOIN trajectory_links l ON l.parent_id = f.id)
  SELECT id FROM family
$$;

-- Those that one descends from, and itself, each once.
CREATE FUNCTION with_ancestors(of_id uuid) RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
  WITH RECURSIVE family(id) AS (
    SELECT of_id UNION SELECT l.parent_id FROM family f JOIN trajectory_links l ON l.child_id = f.id)
  SELECT id FROM family
$$;

-- The matters that hold a trajectory, NULL if none does. A hold also covers what descends from what it names.
CREATE OR REPLACE FUNCTION holding_matters(id uuid, of_tenant text) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT array_agg(DISTINCT h.matter ORDER BY h.matter) FROM active_holds h
  WHERE h.tenant = of_tenant
     OR EXISTS (SELECT 1 FROM hold_trajectories x
                WHERE x.hold_id = h.hold_id AND x.trajectory_id IN (SELECT with_ancestors(id)))
$$;

-- The links that events say which were stored before this migration.
INSERT INTO trajectory_links (child_id, parent_id, kind)
SELECT child::uuid, parent::uuid, min(kind) FROM (
  SELECT trajectory_id::text AS child, payload ->> 'parent' AS parent,
         CASE event_type WHEN 'TrajectoryForked' THEN 'fork' ELSE 'child' END AS kind
  FROM all_events WHERE event_type IN ('TaskStarted', 'TrajectoryForked')
  UNION ALL
  SELECT payload ->> 'child', trajectory_id::text, 'child' FROM all_events WHERE event_type = 'ChildStarted') AS said
WHERE child ~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$'
  AND parent ~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' AND lower(child) <> lower(parent)
GROUP BY 1, 2 ON CONFLICT DO NOTHING;

CREATE TABLE trajectory_subjects (
  tenant        text  NOT NULL,
  subject       bytea NOT NULL CHECK (length(subject) = 32),
  trajectory_id uuid  NOT NULL,
  added_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, subject, trajectory_id)
);
CREATE INDEX trajectory_subjects_id ON trajectory_subjects (trajectory_id);

CREATE TABLE subject_keys (
  key_id  bytea PRIMARY KEY CHECK (length(key_id) = 32),
  used_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE erasures (
  erasure_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind         text NOT NULL CHECK (kind IN ('trajectories', 'subject', 'selection', 'ledger')),
  tenant       text,
  subject      bytea CHECK ((kind = 'subject') = (subject IS NOT NULL)),
  requested_by text NOT NULL,
  reason       text NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE erasure_items (
  erasure_id    bigint NOT NULL REFERENCES erasures,
  trajectory_id uuid   NOT NULL,
  tenant        text   NOT NULL,
  state         text   NOT NULL DEFAULT 'asked' CHECK (state IN ('asked', 'held', 'erased')),
  matters       text[] NOT NULL DEFAULT '{}',              -- what held it when it was last looked at
  PRIMARY KEY (erasure_id, trajectory_id)
);
CREATE INDEX erasure_items_open ON erasure_items (erasure_id, trajectory_id) WHERE state <> 'erased';
CREATE INDEX erasure_items_trajectory ON erasure_items (trajectory_id);

CREATE TABLE erased_trajectories (
  trajectory_id uuid   PRIMARY KEY,
  place         bigint GENERATED ALWAYS AS IDENTITY UNIQUE, -- in the order in which they became visible
  tenant        text   NOT NULL,
  erasure_id    bigint NOT NULL REFERENCES erasures,
  erased_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  warm_gone_at  timestamptz,                                -- NULL: rows or WAL may still have bytes
  cold_gone_at  timestamptz                                 -- NULL: to be masked in the views, and looked for in the files
);
CREATE INDEX erased_trajectories_request ON erased_trajectories (erasure_id);
CREATE INDEX erased_trajectories_cold ON erased_trajectories (trajectory_id) WHERE cold_gone_at IS NULL;

CREATE TABLE erased_content (
  tenant     text   NOT NULL,
  sha256     bytea  NOT NULL CHECK (length(sha256) = 32),
  erasure_id bigint NOT NULL REFERENCES erasures,
  needed     boolean NOT NULL DEFAULT false,                -- looked at: somebody else refers to it, so it stays
  put_at     timestamptz,                                   -- put again since, by somebody who may need it: look again
  PRIMARY KEY (tenant, sha256)
);

CREATE TABLE log_erasures (
  log_id     uuid   PRIMARY KEY,
  place      bigint NOT NULL,                               -- it has followed the ledger up to here
  events     bigint NOT NULL DEFAULT 0,                     -- bodies that were removed from it
  abandoned  text,                                          -- why nobody waits for it any more: its disk was destroyed
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE erasure_receipts (
  receipt_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  erasure_id bigint NOT NULL REFERENCES erasures,
  tier       text   NOT NULL,
  document   bytea  NOT NULL,                               -- JSON, the exact bytes that are signed
  key_id     text   NOT NULL,
  signature  bytea  NOT NULL,
  made_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX erasure_receipts_request ON erasure_receipts (erasure_id);

CREATE TRIGGER history BEFORE UPDATE OR DELETE OR TRUNCATE ON erasures FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history BEFORE UPDATE OR DELETE OR TRUNCATE ON erasure_receipts EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history BEFORE DELETE OR TRUNCATE ON erased_trajectories EXECUTE FUNCTION refuse_change();

-- Statistics would keep samples of what a head says.
ALTER TABLE trajectories ALTER secret SET STATISTICS 0, ALTER labels SET STATISTICS 0, ALTER source SET STATISTICS 0,
  ALTER summary SET STATISTICS 0;
ALTER TABLE quarantine ALTER secret SET STATISTICS 0, ALTER detail SET STATISTICS 0;
ALTER TABLE consolidation_items ALTER summary SET STATISTICS 0;
