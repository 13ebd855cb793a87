"""The vocabulary of the generated agent: a made-up company's services, files, people and troubles."""

from __future__ import annotations

TENANTS = ("acme", "globex", "initech")
MODELS = (
    ("atlas-large", "2025-11-04", "meridian", 3.0, 15.0),
    ("atlas-small", "2025-09-18", "meridian", 0.8, 4.0),
    ("kestrel/2", "2.1.3", "northwind", 2.5, 10.0),
)
"""Name, version, provider, dollars for a million input and output tokens."""

REPOSITORIES = ("checkout", "ledger", "search-index", "gateway", "billing-ui", "notifier")
TEAMS = ("payments", "platform", "growth", "data")
PEOPLE = ("ana.costa", "jun.park", "mira.novak", "t.okafor", "lea.weber")
SERVICES = ("payments-api", "ledger-writer", "search-worker", "edge-gateway", "mail-relay", "session-cache")
FOLDERS = ("src/core", "src/api", "src/storage", "src/jobs", "lib/parse", "lib/retry", "tests/unit", "tests/flow")
MODULES = (
    "parser", "tokens", "invoice", "retry", "session", "cursor", "schema", "router", "quota", "cache", "worker",
    "ledger", "webhook", "scheduler", "migrate", "client", "errors", "config",
)  # fmt: skip
FUNCTIONS = (
    "parse_header", "flush_batch", "apply_refund", "next_cursor", "load_schema", "route_request", "acquire_lock",
    "render_invoice", "settle_payment", "rebuild_index", "validate_token", "merge_totals", "expire_session",
)  # fmt: skip
FILES = tuple(f"{folder}/{module}.py" for folder in FOLDERS for module in MODULES)
SEVERITIES = ("error", "warning", "warning", "note")
COMPLAINTS = (
    'Argument 1 to "append" has incompatible type "str"; expected "int"',
    'Incompatible return value type (got "None", expected "Invoice")',
    "unused variable 'retry_after'",
    "name 'deadline_ms' is not defined",
    'Missing positional argument "currency" in call to "settle_payment"',
    "comparison between signed and unsigned integer expressions",
    'Item "None" of "Session | None" has no attribute "expires_at"',
    "unreachable code after return",
    "deprecated: use 'open_cursor' instead",
    "implicit conversion loses integer precision: 'uint64_t' to 'int'",
)
CODES = ("arg-type", "return-value", "unused", "name-defined", "call-arg", "union-attr", "unreachable", "deprecated")
LEVELS = ("INFO ", "INFO ", "INFO ", "DEBUG", "WARN ", "ERROR")
ROUTES = ("/v1/charges", "/v1/refunds", "/v1/sessions", "/v2/search", "/healthz", "/v1/invoices", "/v2/webhooks")
STATUSES = (200, 200, 200, 201, 204, 304, 404, 409, 429, 500, 503)
CODE_LINES = (
    "    if not items:",
    "        return None",
    "    for attempt in range(RETRIES_MAX):",
    "        response = client.post(url, json=payload, timeout=TIMEOUT_S)",
    "        if response.status_code == 429:",
    "            time.sleep(backoff(attempt))",
    "            continue",
    "    total = sum(line.amount for line in invoice.lines)",
    '    logger.info("settled %s of %s", total, invoice.number)',
    "    with session.begin() as transaction:",
    "        transaction.execute(INSERT_EVENT, rows)",
    "    return Cursor(position=position, token=token)",
    '    raise ValueError(f"unexpected currency {currency!r}")',
    "    assert cursor.position >= previous.position",
    "",
)
TASKS = (
    "Fix the failing test {function} in {repository} and open a pull request.",
    "The error rate of {service} has doubled since the last deploy. Find out why and roll back if needed.",
    "Provision a read replica for the {repository} database in eu-west and move the reporting jobs to it.",
    "Rename {function} to something clearer across {repository}; keep the old name as a deprecated alias.",
    "{service} logs 429 from its upstream. Add a retry with backoff and a test that proves it.",
    "Upgrade the schema of {repository} to version 12 and check that old rows are still readable.",
)
SYSTEM = (
    "You are the engineering agent of {team}. You work in the repository {repository}. Use the tools; do not guess. "
    "Effects outside the sandbox need an authorization; say plainly when something did not work. "
    "Prefer small changes, run the tests after each one, and never force-push."
)
OPENINGS = (
    "Let me look at {file} first.",
    "The trace points at `{function}` in {file}.",
    "Before changing anything I want to see how {service} behaves.",
    "The last result narrows it down: `{function}` gets an empty list.",
    "Two places call `{function}`; I will check both.",
)
MIDDLES = (
    "The retry in {file} never resets its counter, so the second batch starts exhausted.",
    "That matches the {count} failures in the log of {service}.",
    "I assumed the cursor was monotonic; line {count} shows that it is not.",
    "The test passes alone and fails in the suite, which smells of shared state.",
    "Nothing else imports it, so the change is local.",
)
CLOSINGS = (
    "I will run the tests for it now.",
    "Next step: change it and look at the result.",
    "I will ask for the metrics of the last {count} minutes.",
    "If that is right, the fix is one line.",
)
RESULTS = (
    "Fixed `{function}` in {file}: it skipped the last batch. All {count} tests pass.",
    "Rolled {service} back and opened a pull request with the cause.",
    "The replica is up and the reporting jobs read from it; lag is {count} ms.",
    "Done. {count} call sites changed, the alias warns once.",
)
FAILURES = (
    "I could not reproduce the failure in {count} runs and have no further lead.",
    "The budget is spent and the migration of {repository} is not finished.",
    "Access to {service} was refused, and nothing else explains the errors.",
)
STEPS = (
    "reproduce the failure", "read the code", "find the cause", "write a failing test", "change the code",
    "run the suite", "open a pull request", "watch the metrics",
)  # fmt: skip
REMARKS = (
    "Please also mention it in the changelog.",
    "Stop touching the config, I am changing it right now.",
    "Here is what I see on the dashboard:",
    "Reminder: the deploy window closes at 16:00 UTC.",
)
