-- Erasure in the warm tier, and the ledger that every other place follows. See 007_erasure.sql for the order of locks.

-- name: lock_ledger
-- One transaction at a time adds to the ledger, so that places become visible in their order.
SELECT pg_advisory_xact_lock(hashtextextended('stratalog.erasures', 0));

-- name: insert_erasure
-- A request; what it names follows in the same transaction.
INSERT INTO erasures (kind, tenant, subject, requested_by, reason)
VALUES (%(kind)s, %(tenant)s, %(subject)s::bytea, %(by)s, %(reason)s) RETURNING erasure_id;

-- name: insert_items
-- What it names, and all that descends from it. Those that are not known here have the tenant that the request says, or
-- that of the trajectory they descend from.
WITH RECURSIVE family(id, tenant) AS (
  SELECT id, coalesce(t.tenant, %(tenant)s) FROM unnest(%(ids)b::uuid[]) AS b(id)
    LEFT JOIN trajectories t ON t.trajectory_id = id
  UNION
  SELECT l.child_id, coalesce(t.tenant, f.tenant) FROM family f JOIN trajectory_links l ON l.parent_id = f.id
    LEFT JOIN trajectories t ON t.trajectory_id = l.child_id)
INSERT INTO erasure_items (erasure_id, trajectory_id, tenant)
SELECT %(erasure_id)s, id, min(tenant) FROM family GROUP BY id ON CONFLICT DO NOTHING;

-- name: insert_ledger_items
-- What another ledger has, with the tenants that it says.
INSERT INTO erasure_items (erasure_id, trajectory_id, tenant)
SELECT %(erasure_id)s, id, tenant FROM unnest(%(ids)b::uuid[], %(tenants)b::text[]) AS b(id, tenant);

-- name: unknown
-- Those of `ids` that are neither here nor in the ledger.
SELECT id FROM unnest(%(ids)b::uuid[]) AS b(id)
WHERE NOT EXISTS (SELECT 1 FROM trajectories t WHERE t.trajectory_id = id)
  AND NOT EXISTS (SELECT 1 FROM erased_trajectories e WHERE e.trajectory_id = id)
  AND NOT EXISTS (SELECT 1 FROM trajectory_links l WHERE l.child_id = id);

-- name: of_subject
-- The trajectories that are about a subject.
SELECT trajectory_id FROM trajectory_subjects
WHERE tenant = %(tenant)s AND subject = %(subject)b ORDER BY trajectory_id;

-- name: open_requests
-- The requests that still have something to do in the warm tier, or one of them.
SELECT DISTINCT erasure_id FROM erasure_items
WHERE state <> 'erased' AND (%(erasure_id)s::bigint IS NULL OR erasure_id = %(erasure_id)s::bigint)
ORDER BY erasure_id;

-- name: next_items
-- The next trajectories of a request that are not erased yet.
SELECT trajectory_id FROM erasure_items
WHERE erasure_id = %(erasure_id)s AND state <> 'erased'
  AND (%(after)s::uuid IS NULL OR trajectory_id > %(after)s::uuid)
ORDER BY trajectory_id LIMIT %(limit)s;

-- name: judge
-- What keeps each of these: the matters that hold it, or that hold something which descends from it and so refers to
-- it; and whether the partition that it lies in is being dropped. Under the locks on holds and heads.
SELECT i.trajectory_id, i.tenant, m.matters,
  EXISTS (SELECT 1 FROM event_partitions p WHERE p.drop_state IS NOT NULL
          AND i.trajectory_id >= uuid7_floor(p.lower::timestamp AT TIME ZONE 'UTC')
          AND i.trajectory_id < uuid7_floor(p.upper::timestamp AT TIME ZONE 'UTC'))
FROM erasure_items i
CROSS JOIN LATERAL (
  SELECT array_agg(DISTINCT matter ORDER BY matter) AS matters
  FROM with_descendants(ARRAY[i.trajectory_id]) AS d(id)
  CROSS JOIN LATERAL unnest(holding_matters(
    d.id, coalesce((SELECT tenant FROM trajectories t WHERE t.trajectory_id = d.id), i.tenant))) AS matter) AS m
WHERE i.erasure_id = %(erasure_id)s AND i.trajectory_id = ANY(%(ids)b::uuid[]) ORDER BY i.trajectory_id;

-- name: keep_items
-- These are held; they are looked at again by the next run.
UPDATE erasure_items AS i SET state = 'held', matters = string_to_array(b.matters, E'\n')
FROM unnest(%(ids)b::uuid[], %(matters)b::text[]) AS b(id, matters)
WHERE i.erasure_id = %(erasure_id)s AND i.trajectory_id = b.id;

