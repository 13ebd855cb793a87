-- What `stratalog verify` reads, in the order of the primary key, so that it needs no memory.

-- name: begin
-- One view of the database for the whole check.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: by_index
-- Walk along the primary keys: sorting would first copy every body into a temporary file.
SELECT set_config('enable_sort', 'off', true);

-- name: heads
-- All heads.
SELECT trajectory_id, secret, head_sequence, head_hash, events, consolidated_through, consolidated_hash
FROM trajectories ORDER BY trajectory_id;

-- name: events
-- All events.
SELECT trajectory_id, sequence_number, tenant, event_type, epoch, schema_version, created_at, cryptographic_hash,
       body_digest, body, erased
FROM all_events ORDER BY trajectory_id, sequence_number;
