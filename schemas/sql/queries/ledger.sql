-- The canonical histories: locking those that a transaction touches, comparing, storing. Used by ingest and by the
-- retry of quarantined events. Locks are taken in the order: cursor, leases, heads (each by id), partitions.

-- name: lock_leases
-- Hold the leases of these trajectories in share mode, so that no claim or seal moves while events are judged.
SELECT trajectory_id FROM leases WHERE trajectory_id = ANY(%(ids)b::uuid[]) ORDER BY trajectory_id FOR SHARE;

-- name: read_seals
-- From which event on each fencing token owns its trajectory.
SELECT trajectory_id, token, log_id, first_sequence, previous_hash
FROM lease_epochs WHERE trajectory_id = ANY(%(ids)b::uuid[]) ORDER BY trajectory_id, token;

-- name: insert_missing_heads
-- A head must exist before it can be locked. One that stays without events is removed again at the end.
INSERT INTO trajectories (trajectory_id, tenant, origin_log, head_hash)
SELECT id, tenant, log_id, %(genesis)b
FROM unnest(%(ids)b::uuid[], %(tenants)b::text[], %(logs)b::uuid[]) AS b(id, tenant, log_id)
ORDER BY id
ON CONFLICT (trajectory_id) DO NOTHING;

-- name: lock_heads
-- The heads, locked by id: two batches that meet never wait for each other in a circle.
SELECT trajectory_id, tenant, secret, origin_log, head_sequence, head_hash, stray, summary, consolidated_through,
       consolidated_hash
FROM trajectories WHERE trajectory_id = ANY(%(ids)b::uuid[]) ORDER BY trajectory_id FOR UPDATE;

-- name: read_erased
-- Which of these are erased, and by which request: their events are stored without bodies. After the locks on the
-- heads, so that an erasure that was first is seen, and one that comes later sees what is stored here.
SELECT trajectory_id, erasure_id FROM erased_trajectories WHERE trajectory_id = ANY(%(ids)b::uuid[]);

-- name: note_erased_content
-- Content that came with events of erased trajectories, to be looked at when bytes are removed.
INSERT INTO erased_content (tenant, sha256, erasure_id)
SELECT tenant, digest, erasure FROM unnest(%(tenants)b::text[], %(digests)b::bytea[], %(erasures)b::bigint[])
  AS b(tenant, digest, erasure)
ORDER BY 1, 2 ON CONFLICT (tenant, sha256) DO UPDATE
SET erasure_id = excluded.erasure_id, needed = false, put_at = NULL;

-- name: fall_back
-- A log that still had bodies of these has not followed the ledger, whatever it has said.
UPDATE log_erasures SET place = least(place, (
  SELECT min(place) - 1 FROM erased_trajectories WHERE trajectory_id = ANY(%(ids)b::uuid[])))
WHERE log_id = %(log_id)b::uuid;

-- name: insert_links
-- Who descends from whom, as stored events say. A fork is also told as a child by its first event.
INSERT INTO trajectory_links AS l (child_id, parent_id, kind)
SELECT child, parent, max(kind) FROM unnest(%(children)b::uuid[], %(parents)b::uuid[], %(kinds)b::text[])
  AS b(child, parent, kind)
GROUP BY 1, 2 ORDER BY 1, 2
ON CONFLICT (child_id, parent_id) DO UPDATE SET kind = 'fork' WHERE excluded.kind = 'fork' AND l.kind <> 'fork';

-- name: insert_subjects
-- Whom trajectories are about, as stored events say.
INSERT INTO trajectory_subjects (tenant, subject, trajectory_id)
SELECT tenant, subject, id FROM unnest(%(tenants)b::text[], %(subjects)b::bytea[], %(ids)b::uuid[])
  AS b(tenant, subject, id)
ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING;

-- name: remove_empty_heads
-- Heads that were inserted for locking and got no event.
DELETE FROM trajectories WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND head_sequence < 0;

-- name: read_stored_hashes
-- What stands at the places of events that may be duplicates. A subquery for each place, so that it is looked up by
-- the primary key of its partition whatever the statistics say; a join would read whole partitions.
SELECT b.id, b.sequence, (SELECT e.cryptographic_hash FROM all_events e
                          WHERE e.trajectory_id = b.id AND e.sequence_number = b.sequence)
FROM unnest(%(ids)b::uuid[], %(sequences)b::bigint[]) AS b(id, sequence);

-- name: read_refused
-- Quarantined events at these places, so that a successor gets the reason of the one it follows.
SELECT q.reason, q.header
FROM unnest(%(ids)b::uuid[], %(sequences)b::bigint[]) AS b(id, sequence)
CROSS JOIN LATERAL (
  SELECT reason, header FROM quarantine
  WHERE trajectory_id = b.id AND sequence_number = b.sequence AND admitted_at IS NULL OFFSET 0) AS q;

