-- The record of the migrations that a database has had. Run in the transaction of the first one; no migration itself,
-- because the runner reads it before it knows whether there has been any.
CREATE SCHEMA IF NOT EXISTS stratalog;

CREATE TABLE IF NOT EXISTS stratalog.migrations (
    number     integer     PRIMARY KEY CHECK (number > 0),
    name       text        NOT NULL,               -- of the file, without .sql
    sha256     bytea       NOT NULL CHECK (octet_length(sha256) = 32), -- of the bytes that were run
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
