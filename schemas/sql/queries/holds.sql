-- Legal holds. Placing one excludes every deletion until the end of the transaction, see 003_retention.sql.

-- name: lock_out_deletions
-- Alone: waits for the deletions that are being made, keeps others from beginning.
SELECT pg_advisory_xact_lock(hashtextextended('stratalog.holds', 0));

-- name: lock_out_holds
-- Shared with other deletions: waits for a hold that is being placed, keeps others from being placed.
SELECT pg_advisory_xact_lock_shared(hashtextextended('stratalog.holds', 0));

-- name: read_only
-- A selection only reads.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY;

-- name: insert_hold
-- A new hold; what it holds follows in the same transaction.
INSERT INTO holds (matter, kind, tenant, selection, placed_by, reason)
VALUES (%(matter)s, %(kind)s, %(tenant)s, %(selection)s, %(by)s, %(reason)s) RETURNING hold_id;

-- name: insert_trajectories
-- The trajectories of a set or a selection.
INSERT INTO hold_trajectories (hold_id, trajectory_id)
SELECT %(hold_id)s, id FROM unnest(%(ids)b::uuid[]) AS b(id) ON CONFLICT DO NOTHING;

-- name: covered
-- How many trajectories a hold covers here, with those that descend from what it names, and these alone; how many of
-- those that it names are not known here; how many others are kept because what is covered descends from them.
WITH h AS (SELECT * FROM holds WHERE hold_id = %(hold_id)s),
covered AS MATERIALIZED (SELECT covered_by(h.hold_id) AS id FROM h),
known AS MATERIALIZED (
  SELECT t.trajectory_id AS id FROM covered c JOIN trajectories t ON t.trajectory_id = c.id WHERE t.head_sequence >= 0)
SELECT (SELECT count(*) FROM known),
  (SELECT count(*) FROM known k CROSS JOIN h WHERE h.tenant IS NULL AND NOT EXISTS (
     SELECT 1 FROM hold_trajectories x WHERE x.hold_id = h.hold_id AND x.trajectory_id = k.id)),
  (SELECT count(*) FROM h JOIN hold_trajectories x USING (hold_id) WHERE NOT EXISTS (
     SELECT 1 FROM trajectories t WHERE t.trajectory_id = x.trajectory_id AND t.head_sequence >= 0)),
  (SELECT count(*) FROM with_all_ancestors((SELECT array_agg(id) FROM covered)) AS a(id)
   JOIN trajectories t ON t.trajectory_id = a.id AND t.head_sequence >= 0
   WHERE NOT EXISTS (SELECT 1 FROM covered c WHERE c.id = a.id));

-- name: lock_deletions
-- The deletions that have not been cancelled of what a hold covers, and of what that descends from, locked.
SELECT d.deletion_id, d.state, d.tier, c.id IS NOT NULL
FROM deletions d
JOIN with_all_ancestors((SELECT array_agg(id) FROM covered_by(%(hold_id)s) AS f(id))) AS a(id) ON a.id = d.trajectory_id
LEFT JOIN covered_by(%(hold_id)s) AS c(id) ON c.id = d.trajectory_id
WHERE d.state <> 'cancelled'
ORDER BY d.trajectory_id, d.deletion_id FOR UPDATE OF d;

-- name: cancel_deletions
-- What has not started does not start.
UPDATE deletions SET state = 'cancelled', reason = %(reason)s, ended_at = clock_timestamp()
WHERE deletion_id = ANY (%(ids)b::bigint[]) AND state = 'planned';

-- name: entries
-- The holds, oldest first; those that were released only if asked for. What descends from what a set or a selection
-- names is counted by itself, as it is now.
SELECT h.hold_id, h.matter, h.kind, h.tenant, h.selection, h.placed_by, h.reason, h.placed_at,
  CASE WHEN h.kind = 'tenant'
    THEN (SELECT count(*) FROM trajectories t WHERE t.tenant = h.tenant AND t.head_sequence >= 0)
    ELSE (SELECT count(*) FROM hold_trajectories x WHERE x.hold_id = h.hold_id) END,
  CASE WHEN h.kind = 'tenant' THEN 0
    ELSE (SELECT count(*) FROM covered_by(h.hold_id) AS c(id) WHERE NOT EXISTS (
            SELECT 1 FROM hold_trajectories x WHERE x.hold_id = h.hold_id AND x.trajectory_id = c.id)) END,
  r.released_by, r.reason, r.released_at
FROM holds h LEFT JOIN hold_releases r USING (hold_id)
WHERE %(all)s::boolean OR r.hold_id IS NULL ORDER BY h.hold_id;

-- name: active
-- The active holds of a matter, or one of them.
SELECT hold_id FROM holds h
WHERE matter = %(matter)s AND (%(hold_id)s::bigint IS NULL OR hold_id = %(hold_id)s::bigint)
  AND NOT EXISTS (SELECT 1 FROM hold_releases r WHERE r.hold_id = h.hold_id)
ORDER BY hold_id;

-- name: release
-- The hold ends; its row stays.
INSERT INTO hold_releases (hold_id, released_by, reason) VALUES (%(hold_id)s, %(by)s, %(reason)s);
