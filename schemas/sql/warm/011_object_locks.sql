-- Legal holds that were set on objects of a bucket with Object Lock, because held trajectories need them. A row is there
-- before the object is locked, and until it is released, so that a crash leaves none that nobody knows. Holds that
-- others have set on objects are theirs.

CREATE TABLE object_locks (
  place     text NOT NULL CHECK (place IN ('lake', 'content')),
  path      text NOT NULL,                                   -- relative to the root of the place
  locked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (place, path)
);
