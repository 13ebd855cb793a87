-- Looking for what must be gone.

-- name: columns
-- The columns of our tables that can hold a text or bytes, partitions by themselves.
SELECT n.nspname, c.relname, a.attname, t.typname
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid
WHERE n.nspname IN ('stratalog', 'stratalog_catalog') AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
  AND t.typname IN ('text', 'varchar', 'bytea', 'json', 'jsonb', '_text') AND has_table_privilege(c.oid, 'SELECT')
ORDER BY 1, 2, a.attnum;

-- name: events_of
-- How many events of these there are.
SELECT count(*) FROM all_events WHERE trajectory_id = ANY(%(ids)b::uuid[]);
