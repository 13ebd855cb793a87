-- Removing bytes from the files of the server. Each statement is a transaction of its own.

-- name: statement_timeout
-- Writing a table anew takes as long as it is large.
SELECT set_config('statement_timeout', %(ms)s::text, false);

-- name: lock_timeout
-- A table that stays locked is told of, not waited for for ever.
SELECT set_config('lock_timeout', %(ms)s::text, false);

-- name: own_transaction
-- A transaction that begins now; every row that was changed before is older.
SELECT pg_current_xact_id();

-- name: oldest_seen
-- How many sessions of this database, prepared transactions and replication slots may still see rows as they were.
SELECT (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
          AND age(backend_xmin) > age(%(xid)s::xid8::xid))
     + (SELECT count(*) FROM pg_prepared_xacts
        WHERE database = current_database() AND age(transaction) >= age(%(xid)s::xid8::xid))
     + (SELECT count(*) FROM pg_replication_slots
        WHERE age(coalesce(xmin, catalog_xmin)) > age(%(xid)s::xid8::xid));

-- name: size
-- Bytes of tables with their indexes.
SELECT coalesce(sum(pg_total_relation_size(to_regclass(quote_ident(name)))), 0)::bigint FROM unnest(%(names)s::text[]) AS b(name);

-- name: wal_files
-- The files of the write-ahead log, those that are there for later use included.
SELECT name FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$';

-- name: something
-- So that there is something to switch after.
SELECT pg_logical_emit_message(true, 'stratalog', '');

-- name: switch_wal
-- Go on in a new file.
SELECT pg_switch_wal();
