-- Copying all tables of an installation out and back in.

-- name: snapshot
-- All tables as they are at one moment.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: unlimited
-- A table takes as long as it takes.
SET LOCAL statement_timeout = 0;

-- name: tables
-- Every table that holds something of its own: partitions are part of their parent, what is known of the migrations and
-- the partitions is made anew by whoever restores.
SELECT n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('stratalog', 'stratalog_catalog') AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND (n.nspname, c.relname) NOT IN (('stratalog', 'migrations'), ('stratalog', 'event_partitions'))
ORDER BY 1, 2;

-- name: columns
-- The columns that can be copied in again, in order.
SELECT attname FROM pg_attribute
WHERE attrelid = (quote_ident(%(schema)s) || '.' || quote_ident(%(name)s))::regclass
  AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum;

-- name: migrations
-- The migrations that these tables have, in order.
SELECT name FROM stratalog.migrations ORDER BY number;

-- name: without_triggers
-- Tables come in no particular order, so foreign keys are not checked; they held where the rows come from.
SET LOCAL session_replication_role = replica;

-- name: partitions
-- Partitions for the start days of the trajectories that are here.
SELECT stratalog.ensure_event_partitions(
  (SELECT coalesce(array_agg(DISTINCT (stratalog.uuid7_time(trajectory_id) AT TIME ZONE 'UTC')::date), '{}')
   FROM stratalog.trajectories WHERE NOT stray), 1);

-- name: identities
-- Identity columns, with the sequence that gives them.
SELECT n.nspname, c.relname, a.attname, pg_get_serial_sequence(quote_ident(n.nspname) || '.' || quote_ident(c.relname), a.attname)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('stratalog', 'stratalog_catalog') AND a.attidentity <> '' AND NOT a.attisdropped AND c.relkind = 'r';
