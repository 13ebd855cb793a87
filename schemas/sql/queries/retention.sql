-- Policies and what follows from them. Whether a trajectory may go is decided in the view retention_decisions.

-- name: read_committed
-- Each statement must see what was committed before it, whatever the server's default is.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

-- name: one_view
-- One view of the database for the whole plan.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: unlimited
-- Counting and moving take as long as there is data; for this transaction only.
SET LOCAL statement_timeout = 0;

-- name: now
-- The moment that is asked about; by default the server's, because its clock is the same for all.
SELECT coalesce(%(now)s::timestamptz, clock_timestamp());

-- name: lock_loading
-- Versions are numbered one after the other.
SELECT pg_advisory_xact_lock(hashtextextended('stratalog.retention.load', 0));

-- name: version_in_force
-- The newest version.
SELECT version, sha256, loaded_by, loaded_at FROM retention_versions ORDER BY version DESC LIMIT 1;

-- name: insert_version
-- A new version; its policies follow in the same transaction.
INSERT INTO retention_versions (version, sha256, text, loaded_by)
VALUES (%(version)s, %(sha256)b, %(text)s, %(by)s);

-- name: insert_policy
-- One policy of it.
INSERT INTO retention_policies (version, place, name, tenants, models, statuses, labels, warm_us, cold_us, bulky_us,
  undated)
VALUES (%(version)s, %(place)s, %(name)s, %(tenants)s::text[], %(models)s::text[], %(statuses)s::text[],
  %(labels)s::jsonb, %(warm_us)s, %(cold_us)s, %(bulky_us)s, %(undated)s);

-- name: policies
-- The policies in force, in their order.
SELECT name, tenants, models, statuses, labels, warm_us, cold_us, bulky_us, undated FROM policies_in_force ORDER BY place;

-- name: plan_warm
-- What is due in the warm tier and still there: how many trajectories, events and bytes (bodies and projections as
-- stored), per tenant and policy, and what keeps them if anything does.
WITH due AS MATERIALIZED (
  SELECT trajectory_id, tenant, version, policy, warm_us, CASE WHEN matters IS NULL THEN obstacle ELSE 'held' END AS keeps,
    coalesce(matters, branch_matters) AS matters
  FROM retention_decisions WHERE warm_at <= %(now)s AND dropped_through < head_sequence)
SELECT tenant, version, policy, warm_us, keeps, matters,
  count(*), sum(s.events)::bigint, sum(s.bytes)::bigint
FROM due CROSS JOIN LATERAL (
  SELECT count(*) AS events, coalesce(sum(pg_column_size(e.body) + coalesce(pg_column_size(e.payload), 0)), 0) AS bytes
  FROM all_events e WHERE e.trajectory_id = due.trajectory_id) AS s
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 3, 5 NULLS FIRST, 6;

-- name: plan_lower
-- What is due in the cold tier and for bulky content, and what keeps it if anything does.
SELECT x.tier, d.tenant, d.version, d.policy, d.after_us, d.keeps, d.matters, count(*), sum(d.events)::bigint
FROM (VALUES ('cold'), ('bulky')) AS x(tier) CROSS JOIN LATERAL retention_due(x.tier, %(now)s, true) AS d
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1 DESC, 2, 4, 6 NULLS FIRST, 7;

-- name: never
-- What no clock will ever reach as things stand, and why.
SELECT t.tenant, x.why, count(*)
FROM trajectories t LEFT JOIN retention_decisions r USING (trajectory_id)
CROSS JOIN LATERAL (SELECT CASE
  WHEN r.trajectory_id IS NULL THEN 'no policy fits'
  WHEN r.warm_us IS NULL AND r.cold_us IS NULL AND r.bulky_us IS NULL THEN 'its policy has no clock'
  WHEN r.end_at IS NULL AND t.labels ->> 'undated' = 'true' THEN 'undated: its source knew no time'
  WHEN r.end_at IS NULL THEN 'has not ended' END AS why) AS x
WHERE t.head_sequence >= 0 AND x.why IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2;

-- name: upcoming
-- What becomes due next, per tier, tenant and policy: the first moment, and how many trajectories within 7 and 30 days.
SELECT x.tier, r.tenant, r.version, r.policy, least(min(x.at), timestamptz '9999-12-31 00:00+00'),
  count(*) FILTER (WHERE x.at <= %(now)s + interval '7 days'),
  count(*) FILTER (WHERE x.at <= %(now)s + interval '30 days'), count(*)
FROM retention_decisions r
CROSS JOIN LATERAL (VALUES
  ('warm', CASE WHEN r.dropped_through < r.head_sequence THEN r.warm_at END),
  ('cold', CASE WHEN r.cold_dropped_through < r.head_sequence THEN r.cold_at END),
  ('bulky', CASE WHEN greatest(r.cold_dropped_through, r.bulky_dropped_through) < r.head_sequence THEN r.bulky_at END)
) AS x(tier, at)
WHERE x.at > %(now)s
GROUP BY 1, 2, 3, 4 ORDER BY 5, 1, 2, 4;

-- name: partitions
-- The partitions that are over, with the events in them that are due and nothing keeps, and those that stay.
SELECT p.name, count(*) FILTER (WHERE d.due), coalesce(sum(d.events) FILTER (WHERE d.due), 0)::bigint,
  count(*) FILTER (WHERE NOT d.due), coalesce(sum(d.events) FILTER (WHERE NOT d.due), 0)::bigint
FROM event_partitions p
JOIN trajectories t ON NOT t.stray AND t.dropped_through < t.head_sequence
  AND t.trajectory_id >= uuid7_floor(p.lower::timestamp AT TIME ZONE 'UTC')
  AND t.trajectory_id < uuid7_floor(p.upper::timestamp AT TIME ZONE 'UTC')
LEFT JOIN retention_decisions r ON r.trajectory_id = t.trajectory_id
CROSS JOIN LATERAL (
  SELECT coalesce(r.warm_at <= %(now)s AND r.obstacle IS NULL AND r.matters IS NULL, false) AS due,
         t.head_sequence - t.dropped_through AS events) AS d
WHERE p.drop_state IS NULL AND p.upper < (clock_timestamp() AT TIME ZONE 'UTC')::date
GROUP BY p.name HAVING count(*) FILTER (WHERE d.due) > 0 ORDER BY p.name;

-- name: growth
-- Bytes of the database, of the partitions of the last 7 full days, of the files that were written to the cold tier
-- within 7 days; and how many policies are in force.
SELECT pg_database_size(current_database()),
  coalesce((SELECT sum(pg_total_relation_size(to_regclass(quote_ident(name)))) FROM event_partitions
            WHERE lower >= today - 7 AND upper <= today), 0)::bigint,
  coalesce((SELECT sum(bytes) FROM consolidation_runs WHERE finished_at > clock_timestamp() - interval '7 days'),
           0)::bigint,
  (SELECT count(*) FROM policies_in_force)
FROM (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS today) AS d;
