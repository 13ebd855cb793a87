-- The audit trees of the tenants, and what auditors ask of the warm tier.

-- name: lock
-- One sealing of a tenant at a time; the lock ends with the session, however that ends.
SELECT pg_try_advisory_lock(hashtextextended('stratalog.audit.' || %(tenant)s::text, 0));

-- name: unlock
-- Let the next sealing of the tenant begin.
SELECT pg_advisory_unlock(hashtextextended('stratalog.audit.' || %(tenant)s::text, 0));

-- name: unlimited
-- Sealing and verifying take as long as there are heads and files; for this transaction only.
SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;

-- name: begin
-- One view of the database for a whole verification.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: tenants
-- Everybody who has trajectories or a tree.
SELECT tenant FROM trajectories WHERE head_sequence >= 0 UNION SELECT tenant FROM audit_trees ORDER BY 1;

-- name: tree
-- Size and root of a tenant's tree.
SELECT size, root FROM audit_trees WHERE tenant = %(tenant)s::text;

-- name: last_leaf
-- The greatest number of a leaf, -1 without leaves.
SELECT coalesce(max(leaf_index), -1)::bigint FROM audit_leaves WHERE tenant = %(tenant)s::text;

-- name: moved
-- Trajectories whose head has moved since their last leaf, in the order in which they moved.
SELECT t.trajectory_id, t.head_sequence, t.head_hash
FROM trajectories t
WHERE t.tenant = %(tenant)s::text AND t.head_sequence >= 0
  AND NOT EXISTS (
    SELECT 1 FROM audit_leaves l
    WHERE l.trajectory_id = t.trajectory_id AND l.sequence_number = t.head_sequence)
ORDER BY t.updated_at, t.trajectory_id;

-- name: count_moved
-- How many trajectories have events that no leaf covers yet.
SELECT count(*)
FROM trajectories t
WHERE t.tenant = %(tenant)s::text AND t.head_sequence >= 0
  AND NOT EXISTS (
    SELECT 1 FROM audit_leaves l
    WHERE l.trajectory_id = t.trajectory_id AND l.sequence_number = t.head_sequence);

-- name: insert_leaves
-- Append leaves; the numbers follow each other.
INSERT INTO audit_leaves (tenant, leaf_index, trajectory_id, sequence_number, event_hash)
SELECT %(tenant)b::text, %(first)b::bigint + number - 1, id, sequence, hash
FROM unnest(%(ids)b::uuid[], %(sequences)b::bigint[], %(hashes)b::bytea[]) WITH ORDINALITY
  AS b(id, sequence, hash, number);

-- name: insert_nodes
-- Keep the subtrees that became complete.
INSERT INTO audit_nodes (tenant, level, node_index, hash)
SELECT %(tenant)b::text, level, node_index, hash
FROM unnest(%(levels)b::smallint[], %(indexes)b::bigint[], %(hashes)b::bytea[]) AS b(level, node_index, hash);

-- name: move_tree
-- The tree as it is after its leaves were appended.
INSERT INTO audit_trees (tenant, size, root) VALUES (%(tenant)s::text, %(size)s::bigint, %(root)b::bytea)
ON CONFLICT (tenant) DO UPDATE SET size = excluded.size, root = excluded.root, updated_at = clock_timestamp();

-- name: leaf_range
-- Leaves by number, the last one excluded.
SELECT leaf_index, trajectory_id, sequence_number, event_hash FROM audit_leaves
WHERE tenant = %(tenant)s::text AND leaf_index >= %(first)s::bigint AND leaf_index < %(end)s::bigint
ORDER BY leaf_index;

-- name: node_range
-- Stored subtrees of one level by number, the last one excluded.
SELECT node_index, hash FROM audit_nodes
WHERE tenant = %(tenant)s::text AND level = %(level)s::smallint
  AND node_index >= %(first)s::bigint AND node_index < %(end)s::bigint
ORDER BY node_index;

-- name: leaves
-- All leaves of a tenant, and the hash that the warm tier has for the event of each (NULL where it has none).
SELECT l.leaf_index, l.trajectory_id, l.sequence_number, l.event_hash, e.cryptographic_hash, e.tenant,
       t.consolidated_through
FROM audit_leaves l
LEFT JOIN all_events e ON e.trajectory_id = l.trajectory_id AND e.sequence_number = l.sequence_number
LEFT JOIN trajectories t ON t.trajectory_id = l.trajectory_id
WHERE l.tenant = %(tenant)s::text
ORDER BY l.leaf_index;

-- name: nodes
-- All stored subtrees of a tenant.
SELECT level, node_index, hash FROM audit_nodes WHERE tenant = %(tenant)s::text ORDER BY level, node_index;

-- name: leaves_of
-- The leaves of one trajectory, oldest first.
SELECT tenant, leaf_index, sequence_number, event_hash FROM audit_leaves
WHERE trajectory_id = %(trajectory_id)s::uuid
ORDER BY sequence_number;

-- name: events_of_kinds
-- The events of some kinds, by trajectory and in order, with their exact bodies.
SELECT trajectory_id, sequence_number, tenant, event_type, created_at, body, erased
FROM all_events
WHERE event_type = ANY (%(kinds)s::text[])
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
  AND (%(trajectory_id)s::uuid IS NULL OR trajectory_id = %(trajectory_id)s::uuid)
ORDER BY trajectory_id, sequence_number;

-- name: dropped
-- Trajectories of which events have left the warm tier and are in the cold one.
SELECT trajectory_id, tenant FROM trajectories
WHERE dropped_through >= 0 AND cold_dropped_through < consolidated_through
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
  AND (%(trajectory_id)s::uuid IS NULL OR trajectory_id = %(trajectory_id)s::uuid)
ORDER BY trajectory_id;

-- name: deletions
-- What retention has taken out of every tier, by a policy that says so: up to where, when, by which policy, who put it
-- into force. A row that does not fit the head, or a policy that keeps the cold tier for ever, explains nothing.
SELECT DISTINCT ON (d.trajectory_id) d.trajectory_id, d.through_sequence, d.policy, d.version, v.loaded_by,
  coalesce(d.ended_at, d.started_at)
FROM deletions d
JOIN trajectories t ON t.trajectory_id = d.trajectory_id AND t.tenant = d.tenant
JOIN retention_policies p ON p.version = d.version AND p.name = d.policy AND p.cold_us IS NOT NULL
JOIN retention_versions v ON v.version = d.version
WHERE d.tenant = %(tenant)s::text AND d.tier = 'cold' AND d.state IN ('started', 'done')
  AND (d.state = 'started' OR t.cold_dropped_through >= d.through_sequence)
ORDER BY d.trajectory_id, d.through_sequence DESC;

-- name: erasures
-- Erased trajectories of a tenant that have leaves: since when, who asked for it, and why.
SELECT x.trajectory_id, x.erased_at, e.requested_by, e.reason
FROM erased_trajectories x JOIN erasures e USING (erasure_id)
WHERE EXISTS (SELECT 1 FROM audit_leaves l WHERE l.tenant = %(tenant)s::text AND l.trajectory_id = x.trajectory_id)
ORDER BY x.erased_at, x.trajectory_id;

-- name: erasure
-- Since when a trajectory is erased, who asked for it, and why.
SELECT x.erased_at, e.requested_by, e.reason
FROM erased_trajectories x JOIN erasures e USING (erasure_id) WHERE x.trajectory_id = %(trajectory_id)s::uuid;
