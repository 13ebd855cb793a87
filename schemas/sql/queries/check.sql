-- What `stratalog verify` reads, in the order of the primary key, so that it needs no memory.

-- name: begin
-- One view of the database for the whole check.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: unlimited
-- A check takes as long as there is data, and waits for those who look at other parts of the same view.
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true);

-- name: export
-- The name of this view of the database; it lasts as long as this transaction.
SELECT pg_export_snapshot();

-- name: import
-- The same view as the transaction that has exported it. Postgres takes no parameter here: it is bound by the client.
SET TRANSACTION SNAPSHOT %(snapshot)s;

-- name: by_index
-- Walk along the primary keys: sorting would first copy every body into a temporary file.
SELECT set_config('enable_sort', 'off', true);

-- name: total
-- About how much there is to read.
SELECT coalesce(sum(events), 0)::bigint FROM trajectories;

-- name: ids
-- All trajectories that have a head.
SELECT trajectory_id FROM trajectories ORDER BY trajectory_id;

-- name: bounds
-- The first trajectory of each of so many parts with about as many events.
SELECT DISTINCT ON (part) trajectory_id FROM (
  SELECT trajectory_id, (sum(events) OVER (ORDER BY trajectory_id) - events) * %(parts)b::integer
    / greatest(1, sum(events) OVER ()) AS exact FROM trajectories) AS placed
  CROSS JOIN LATERAL floor(placed.exact) AS part
ORDER BY part, trajectory_id;

-- name: heads
-- The heads of a range, or of some trajectories in it.
SELECT trajectory_id, secret, head_sequence, head_hash, events, consolidated_through, consolidated_hash
FROM trajectories
WHERE trajectory_id BETWEEN %(first)b AND %(last)b AND (%(ids)b::uuid[] IS NULL OR trajectory_id = ANY (%(ids)b::uuid[]))
ORDER BY trajectory_id;

-- name: last_events
-- Where every trajectory ends.
SELECT trajectory_id, head_sequence, head_hash FROM trajectories ORDER BY trajectory_id;

-- name: events
-- The events of a range, for `warm/copying.py`.
COPY (
  SELECT trajectory_id, sequence_number, epoch, created_at, schema_version, turn, cryptographic_hash, body_digest,
    erased, event_type, tenant, body
  FROM all_events WHERE trajectory_id BETWEEN %(first)s AND %(last)s ORDER BY trajectory_id, sequence_number
) TO STDOUT (FORMAT binary);

-- name: chosen_events
-- The events of some trajectories, for `warm/copying.py`.
COPY (
  SELECT trajectory_id, sequence_number, epoch, created_at, schema_version, turn, cryptographic_hash, body_digest,
    erased, event_type, tenant, body
  FROM all_events WHERE trajectory_id = ANY (%(ids)s::uuid[]) ORDER BY trajectory_id, sequence_number
) TO STDOUT (FORMAT binary);
