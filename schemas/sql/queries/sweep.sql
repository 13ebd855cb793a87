-- The sweep of content-addressed storage, and what those do who put content into it.

-- name: unlimited
-- Looking at everything takes as long as there is data; for this transaction only.
SET LOCAL statement_timeout = 0;

-- name: begin_putting
-- From before content is put until the events that refer to it are committed, shared with all who do that; whoever
-- erases content waits for those who have begun. It lasts as long as the session.
SELECT pg_advisory_lock_shared(hashtextextended('stratalog.contents', 0));

-- name: end_putting
-- The end of it.
SELECT pg_advisory_unlock_shared(hashtextextended('stratalog.contents', 0));

-- name: wait_for_putting
-- Nobody is putting content who had begun before; released at the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('stratalog.contents', 0));

-- name: note_put
-- Erased content that is put again: it is looked at once more before it goes. Waits for an erasure that deletes it.
UPDATE erased_content AS c SET put_at = clock_timestamp() FROM (
  SELECT tenant, sha256 FROM erased_content
  WHERE (tenant, sha256) IN (SELECT * FROM unnest(%(tenants)s::text[], %(digests)s::bytea[]))
  ORDER BY tenant, sha256 FOR UPDATE) AS found
WHERE c.tenant = found.tenant AND c.sha256 = found.sha256;

-- name: spare
-- Whoever puts content does this first, in a transaction of its own. Waits for a sweep that is deleting some of it; the
-- rows are locked in one order, so that two who put the same do not wait for each other.
DELETE FROM condemned_content c USING (
  SELECT tenant, sha256 FROM condemned_content
  WHERE (tenant, sha256) IN (SELECT * FROM unnest(%(tenants)s::text[], %(digests)s::bytea[]))
  ORDER BY tenant, sha256 FOR UPDATE) AS found
WHERE c.tenant = found.tenant AND c.sha256 = found.sha256;

-- name: now
-- The clock that counts the grace.
SELECT clock_timestamp();

-- name: partitions
-- The partitions of the events, and whether one of them is on its way out: its rows may then be in no table.
SELECT coalesce(array_agg(name ORDER BY name), '{}'), coalesce(bool_or(drop_state IS NOT NULL), false)
FROM event_partitions;

-- name: quarantined_references
-- Bodies in quarantine, also admitted ones, that may refer to content.
SELECT tenant, body FROM quarantine WHERE position('\x7b2224626c6f62223a'::bytea IN body) > 0;

-- name: condemned
-- All that is condemned.
SELECT tenant, sha256, condemned_at FROM condemned_content;

-- name: condemn
-- Nothing refers to it now; what is condemned already keeps its time.
INSERT INTO condemned_content (tenant, sha256)
SELECT * FROM unnest(%(tenants)s::text[], %(digests)s::bytea[])
ON CONFLICT DO NOTHING;

-- name: condemn_again
-- It was put again after it was condemned: the grace begins anew.
UPDATE condemned_content SET condemned_at = clock_timestamp()
WHERE (tenant, sha256) IN (SELECT * FROM unnest(%(tenants)s::text[], %(digests)s::bytea[]));

-- name: lock_due
-- Those of some pieces that are still condemned, and have been for the grace. What somebody puts right now is passed over.
SELECT tenant, sha256 FROM condemned_content
WHERE (tenant, sha256) IN (SELECT * FROM unnest(%(tenants)s::text[], %(digests)s::bytea[]))
  AND condemned_at <= %(cutoff)s
ORDER BY tenant, sha256 FOR UPDATE SKIP LOCKED;
