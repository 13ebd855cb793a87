-- What was said, in order: received messages under their role, replies of the model, results as the model saw them, and
-- summaries that replaced older messages. A text that lies in content-addressed storage is NULL here; `blob` names it.
CREATE OR REPLACE VIEW messages AS
SELECT
  trajectory_id,
  sequence_number,
  turn,
  CASE kind
    WHEN 'MessageReceived' THEN role
    WHEN 'ModelReplied' THEN 'assistant'
    WHEN 'ToolResult' THEN 'tool'
    ELSE 'summary'
  END AS role,
  CASE kind WHEN 'ToolResult' THEN output ELSE text END AS text,
  blob
FROM events
WHERE kind IN ('MessageReceived', 'ModelReplied', 'ToolResult', 'Compacted')
