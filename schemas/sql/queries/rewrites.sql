-- Rewrites of data files of the cold table; see 008_rewrites.sql. Whoever writes here holds the lock on consolidation.

-- name: insert_rewrite
-- A new plan; its old files follow in the same transaction.
INSERT INTO rewrites (rewrite_id, kind) VALUES (%(rewrite_id)s, %(kind)s);

-- name: insert_files
-- Files that the rewrite takes away, or that it has written.
INSERT INTO rewrite_files (rewrite_id, path, role)
SELECT %(rewrite_id)s, path, %(role)s FROM unnest(%(paths)s::text[]) AS path
ON CONFLICT DO NOTHING;

-- name: open_rewrites
-- What is planned or committed and not over, the oldest first, with its old files.
SELECT r.rewrite_id, r.kind, r.state, array_agg(f.path ORDER BY f.path)
FROM rewrites r JOIN rewrite_files f ON f.rewrite_id = r.rewrite_id AND f.role = 'old'
WHERE r.state IN ('planned', 'committed')
GROUP BY r.rewrite_id ORDER BY r.started_at, r.rewrite_id;

-- name: committed
-- Its snapshot is the table's.
UPDATE rewrites SET state = 'committed', committed_at = clock_timestamp()
WHERE rewrite_id = %(rewrite_id)s AND state = 'planned';

-- name: done
-- Its old files are gone.
UPDATE rewrites SET state = 'done', finished_at = clock_timestamp()
WHERE rewrite_id = %(rewrite_id)s AND state = 'committed';

-- name: undone
-- It was never committed, and its new files are gone.
UPDATE rewrites SET state = 'undone', finished_at = clock_timestamp()
WHERE rewrite_id = %(rewrite_id)s AND state = 'planned';

-- name: replaced
-- Those of some files that a rewrite of the given kind has taken away.
SELECT DISTINCT f.path FROM rewrite_files f JOIN rewrites r USING (rewrite_id)
WHERE f.role = 'old' AND r.kind = %(kind)s AND r.state IN ('committed', 'done') AND f.path = ANY (%(paths)s::text[]);

-- name: known_ids
-- Those of some ids, which begin the names of data files, that runs and rewrites of this database have.
SELECT id::text FROM (
  SELECT run_id AS id FROM consolidation_runs UNION ALL SELECT rewrite_id FROM rewrites) AS known
WHERE id::text = ANY (%(ids)s::text[]);

-- name: not_in_ledger
-- Those of some trajectories that nobody has erased.
SELECT id FROM unnest(%(ids)s::uuid[]) AS id
WHERE NOT EXISTS (SELECT 1 FROM erased_trajectories e WHERE e.trajectory_id = id) ORDER BY id LIMIT 1;

-- name: cold_gone
-- Nothing of these is left in the cold tier.
UPDATE erased_trajectories SET cold_gone_at = clock_timestamp()
WHERE trajectory_id = ANY (%(ids)s::uuid[]) AND cold_gone_at IS NULL;
