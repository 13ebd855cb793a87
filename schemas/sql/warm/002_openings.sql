-- The opening of the hot log that wrote the event at the cursor: without it, an older copy of a log that has grown on its
-- own could have the same event at the same LSN, because imports give the same hashes everywhere. Empty where unknown.
ALTER TABLE log_cursors ADD COLUMN opening bytea NOT NULL DEFAULT '';
