-- What holds content in Postgres, place by place; see `warm/places.py`.

-- name: events_referring
-- The bodies of these trajectories that refer to bulky content: the search is for the spelling of a reference, the
-- caller reads it exactly.
SELECT tenant, body FROM all_events
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND position('{"$blob":'::bytea IN body) > 0;

-- name: all_events_referring
-- Those of all trajectories.
SELECT tenant, body FROM all_events WHERE position('{"$blob":'::bytea IN body) > 0;

-- name: quarantine_referring
-- The same in quarantine, also of entries that were admitted.
SELECT tenant, body FROM quarantine
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND position('{"$blob":'::bytea IN body) > 0;

-- name: all_quarantine_referring
-- Those of all trajectories.
SELECT tenant, body FROM quarantine WHERE position('{"$blob":'::bytea IN body) > 0;

-- name: clear_events
-- Bodies, projections and the columns that were taken from them. The header, the digest and the hash stay.
UPDATE trajectory_events
SET body = '', erased = true, payload = NULL, tool_name = NULL, event_status = NULL
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND (NOT erased OR body <> '' OR payload IS NOT NULL);

-- name: clear_strays
-- The same for those that lie in no partition.
UPDATE trajectory_events_stray
SET body = '', erased = true, payload = NULL, tool_name = NULL, event_status = NULL
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND (NOT erased OR body <> '' OR payload IS NOT NULL);

-- name: readable_events
-- Events of these that are not erased ones.
SELECT 'event ' || sequence_number, trajectory_id FROM all_events
WHERE trajectory_id = ANY(%(ids)b::uuid[])
  AND (NOT erased OR body <> '' OR payload IS NOT NULL OR tool_name IS NOT NULL OR event_status IS NOT NULL)
LIMIT 1000;

-- name: clear_quarantine
-- Events that were put aside; that they were, and why, stays.
UPDATE quarantine SET body = '', erased = true, secret = NULL WHERE trajectory_id = ANY(%(ids)b::uuid[]);

-- name: readable_quarantine
-- Entries of these with a body or a secret.
SELECT 'quarantined event ' || quarantine_id, trajectory_id FROM quarantine
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND (body <> '' OR secret IS NOT NULL) LIMIT 1000;

-- name: clear_heads
-- The secret, and what the events have said of the trajectory. Position, hash, times, counts and model stay.
UPDATE trajectories AS t SET secret = NULL, agent = '', source = NULL, updated_at = clock_timestamp(),
  labels = CASE WHEN t.labels ->> 'undated' = 'true' THEN '{"undated": "true"}'::jsonb ELSE '{}' END
WHERE t.trajectory_id = ANY(%(ids)b::uuid[]);

-- name: head_summaries
-- The summaries of these heads.
SELECT trajectory_id, 0::bigint, summary FROM trajectories
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND summary <> '';

-- name: clear_head_summaries
-- Without labels, agent and source.
UPDATE trajectories AS t SET summary = b.summary
FROM unnest(%(ids)b::uuid[], %(firsts)b::bigint[], %(summaries)b::bytea[]) AS b(id, first, summary)
WHERE t.trajectory_id = b.id;

-- name: readable_heads
-- Heads of these that still say something.
SELECT 'head', trajectory_id FROM trajectories
WHERE trajectory_id = ANY(%(ids)b::uuid[])
  AND (secret IS NOT NULL OR agent <> '' OR source IS NOT NULL OR labels - 'undated' <> '{}');

-- name: plan_summaries
-- The summaries of what was planned for the cold tier.
SELECT trajectory_id, first_sequence, summary FROM consolidation_items
WHERE trajectory_id = ANY(%(ids)b::uuid[]) AND summary <> '';

-- name: clear_plan_summaries
-- Without labels, agent and source.
UPDATE consolidation_items AS i SET summary = b.summary
FROM unnest(%(ids)b::uuid[], %(firsts)b::bigint[], %(summaries)b::bytea[]) AS b(id, first, summary)
WHERE i.trajectory_id = b.id AND i.first_sequence = b.first;

-- name: readable_plans
-- Plans say nothing beside their summaries, which are read when they are cleared.
SELECT 'plan', trajectory_id FROM consolidation_items WHERE false AND trajectory_id = ANY(%(ids)b::uuid[]);

-- name: forget_subjects
-- Whom they were about; a subject that was asked for stays in the request, as its keyed hash.
DELETE FROM trajectory_subjects WHERE trajectory_id = ANY(%(ids)b::uuid[]);

-- name: readable_subjects
-- Whom these are about.
SELECT 'subject', trajectory_id FROM trajectory_subjects WHERE trajectory_id = ANY(%(ids)b::uuid[]);
