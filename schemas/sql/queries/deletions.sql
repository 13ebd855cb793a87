-- Deletions in every tier, from plan to end. Every transaction that removes anything first shares the lock on holds
-- (`lock_out_holds` in holds.sql), then locks the deletions and the heads, and judges them after that.

-- name: lock
-- One application of the policies at a time in a database; the lock ends with the session, however that ends.
SELECT pg_try_advisory_lock(hashtextextended('stratalog.retention', 0));

-- name: unlock
-- The end of it.
SELECT pg_advisory_unlock(hashtextextended('stratalog.retention', 0));

-- name: plan
-- A row for everything that is due and that nothing keeps.
INSERT INTO deletions (trajectory_id, tenant, version, policy, through_sequence)
SELECT trajectory_id, tenant, version, policy, consolidated_through FROM retention_decisions
WHERE warm_at <= %(now)s AND dropped_through < head_sequence AND obstacle IS NULL AND matters IS NULL
ON CONFLICT (trajectory_id, tier) WHERE state IN ('planned', 'started') DO NOTHING;

-- name: next_planned
-- The next deletions to look at.
SELECT deletion_id, trajectory_id FROM deletions
WHERE state = 'planned' AND tier = 'warm' AND deletion_id > %(after)s ORDER BY deletion_id LIMIT %(limit)s;

-- name: lock_planned
-- Those that are still planned, locked.
SELECT deletion_id FROM deletions WHERE deletion_id = ANY (%(ids)b::bigint[]) AND state = 'planned'
ORDER BY trajectory_id FOR UPDATE;

-- name: lock_heads
-- Their heads, in the order in which ingest locks them.
SELECT trajectory_id FROM trajectories WHERE trajectory_id = ANY (%(ids)b::uuid[]) ORDER BY trajectory_id FOR UPDATE;

-- name: judge
-- Whether planned deletions may be executed now: NULL, or why not. The matters come first: a hold wins.
SELECT d.deletion_id, d.trajectory_id, d.tenant, d.policy,
  CASE
    WHEN r.matters IS NOT NULL THEN 'held by ' || array_to_string(r.matters, ', ')
    WHEN r.version IS DISTINCT FROM d.version OR r.policy IS DISTINCT FROM d.policy THEN 'another policy is in force'
    WHEN r.warm_at IS NULL OR r.warm_at > %(now)s THEN 'not due any more'
    WHEN r.obstacle IS NOT NULL THEN r.obstacle
  END
FROM deletions d LEFT JOIN retention_decisions r USING (trajectory_id)
WHERE d.deletion_id = ANY (%(ids)b::bigint[]) AND d.state = 'planned' ORDER BY d.trajectory_id;

-- name: cancel
-- These are not executed, for the reasons given.
UPDATE deletions AS d SET state = 'cancelled', reason = b.reason, ended_at = clock_timestamp()
FROM unnest(%(ids)b::bigint[], %(reasons)b::text[]) AS b(id, reason) WHERE d.deletion_id = b.id;

-- name: remove
-- The rows of one trajectory as far as they are in the cold tier, wherever they lie, with the count and the bytes.
WITH here AS (
  DELETE FROM trajectory_events e USING trajectories t
  WHERE e.trajectory_id = %(id)s::uuid AND t.trajectory_id = %(id)s::uuid
    AND e.sequence_number <= t.consolidated_through
  RETURNING pg_column_size(e.body) + coalesce(pg_column_size(e.payload), 0) AS bytes
), stray AS (
  DELETE FROM trajectory_events_stray e USING trajectories t
  WHERE e.trajectory_id = %(id)s::uuid AND t.trajectory_id = %(id)s::uuid
    AND e.sequence_number <= t.consolidated_through
  RETURNING pg_column_size(e.body) + coalesce(pg_column_size(e.payload), 0) AS bytes
)
SELECT count(*), coalesce(sum(bytes), 0)::bigint
FROM (SELECT bytes FROM here UNION ALL SELECT bytes FROM stray) AS gone;

