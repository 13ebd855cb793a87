"""The scripted runs of SWE-agent and in ATIF, and what all samples share."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Any

Json = dict[str, Any]
START = dt.datetime(2026, 3, 9, 9, 0, tzinfo=dt.UTC)


def verbose_test_run(cases: int, failing: frozenset[int]) -> str:
    """What a verbose test run prints: bulky, and mostly the same line."""
    lines = ["============================= test session starts ==============================", "collected items"]
    for case in range(cases):
        mark = hashlib.sha256(f"case {case}".encode()).hexdigest()[:8]
        verdict = "FAILED" if case in failing else "PASSED"
        lines.append(
            f"tests/test_invoice.py::test_total[invoice-{case:04d}-{mark}] {verdict}  [{case * 100 // cases:3d}%]"
        )
    lines += [f"E   AssertionError: invoice {case:04d}: 10.10 != 10.11" for case in sorted(failing)]
    lines.append(f"{len(failing)} failed, {cases - len(failing)} passed")
    return "\n".join(lines)


ISSUE = "ISSUE:\nparse_duration('90') raises IndexError. A number without a unit must be refused with a reason."
DURATION_DIFF = """\
diff --git a/duration.py b/duration.py
--- a/duration.py
+++ b/duration.py
@@ -4,3 +4,5 @@ def parse_duration(text):
+    if text[-1:] not in UNITS:
+        raise ValueError(f"{text!r} has no unit: write one of s, m, h")
     return float(text[:-1]) * UNITS[text[-1]]
