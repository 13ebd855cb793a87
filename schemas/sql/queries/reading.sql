-- What other tiers, the command line and programs read from the warm tier.

-- name: heads
-- Heads by descending id (newest start first), filtered, after `before` in that order.
SELECT trajectory_id, tenant, secret, origin_log, head_sequence, head_hash, stray, status, model, agent, started_at,
       last_event_at, finished_at, turns, events, input_tokens, output_tokens, cost_usd, imported, labels, source,
       summary, consolidated_through, consolidated_hash, updated_at
FROM trajectories
WHERE head_sequence >= 0
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
  AND (%(status)s::text IS NULL OR status = %(status)s::text)
  AND (%(model)s::text IS NULL OR model = %(model)s::text)
  AND (%(labels)s::jsonb IS NULL OR labels @> %(labels)s::jsonb)
  AND (%(before)s::uuid IS NULL OR trajectory_id < %(before)s::uuid)
ORDER BY trajectory_id DESC
LIMIT %(limit)s::bigint;

-- name: head
-- One head.
SELECT trajectory_id, tenant, secret, origin_log, head_sequence, head_hash, stray, status, model, agent, started_at,
       last_event_at, finished_at, turns, events, input_tokens, output_tokens, cost_usd, imported, labels, source,
       summary, consolidated_through, consolidated_hash, updated_at
FROM trajectories WHERE trajectory_id = %(trajectory_id)s::uuid AND head_sequence >= 0;

-- name: events_of
-- The events of one trajectory from a sequence number on, in order.
SELECT trajectory_id, sequence_number, tenant, event_type, epoch, schema_version, created_at, cryptographic_hash,
       body_digest, body, erased
FROM all_events
WHERE trajectory_id = %(trajectory_id)s::uuid AND sequence_number >= %(from_sequence)s::bigint
ORDER BY sequence_number;

-- name: hash_at
-- The hash of one event.
SELECT cryptographic_hash FROM all_events
WHERE trajectory_id = %(trajectory_id)s::uuid AND sequence_number = %(sequence_number)s::bigint;

-- name: cursors
-- How far each log was replicated.
SELECT log_id, lsn, hash, events, updated_at FROM log_cursors ORDER BY log_id;

-- name: counts
-- What the warm tier holds. `events` is that of the heads: those that went on to the cold tier are counted too.
SELECT (SELECT count(*) FROM trajectories WHERE head_sequence >= 0),
       (SELECT coalesce(sum(events), 0)::bigint FROM trajectories),
       (SELECT count(*) FROM trajectories WHERE head_sequence >= 0 AND consolidated_through >= head_sequence),
       (SELECT count(*) FROM trajectories WHERE stray),
       (SELECT count(*) FROM event_partitions),
       (SELECT count(*) FROM quarantine WHERE admitted_at IS NULL),
       pg_database_size(current_database());

-- name: import_key
-- The key of a tenant, from which the secrets of its imported trajectories are made.
SELECT key FROM import_keys WHERE tenant = %(tenant)s::text;

-- name: publish_import_key
-- The first key that is published for a tenant stays.
INSERT INTO import_keys (tenant, key) VALUES (%(tenant)s::text, %(key)b::bytea) ON CONFLICT (tenant) DO NOTHING;

-- name: last_consolidation
-- The run that was marked last.
SELECT run_id, finished_at, trajectories, events, files, bytes
FROM consolidation_runs WHERE state = 'marked' ORDER BY finished_at DESC LIMIT 1;

-- name: dropped
-- Up to where retention has deleted trajectories in the warm and in the cold tier.
SELECT trajectory_id, dropped_through, cold_dropped_through FROM trajectories
WHERE dropped_through >= 0 AND (%(trajectory_id)b::uuid IS NULL OR trajectory_id = %(trajectory_id)b::uuid);