-- name: insert_erased
-- Into the ledger, from which nothing is ever taken.
INSERT INTO erased_trajectories (trajectory_id, tenant, erasure_id)
SELECT i.trajectory_id, i.tenant, i.erasure_id FROM erasure_items i
WHERE i.erasure_id = %(erasure_id)s AND i.trajectory_id = ANY(%(ids)b::uuid[]) ORDER BY i.trajectory_id
ON CONFLICT (trajectory_id) DO NOTHING;

-- name: finish_items
-- These are erased: whoever asked first, there is nothing left to do in this stage.
UPDATE erasure_items SET state = 'erased', matters = '{}'
WHERE erasure_id = %(erasure_id)s AND trajectory_id = ANY(%(ids)b::uuid[]);

-- name: note_content
-- What these bodies referred to, to be looked at when bytes are removed.
INSERT INTO erased_content (tenant, sha256, erasure_id)
SELECT tenant, digest, %(erasure_id)s FROM unnest(%(tenants)b::text[], %(digests)b::bytea[]) AS b(tenant, digest)
ORDER BY 1, 2 ON CONFLICT (tenant, sha256) DO UPDATE
SET erasure_id = excluded.erasure_id, needed = false, put_at = NULL;

-- name: add_related
-- What came to be known after a request and is covered by it: what descends from something erased, and trajectories
-- that began before a subject was erased and are about it.
INSERT INTO erasure_items (erasure_id, trajectory_id, tenant)
SELECT e.erasure_id, l.child_id, coalesce(t.tenant, e.tenant)
FROM trajectory_links l JOIN erased_trajectories e ON e.trajectory_id = l.parent_id
LEFT JOIN trajectories t ON t.trajectory_id = l.child_id
WHERE NOT EXISTS (SELECT 1 FROM erased_trajectories x WHERE x.trajectory_id = l.child_id)
UNION
SELECT r.erasure_id, s.trajectory_id, s.tenant
FROM erasures r JOIN trajectory_subjects s ON s.tenant = r.tenant AND s.subject = r.subject
WHERE r.kind = 'subject' AND uuid7_time(s.trajectory_id) < r.requested_at
  AND NOT EXISTS (SELECT 1 FROM erased_trajectories x WHERE x.trajectory_id = s.trajectory_id)
ON CONFLICT DO NOTHING;

-- name: pending_of_log
-- The next entries of the ledger that a log has not followed.
SELECT e.place, e.trajectory_id FROM erased_trajectories e
WHERE e.place > coalesce((SELECT place FROM log_erasures WHERE log_id = %(log_id)s), 0)
ORDER BY e.place LIMIT %(limit)s;

-- name: followed_by_log
-- A log has followed the ledger up to here.
INSERT INTO log_erasures AS l (log_id, place, events) VALUES (%(log_id)s, %(place)s, %(events)s)
ON CONFLICT (log_id) DO UPDATE SET place = greatest(l.place, excluded.place), events = l.events + excluded.events,
  updated_at = clock_timestamp();

-- name: abandon_log
-- Nobody waits for this log any more.
INSERT INTO log_erasures AS l (log_id, place, abandoned) VALUES (%(log_id)s, 0, %(reason)s)
ON CONFLICT (log_id) DO UPDATE SET abandoned = excluded.abandoned, updated_at = clock_timestamp();

-- name: logs_behind
-- The logs that were ever replicated here and have not followed the ledger up to a place, nor were given up.
SELECT c.log_id, coalesce(l.place, 0), c.updated_at FROM log_cursors c LEFT JOIN log_erasures l USING (log_id)
WHERE coalesce(l.place, 0) < %(place)s AND l.abandoned IS NULL ORDER BY c.log_id;

-- name: abandoned_logs
-- The logs that nobody waits for, and why.
SELECT log_id, abandoned FROM log_erasures WHERE abandoned IS NOT NULL ORDER BY log_id;

-- name: among
-- Those of `ids` that are erased.
SELECT trajectory_id FROM erased_trajectories WHERE trajectory_id = ANY(%(ids)b::uuid[]);

-- name: entries
-- The requests, newest last, with how far they have got: trajectories by state, and those whose bytes are gone.
SELECT r.erasure_id, r.kind, r.tenant, r.requested_by, r.reason, r.requested_at,
  count(i.trajectory_id), count(*) FILTER (WHERE i.state = 'erased'), count(*) FILTER (WHERE i.state = 'held'),
  count(*) FILTER (WHERE e.warm_gone_at IS NOT NULL), count(*) FILTER (WHERE e.cold_gone_at IS NOT NULL),
  coalesce(max(e.place), 0),
  ARRAY(SELECT DISTINCT tier FROM erasure_receipts x WHERE x.erasure_id = r.erasure_id ORDER BY tier)
FROM erasures r LEFT JOIN erasure_items i USING (erasure_id)
LEFT JOIN erased_trajectories e ON e.trajectory_id = i.trajectory_id
WHERE %(erasure_id)s::bigint IS NULL OR r.erasure_id = %(erasure_id)s::bigint
GROUP BY r.erasure_id ORDER BY r.erasure_id;

