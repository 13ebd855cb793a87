-- Packs of content: where pieces lie, which of them nothing refers to, and what is on its way out.

-- name: lock
-- One at a time makes, rewrites or deletes packs, or erases content; the lock ends with the session, however that ends.
SELECT pg_advisory_lock(hashtextextended('stratalog.packs', 0));

-- name: unlock
-- Give the lock back at once.
SELECT pg_advisory_unlock(hashtextextended('stratalog.packs', 0));

-- name: unlimited
-- What takes as long as there are packs; for this transaction only.
SET LOCAL statement_timeout = 0;

-- name: patience
-- How long the lock is waited for.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true);

-- name: find
-- The pack that a piece lies in, and how long its file is.
SELECT c.name, c.bytes FROM packed_content p JOIN content_packs c ON (c.tenant, c.name) = (p.tenant, p.pack)
WHERE p.tenant = %(tenant)s AND p.sha256 = %(sha256)s AND c.replaced_at IS NULL;

-- name: known
-- Those of some pieces that lie in a pack, which one that is, and whether they are needed no more.
SELECT sha256, pack, dead_since IS NOT NULL FROM packed_content
WHERE tenant = %(tenant)s AND sha256 = ANY (%(sha256s)s::bytea[]);

-- name: live
-- All pieces in packs that are not known to be needed no more, with their length.
SELECT tenant, sha256, length FROM packed_content WHERE dead_since IS NULL;

-- name: insert_pack
-- A pack that was read back.
INSERT INTO content_packs (tenant, name, bytes, raw_bytes, pieces)
VALUES (%(tenant)s, %(name)s, %(bytes)s, %(raw_bytes)s, %(pieces)s)
ON CONFLICT (tenant, name) DO UPDATE SET replaced_at = NULL;

-- name: place
-- Pieces lie in this pack now, wherever they lay before; one that was dead stays it unless `revived`.
INSERT INTO packed_content AS known (tenant, sha256, pack, start, length)
SELECT %(tenant)s, sha256, %(name)s, start, length
FROM unnest(%(sha256s)s::bytea[], %(starts)s::bigint[], %(lengths)s::bigint[]) AS given(sha256, start, length)
ON CONFLICT (tenant, sha256) DO UPDATE
SET pack = EXCLUDED.pack, start = EXCLUDED.start, length = EXCLUDED.length,
    dead_since = CASE WHEN %(revived)s THEN NULL ELSE known.dead_since END;

-- name: place_unknown
-- Pieces of this pack that no row knows.
INSERT INTO packed_content (tenant, sha256, pack, start, length)
SELECT %(tenant)s, sha256, %(name)s, start, length
FROM unnest(%(sha256s)s::bytea[], %(starts)s::bigint[], %(lengths)s::bigint[]) AS given(sha256, start, length)
ON CONFLICT DO NOTHING;

-- name: pieces
-- What the rows say lies in a pack.
SELECT sha256, start, length, dead_since IS NOT NULL FROM packed_content
WHERE tenant = %(tenant)s AND pack = %(name)s;

-- name: kill
-- Nothing refers to these pieces any more.
UPDATE packed_content SET dead_since = clock_timestamp()
WHERE (tenant, sha256) IN (SELECT * FROM unnest(%(tenants)s::text[], %(digests)s::bytea[])) AND dead_since IS NULL;

-- name: revive
-- These pieces are needed again.
UPDATE packed_content SET dead_since = NULL
WHERE tenant = %(tenant)s AND sha256 = ANY (%(sha256s)s::bytea[]);

-- name: forget_pieces
-- These pieces are in no pack any more.
DELETE FROM packed_content WHERE tenant = %(tenant)s AND sha256 = ANY (%(sha256s)s::bytea[]);

-- name: replace
-- Nothing of this pack is needed any more: rows that still say that a piece is in it say so of dead or erased ones.
WITH gone AS (DELETE FROM packed_content WHERE tenant = %(tenant)s AND pack = %(name)s)
UPDATE content_packs SET replaced_at = clock_timestamp() WHERE tenant = %(tenant)s AND name = %(name)s;

-- name: forget_pack
-- Its file is gone.
DELETE FROM content_packs WHERE tenant = %(tenant)s AND name = %(name)s;

-- name: packs
-- Every pack, with how much of its content is needed.
SELECT c.tenant, c.name, c.bytes, c.raw_bytes, c.replaced_at IS NOT NULL,
  coalesce(sum(p.length) FILTER (WHERE p.dead_since IS NULL), 0)::bigint,
  count(p.sha256) FILTER (WHERE p.dead_since IS NULL), count(p.sha256)
FROM content_packs c LEFT JOIN packed_content p ON (p.tenant, p.pack) = (c.tenant, c.name)
GROUP BY c.tenant, c.name ORDER BY c.tenant, c.name;

-- name: looked_through
-- Those of some data files that were looked through.
SELECT path FROM packed_files WHERE path = ANY (%(paths)s::text[]);

-- name: note_files
-- These data files were looked through.
INSERT INTO packed_files (path) SELECT unnest(%(paths)s::text[]) ON CONFLICT DO NOTHING;

-- name: forget_files
-- Data files that are not in the snapshot any more.
DELETE FROM packed_files WHERE path <> ALL (%(paths)s::text[]);

-- name: dropped
-- By which policy a piece has gone although events refer to it, and when.
SELECT policy, version, dropped_at FROM dropped_content WHERE tenant = %(tenant)s AND sha256 = %(sha256)s;

-- name: object_locked
-- Whether we have set a legal hold on an object of the content store; see object_locks.sql.
SELECT 1 FROM object_locks WHERE place = 'content' AND path = %(path)s;

-- name: note_lock
-- An object of the content store is about to be locked.
INSERT INTO object_locks (place, path) VALUES ('content', %(path)s) ON CONFLICT DO NOTHING;

-- name: forget_lock
-- An object of the content store was released.
DELETE FROM object_locks WHERE place = 'content' AND path = %(path)s;