"""

# (what the model says, tool, arguments, the command that was run, what came back, seconds)
DURATION_STEPS: tuple[tuple[str, str, Json, str, str, float], ...] = (
    (
        "I will look at the parser first.",
        "open",
        {"path": "duration.py"},
        "open duration.py",
        "[File: duration.py (6 lines total)]\r\n1:UNITS = {'s': 1, 'm': 60, 'h': 3600}\r\n4:def parse_duration(text):",
        0.21,
    ),
    (
        "The unit is taken without a check. I add one.",
        "edit",
        {"search": "    return float", "replace": "    if text[-1:] not in UNITS: …"},
        "edit '    return float' '    if text[-1:] not in UNITS: …'",
        "Text replaced. Please review the changes.",
        0.33,
    ),
    ("Now the tests.", "bash", {"command": "pytest -v"}, "pytest -v", verbose_test_run(380, frozenset()), 9.84),
    ("All pass; I submit.", "submit", {}, "submit", DURATION_DIFF, 0.27),
)


def swe_agent_tools() -> Json:
    """A SWE-agent run with function calling, as version 1 writes it."""
    history: list[Json] = [
        {"role": "system", "content": "SETTING: You work in a terminal.", "message_type": "system_prompt"},
        {"role": "user", "content": "A demonstration: open a file, edit it, submit.", "is_demo": True},
        {"role": "user", "content": ISSUE, "message_type": "observation"},
    ]
    steps: list[Json] = []
    for number, (said, tool, arguments, action, observation, seconds) in enumerate(DURATION_STEPS, 1):
        state = {"open_file": "/repo/duration.py", "working_dir": "/repo"}
        steps.append(
            {
                "action": action,
                "observation": observation,
                "response": said,
                "thought": said,
                "execution_time": seconds,
                "state": state,
            }
        )
        function = {"name": tool, "arguments": json.dumps(arguments)}
        called = [{"id": f"call_{number}", "type": "function", "function": function}]
        history.append({"role": "assistant", "content": said, "thought": said, "action": action, "tool_calls": called})
        if tool != "submit":
            heard = f"{observation}\n(Open file: /repo/duration.py)\n(Current directory: /repo)\nbash-$"
            history.append({"role": "tool", "content": heard, "tool_call_ids": [f"call_{number}"]})
    for message in history:
        message["agent"] = "main"
    stats = {"instance_cost": 0.0183, "tokens_sent": 9_412, "tokens_received": 388, "api_calls": 4}
    info = {"submission": DURATION_DIFF, "exit_status": "submitted", "model_stats": stats}
    config = json.dumps({"agent": {"model": {"name": "gpt-4o-2024-08-06", "temperature": 0.0}}})
    return {
        "environment": "main",
        "trajectory": steps,
        "history": history,
        "info": info,
        "replay_config": config,
    }


def swe_agent_text() -> Json:
    """An older run without function calling, which ran out of money."""
    history: list[Json] = [
        {"role": "system", "content": "You have a shell.", "agent": "primary"},
        {"role": "user", "content": "ISSUE:\nThe importer is slow.", "agent": "primary"},
    ]
    steps: list[Json] = []
    for thought, action, observation in (
        ("Find the importer.\n\n", "find_file importer.py\n", "/repo/importer.py\n"),
        ("Profile it.\n\n", "python -m cProfile importer.py\n", "   1204 calls in 8.112 seconds\n"),
    ):
        response = f"{thought}```\n{action}```"
        state = '{"open_file": "n/a", "working_dir": "/repo"}\n'
        steps.append(
            {"action": action, "observation": observation, "response": response, "state": state, "thought": thought}
        )
        said = {"role": "assistant", "content": response, "thought": thought, "action": action, "agent": "primary"}
        heard = {"role": "user", "content": f"{observation}\n(Current directory: /repo)\nbash-$", "agent": "primary"}
        history += [said, heard]
    info = {"exit_status": "exit_cost", "model_stats": {"total_cost": 3.01, "instance_cost": 3.01, "api_calls": 2}}
    return {"environment": "swe_main", "trajectory": steps, "history": history, "info": info}


def _second(second: int) -> str:
    return (START + dt.timedelta(days=1, seconds=second)).isoformat().replace("+00:00", "Z")


def _called(call_id: str, name: str, **arguments: Any) -> Json:
    return {"tool_call_id": call_id, "function_name": name, "arguments": arguments}


def _checker() -> Json:
    """The sub-agent of `atif_run`."""
    return {
        "schema_version": "ATIF-v1.7",
        "trajectory_id": "export-2-checker",
        "agent": {"name": "checker", "version": "1.2.0", "model_name": "gpt-4.1-mini"},
        "steps": [
            {"step_id": 1, "timestamp": _second(9), "source": "user", "message": "Is the header row complete?"},
            {
                "step_id": 2,
                "timestamp": _second(11),
                "source": "agent",
                "message": "The column `currency` is missing.",
                "metrics": {"prompt_tokens": 310, "completion_tokens": 14},
            },
        ],
        "final_metrics": {"total_prompt_tokens": 310, "total_completion_tokens": 14, "total_steps": 2},
    }


def atif_run() -> Json:
    """An ATIF document with times, parallel calls, a step without a model, a compaction and an embedded sub-agent."""
    both = [_called("c1", "read_file", path="export.csv"), _called("c2", "read_file", path="schema.json")]
    seen = [
        {"source_call_id": "c2", "content": '{"columns": ["date", "amount", "currency"]}'},
        {"source_call_id": "c1", "content": "date,amount\n" + "2026-03-10,10.10\n" * 2_600},
    ]
    reference = [{"trajectory_id": "export-2-checker"}]
    asked = [_called("c3", "delegate", task="Is the header row complete?")]
    heard = [{"source_call_id": "c3", "content": "currency is missing", "subagent_trajectory_ref": reference}]
    management = {"context_management": {"type": "compaction", "boundary": "replace"}}
    steps: list[Json] = [
        {"source": "system", "message": "You check exports."},
        {"source": "user", "message": "Does export.csv follow schema.json?"},
        {
            "source": "agent",
            "message": "I read both.",
            "reasoning_content": "Compare the header with the schema.",
            "tool_calls": both,
            "observation": {"results": seen},
            "metrics": {"prompt_tokens": 820, "completion_tokens": 66, "cached_tokens": 512, "cost_usd": 0.0011},
        },
        {
            "source": "agent",
            "message": "",
            "llm_call_count": 0,
            "tool_calls": asked,
            "observation": {"results": heard},
        },
        {
            "source": "system",
            "message": "Context compaction performed.",
            "observation": {"results": [{"content": "The header lacks `currency`."}]},
            "extra": management,
        },
        {
            "source": "agent",
            "message": "No: the column `currency` is missing.",
            "metrics": {"prompt_tokens": 240, "completion_tokens": 21, "cost_usd": 0.0003},
        },
    ]
    numbered = [{"step_id": number, "timestamp": _second(3 * number), **step} for number, step in enumerate(steps, 1)]
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "export-2",
        "trajectory_id": "export-2-main",
        "agent": {"name": "export-checker", "version": "1.2.0", "model_name": "gpt-4.1"},
        "steps": numbered,
        "final_metrics": {"total_prompt_tokens": 1_060, "total_completion_tokens": 87, "total_steps": 6},
        "subagent_trajectories": [_checker()],
    }