-- name: items
-- What a request names, and how far each has got.
SELECT i.trajectory_id, i.tenant, i.state, i.matters, e.erasure_id, e.erased_at, e.warm_gone_at, e.cold_gone_at
FROM erasure_items i LEFT JOIN erased_trajectories e USING (trajectory_id)
WHERE i.erasure_id = %(erasure_id)s ORDER BY i.trajectory_id;

-- name: ledger
-- The whole ledger, in its order.
SELECT e.trajectory_id, e.tenant, e.erased_at, r.reason, r.requested_by
FROM erased_trajectories e JOIN erasures r USING (erasure_id) ORDER BY e.place;

-- name: warm_left
-- Erased trajectories whose bytes may still be in Postgres.
SELECT trajectory_id FROM erased_trajectories WHERE warm_gone_at IS NULL ORDER BY place;

-- name: warm_gone
-- Their bytes are gone here.
UPDATE erased_trajectories SET warm_gone_at = clock_timestamp()
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND warm_gone_at IS NULL;

-- name: cold_left
-- Erased trajectories whose bytes may still be in the cold tier.
SELECT trajectory_id FROM erased_trajectories WHERE cold_gone_at IS NULL ORDER BY place;

-- name: partitions_of
-- The tables that may hold rows of these.
SELECT DISTINCT p.name FROM event_partitions p, unnest(%(ids)b::uuid[]) AS b(id)
WHERE b.id >= uuid7_floor(p.lower::timestamp AT TIME ZONE 'UTC')
  AND b.id < uuid7_floor(p.upper::timestamp AT TIME ZONE 'UTC') ORDER BY p.name;

-- name: content_left
-- Content that erased bodies referred to and that is still to be looked at, of one request or of all.
SELECT tenant, sha256, erasure_id FROM erased_content
WHERE NOT needed AND (%(erasure_id)s::bigint IS NULL OR erasure_id = %(erasure_id)s::bigint) ORDER BY tenant, sha256;

-- name: look_again
-- Before anybody looks who needs content: from here on, who puts it says so.
UPDATE erased_content SET put_at = NULL WHERE NOT needed AND put_at IS NOT NULL;

-- name: lock_content
-- Those of these pieces that nobody has put since; whoever puts one now waits until this transaction has ended.
SELECT c.tenant, c.sha256 FROM erased_content c
WHERE (c.tenant, c.sha256) IN (SELECT * FROM unnest(%(tenants)b::text[], %(digests)b::bytea[]))
  AND NOT c.needed AND c.put_at IS NULL ORDER BY c.tenant, c.sha256 FOR UPDATE;

-- name: content_needed
-- Somebody else refers to these.
UPDATE erased_content AS c SET needed = true FROM unnest(%(tenants)b::text[], %(digests)b::bytea[]) AS b(tenant, digest)
WHERE c.tenant = b.tenant AND c.sha256 = b.digest AND c.put_at IS NULL;

-- name: content_gone
-- These are gone; their digests, which are those of the content itself, go too.
DELETE FROM erased_content AS c USING unnest(%(tenants)b::text[], %(digests)b::bytea[]) AS b(tenant, digest)
WHERE c.tenant = b.tenant AND c.sha256 = b.digest;

-- name: content_counts
-- Of a request: pieces that are still to be looked at, and pieces that others need.
SELECT count(*) FILTER (WHERE NOT needed), count(*) FILTER (WHERE needed) FROM erased_content
WHERE erasure_id = %(erasure_id)s;

-- name: insert_receipt
-- What was done in a tier, as it was signed.
INSERT INTO erasure_receipts (erasure_id, tier, document, key_id, signature)
VALUES (%(erasure_id)s, %(tier)s, %(document)s, %(key_id)s, %(signature)s);

-- name: receipts
-- The receipts of a request, oldest first.
SELECT tier, document, key_id, signature, made_at FROM erasure_receipts
WHERE erasure_id = %(erasure_id)s ORDER BY receipt_id;

-- name: use_subject_key
-- Note which key hashes are made with.
INSERT INTO subject_keys (key_id) VALUES (%(key_id)s) ON CONFLICT DO NOTHING;

-- name: subject_keys
-- The keys that hashes were made with.
SELECT key_id FROM subject_keys ORDER BY used_at;

-- name: add_subjects
-- These trajectories are about a subject; those that are erased or not known here are left out.
INSERT INTO trajectory_subjects (tenant, subject, trajectory_id)
SELECT t.tenant, %(subject)s, t.trajectory_id FROM trajectories t
WHERE t.trajectory_id = ANY(%(ids)b::uuid[]) AND t.tenant = %(tenant)s
  AND NOT EXISTS (SELECT 1 FROM erased_trajectories e WHERE e.trajectory_id = t.trajectory_id)
ORDER BY t.trajectory_id ON CONFLICT DO NOTHING;
