-- Packs of content, who owns a storage, and what the cold tier's jobs have looked at.
--
--   content_packs    the packs of a tenant; `replaced_at`: nothing of it is needed any more, and its file is to be deleted
--   packed_content   where a piece lies: a range of the stream of a pack. `dead_since`: nothing refers to it, the next
--                    rewriting of its pack leaves it out. It can be made again from the packs: stratalog storage reindex
--   packed_files     data files of the cold table whose content was looked through: what could be packed is
--   installation     who this database is: its id stands in the content store and the lake that belong to it
--
-- Lock: whoever makes, rewrites or deletes packs, or erases content, holds the advisory lock `stratalog.packs`; a
-- consolidation is locked before it, never after.

CREATE TABLE content_packs (
  tenant      text        NOT NULL,
  name        bytea       NOT NULL CHECK (length(name) = 32), -- the SHA-256 of the file
  bytes       bigint      NOT NULL CHECK (bytes > 0),
  raw_bytes   bigint      NOT NULL CHECK (raw_bytes >= 0),
  pieces      bigint      NOT NULL,
  made_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  replaced_at timestamptz,
  PRIMARY KEY (tenant, name)
);

CREATE TABLE packed_content (
  tenant     text   NOT NULL,
  sha256     bytea  NOT NULL CHECK (length(sha256) = 32),
  pack       bytea  NOT NULL,
  start      bigint NOT NULL CHECK (start >= 0),
  length     bigint NOT NULL CHECK (length >= 0),
  dead_since timestamptz,
  PRIMARY KEY (tenant, sha256),
  FOREIGN KEY (tenant, pack) REFERENCES content_packs (tenant, name)
);
CREATE INDEX packed_content_pack ON packed_content (tenant, pack);

CREATE TABLE packed_files (
  path text PRIMARY KEY
);

CREATE TABLE installation (
  only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
  database_id uuid        NOT NULL DEFAULT gen_random_uuid(),
  made_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO installation DEFAULT VALUES;
