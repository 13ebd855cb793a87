-- Readers of the cold tier: who reads which snapshot, since when, and until when its files have to stay.
--
-- A pin holds as long as the session that took it, which has the advisory lock `stratalog.pin.<pin_id>` until it ends,
-- however it ends, and never longer than `pinned_until`. A row without its lock is what a crash has left: it pins
-- nothing, and the next reader removes it.

CREATE TABLE snapshot_pins (
  pin_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  snapshot_id  bigint,                                       -- NULL until the reader knows it
  reader       text        NOT NULL CHECK (length(reader) BETWEEN 1 AND 200),
  pinned_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  pinned_until timestamptz NOT NULL,
  CHECK (pinned_until > pinned_at)
);