-- name: missing_partitions
-- Which of these days have no partition yet, how many partitions there are, and what day it is for the server.
SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date, (SELECT count(*) FROM event_partitions),
       ARRAY(SELECT d FROM unnest(%(days)b::date[]) AS d
             WHERE NOT EXISTS (SELECT 1 FROM event_partitions p WHERE p.lower <= d AND d < p.upper) ORDER BY d DESC);

-- name: ensure_partitions
-- Make the partitions of these days, and those of the coming days.
SELECT ensure_event_partitions(%(days)b::date[], %(ahead)b::integer);

-- name: insert_events
-- The events of histories whose partition exists, sorted by key. A place that is taken is skipped, and the caller
-- compares the counts: under the locks on the heads it cannot happen.
INSERT INTO trajectory_events (trajectory_id, sequence_number, tenant, event_type, epoch, schema_version, created_at,
  turn, tool_name, event_status, cryptographic_hash, body_digest, body, erased, payload)
SELECT id, sequence, tenant, kind, epoch, version, at, turn, tool, status, hash, digest, body, erased, payload::jsonb
FROM unnest(%(ids)b::uuid[], %(sequences)b::bigint[], %(tenants)b::text[], %(kinds)b::text[], %(epochs)b::bigint[],
  %(versions)b::integer[], %(times)b::timestamptz[], %(turns)b::bigint[], %(tools)b::text[], %(statuses)b::text[],
  %(hashes)b::bytea[], %(digests)b::bytea[], %(bodies)b::bytea[], %(erased)b::boolean[], %(payloads)b::text[])
  AS b(id, sequence, tenant, kind, epoch, version, at, turn, tool, status, hash, digest, body, erased, payload)
ON CONFLICT (trajectory_id, sequence_number) DO NOTHING;

-- name: insert_stray_events
-- The same for ids that fit no partition.
INSERT INTO trajectory_events_stray (trajectory_id, sequence_number, tenant, event_type, epoch, schema_version,
  created_at, turn, tool_name, event_status, cryptographic_hash, body_digest, body, erased, payload)
SELECT id, sequence, tenant, kind, epoch, version, at, turn, tool, status, hash, digest, body, erased, payload::jsonb
FROM unnest(%(ids)b::uuid[], %(sequences)b::bigint[], %(tenants)b::text[], %(kinds)b::text[], %(epochs)b::bigint[],
  %(versions)b::integer[], %(times)b::timestamptz[], %(turns)b::bigint[], %(tools)b::text[], %(statuses)b::text[],
  %(hashes)b::bytea[], %(digests)b::bytea[], %(bodies)b::bytea[], %(erased)b::boolean[], %(payloads)b::text[])
  AS b(id, sequence, tenant, kind, epoch, version, at, turn, tool, status, hash, digest, body, erased, payload)
ON CONFLICT (trajectory_id, sequence_number) DO NOTHING;

-- name: update_heads
-- Move the heads to the last admitted event, with what lists show of the trajectory.
UPDATE trajectories AS t SET
  tenant = b.tenant, secret = b.secret, origin_log = b.origin_log, head_sequence = b.sequence, head_hash = b.hash,
  stray = b.stray, status = b.status, model = b.model, agent = b.agent, started_at = b.started_at,
  last_event_at = b.last_event_at, finished_at = b.finished_at, turns = b.turns, events = b.events,
  input_tokens = b.input_tokens, output_tokens = b.output_tokens, cost_usd = b.cost_usd, imported = b.imported,
  labels = b.labels::jsonb, source = b.source::jsonb, summary = b.summary, updated_at = clock_timestamp()
FROM unnest(%(ids)b::uuid[], %(tenants)b::text[], %(secrets)b::bytea[], %(logs)b::uuid[], %(sequences)b::bigint[],
  %(hashes)b::bytea[], %(strays)b::boolean[], %(statuses)b::text[], %(models)b::text[], %(agents)b::text[],
  %(started)b::timestamptz[], %(last)b::timestamptz[], %(finished)b::timestamptz[], %(turns)b::bigint[],
  %(events)b::bigint[], %(input_tokens)b::bigint[], %(output_tokens)b::bigint[], %(costs)b::double precision[],
  %(imported)b::boolean[], %(labels)b::text[], %(sources)b::text[], %(summaries)b::bytea[])
  AS b(id, tenant, secret, origin_log, sequence, hash, stray, status, model, agent, started_at, last_event_at,
    finished_at, turns, events, input_tokens, output_tokens, cost_usd, imported, labels, source, summary)
WHERE t.trajectory_id = b.id;