-- name: finish
-- The deletions are done, with what has gone.
UPDATE deletions AS d SET state = 'done', events = b.events, bytes = b.bytes, started_at = clock_timestamp(),
  ended_at = clock_timestamp(), through_sequence = t.consolidated_through
FROM unnest(%(ids)b::bigint[], %(events)b::bigint[], %(bytes)b::bigint[]) AS b(id, events, bytes), trajectories t
WHERE d.deletion_id = b.id AND t.trajectory_id = d.trajectory_id;

-- name: mark_heads
-- Up to where the rows have left.
UPDATE trajectories t SET dropped_through = consolidated_through, updated_at = clock_timestamp()
WHERE trajectory_id = ANY (%(ids)b::uuid[]);

-- name: dropping
-- The partitions that are on their way out.
SELECT name, drop_state FROM event_partitions WHERE drop_state IS NOT NULL ORDER BY name;

-- name: wait_briefly
-- Others who store events or place a hold wait behind this transaction while it waits.
SET LOCAL lock_timeout = '5s';

-- name: lock_partitions
-- Waits for every transaction that has made a head or looked for a partition, so that none of them is on its way into
-- a partition that is marked next.
LOCK TABLE event_partitions IN ACCESS EXCLUSIVE MODE;

-- name: mark_partition
-- From here on, trajectories that arrive for it are strays.
UPDATE event_partitions SET drop_state = 'marked' WHERE name = %(name)s AND drop_state IS NULL;

-- name: lock_heads_in
-- The heads of a partition's days, in the order in which ingest locks them.
SELECT count(*) FROM (
  SELECT 1 FROM trajectories t JOIN event_partitions p ON p.name = %(name)s
    AND t.trajectory_id >= uuid7_floor(p.lower::timestamp AT TIME ZONE 'UTC')
    AND t.trajectory_id < uuid7_floor(p.upper::timestamp AT TIME ZONE 'UTC')
  ORDER BY t.trajectory_id FOR UPDATE OF t) AS locked;

-- name: join_by_hash
-- Rows that were written just now have no statistics: without this, each event would be compared with each deletion.
SET LOCAL enable_nestloop = off;

-- name: start_in
-- The deletions that leave with a partition: planned, judged again, and of trajectories whose rows lie in it.
WITH bounds AS MATERIALIZED (
  SELECT uuid7_floor(lower::timestamp AT TIME ZONE 'UTC') AS first,
    uuid7_floor(upper::timestamp AT TIME ZONE 'UTC') AS past
  FROM event_partitions WHERE name = %(name)s
), sizes AS MATERIALIZED (
  SELECT e.trajectory_id, count(*) AS events,
    sum(pg_column_size(e.body) + coalesce(pg_column_size(e.payload), 0))::bigint AS bytes
  FROM trajectory_events e
  WHERE e.trajectory_id >= (SELECT first FROM bounds) AND e.trajectory_id < (SELECT past FROM bounds)
  GROUP BY e.trajectory_id)
UPDATE deletions d SET state = 'started', started_at = clock_timestamp(), partition = %(name)s,
  through_sequence = r.consolidated_through, events = s.events, bytes = s.bytes
FROM sizes s JOIN retention_decisions r USING (trajectory_id)
WHERE d.trajectory_id = s.trajectory_id AND d.state = 'planned' AND d.tier = 'warm' AND NOT r.stray
  AND r.version = d.version AND r.policy = d.policy AND r.warm_at <= %(now)s
  AND r.obstacle IS NULL AND r.matters IS NULL;

-- name: move_stragglers
-- Everything else in the partition goes to the table for strays.
WITH bounds AS MATERIALIZED (
  SELECT uuid7_floor(lower::timestamp AT TIME ZONE 'UTC') AS first,
    uuid7_floor(upper::timestamp AT TIME ZONE 'UTC') AS past
  FROM event_partitions WHERE name = %(name)s
), moved AS (
  DELETE FROM trajectory_events e
  WHERE e.trajectory_id >= (SELECT first FROM bounds) AND e.trajectory_id < (SELECT past FROM bounds)
    AND NOT EXISTS (SELECT 1 FROM deletions d
                    WHERE d.trajectory_id = e.trajectory_id AND d.state = 'started' AND d.partition = %(name)s)
  RETURNING *)
