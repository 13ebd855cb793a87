"""The scripted Claude Code sessions: one that goes through everything, its sub-agent, and one that ends badly."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Any

from sample_runs import START, Json, verbose_test_run

MODEL = "claude-sonnet-4-5-20250929"

ROUNDING = """\
from decimal import Decimal


def net_total(lines):
    total = 0.0
    for line in lines:
        total += line.quantity * line.unit_price
    return round(total, 2)


def with_tax(net, rate):
    return round(net * (1 + rate), 2)
"""

FIXED = """\
from decimal import ROUND_HALF_UP, Decimal

CENT = Decimal("0.01")


def net_total(lines):
    total = sum((line.quantity * Decimal(str(line.unit_price)) for line in lines), Decimal(0))
    return total.quantize(CENT, ROUND_HALF_UP)
"""


class Session:
    """A Claude Code session file, record by record; every record a few seconds after the one before."""

    def __init__(self, session_id: str, *, agent_id: str = "", start: dt.datetime = START) -> None:
        self.session_id = session_id
        self.agent_id = agent_id
        self.now = start
        self.records: list[Json] = []
        self._parent: str | None = None
        self._replies = 0

    def _stamp(self, seconds: float = 2.4) -> str:
        self.now += dt.timedelta(seconds=seconds)
        return self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _uuid(self) -> str:
        seed = hashlib.sha256(f"{self.session_id}/{self.agent_id}/{len(self.records)}".encode()).hexdigest()
        return f"{seed[:8]}-{seed[8:12]}-4{seed[13:16]}-8{seed[17:20]}-{seed[20:32]}"

    def record(self, kind: str, *, seconds: float = 2.4, parent: str | None = None, **members: Any) -> str:
        """A record with everything that all of them have."""
        uuid = self._uuid()
        common: Json = {
            "parentUuid": self._parent if parent is None else parent,
            "isSidechain": bool(self.agent_id),
            "userType": "external",
            "cwd": "/srv/invoices",
            "sessionId": self.session_id,
            "version": "2.1.40",
            "gitBranch": "fix/rounding",
        }
        if self.agent_id:
            common["agentId"] = self.agent_id
        stamp = self._stamp(seconds)
        self.records.append({**common, "type": kind, **members, "uuid": uuid, "timestamp": stamp})
        self._parent = uuid
        return uuid

    def bare(self, kind: str, **members: Any) -> None:
        """A record without uuid and time."""
        self.records.append({"type": kind, **members})

    def user(self, content: Any, **members: Any) -> str:
        """A prompt."""
        return self.record("user", message={"role": "user", "content": content}, **members)

    def reply(self, *blocks: Json, stop: str = "tool_use", tokens: tuple[int, int, int] = (4, 9_000, 180)) -> list[str]:
        """A reply: one record for each block, all with the same message id and usage."""
        self._replies += 1
        plain, cached, output = tokens
        message: Json = {
            "id": f"msg_{self.session_id[:4]}{self.agent_id[:4]}{self._replies:03d}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "stop_reason": stop,
            "stop_sequence": None,
        }
        usage = {
            "input_tokens": plain,
            "cache_creation_input_tokens": 350,
            "cache_read_input_tokens": cached,
            "output_tokens": output,
            "service_tier": "standard",
        }
        return [
            self.record(
                "assistant",
                message={**message, "content": [block], "usage": usage},
                requestId=f"req_{self._replies:04d}",
                seconds=1.3,
            )
            for block in blocks
        ]

    def result(self, call: str, parent: str, content: str, structured: Any, *, error: bool = False) -> None:
        """The result of a call."""
        block: Json = {"tool_use_id": call, "type": "tool_result", "content": content}
        if error:
            block["is_error"] = True
        self.record("user", parent=parent, message={"role": "user", "content": [block]}, toolUseResult=structured)

    def text(self) -> str:
        """The file."""
        return "".join(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in self.records)


def text(words: str) -> Json:
    """A text block."""
    return {"type": "text", "text": words}


def thinking(words: str) -> Json:
    """A thinking block."""
    return {"type": "thinking", "thinking": words, "signature": hashlib.sha256(words.encode()).hexdigest()}


def call(call_id: str, name: str, **arguments: Any) -> Json:
    """A tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def rounding_session() -> Session:
    """The main sample: investigate, be refused, delegate, compact, finish."""
    session = Session("5b0c7f1e-93a4-4c55-9a53-0d1f6f3f7a10")
    session.bare("permission-mode", permissionMode="default", sessionId=session.session_id)
    session.user("Invoices are off by a cent now and then. Find out why and fix it, please.", permissionMode="default")
    session.record("attachment", attachment={"type": "task_reminder", "content": [], "itemCount": 0})
    _investigate(session)
    _be_refused(session)
    _delegate(session)
    session.record(
        "system",
        subtype="compact_boundary",
        content="Conversation compacted",
        compactMetadata={"trigger": "auto", "preTokens": 151_202},
    )
    summary = "The totals were summed as floats. net_total now sums decimals; with_tax still has to follow."
    session.user(summary, isCompactSummary=True)
    _finish(session)
    return session


