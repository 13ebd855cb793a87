-- Pins of readers; see 005_pins.sql and 012_read_only_pins.sql. Times are those of the database, whatever the reader's
-- clock says.

-- name: take
-- A new pin, with the lock of this session, by a function that also those may call who may only read.
SELECT pin_snapshot(%(reader)s, %(seconds)s);

-- name: set_snapshot
-- What the reader has found to be current after it had pinned.
SELECT name_pinned_snapshot(%(pin_id)s, %(snapshot_id)s);

-- name: delete
-- The reader has finished.
SELECT unpin_snapshot(%(pin_id)s);

-- name: unlock
-- After the row has gone.
SELECT pg_advisory_unlock(hashtextextended('stratalog.pin.' || %(pin_id)s::bigint, 0));

-- name: live
-- The pins that hold: their time is not over and their session is there. The oldest first.
SELECT pin_id, snapshot_id, reader, pinned_at, pinned_until
FROM snapshot_pins AS p
WHERE pinned_until > clock_timestamp() AND EXISTS (
  SELECT 1 FROM pg_locks
  WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('stratalog.pin.' || p.pin_id, 0))
ORDER BY pinned_at, pin_id;

-- name: masked
-- Trajectories that were erased and whose bytes may still be in the cold tier.
SELECT trajectory_id FROM erased_trajectories WHERE cold_gone_at IS NULL;
