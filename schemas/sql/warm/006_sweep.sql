-- Content-addressed storage: what nothing referred to when the sweep looked, and since when.
--
-- The sweep deletes content only where its row has stood here for the whole grace and it has looked again; it holds the
-- row while it deletes. Whoever puts content removes the row first: then there is nothing to delete by, or the deletion
-- is over before the content is put.

CREATE TABLE condemned_content (
  tenant       text        NOT NULL,
  sha256       bytea       NOT NULL CHECK (length(sha256) = 32),
  condemned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, sha256)
);
