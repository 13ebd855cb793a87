-- Pinning without the right to write: who may only read still keeps the files of the snapshot that is read.
--
-- The functions run with the rights of the owner of the tables, and do no more than a reader needs: a pin of an hour at
-- most, which holds as long as the caller's session; nobody touches a pin that another session has taken. Jobs wait for
-- a pin for a bounded time, so a reader can delay them and never stop them. Whoever may use the schema may pin; REVOKE
-- EXECUTE … FROM PUBLIC changes that.

CREATE FUNCTION pin_snapshot(reader text, seconds double precision) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = stratalog, pg_temp AS $$
DECLARE new_id bigint;
BEGIN
  -- What crashed readers have left, and what has outlived its time.
  DELETE FROM snapshot_pins AS p
  WHERE p.pinned_until <= clock_timestamp() OR NOT EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('stratalog.pin.' || p.pin_id, 0));
  INSERT INTO snapshot_pins (reader, pinned_until)
  VALUES (left(pin_snapshot.reader, 200),
          clock_timestamp() + make_interval(secs => least(greatest(pin_snapshot.seconds, 0.001), 3600)))
  RETURNING pin_id INTO new_id;
  -- In the same transaction, so nobody ever sees the row of a living reader without its lock. It outlives the
  -- transaction and ends with the session.
  PERFORM pg_advisory_lock(hashtextextended('stratalog.pin.' || new_id, 0));
  RETURN new_id;
END $$;

-- Whether the calling session has taken a pin.
CREATE FUNCTION holds_pin(of_pin bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = pg_backend_pid()
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('stratalog.pin.' || of_pin, 0))
$$;

-- What the reader has found to be current after it had pinned.
CREATE FUNCTION name_pinned_snapshot(of_pin bigint, id bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = stratalog, pg_temp AS $$
  UPDATE snapshot_pins SET snapshot_id = id WHERE pin_id = of_pin AND holds_pin(of_pin)
$$;

-- The reader has finished; harmless for a pin that has ended, or that another session has taken.
CREATE FUNCTION unpin_snapshot(of_pin bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = stratalog, pg_temp AS $$
  DELETE FROM snapshot_pins WHERE pin_id = of_pin AND holds_pin(of_pin)
$$;
