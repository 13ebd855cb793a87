-- Events that were not admitted, as people look at them and as a retry reads them.

-- name: entries
-- The entries of all trajectories or of one, newest last, without their bodies.
SELECT quarantine_id, log_id, lsn, trajectory_id, sequence_number, tenant, reason, detail, header, length(body),
       arrived_at, admitted_at
FROM quarantine
WHERE (%(trajectory_id)s::uuid IS NULL OR trajectory_id = %(trajectory_id)s::uuid)
  AND (%(all)s::boolean OR admitted_at IS NULL)
ORDER BY quarantine_id
LIMIT %(limit)s::bigint;

-- name: entry
-- One entry, whole.
SELECT quarantine_id, log_id, lsn, trajectory_id, sequence_number, tenant, reason, detail, header, length(body),
       arrived_at, admitted_at, body, erased, secret
FROM quarantine WHERE quarantine_id = %(quarantine_id)s::bigint;

-- name: export
-- Whole entries, of all trajectories or of one, in the order of their histories.
SELECT quarantine_id, log_id, lsn, trajectory_id, sequence_number, tenant, reason, detail, header, length(body),
       arrived_at, admitted_at, body, erased, secret
FROM quarantine
WHERE (%(trajectory_id)s::uuid IS NULL OR trajectory_id = %(trajectory_id)s::uuid)
  AND (%(all)s::boolean OR admitted_at IS NULL)
ORDER BY trajectory_id, sequence_number, quarantine_id;

-- name: open_trajectories
-- The trajectories that have open entries, after `after`, in order of their ids.
SELECT DISTINCT trajectory_id FROM quarantine
WHERE admitted_at IS NULL AND (%(after)s::uuid IS NULL OR trajectory_id > %(after)s::uuid)
ORDER BY trajectory_id LIMIT %(limit)s::bigint;

-- name: open_events
-- Open entries of these trajectories in the order of their histories, after a position; those that wait for events
-- before them, or all.
SELECT quarantine_id, log_id, lsn, header, body, erased, secret, reason
FROM quarantine
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND admitted_at IS NULL AND (%(all)s::boolean OR reason = 'gap')
  AND (%(after_id)s::uuid IS NULL
       OR (trajectory_id, sequence_number, quarantine_id)
          > (%(after_id)s::uuid, %(after_sequence)s::bigint, %(after_quarantine)s::bigint))
ORDER BY trajectory_id, sequence_number, quarantine_id
LIMIT %(limit)s::bigint;

-- name: mark_admitted
-- These entries are part of the canonical history now.
UPDATE quarantine SET admitted_at = clock_timestamp() WHERE quarantine_id = ANY(%(ids)b::bigint[]);

-- name: change_reasons
-- These entries are still refused, for another reason than before.
UPDATE quarantine AS q SET reason = b.reason, detail = b.detail
FROM unnest(%(ids)b::bigint[], %(reasons)b::text[], %(details)b::text[]) AS b(id, reason, detail)
WHERE q.quarantine_id = b.id;

-- name: open_lsns
-- The events of a log after an LSN that are not part of the canonical history.
SELECT lsn FROM quarantine
WHERE log_id = %(log_id)s::uuid AND lsn > %(after)s::bigint AND admitted_at IS NULL ORDER BY lsn;

-- name: first_open
-- The first open entry of a trajectory.
SELECT log_id, lsn, header, body, erased, secret FROM quarantine
WHERE trajectory_id = %(trajectory_id)s::uuid AND admitted_at IS NULL
ORDER BY sequence_number, quarantine_id LIMIT 1;