INSERT INTO trajectory_events_stray (trajectory_id, sequence_number, tenant, event_type, epoch, schema_version,
  created_at, turn, tool_name, event_status, cryptographic_hash, body_digest, body, erased, payload)
SELECT trajectory_id, sequence_number, tenant, event_type, epoch, schema_version,
  created_at, turn, tool_name, event_status, cryptographic_hash, body_digest, body, erased, payload FROM moved;

-- name: stray_heads_in
-- What any of these trajectories adds from now on is stray, too.
UPDATE trajectories t SET stray = true FROM event_partitions p
WHERE p.name = %(name)s AND NOT t.stray
  AND t.trajectory_id >= uuid7_floor(p.lower::timestamp AT TIME ZONE 'UTC')
  AND t.trajectory_id < uuid7_floor(p.upper::timestamp AT TIME ZONE 'UTC');

-- name: moved
-- The partition holds nothing any more but what goes with it.
UPDATE event_partitions SET drop_state = 'moved' WHERE name = %(name)s;

-- name: attachment
-- Whether the partition is attached: no row if not; true if a detachment was begun and not ended.
SELECT inhdetachpending FROM pg_inherits
WHERE inhparent = 'trajectory_events'::regclass AND inhrelid = to_regclass(quote_ident(%(name)s));

-- name: detach_command
-- The command that detaches it, or ends a detachment; it cannot run in a transaction.
SELECT format('ALTER TABLE trajectory_events DETACH PARTITION %%I %%s', %(name)s::text,
  CASE WHEN %(pending)s::boolean THEN 'FINALIZE' ELSE 'CONCURRENTLY' END);

-- name: own_transaction
-- The number of a transaction that begins now, or of the one that is open.
SELECT pg_current_xact_id()::xid::text;

-- name: older_snapshots
-- How many sessions still look at the database as it was before that transaction; sessions of other roles are seen only
-- by a member of pg_read_all_stats.
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND age(backend_xmin) >= age(%(xid)s::text::xid);

-- name: timeout
-- How long a statement of this session may take, in ms.
SELECT set_config('statement_timeout', %(ms)s::text, false);

-- name: started_in
-- The deletions that leave with a partition, locked, with their trajectories.
SELECT deletion_id, trajectory_id FROM deletions WHERE partition = %(name)s AND state = 'started'
ORDER BY trajectory_id FOR UPDATE;

-- name: held
-- Those of them that are held now, or that a held branch needs.
SELECT d.deletion_id, coalesce('held by ' || array_to_string(m.matters, ', '), 'needed by a held branch'), d.tenant, d.policy
FROM deletions d
CROSS JOIN LATERAL (
  SELECT CASE WHEN (SELECT EXISTS (SELECT 1 FROM active_holds)) THEN holding_matters(d.trajectory_id, d.tenant) END AS matters,
    CASE WHEN (SELECT EXISTS (SELECT 1 FROM active_holds)) THEN branch_matters(d.trajectory_id) END AS branch) AS m
WHERE (m.matters IS NOT NULL OR m.branch IS NOT NULL) AND d.deletion_id = ANY (%(ids)b::bigint[]);

-- name: drop_partition
-- Gone, but for what no started deletion names.
SELECT drop_detached_partition(%(name)s);

-- name: mark_heads_in
-- Up to where the rows have left with the partition.
UPDATE trajectories t
SET dropped_through = greatest(t.dropped_through, d.through_sequence), updated_at = clock_timestamp()
FROM deletions d WHERE d.partition = %(name)s AND d.state = 'started' AND t.trajectory_id = d.trajectory_id;

-- name: finish_in
-- The deletions that left with the partition are done.
UPDATE deletions SET state = 'done', ended_at = clock_timestamp() WHERE partition = %(name)s AND state = 'started'
RETURNING tenant, policy, events, bytes;
