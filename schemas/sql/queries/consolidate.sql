-- Consolidation: what is planned, read and marked in the warm tier. A plan is a row of consolidation_runs with its
-- items, one per segment; it stays `planned` until its run is in the cold table's catalog and the heads are marked.

-- name: lock
-- One consolidation at a time in a database; the lock ends with the session, however that ends.
SELECT pg_try_advisory_lock(hashtextextended('stratalog.consolidate', 0));

-- name: unlock
-- Give the lock back at once.
SELECT pg_advisory_unlock(hashtextextended('stratalog.consolidate', 0));

-- name: still_locked
-- Whether this session holds the lock.
SELECT EXISTS (
  SELECT 1 FROM pg_locks
  WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
    AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('stratalog.consolidate', 0));

-- name: unlimited
-- Planning and streaming take as long as there is data; for this transaction only.
SET LOCAL statement_timeout = 0;

-- name: open_runs
-- Runs that were planned and not completed, the oldest first.
SELECT run_id, cutoff FROM consolidation_runs WHERE state = 'planned' ORDER BY started_at, run_id;

-- name: insert_run
-- A new run; its items follow in the same transaction.
INSERT INTO consolidation_runs (run_id, cutoff) VALUES (%(run_id)b, %(cutoff)b);

-- name: insert_items
-- Everything that has events beyond its mark and has ended before the cutoff, or was imported and is idle since before
-- the idle cutoff: one segment each, from the mark to the head as it is now. Trajectories with events in quarantine
-- wait, because what belongs to their history is not settled; so do those of which an open run has a part.
INSERT INTO consolidation_items (run_id, trajectory_id, tenant, start_date, model, first_sequence, last_sequence,
  previous_hash, last_hash, summary)
SELECT %(run_id)b, t.trajectory_id, t.tenant,
  least((uuid7_time(t.trajectory_id) AT TIME ZONE 'UTC')::date, date '9999-12-31'),
  t.model, t.consolidated_through + 1, t.head_sequence,
  coalesce(t.consolidated_hash, decode(repeat('00', 32), 'hex')), t.head_hash, t.summary
FROM trajectories t
WHERE t.head_sequence > t.consolidated_through
  AND (t.finished_at < %(cutoff)b OR (t.imported AND t.last_event_at < %(idle_cutoff)b))
  AND NOT EXISTS (
    SELECT 1 FROM quarantine q WHERE q.trajectory_id = t.trajectory_id AND q.admitted_at IS NULL)
  AND NOT EXISTS (
    SELECT 1 FROM consolidation_items i JOIN consolidation_runs r USING (run_id)
    WHERE i.trajectory_id = t.trajectory_id AND r.state = 'planned');

-- name: quarantined
-- Trajectories that would be taken if nothing of them were in quarantine.
SELECT t.trajectory_id, count(*)
FROM trajectories t JOIN quarantine q ON q.trajectory_id = t.trajectory_id AND q.admitted_at IS NULL
WHERE t.head_sequence > t.consolidated_through
  AND (t.finished_at < %(cutoff)b OR (t.imported AND t.last_event_at < %(idle_cutoff)b))
GROUP BY t.trajectory_id
ORDER BY t.trajectory_id
LIMIT %(limit)b;

-- name: groups
-- The folders' tenants, days and models of a run; models with the same folder name are put together by the caller.
SELECT tenant, to_char(start_date, 'YYYY-MM-DD'), start_date - date '1970-01-01', model
FROM consolidation_items WHERE run_id = %(run_id)b
GROUP BY tenant, start_date, model ORDER BY tenant, start_date, model;

-- name: items
-- The next items of one folder, in the order of the trajectory ids, with the secrets.
SELECT i.trajectory_id, i.model, i.first_sequence, i.last_sequence, i.previous_hash, i.last_hash, i.summary, t.secret
FROM consolidation_items i LEFT JOIN trajectories t USING (trajectory_id)
WHERE i.run_id = %(run_id)b AND i.tenant = %(tenant)b AND i.start_date = date '1970-01-01' + %(date)b::integer
  AND i.model = ANY (%(models)b::text[])
  AND (%(after)b::uuid IS NULL OR i.trajectory_id > %(after)b::uuid)
ORDER BY i.trajectory_id
LIMIT %(limit)b;

-- name: events
-- The events of some segments, in order, for `warm/copying.py`. The ids are given twice: as literals they let the
-- planner skip partitions.
COPY (
  SELECT e.trajectory_id, e.sequence_number, e.epoch, e.created_at, e.schema_version, e.turn,
    e.cryptographic_hash, e.body_digest, e.erased, e.event_type, e.tenant, e.body
  FROM all_events e
  JOIN unnest(%(ids)s::uuid[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS i(id, first, last)
    ON e.trajectory_id = i.id AND e.sequence_number BETWEEN i.first AND i.last
  WHERE e.trajectory_id = ANY (%(ids)s::uuid[])
  ORDER BY e.trajectory_id, e.sequence_number
) TO STDOUT (FORMAT binary);

-- name: drop_items
-- Leave damaged trajectories out of a run that is not committed yet; a later run plans them again.
DELETE FROM consolidation_items WHERE run_id = %(run_id)b AND trajectory_id = ANY (%(ids)b::uuid[]);

-- name: totals
-- How many segments and events a run has.
SELECT count(*), coalesce(sum(last_sequence - first_sequence + 1), 0)::bigint
FROM consolidation_items WHERE run_id = %(run_id)b;

-- name: mark_trajectories
-- Everything up to the segment's end is in the cold table now, read back and compared.
-- The heads are locked in the order in which ingest locks them.
WITH locked AS (
  SELECT trajectory_id FROM trajectories
  WHERE trajectory_id IN (SELECT trajectory_id FROM consolidation_items WHERE run_id = %(run_id)b)
  ORDER BY trajectory_id FOR UPDATE)
UPDATE trajectories t
SET consolidated_through = i.last_sequence, consolidated_hash = i.last_hash, updated_at = clock_timestamp()
FROM consolidation_items i JOIN locked USING (trajectory_id)
WHERE i.run_id = %(run_id)b AND t.trajectory_id = i.trajectory_id AND t.consolidated_through < i.last_sequence;

-- name: mark_run
-- The run is complete.
UPDATE consolidation_runs
SET state = 'marked', finished_at = clock_timestamp(), trajectories = %(trajectories)b, events = %(events)b,
  files = %(files)b, bytes = %(bytes)b
WHERE run_id = %(run_id)b AND state = 'planned';
