-- Rewrites of data files of the cold table: which files are replaced by which, and how far that has got.
--
--   planned    nothing of it is visible; whoever comes after a crash looks for its id in the table's snapshots, and undoes
--              it where that is missing
--   committed  one snapshot has the new files and not the old ones; these, and the snapshots that name them, are going
--   done       the old files were looked for and are gone
--   undone     the new files are gone again
--
-- Paths are relative to the root of the lake. The rows stay: file names carry the id, and readers ask what became of a
-- file that they cannot find any more.

CREATE TABLE rewrites (
  rewrite_id   uuid PRIMARY KEY,
  kind         text NOT NULL CHECK (kind IN ('erasure', 'retention', 'compaction')),
  state        text NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'committed', 'done', 'undone')),
  started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  committed_at timestamptz,
  finished_at  timestamptz
);
CREATE INDEX rewrites_open ON rewrites (started_at) WHERE state IN ('planned', 'committed');

CREATE TABLE rewrite_files (
  rewrite_id uuid NOT NULL REFERENCES rewrites,
  path       text NOT NULL,
  role       text NOT NULL CHECK (role IN ('old', 'new')),
  PRIMARY KEY (rewrite_id, path)
);
CREATE INDEX rewrite_files_old ON rewrite_files (path) WHERE role = 'old';
