-- All events of the cold table, one row each, with all its columns except the trajectories' secrets.
--
-- $source is replaced by the files of one snapshot. Every other view reads from this one.
CREATE OR REPLACE VIEW events AS
SELECT
  trajectory_id, sequence_number, tenant, date, model, model_name, kind, epoch, schema_version, created_at, turn,
  role, text, reasoning, tool_call_id, tool, arguments, decision, status, output, duration_ms, intent, stop_reason,
  input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, served_model, inferred, blob,
  rest, body_raw, erased, body_digest,
  segment_last_sequence, segment_previous_hash, segment_last_hash,
  trajectory_status, trajectory_started_at, trajectory_finished_at, trajectory_last_event_at, trajectory_turns,
  trajectory_events, trajectory_input_tokens, trajectory_output_tokens, trajectory_cost_usd, trajectory_labels,
  trajectory_source, trajectory_undated, trajectory_agent
FROM $source
