"""The tools of the generated agent: what they take, what they do to the world, what they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from . import words
from .phrases import Output, Phrases

Effect = Literal["read", "local", "reversible", "irreversible"]
Settlement = Literal["", "idempotency_key", "probe", "escalate"]


class Tool(msgspec.Struct, frozen=True):
    """A tool: its effect decides about approvals, its settlement about what follows a timeout."""

    name: str
    version: str
    effect: Effect
    settlement: Settlement
    arguments: Callable[[Phrases], dict[str, Any]]
    output: Output
    weight: int


def _command(phrases: Phrases) -> dict[str, Any]:
    tests = f"pytest -q {phrases.one(words.FOLDERS)} -k {phrases.one(words.FUNCTIONS)}"
    return {"command": tests, "timeout_s": 120}


def _edit(phrases: Phrases) -> dict[str, Any]:
    return {
        "path": phrases.one(words.FILES),
        "old": phrases.one(words.CODE_LINES),
        "new": f"{phrases.one(words.CODE_LINES)}\n{phrases.one(words.CODE_LINES)}",
    }


TOOLS = (
    Tool("read_file", "3", "read", "", lambda p: {"path": p.one(words.FILES)}, Phrases.source_code, 24),
    Tool("list_files", "2", "read", "", lambda p: {"path": p.one(words.FOLDERS)}, Phrases.listing, 10),
    Tool("search_code", "2", "read", "", lambda p: {"pattern": p.one(words.FUNCTIONS)}, Phrases.matches, 14),
    Tool("run_command", "5", "local", "probe", _command, Phrases.test_run, 16),
    Tool("check_types", "1", "local", "probe", lambda p: {"path": p.one(words.FOLDERS)}, Phrases.compiler, 8),
    Tool("edit_file", "4", "local", "probe", _edit, Phrases.patch, 16),
    Tool("read_logs", "1", "read", "", lambda p: {"service": p.one(words.SERVICES)}, Phrases.service_log, 6),
    Tool(
        "apply_manifest", "7", "reversible", "probe",
        lambda p: {"service": p.one(words.SERVICES), "replicas": p.below(9) + 1}, Phrases.pods, 3,
    ),
    Tool(
        "open_pull_request", "2", "reversible", "idempotency_key",
        lambda p: {"repository": p.one(words.REPOSITORIES), "title": p.filled(p.one(words.RESULTS))},
        Phrases.patch, 3,
    ),
    Tool(
        "create_replica", "1", "irreversible", "idempotency_key",
        lambda p: {"database": p.one(words.REPOSITORIES), "region": p.one(("eu-west", "us-east"))}, Phrases.pods, 3,
    ),
    Tool(
        "send_message", "1", "irreversible", "escalate",
        lambda p: {"to": p.one(words.PEOPLE), "text": p.filled(p.one(words.MIDDLES))}, Phrases.service_log, 2,
    ),
)  # fmt: skip

DELEGATE = Tool("delegate", "1", "local", "probe", lambda p: {"task": p.filled(p.one(words.TASKS))}, Phrases.matches, 0)
SCHEMAS = {tool.name: tool.version for tool in (*TOOLS, DELEGATE)}
WEIGHTS = tuple(tool.weight for tool in TOOLS)