def _investigate(session: Session) -> None:
    records = session.reply(
        thinking("Money in floats, probably. Look at the code and run the tests at the same time."),
        text("I will look at the totals and run the tests."),
        call("toolu_read_1", "Read", file_path="/srv/invoices/invoice.py"),
        call("toolu_test_1", "Bash", command="pytest -v tests/test_invoice.py", description="Run the invoice tests"),
        tokens=(6, 8_800, 412),
    )
    log = verbose_test_run(420, frozenset({17, 204, 388}))
    session.result("toolu_test_1", records[3], f"Exit code 1\n{log}", f"Error: Exit code 1\n{log}", error=True)
    numbered = "\n".join(f"{number:6d}→{line}" for number, line in enumerate(ROUNDING.splitlines(), 1))
    file = {"filePath": "/srv/invoices/invoice.py", "content": ROUNDING, "numLines": 12, "startLine": 1}
    session.result("toolu_read_1", records[2], numbered, {"type": "text", "file": file})


def _be_refused(session: Session) -> None:
    records = session.reply(
        text("Three invoices fail: floats are summed. I will rewrite the module."),
        call("toolu_write_1", "Write", file_path="/srv/invoices/invoice.py", content=FIXED),
        tokens=(3, 21_400, 655),
    )
    refusal = (
        "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, "
        "the new_string was NOT written to the file). The user provided the following reason for the rejection:  "
        "change net_total only, with_tax has its own ticket"
    )
    session.result("toolu_write_1", records[1], refusal, f"Error: {refusal}", error=True)
    edit = {"old_string": "    total = 0.0\n", "new_string": '    total = Decimal("0")\n'}
    records = session.reply(
        text("Understood, net_total only."),
        call("toolu_edit_1", "Edit", file_path="/srv/invoices/invoice.py", **edit),
        tokens=(3, 22_300, 240),
    )
    done = "The file /srv/invoices/invoice.py has been updated."
    session.result("toolu_edit_1", records[1], done, {"filePath": "/srv/invoices/invoice.py", "userModified": False})


AGENT = "a51c09e2"
QUESTION = "Which callers of net_total expect a float? Read only, list file and line."
ANSWER = "Two callers convert to float: report.py:41 and export/csv.py:88. Nothing else depends on the type."


def _delegate(session: Session) -> None:
    records = session.reply(
        text("Before I go on I let somebody check the callers."),
        call("toolu_agent_1", "Agent", description="Check callers", prompt=QUESTION, subagent_type="Explore"),
        tokens=(3, 23_000, 205),
    )
    outcome = {
        "status": "completed",
        "prompt": QUESTION,
        "agentId": AGENT,
        "content": [text(ANSWER)],
        "totalDurationMs": 41_300,
        "totalTokens": 8_120,
        "totalToolUseCount": 1,
    }
    session.now += dt.timedelta(seconds=41.3)
    session.result("toolu_agent_1", records[1], ANSWER, outcome)


def _finish(session: Session) -> None:
    records = session.reply(
        call("toolu_test_2", "Bash", command="pytest -q tests/test_invoice.py", description="Run the tests again"),
        tokens=(5, 4_100, 96),
    )
    session.result("toolu_test_2", records[0], "420 passed in 3.71s", {"stdout": "420 passed in 3.71s", "stderr": ""})
    session.reply(
        text("net_total now sums decimals and all 420 tests pass. The two callers that need a float still convert."),
        stop="end_turn",
        tokens=(4, 4_500, 128),
    )
    session.bare("summary", summary="Fix rounding of invoice totals", leafUuid=session.records[-1]["uuid"])


def callers_session(main: Session) -> Session:
    """The sub-agent of the main sample, in a file of its own."""
    session = Session(main.session_id, agent_id=AGENT, start=START + dt.timedelta(minutes=1))
    session.user(QUESTION)
    records = session.reply(call("toolu_grep_1", "Grep", pattern=r"net_total\(", output_mode="content"))
    hits = "report.py:41: amount = float(net_total(lines))\nexport/csv.py:88: writer.write(float(net_total(lines)))"
    session.result("toolu_grep_1", records[0], hits, {"mode": "content", "numFiles": 2, "durationMs": 38})
    session.reply(text(ANSWER), stop="end_turn", tokens=(3, 2_000, 61))
    return session


def interrupted_session() -> Session:
    """A short one that ends badly: an API error, a call without a result, an interruption."""
    session = Session("c2a8d7a0-1d0e-4e6e-8d6b-7f0f1d2c3b4a", start=START + dt.timedelta(days=2))
    session.user("Upgrade the database driver.")
    error = {
        "id": "0f",
        "type": "message",
        "role": "assistant",
        "model": "<synthetic>",
        "content": [text("API Error: 529")],
    }
    session.record("assistant", message=error, isApiErrorMessage=True)
    session.user("try again")
    session.reply(
        text("I will see what pins it."),
        call("toolu_grep_9", "Grep", pattern="psycopg", path="/srv/invoices"),
        call("toolu_bash_9", "Bash", command="pip install --upgrade psycopg"),
    )
    session.user([text("[Request interrupted by user for tool use]")])
    session.user("Leave it, the release is frozen.")
    session.reply(text("I leave the driver as it is."), stop="end_turn")
    return session
