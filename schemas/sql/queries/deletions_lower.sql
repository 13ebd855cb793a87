-- Deletions in the cold tier and for bulky content, from plan to end; whoever executes them holds the lock on
-- consolidation. See deletions.sql for the locks that keep holds out.

-- name: needed
-- Whether there is anything to do below the warm tier: a clock for it is in force, or something was begun.
SELECT EXISTS (SELECT 1 FROM policies_in_force WHERE cold_us IS NOT NULL OR bulky_us IS NOT NULL)
  OR EXISTS (SELECT 1 FROM deletions WHERE tier <> 'warm' AND state IN ('planned', 'started'));

-- name: plan
-- A row for everything that is due in a tier and that nothing keeps.
INSERT INTO deletions (trajectory_id, tenant, tier, version, policy, through_sequence)
SELECT trajectory_id, tenant, %(tier)s, version, policy, through_sequence
FROM retention_due(%(tier)s, %(now)s, false) WHERE keeps IS NULL
ON CONFLICT (trajectory_id, tier) WHERE state IN ('planned', 'started') DO NOTHING;

-- name: open
-- What is planned or started in a tier, with its events there, the start day that is in the path of its files, and how
-- far the rewrite is that it leaves with.
SELECT d.deletion_id, d.trajectory_id, d.tenant, d.policy, d.state, t.consolidated_through - t.cold_dropped_through,
  to_char(least((uuid7_time(d.trajectory_id) AT TIME ZONE 'UTC')::date, date '9999-12-31'), 'YYYY-MM-DD'),
  d.rewrite_id, r.state
FROM deletions d JOIN trajectories t USING (trajectory_id) LEFT JOIN rewrites r USING (rewrite_id)
WHERE d.tier = %(tier)s AND d.state IN ('planned', 'started') ORDER BY d.trajectory_id;

-- name: lock
-- Those that are still open, locked.
SELECT deletion_id FROM deletions WHERE deletion_id = ANY (%(ids)b::bigint[]) AND state IN ('planned', 'started')
ORDER BY trajectory_id FOR UPDATE;

-- name: judge
-- Whether deletions may be executed now, all of them together: NULL, or why not. The matters come first: a hold wins.
SELECT d.deletion_id, d.trajectory_id, d.tenant, d.policy,
  CASE
    WHEN m.matters IS NOT NULL THEN 'held by ' || array_to_string(m.matters, ', ')
    WHEN d.state = 'cancelled' THEN d.reason
    WHEN r.trajectory_id IS NULL THEN 'not due any more'
    WHEN r.version <> d.version OR r.policy <> d.policy THEN 'another policy is in force'
    ELSE r.keeps
  END
FROM deletions d
LEFT JOIN retention_due(%(tier)s, %(now)s, false, %(trajectory_ids)b::uuid[]) r USING (trajectory_id)
CROSS JOIN LATERAL (SELECT holding_matters(d.trajectory_id, d.tenant) AS matters) AS m
WHERE d.deletion_id = ANY (%(ids)b::bigint[]) ORDER BY d.trajectory_id;

-- name: start_cold
-- The point of no return: with what they leave, and up to where.
UPDATE deletions d SET state = 'started', started_at = clock_timestamp(), rewrite_id = %(rewrite_id)s::uuid,
  through_sequence = t.consolidated_through, through_hash = t.consolidated_hash,
  events = t.consolidated_through - t.cold_dropped_through
FROM trajectories t WHERE d.deletion_id = ANY (%(ids)b::bigint[]) AND t.trajectory_id = d.trajectory_id;

-- name: mark_cold
-- Up to where the events have left the cold tier with a rewrite that is committed.
UPDATE trajectories t SET cold_dropped_through = d.through_sequence, cold_dropped_hash = d.through_hash,
  cold_dropped_at = clock_timestamp(), updated_at = clock_timestamp()
FROM deletions d
WHERE d.tier = 'cold' AND d.state = 'started' AND d.rewrite_id = %(rewrite_id)s::uuid
  AND t.trajectory_id = d.trajectory_id AND t.cold_dropped_through < d.through_sequence;

-- name: finish_cold
-- Their files are gone, too.
UPDATE deletions SET state = 'done', ended_at = clock_timestamp()
WHERE tier = 'cold' AND state = 'started' AND rewrite_id = %(rewrite_id)s::uuid
RETURNING tenant, policy, events, bytes;

-- name: cold_starts
-- After which event what is left of a trajectory in the cold tier may begin, where its first events have gone or are on
-- their way.
SELECT trajectory_id, cold_dropped_through, cold_dropped_hash FROM trajectories WHERE cold_dropped_through >= 0
UNION ALL
SELECT trajectory_id, through_sequence, through_hash FROM deletions WHERE tier = 'cold' AND state = 'started';

