-- One row per trajectory: what the first row of its last segment says of it.
--
-- A trajectory has one tenant and one date, so partitioning by them changes nothing, but lets conditions on them reach
-- the files; `row_number() = 1` would make DuckDB scan twice, the second time without the conditions. Labels that are
-- not JSON after all become NULL: one of them must not break every query.
CREATE OR REPLACE VIEW trajectories AS
SELECT
  trajectory_id,
  tenant,
  date,
  model_name AS model,
  trajectory_status AS status,
  trajectory_started_at AS started_at,
  trajectory_finished_at AS finished_at,
  trajectory_turns AS turns,
  trajectory_events AS events,
  trajectory_input_tokens AS input_tokens,
  trajectory_output_tokens AS output_tokens,
  trajectory_cost_usd AS cost_usd,
  try_cast(trajectory_labels AS JSON) AS labels,
  try_cast(trajectory_source AS JSON) AS source,
  trajectory_undated AS undated
FROM events
WHERE segment_last_sequence IS NOT NULL
QUALIFY sequence_number = max(sequence_number) OVER (PARTITION BY trajectory_id, tenant, date)
