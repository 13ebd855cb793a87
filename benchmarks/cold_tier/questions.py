"""The questions that are asked of our views, of DuckDB on a hand-laid Parquet file, and of the JSON files."""

from __future__ import annotations

QUESTIONS = {
    "events by kind": "SELECT kind, count(*) FROM events GROUP BY kind ORDER BY kind",
    "calls by tool and status": (
        "SELECT tool, status, count(*), avg(duration_ms) FROM events WHERE kind = 'ToolResult' "
        "GROUP BY tool, status ORDER BY ALL"
    ),
    "tokens by model": (
        "SELECT model_name, sum(input_tokens), sum(output_tokens) FROM events WHERE kind = 'ModelReplied' "
        "GROUP BY model_name ORDER BY ALL"
    ),
    "outputs that name an error": ("SELECT count(*) FROM events WHERE kind = 'ToolResult' AND output LIKE '%Error%'"),
}
JSON_VIEW = """
CREATE VIEW events AS
SELECT trajectory_id, sequence_number, kind, model_name, body ->> '$.tool' AS tool,
  coalesce(body ->> '$.status', CASE kind WHEN 'ToolResult' THEN 'ok' END) AS status,
  (body ->> '$.duration_ms')::DOUBLE AS duration_ms, (body ->> '$.input_tokens')::BIGINT AS input_tokens,
  (body ->> '$.output_tokens')::BIGINT AS output_tokens,
  CASE json_type(body, '$.output') WHEN 'VARCHAR' THEN body ->> '$.output' END AS output
FROM read_json('{folder}/*.jsonl', format = 'newline_delimited', maximum_object_size = 67108864, columns = {{
  trajectory_id: 'VARCHAR', sequence_number: 'BIGINT', kind: 'VARCHAR', model_name: 'VARCHAR', body: 'JSON'}})
"""
"""One file for each trajectory, one line for each event, its body as it is."""
