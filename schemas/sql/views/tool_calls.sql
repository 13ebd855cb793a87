-- One row per action: a ToolIntent with its result, and a call that was denied and therefore has no intent.
--
-- `sequence_number` is that of the intent, or of the denial. An intent without a result is `in_doubt`; of several
-- results (and one that came after the end is one, too) the first counts. The decision is the last one for the same
-- tool_call_id before the intent. Ids repeat in real data, so a denial stands for a call of its own unless the next step
-- under the same id is an intent.
CREATE OR REPLACE VIEW tool_calls AS
WITH steps AS (
  SELECT
    trajectory_id, sequence_number, kind, turn, tool_call_id, tool, arguments, decision, inferred,
    last_value(CASE WHEN kind <> 'ToolIntent' THEN decision END IGNORE NULLS) OVER call AS decided,
    lead(kind) OVER call AS next_kind
  FROM events
  WHERE kind IN ('ToolIntent', 'Authorized', 'ApprovalResolved')
  WINDOW call AS (
    PARTITION BY trajectory_id, tool_call_id
    ORDER BY sequence_number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),
results AS (
  SELECT trajectory_id, intent, status, output, duration_ms
  FROM events
  WHERE kind IN ('ToolResult', 'LateResult') AND intent IS NOT NULL
  QUALIFY row_number() OVER (PARTITION BY trajectory_id, intent ORDER BY sequence_number) = 1
)
SELECT
  steps.trajectory_id,
  steps.sequence_number,
  steps.turn,
  steps.tool_call_id,
  steps.tool,
  steps.arguments,
  steps.decided AS decision,
  CASE WHEN results.intent IS NULL THEN 'in_doubt' ELSE results.status END AS status,
  results.output,
  results.duration_ms,
  steps.inferred
FROM steps
LEFT JOIN results ON results.trajectory_id = steps.trajectory_id AND results.intent = steps.sequence_number
WHERE steps.kind = 'ToolIntent'
UNION ALL
SELECT
  trajectory_id, sequence_number, turn, tool_call_id, tool, arguments, decision, 'denied', NULL, NULL, inferred
FROM steps
WHERE kind <> 'ToolIntent' AND decision IN ('deny', 'denied') AND next_kind IS DISTINCT FROM 'ToolIntent'
