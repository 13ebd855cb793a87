-- One row per action: a ToolIntent with its result, and a call that was denied and therefore has no intent.
--
-- `sequence_number` is that of the intent, or of the denial. An intent without a result is `in_doubt`, one whose body is
-- erased is `erased`; of several results (and one that came after the end is one, too) the first counts. The decision is the last one for the same
-- tool_call_id before the intent. Ids repeat in real data, so a denial stands for a call of its own unless the next step
-- under the same id is an intent.
-- Denials are looked up on their own, because the window over every call would cost more than all the rest.
CREATE OR REPLACE VIEW tool_calls AS
WITH intents AS NOT MATERIALIZED (
  SELECT
    trajectory_id, sequence_number, kind, turn, tool_call_id, tool, arguments, inferred, erased,
    last_value(CASE WHEN kind <> 'ToolIntent' THEN decision END IGNORE NULLS) OVER call AS decided
  FROM events
  WHERE kind IN ('ToolIntent', 'Authorized', 'ApprovalResolved')
  WINDOW call AS (
    PARTITION BY trajectory_id, tool_call_id
    ORDER BY sequence_number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),
results AS NOT MATERIALIZED (
  SELECT trajectory_id, intent, status, output, duration_ms
  FROM events
  WHERE kind IN ('ToolResult', 'LateResult') AND intent IS NOT NULL
  QUALIFY sequence_number = min(sequence_number) OVER (PARTITION BY trajectory_id, intent)
),
calls_with_denials AS (
  SELECT DISTINCT trajectory_id, tool_call_id
  FROM events
  WHERE kind IN ('Authorized', 'ApprovalResolved') AND decision IN ('deny', 'denied')
),
steps AS NOT MATERIALIZED (
  SELECT
    trajectory_id, sequence_number, kind, turn, tool_call_id, tool, arguments, decision, inferred,
    lead(kind) OVER (PARTITION BY trajectory_id, tool_call_id ORDER BY sequence_number) AS next_kind
  FROM events
  SEMI JOIN calls_with_denials USING (trajectory_id, tool_call_id)
  WHERE kind IN ('ToolIntent', 'Authorized', 'ApprovalResolved')
)
SELECT
  intents.trajectory_id,
  intents.sequence_number,
  intents.turn,
  intents.tool_call_id,
  intents.tool,
  intents.arguments,
  intents.decided AS decision,
  CASE
    WHEN intents.erased THEN 'erased'
    WHEN results.intent IS NULL THEN 'in_doubt'
    ELSE results.status
  END AS status,
  results.output,
  results.duration_ms,
  intents.inferred
FROM intents
LEFT JOIN results ON results.trajectory_id = intents.trajectory_id AND results.intent = intents.sequence_number
WHERE intents.kind = 'ToolIntent'
UNION ALL
SELECT
  trajectory_id, sequence_number, turn, tool_call_id, tool, arguments, decision, 'denied', NULL, NULL, inferred
FROM steps
WHERE kind <> 'ToolIntent' AND decision IN ('deny', 'denied') AND next_kind IS DISTINCT FROM 'ToolIntent'
