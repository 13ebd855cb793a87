-- Pins of readers; see 005_pins.sql. Times are those of the database, whatever the reader's clock says.

-- name: insert
-- A new pin. Its lock is taken in the same transaction, so nobody ever sees the row of a living reader without it.
INSERT INTO snapshot_pins (reader, pinned_until)
VALUES (%(reader)s, clock_timestamp() + make_interval(secs => %(seconds)s))
RETURNING pin_id;

-- name: lock
-- The lock of this session: it outlives the transaction and ends with the session.
SELECT pg_advisory_lock(hashtextextended('stratalog.pin.' || %(pin_id)s::bigint, 0));

-- name: set_snapshot
-- What the reader has found to be current after it had pinned.
UPDATE snapshot_pins SET snapshot_id = %(snapshot_id)s WHERE pin_id = %(pin_id)s;

-- name: delete
-- The reader has finished.
DELETE FROM snapshot_pins WHERE pin_id = %(pin_id)s;

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

-- name: delete_dead
-- What crashed readers have left, and what has outlived its time.
DELETE FROM snapshot_pins AS p
WHERE pinned_until <= clock_timestamp() OR NOT EXISTS (
  SELECT 1 FROM pg_locks
  WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('stratalog.pin.' || p.pin_id, 0));