-- name: deleted
-- What was deleted from the cold tier, and so from every tier: up to which event, by which policy, and when.
SELECT trajectory_id, tenant, through_sequence, version, policy, coalesce(ended_at, started_at), state = 'done'
FROM deletions WHERE tier = 'cold' AND state IN ('started', 'done') ORDER BY trajectory_id, deletion_id;

-- name: start_bulky
-- From here on these events keep no content any more.
UPDATE deletions d SET state = 'started', started_at = clock_timestamp(), through_sequence = t.consolidated_through
FROM trajectories t WHERE d.deletion_id = ANY (%(ids)b::bigint[]) AND t.trajectory_id = d.trajectory_id
  AND d.state = 'planned';

-- name: mark_bulky
-- The same on the heads.
UPDATE trajectories t SET bulky_dropped_through = d.through_sequence, bulky_dropped_at = clock_timestamp(),
  updated_at = clock_timestamp()
FROM deletions d WHERE d.deletion_id = ANY (%(ids)b::bigint[]) AND d.state = 'started'
  AND t.trajectory_id = d.trajectory_id;

-- name: unmark_bulky
-- A hold came in time: what is left of the content is kept.
UPDATE trajectories t SET bulky_dropped_through = -1, bulky_dropped_at = NULL, updated_at = clock_timestamp()
FROM deletions d WHERE d.deletion_id = ANY (%(ids)b::bigint[]) AND t.trajectory_id = d.trajectory_id;

-- name: given_up
-- Whose events up to where keep no content any more. What is held by now keeps it all the same.
SELECT t.trajectory_id, t.bulky_dropped_through FROM trajectories t
WHERE t.bulky_dropped_through >= 0
  AND NOT ((SELECT EXISTS (SELECT 1 FROM active_holds))
           AND (holding_matters(t.trajectory_id, t.tenant) IS NOT NULL OR branch_matters(t.trajectory_id) IS NOT NULL));

-- name: held_among
-- Those of some trajectories that are held now, or that a held branch needs.
SELECT t.trajectory_id FROM trajectories t WHERE t.trajectory_id = ANY (%(trajectory_ids)b::uuid[])
  AND (holding_matters(t.trajectory_id, t.tenant) IS NOT NULL OR branch_matters(t.trajectory_id) IS NOT NULL);

-- name: note_dropped
-- Content goes although events refer to it: noted before it goes, with the policy of one of those that gave it up.
INSERT INTO dropped_content AS c (tenant, sha256, version, policy, bytes)
SELECT b.tenant, b.sha256, d.version, d.policy, b.bytes
FROM unnest(%(tenants)b::text[], %(digests)b::bytea[], %(trajectory_ids)b::uuid[], %(sizes)b::bigint[])
  AS b(tenant, sha256, trajectory_id, bytes)
CROSS JOIN LATERAL (
  SELECT version, policy FROM deletions d
  WHERE d.trajectory_id = b.trajectory_id AND d.tier = 'bulky' AND d.state IN ('started', 'done')
  ORDER BY d.deletion_id DESC LIMIT 1) AS d
ON CONFLICT (tenant, sha256) DO UPDATE
SET version = excluded.version, policy = excluded.policy, bytes = excluded.bytes, dropped_at = clock_timestamp();

-- name: forget_dropped
-- This content is there and needed again.
DELETE FROM dropped_content
WHERE (tenant, sha256) IN (SELECT * FROM unnest(%(tenants)b::text[], %(digests)b::bytea[]));

-- name: dropped
-- All content that has gone although events refer to it.
SELECT tenant, sha256 FROM dropped_content ORDER BY tenant, sha256;

-- name: warm_references
-- Bodies in the warm tier that may refer to content, with their place.
SELECT tenant, trajectory_id, sequence_number, body FROM all_events
WHERE position('\x7b2224626c6f62223a'::bytea IN body) > 0;

-- name: lock_condemned
-- Those of some pieces that are still condemned. What somebody puts right now is passed over.
SELECT tenant, sha256 FROM condemned_content
WHERE (tenant, sha256) IN (SELECT * FROM unnest(%(tenants)b::text[], %(digests)b::bytea[]))
ORDER BY tenant, sha256 FOR UPDATE SKIP LOCKED;

-- name: count_bytes
-- What has gone counts for one of the trajectories that gave it up.
UPDATE deletions d SET bytes = d.bytes + b.bytes
FROM (SELECT trajectory_id, sum(bytes)::bigint AS bytes
      FROM unnest(%(trajectory_ids)b::uuid[], %(sizes)b::bigint[]) AS b(trajectory_id, bytes) GROUP BY 1) AS b
WHERE d.tier = 'bulky' AND d.state = 'started' AND d.trajectory_id = b.trajectory_id;

-- name: finish_bulky
-- Nothing is left of the content that only they referred to, but for these.
UPDATE deletions SET state = 'done', ended_at = clock_timestamp()
WHERE tier = 'bulky' AND state = 'started' AND NOT (trajectory_id = ANY (%(trajectory_ids)b::uuid[]))
RETURNING tenant, policy, events, bytes;
