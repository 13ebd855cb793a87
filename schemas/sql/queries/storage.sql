-- How much lies where, and what the sweep of content-addressed storage knows.

-- name: unlimited
-- Looking at everything takes as long as there is data; for this transaction only.
SET LOCAL statement_timeout = 0;

-- name: warm_parts
-- Bytes of our tables by what they hold: rows, out-of-line values (TOAST) with their index, indexes; and what else the
-- database consists of. All parts together are the size of the database.
WITH ours AS (
  SELECT CASE WHEN n.nspname <> 'stratalog' THEN 'catalog'
              WHEN c.relname ~ '^trajectory_events(_[0-9]+|_stray)?$' THEN 'events'
              WHEN c.relname = 'trajectories' THEN 'heads'
              ELSE 'other tables' END AS part,
         pg_total_relation_size(c.oid) AS total,
         coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) AS toast,
         pg_indexes_size(c.oid) AS indexes
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname IN ('stratalog', 'stratalog_catalog') AND c.relkind = 'r'),
parts AS (
  SELECT part, sum(total - toast - indexes)::bigint AS rows, sum(toast)::bigint AS toast, sum(indexes)::bigint AS indexes
  FROM ours GROUP BY part)
SELECT part, rows, toast, indexes FROM parts
UNION ALL
SELECT 'system', greatest(pg_database_size(current_database()) - (SELECT coalesce(sum(total), 0) FROM ours), 0)::bigint, 0, 0
ORDER BY 1;

-- name: warm_kinds
-- Events by tenant and kind, with the stored (compressed) bytes of their bodies and projections. One pass over the rows;
-- values that lie out of line are not read.
SELECT tenant, event_type, count(*),
       coalesce(sum(pg_column_size(body) + coalesce(pg_column_size(payload), 0)), 0)::bigint
FROM all_events GROUP BY tenant, event_type ORDER BY tenant, event_type;

-- name: cold_kinds
-- For DuckDB: events by kind in a snapshot. Reads one small column.
SELECT kind, count(*) FROM events GROUP BY kind ORDER BY kind;

-- name: written
-- What was written on each of the last days (UTC), today included: the partitions of the trajectories that started then
-- (one without rows has pages of its indexes only), and the files of the consolidations that ended then.
SELECT d.day::date,
  coalesce((SELECT sum(pg_total_relation_size(to_regclass(quote_ident(p.name)))) FROM event_partitions p
            WHERE p.lower = d.day::date AND p.upper = d.day::date + 1
              AND pg_relation_size(to_regclass(quote_ident(p.name))) > 0), 0)::bigint,
  coalesce((SELECT sum(r.bytes) FROM consolidation_runs r
            WHERE r.state = 'marked' AND (r.finished_at AT TIME ZONE 'UTC')::date = d.day::date), 0)::bigint
FROM generate_series(%(today)s::date - %(days)s::integer + 1, %(today)s::date, interval '1 day') AS d(day)
ORDER BY d.day;

-- name: open_plans
-- How many consolidations are planned and not marked.
SELECT count(*) FROM consolidation_runs WHERE state = 'planned';

-- name: marked_runs
-- Those of some runs whose trajectories are marked: nobody looks for their snapshots any more.
SELECT run_id::text FROM consolidation_runs WHERE state = 'marked' AND run_id::text = ANY (%(run_ids)s::text[]);

-- name: known_runs
-- Those of some runs that were ever planned in this database; rewrites name their files in the same way.
SELECT run_id::text FROM consolidation_runs WHERE run_id::text = ANY (%(run_ids)s::text[])
UNION ALL
SELECT rewrite_id::text FROM rewrites WHERE rewrite_id::text = ANY (%(run_ids)s::text[]);
