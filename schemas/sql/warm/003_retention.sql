-- Retention and legal hold. Nothing here deletes anything by itself: without a policy nothing is planned, and what is
-- planned goes only when `stratalog retention apply` (or its Dagster job) executes it.
--
--   retention_versions, retention_policies   what was loaded from retention.toml, every version; the newest is in force
--   holds, hold_trajectories, hold_releases  the history of legal holds; rows are only added, a release is a row, too
--   deletions                                what was planned, and what became of it
--   retention_decisions                      per trajectory: the policy that decides, when it may go, what keeps it
--
-- Locks: whoever places a hold takes the advisory lock `stratalog.holds` alone, whoever deletes shares it, each for one
-- transaction in READ COMMITTED, and looks at holds and deletions only in statements after that. So every hold that was
-- placed before a deletion is seen by it, and every deletion that came first is seen by whoever places the hold. Row
-- locks alone would not do: a deletion that is planned while a hold is being placed is in nobody's sight.
-- Then come the deletions, then the heads, each sorted by trajectory.

CREATE TABLE retention_versions (
  version   integer PRIMARY KEY CHECK (version > 0),
  sha256    bytea NOT NULL,
  text      text NOT NULL,                       -- the file as it was loaded
  loaded_by text NOT NULL,
  loaded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE retention_policies (
  version  integer NOT NULL REFERENCES retention_versions,
  place    integer NOT NULL,                     -- the first policy that fits a trajectory decides, alone
  name     text NOT NULL,
  tenants  text[],                               -- NULL: any
  models   text[],
  statuses text[],
  labels   jsonb NOT NULL DEFAULT '{}',          -- all of these must be there
  warm_us  bigint CHECK (warm_us >= 0),          -- µs after the end; NULL: kept for ever
  cold_us  bigint CHECK (cold_us >= 0),
  bulky_us bigint CHECK (bulky_us >= 0),
  PRIMARY KEY (version, place),
  UNIQUE (version, name)
);

CREATE VIEW policies_in_force AS
  SELECT * FROM retention_policies WHERE version = (SELECT max(version) FROM retention_versions);

CREATE TABLE holds (
  hold_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  matter    text NOT NULL,                       -- a matter may have several holds, a trajectory several matters
  kind      text NOT NULL CHECK (kind IN ('tenant', 'trajectories', 'selection')),
  tenant    text CHECK ((kind = 'tenant') = (tenant IS NOT NULL)),
  selection text CHECK ((kind = 'selection') = (selection IS NOT NULL)), -- SQL, evaluated once, when it was placed
  placed_by text NOT NULL,
  reason    text NOT NULL,
  placed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What a set or a selection holds; a trajectory need not have arrived here yet.
CREATE TABLE hold_trajectories (
  hold_id       bigint NOT NULL REFERENCES holds,
  trajectory_id uuid   NOT NULL,
  PRIMARY KEY (hold_id, trajectory_id)
);
CREATE INDEX hold_trajectories_id ON hold_trajectories (trajectory_id);

CREATE TABLE hold_releases (
  hold_id     bigint PRIMARY KEY REFERENCES holds,
  released_by text NOT NULL,
  reason      text NOT NULL,
  released_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE VIEW active_holds AS
  SELECT h.* FROM holds h WHERE NOT EXISTS (SELECT 1 FROM hold_releases r WHERE r.hold_id = h.hold_id);

-- The matters that hold a trajectory, NULL if none does.
CREATE FUNCTION holding_matters(id uuid, of_tenant text) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT array_agg(DISTINCT h.matter ORDER BY h.matter) FROM active_holds h
  WHERE h.tenant = of_tenant
     OR EXISTS (SELECT 1 FROM hold_trajectories x WHERE x.hold_id = h.hold_id AND x.trajectory_id = id)
$$;

CREATE TABLE deletions (
  deletion_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  trajectory_id    uuid    NOT NULL,
  tenant           text    NOT NULL,
  tier             text    NOT NULL DEFAULT 'warm' CHECK (tier = 'warm'), -- the only tier that is executed yet
  version          integer NOT NULL,
  policy           text    NOT NULL,
  through_sequence bigint  NOT NULL,             -- its events up to here
  state            text    NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'started', 'done', 'cancelled')),
  partition        text,                         -- what it leaves with; NULL: its rows are deleted by themselves
  reason           text    NOT NULL DEFAULT '',  -- why it was cancelled
  events           bigint  NOT NULL DEFAULT 0,   -- what has gone, set when it starts
  bytes            bigint  NOT NULL DEFAULT 0,   -- bodies and projections as stored
  planned_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at       timestamptz,
  ended_at         timestamptz,
  FOREIGN KEY (version, policy) REFERENCES retention_policies (version, name)
);
CREATE UNIQUE INDEX deletions_open ON deletions (trajectory_id, tier) WHERE state IN ('planned', 'started');
CREATE INDEX deletions_trajectory ON deletions (trajectory_id);

-- History is only added to; a deletion that has ended does not change any more.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is a history: rows are only added', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE FUNCTION refuse_change_of_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IN ('done', 'cancelled') OR NEW.trajectory_id <> OLD.trajectory_id OR NEW.state = 'planned' THEN
    RAISE EXCEPTION 'deletion % is %', OLD.deletion_id, OLD.state USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER history BEFORE UPDATE OR DELETE OR TRUNCATE ON retention_versions EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history BEFORE UPDATE OR DELETE OR TRUNCATE ON retention_policies EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history BEFORE UPDATE OR DELETE OR TRUNCATE ON holds EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history BEFORE UPDATE OR DELETE OR TRUNCATE ON hold_trajectories EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history BEFORE UPDATE OR DELETE OR TRUNCATE ON hold_releases EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history BEFORE DELETE OR TRUNCATE ON deletions EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ended BEFORE UPDATE ON deletions FOR EACH ROW EXECUTE FUNCTION refuse_change_of_ended();

-- Rows up to here have left the warm tier; the head stays, so that an event that is sent again is known.
ALTER TABLE trajectories ADD COLUMN dropped_through bigint NOT NULL DEFAULT -1;

-- What keeps a trajectory's rows in the warm tier, apart from holds; NULL if nothing does. Marks are set only after the
-- events were read back from the cold tier and compared.
CREATE FUNCTION warm_obstacle(t trajectories) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN t.consolidated_through < t.head_sequence OR t.consolidated_hash IS DISTINCT FROM t.head_hash
      THEN 'not in the cold tier yet'
    WHEN EXISTS (SELECT 1 FROM consolidation_items i JOIN consolidation_runs r USING (run_id)
                 WHERE i.trajectory_id = t.trajectory_id AND r.state = 'planned') THEN 'being consolidated'
    WHEN EXISTS (SELECT 1 FROM quarantine q WHERE q.trajectory_id = t.trajectory_id AND q.admitted_at IS NULL)
      THEN 'has events in quarantine'
  END
$$;

-- One row for each trajectory that a policy decides. The clocks run from its end: `finished_at`, of an import without
-- one its last event; what has not ended, or whose source knew no time, has no end and is never due.
CREATE VIEW retention_decisions AS
SELECT t.trajectory_id, t.tenant, t.stray, t.head_sequence, t.dropped_through, t.consolidated_through, t.events,
  p.version, p.name AS policy, p.warm_us, p.cold_us, p.bulky_us, e.end_at,
  e.end_at + p.warm_us * interval '1 microsecond' AS warm_at,
  e.end_at + p.cold_us * interval '1 microsecond' AS cold_at,
  e.end_at + p.bulky_us * interval '1 microsecond' AS bulky_at,
  warm_obstacle(t) AS obstacle,
  holding_matters(t.trajectory_id, t.tenant) AS matters
FROM trajectories t
CROSS JOIN LATERAL (
  SELECT CASE WHEN t.labels ->> 'undated' = 'true' THEN NULL
              ELSE coalesce(t.finished_at, CASE WHEN t.imported THEN t.last_event_at END) END AS end_at) AS e
CROSS JOIN LATERAL (
  SELECT * FROM policies_in_force f
  WHERE (f.tenants IS NULL OR t.tenant = ANY (f.tenants))
    AND (f.models IS NULL OR t.model = ANY (f.models))
    AND (f.statuses IS NULL OR t.status = ANY (f.statuses))
    AND t.labels @> f.labels
  ORDER BY f.place LIMIT 1) AS p
WHERE t.head_sequence >= 0;

-- A partition on its way out: `marked` (trajectories that arrive now go to the table for strays), then `moved` (so have
-- all others, and what stays was moved there); then it is detached and dropped, and its row goes with it.
ALTER TABLE event_partitions ADD COLUMN drop_state text CHECK (drop_state IN ('marked', 'moved'));

-- A head that is made while its partition is being dropped is a stray one. Reading event_partitions here also makes
-- whoever marks a partition wait until this transaction has ended: nothing is on its way into a marked one unseen.
CREATE FUNCTION stray_while_dropping() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM event_partitions p WHERE p.drop_state IS NOT NULL
             AND NEW.trajectory_id >= uuid7_floor(p.lower::timestamp AT TIME ZONE 'UTC')
             AND NEW.trajectory_id < uuid7_floor(p.upper::timestamp AT TIME ZONE 'UTC')) THEN
    NEW.stray := true;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER stray_while_dropping BEFORE INSERT ON trajectories
  FOR EACH ROW EXECUTE FUNCTION stray_while_dropping();

