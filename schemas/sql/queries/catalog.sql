-- The catalog of the cold table: PyIceberg makes and fills the tables, these statements prepare their schema.

-- name: create_schema
-- PyIceberg's tables have names of their own choice, so they get a schema of their own.
CREATE SCHEMA IF NOT EXISTS stratalog_catalog;

-- name: lock_creation
-- One process makes the catalog, the others wait and find it.
SELECT pg_advisory_xact_lock(hashtextextended('stratalog.catalog', 0));

-- name: exists
-- Whether there is a catalog at all; reading must not create one.
SELECT to_regclass('stratalog_catalog.iceberg_tables') IS NOT NULL;

-- name: metadata_place
-- Where the table's current metadata was when it was written; the home may have been moved since.
SELECT metadata_location FROM stratalog_catalog.iceberg_tables WHERE table_namespace = %(namespace)s
  AND table_name = %(table)s;
