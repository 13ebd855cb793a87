-- The warm tier (PostgreSQL 15 and later), in schema `stratalog`.
--
--   trajectories            one row per trajectory: its head (position and hash), its secret, what lists show
--   trajectory_events       the events, exact bytes and a jsonb projection; ranges of the UUIDv7, one partition a day
--                           for the present and a month for imported history
--   trajectory_events_stray events whose id fits no partition; a table of its own, so that it never blocks a batch
--   log_cursors             how far each hot log was replicated
--   leases, lease_epochs    who may append to a trajectory, and from which event on each fencing token owns it
--   quarantine              events that were not admitted, with the reason; nothing is dropped
--   import_keys             one key per tenant, from which the secrets of imported trajectories are made
--   consolidation_runs, _items  what is on its way to the cold tier
--
-- Flow: a sidecar inserts a batch of events of one log, moves the heads, the quarantine and the log's cursor, all in
-- one transaction. Consolidation writes a plan, later the marks (`consolidated_through`).
--
-- The runner of the migrations has created the schema and set the search path.

-- The id of the first moment of `t` in UUIDv7 order.
CREATE FUNCTION uuid7_floor(t timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT (lpad(to_hex((extract(epoch FROM t) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;

-- The start that a UUIDv7 carries.
CREATE FUNCTION uuid7_time(u uuid) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT to_timestamp(('x' || lpad(left(replace(u::text, '-', ''), 12), 16, '0'))::bit(64)::bigint / 1000.0)
$$;

CREATE TABLE trajectories (
  trajectory_id        uuid PRIMARY KEY,
  tenant               text NOT NULL,
  secret               bytea,                              -- NULL once erased
  origin_log           uuid NOT NULL,                      -- the log of its first event owns it until it is claimed
  head_sequence        bigint NOT NULL DEFAULT -1,
  head_hash            bytea NOT NULL,
  stray                boolean NOT NULL DEFAULT false,     -- its events lie in trajectory_events_stray
  status               text NOT NULL DEFAULT 'pending',
  model                text NOT NULL DEFAULT '',
  agent                text NOT NULL DEFAULT '',
  started_at           timestamptz,
  last_event_at        timestamptz,
  finished_at          timestamptz,
  turns                bigint NOT NULL DEFAULT 0,
  events               bigint NOT NULL DEFAULT 0,
  input_tokens         bigint NOT NULL DEFAULT 0,
  output_tokens        bigint NOT NULL DEFAULT 0,
  cost_usd             double precision NOT NULL DEFAULT 0,
  imported             boolean NOT NULL DEFAULT false,
  labels               jsonb NOT NULL DEFAULT '{}',
  source               jsonb,
  summary              bytea NOT NULL DEFAULT '',          -- the Summary that the next batch goes on from
  consolidated_through bigint NOT NULL DEFAULT -1,         -- everything up to here is in the cold tier, read back
  consolidated_hash    bytea,
  updated_at           timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- Not on updated_at or head_sequence: so the update of a head per batch stays heap-only while the status is the same.
CREATE INDEX trajectories_fleet ON trajectories (tenant, status, trajectory_id DESC);
CREATE INDEX trajectories_to_consolidate ON trajectories (finished_at) WHERE consolidated_through < 0;

CREATE TABLE trajectory_events (
  trajectory_id      uuid        NOT NULL,
  sequence_number    bigint      NOT NULL CHECK (sequence_number >= 0),
  tenant             text        NOT NULL,
  event_type         text        NOT NULL,
  epoch              bigint      NOT NULL,
  schema_version     integer     NOT NULL,
  created_at         timestamptz NOT NULL,
  turn               bigint      NOT NULL,
  tool_name          text,                                 -- typed copies of what is filtered on
  event_status       text,
  cryptographic_hash bytea       NOT NULL,
  body_digest        bytea       NOT NULL,
  body               bytea       NOT NULL,                 -- the exact bytes that the digest covers
  erased             boolean     NOT NULL DEFAULT false,
  payload            jsonb,                                -- a projection for queries; NULL where jsonb refuses the body
  PRIMARY KEY (trajectory_id, sequence_number)
) PARTITION BY RANGE (trajectory_id);
-- LZ4 where this server was built with it. No statistics on bodies: samples of them would outlive an erasure.
DO $$ BEGIN
  IF EXISTS (SELECT 1 FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
    ALTER TABLE trajectory_events ALTER body SET COMPRESSION lz4, ALTER payload SET COMPRESSION lz4;
  END IF;
END $$;
ALTER TABLE trajectory_events ALTER body SET STATISTICS 0, ALTER payload SET STATISTICS 0;
CREATE INDEX trajectory_events_failed ON trajectory_events (tenant, tool_name, created_at DESC)
  WHERE event_status IS NOT NULL AND event_status <> 'ok';
CREATE INDEX trajectory_events_time ON trajectory_events USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE trajectory_events_stray (
  LIKE trajectory_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION,
  PRIMARY KEY (trajectory_id, sequence_number)
);
ALTER TABLE trajectory_events_stray ALTER body SET STATISTICS 0, ALTER payload SET STATISTICS 0;

-- All events, wherever they lie.
CREATE VIEW all_events AS
  SELECT * FROM trajectory_events UNION ALL SELECT * FROM trajectory_events_stray;

-- The partitions that exist; `lower` and `upper` are UTC days, upper excluded.
CREATE TABLE event_partitions (
  name  text PRIMARY KEY,
  lower date NOT NULL UNIQUE,
  upper date NOT NULL
);

-- Make the partitions that `days` need, and those of today and `ahead` days after. A day of the present gets a
-- partition of its own; a day of a month that is over, and of which nothing exists yet, a partition of that month.
-- CREATE and ATTACH take only SHARE UPDATE EXCLUSIVE on the parent, so readers and writers go on.
CREATE FUNCTION ensure_event_partitions(days date[], ahead integer DEFAULT 7) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
  wanted date; lo date; hi date; partition_name text; made integer := 0;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('stratalog.ensure_event_partitions', 0));
  FOR wanted IN
    SELECT DISTINCT d FROM (SELECT unnest(days) AS d UNION ALL SELECT today + g FROM generate_series(-1, ahead) g) AS w ORDER BY d
  LOOP
    CONTINUE WHEN EXISTS (SELECT 1 FROM event_partitions p WHERE p.lower <= wanted AND wanted < p.upper);
    lo := date_trunc('month', wanted)::date;
    hi := (date_trunc('month', wanted) + interval '1 month')::date;
    IF hi >= today OR EXISTS (SELECT 1 FROM event_partitions p WHERE p.lower < hi AND lo < p.upper) THEN
      lo := wanted;
      hi := wanted + 1;
      partition_name := 'trajectory_events_' || to_char(lo, 'YYYYMMDD');
    ELSE
      partition_name := 'trajectory_events_' || to_char(lo, 'YYYYMM');
    END IF;
    EXECUTE format(
      'CREATE TABLE %I (LIKE trajectory_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION)',
      partition_name);
    EXECUTE format('ALTER TABLE %I ALTER body SET STATISTICS 0, ALTER payload SET STATISTICS 0', partition_name);
    EXECUTE format('ALTER TABLE %I SET (autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_scale_factor = 0.1)', partition_name);
    EXECUTE format('ALTER TABLE trajectory_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', partition_name,
      uuid7_floor(lo::timestamp AT TIME ZONE 'UTC'), uuid7_floor(hi::timestamp AT TIME ZONE 'UTC'));
    INSERT INTO event_partitions VALUES (partition_name, lo, hi);
    made := made + 1;
  END LOOP;
  RETURN made;
END $$;

CREATE TABLE log_cursors (
  log_id     uuid PRIMARY KEY,
  lsn        bigint NOT NULL,
  hash       bytea NOT NULL,
  events     bigint NOT NULL DEFAULT 0,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Never deleted before the trajectory is consolidated: a fencing token must not start again.
CREATE TABLE leases (
  trajectory_id uuid PRIMARY KEY,
  tenant        text NOT NULL,
  holder        text,
  token         bigint NOT NULL CHECK (token > 0),
  log_id        uuid,
  expires_at    timestamptz NOT NULL
) WITH (fillfactor = 70);

-- A seal: from `first_sequence` on, after `previous_hash`, the trajectory belongs to `token` in `log_id`.
CREATE TABLE lease_epochs (
  trajectory_id  uuid   NOT NULL,
  token          bigint NOT NULL,
  log_id         uuid,
  first_sequence bigint NOT NULL,
  previous_hash  bytea  NOT NULL,
  PRIMARY KEY (trajectory_id, token)
);

CREATE TABLE quarantine (
  quarantine_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  log_id          uuid NOT NULL,
  lsn             bigint NOT NULL,
  trajectory_id   uuid NOT NULL,
  sequence_number bigint NOT NULL,
  tenant          text NOT NULL,
  reason          text NOT NULL,
  detail          text NOT NULL,
  header          bytea NOT NULL,
  body            bytea NOT NULL,
  erased          boolean NOT NULL DEFAULT false,
  secret          bytea,
  arrived_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  admitted_at     timestamptz,                              -- set by a retry that succeeded
  UNIQUE (log_id, lsn)
);
ALTER TABLE quarantine ALTER body SET STATISTICS 0;
CREATE INDEX quarantine_trajectory ON quarantine (trajectory_id, sequence_number);

CREATE TABLE import_keys (
  tenant text PRIMARY KEY,
  key    bytea NOT NULL CHECK (length(key) = 32)
);

CREATE TABLE consolidation_runs (
  run_id      uuid PRIMARY KEY,
  cutoff      timestamptz NOT NULL,
  state       text NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'marked')),
  started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  trajectories bigint NOT NULL DEFAULT 0,
  events      bigint NOT NULL DEFAULT 0,
  files       bigint NOT NULL DEFAULT 0,
  bytes       bigint NOT NULL DEFAULT 0
);

-- One segment of one trajectory on its way to the cold tier. A segment is planned once, ever.
CREATE TABLE consolidation_items (
  run_id         uuid   NOT NULL REFERENCES consolidation_runs,
  trajectory_id  uuid   NOT NULL,
  tenant         text   NOT NULL,
  start_date     date   NOT NULL,
  model          text   NOT NULL,
  first_sequence bigint NOT NULL,
  last_sequence  bigint NOT NULL,
  previous_hash  bytea  NOT NULL,
  last_hash      bytea  NOT NULL,
  summary        bytea  NOT NULL,
  PRIMARY KEY (trajectory_id, first_sequence)
);
CREATE INDEX consolidation_items_run ON consolidation_items (run_id, tenant, start_date, model, trajectory_id);
