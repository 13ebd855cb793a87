-- What one batch of one hot log does beside the histories themselves (`ledger.sql`).

-- name: move_cursor
-- Move the log's cursor from the event before the batch to the last event of it, or do nothing: then somebody else has
-- moved it, or the log begins in the middle. Locks the cursor until the end of the transaction.
INSERT INTO log_cursors AS c (log_id, lsn, hash, opening, events)
SELECT %(log_id)b::uuid, %(lsn)b::bigint, %(hash)b::bytea, %(opening)b::bytea, %(events)b::bigint
WHERE %(predecessor)b::bigint = 0 OR EXISTS (SELECT 1 FROM log_cursors WHERE log_id = %(log_id)b::uuid)
ON CONFLICT (log_id) DO UPDATE
SET lsn = excluded.lsn, hash = excluded.hash, opening = excluded.opening, events = c.events + excluded.events,
  updated_at = clock_timestamp()
WHERE c.lsn = %(predecessor)b::bigint;

-- name: read_cursor
-- How far a log was replicated.
SELECT lsn, hash, opening FROM log_cursors WHERE log_id = %(log_id)b::uuid;

-- name: inherit_cursor
-- A log that was given a new id begins where it was pruned, if that was replicated under its previous id: the cursor
-- stands there, at the same event, or beyond.
INSERT INTO log_cursors (log_id, lsn, hash, events)
SELECT %(log_id)b::uuid, %(lsn)b::bigint, %(hash)b::bytea, 0
FROM log_cursors p
WHERE p.log_id = %(previous)b::uuid
  AND (p.lsn > %(lsn)b::bigint OR (p.lsn = %(lsn)b::bigint AND p.hash = %(hash)b::bytea))
ON CONFLICT (log_id) DO NOTHING;

-- name: quarantine_events
-- Keep what was not admitted, whole. One that is there already (same log and LSN) must be the same event: the caller
-- compares the counts.
INSERT INTO quarantine AS q (log_id, lsn, trajectory_id, sequence_number, tenant, reason, detail, header, body, erased,
  secret)
SELECT %(log_id)b::uuid, lsn, id, sequence, tenant, reason, detail, header, body, erased, secret
FROM unnest(%(lsns)b::bigint[], %(ids)b::uuid[], %(sequences)b::bigint[], %(tenants)b::text[], %(reasons)b::text[],
  %(details)b::text[], %(headers)b::bytea[], %(bodies)b::bytea[], %(erased)b::boolean[], %(secrets)b::bytea[])
  AS b(lsn, id, sequence, tenant, reason, detail, header, body, erased, secret)
ORDER BY lsn
ON CONFLICT (log_id, lsn) DO UPDATE SET reason = excluded.reason, detail = excluded.detail
WHERE q.header = excluded.header;
