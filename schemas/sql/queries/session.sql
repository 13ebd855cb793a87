-- What every connection of stratalog is set to.

-- name: prepare_session
-- Names without a schema are ours; times are UTC; nothing waits for ever. A commit is durable before it is
-- acknowledged, also where the server's default says otherwise (stronger settings stay).
SELECT set_config('search_path', 'stratalog', false),
       set_config('timezone', 'UTC', false),
       set_config('statement_timeout', %(statement_timeout_ms)s::text, false),
       set_config('idle_in_transaction_session_timeout', %(idle_timeout_ms)s::text, false),
       CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END;