-- Drop a detached partition. Rows that no started deletion names are kept, as strays; returns how many.
CREATE FUNCTION drop_detached_partition(partition_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  columns text := 'trajectory_id, sequence_number, tenant, event_type, epoch, schema_version, '
    'created_at, turn, tool_name, event_status, cryptographic_hash, body_digest, body, erased, payload';
  kept bigint := 0;
BEGIN
  IF EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(quote_ident(partition_name))) THEN
    RAISE EXCEPTION 'partition % is still attached', partition_name USING ERRCODE = 'object_in_use';
  END IF;
  IF to_regclass(quote_ident(partition_name)) IS NOT NULL THEN
    -- Nobody writes into it any more; this keeps it so until it is gone.
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', partition_name);
    EXECUTE format(
      'INSERT INTO trajectory_events_stray (%s) SELECT %s FROM %I e WHERE NOT EXISTS (SELECT 1 FROM deletions d '
      'WHERE d.trajectory_id = e.trajectory_id AND d.state = ''started'' AND d.partition = $1 '
      'AND e.sequence_number <= d.through_sequence)', columns, columns, partition_name) USING partition_name;
    GET DIAGNOSTICS kept = ROW_COUNT;
    EXECUTE format('DROP TABLE %I', partition_name);
  END IF;
  DELETE FROM event_partitions WHERE name = partition_name;
  RETURN kept;
END $$;
