-- Who this database is, for the storages that belong to it.

-- name: database_id
-- Its id, made with the schema.
SELECT database_id::text FROM installation;

-- name: renew
-- A restored database is another one than that of the backup.
UPDATE installation SET database_id = gen_random_uuid(), made_at = clock_timestamp();

-- name: known_runs
-- Those of some runs that were ever planned in this database; rewrites name their files in the same way.
SELECT run_id::text FROM consolidation_runs WHERE run_id::text = ANY (%(run_ids)s::text[])
UNION ALL
SELECT rewrite_id::text FROM rewrites WHERE rewrite_id::text = ANY (%(run_ids)s::text[]);
