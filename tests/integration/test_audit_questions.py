"""What auditors ask: who approved what, under which policy, every effect on a tool, every action in doubt."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fix_cli import Cli
from fix_cold import ColdBench
from psycopg.pq import TransactionStatus

from stratalog.audit import questions
from stratalog.hot.home import Home
from stratalog.schemas import events as ev

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
ATTACK = "\x1b[2J\u202e\n<b>"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]")
QUESTIONS = ["approvals", "policies", "effects", "settlements"]


def call(number: int, tool: str, effect: Any = "irreversible", policy: str = "p-1") -> list[ev.EventBody]:
    """What precedes and includes an intent."""
    id_ = f"c{number}"
    return [
        ev.Authorized(tool_call_id=id_, decision="allow", tool=tool, policy_version=policy),
        ev.ToolIntent(tool_call_id=id_, tool=tool, effect=effect, idempotency_key=f"k{number}",
                      arguments=ev.raw_json({"n": number})),
    ]  # fmt: skip


@pytest.fixture
def asked(cold_bench: ColdBench, cold_home: Home) -> Cli:
    """Two trajectories of one tenant and one of another, with every answer in them."""
    cold_bench.append(
        cold_bench.author(1),
        [
            ev.TaskStarted(task="pay"),  # 0
            *call(1, "wire"),  # 1, 2: intent 2
            ev.ToolResult(tool_call_id="c1", tool="wire", intent=2),
            *call(2, "wire", policy="p-2"),  # 4, 5: intent 5
            ev.ToolResult(tool_call_id="c2", tool="wire", intent=5, status="timeout"),
            ev.IntentSettled(tool_call_id="c2", intent=5, method="probe", outcome="happened",
                             evidence=ev.raw_json({"id": 7})),
            *call(3, "read_file", "read"),  # 8, 9: intent 9
            ev.ToolResult(tool_call_id="c3"),
            *call(4, "mail"),  # 11, 12: intent 12, without a result
            ev.TaskFinished(status="failed"),
        ],
    )  # fmt: skip
    cold_bench.append(
        cold_bench.author(2),
        [
            ev.TaskStarted(task="ask"),  # 0
            ev.Authorized(tool_call_id="h1", decision="hold", tool="wire", policy_version="p-2"),
            ev.ApprovalRequested(tool_call_id="h1", tool="wire", reason="large", expires_at="2026-12-01"),
            ev.ApprovalResolved(tool_call_id="h1", decision="approved", approver=f"mira{ATTACK}", reason="known"),
            ev.ToolIntent(tool_call_id="h1", tool="wire", effect="irreversible"),  # 4
            ev.ToolResult(tool_call_id="h1", status="unknown"),
            ev.EscalationRaised(escalation_id="e1", intent=4, reason="no probe"),
            ev.EscalationResolved(escalation_id="e1", decision="did happen", resolver="ops"),
            ev.ApprovalRequested(tool_call_id="h2", tool=f"drop{ATTACK}", reason="dangerous"),
            ev.ToolIntent(tool_call_id="h3", tool="mail"),  # 9, still in flight
        ],
    )
    cold_bench.append(cold_bench.author(3, tenant="other"), [ev.TaskStarted(task="x"), *call(1, "wire", policy="")])
    return Cli(cold_home.path)


def brief(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [(one["place"]["sequence_number"], *(one[name] for name in names)) for one in found]


def test_who_approved_what(asked: Cli) -> None:
    found = asked.json("audit", "approvals")
    assert brief(found, "tool", "decision", "approver", "reason") == [
        (3, "wire", "approved", f"mira{ATTACK}", "known"),
        (8, f"drop{ATTACK}", "pending", "", "dangerous"),
    ]
    assert found[0]["requested_at"] < found[0]["place"]["at"] and found[0]["expires_at"] == "2026-12-01"


def test_what_ran_under_which_policy(asked: Cli) -> None:
    found = asked.json("audit", "policies")
    assert [(one["policy_version"], one["tool"], one["decision"], one["calls"]) for one in found] == [
        ("", "wire", "allow", 1), ("p-1", "mail", "allow", 1), ("p-1", "read_file", "allow", 1),
        ("p-1", "wire", "allow", 1), ("p-2", "wire", "allow", 1), ("p-2", "wire", "hold", 1),
    ]  # fmt: skip
    assert brief(asked.json("audit", "policies", "--policy", "p-2"), "tool", "decision") == [
        (4, "wire", "allow"), (1, "wire", "hold")
    ]  # fmt: skip
    assert len(asked.json("audit", "policies", "--policy", "")) == 1
    assert "not stated" in asked("audit", "policies").out


def test_every_effect_on_a_tool(asked: Cli) -> None:
    found = asked.json("audit", "effects", "--tool", "wire")
    assert brief(found, "outcome", "settled_by", "policy_version", "approver", "arguments") == [
        (2, "ok", "", "p-1", "", '{"n":1}'),
        (5, "happened", "probe", "p-2", "", '{"n":2}'),
        (4, "unknown", "", "p-2", f"mira{ATTACK}", ""),
        (2, "no result", "", "", "", '{"n":1}'),
    ]
    everything = asked.json("audit", "effects")
    assert len(everything) == 6 and "read_file" not in {one["tool"] for one in everything}
    reads = asked.json("audit", "effects", "--reads", "--tool", "read_file")
    assert brief(reads, "outcome") == [(9, "ok")], "a result without a number closes the latest intent of its id"


def test_every_action_in_doubt(asked: Cli) -> None:
    found = asked.json("audit", "settlements")
    assert brief(found, "tool", "doubt", "method", "outcome", "resolver") == [
        (5, "wire", "timeout", "probe", "happened", ""),
        (12, "mail", "no result", "", "open", ""),
        (4, "wire", "unknown", "escalation", "did happen", "ops"),
    ]
    assert json.loads(found[0]["evidence"]) == {"id": 7}


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_can_be_narrowed(asked: Cli, cold_bench: ColdBench, question: str) -> None:
    everything = asked.json("audit", question)
    assert len(asked.json("audit", question, "--limit", "1")) == 1
    assert asked.json("audit", question, "--tenant", "nobody") == []
    assert asked.error("audit", question, "--tenant", "../x", code=1)["code"] == "invalid"
    second = str(cold_bench.author(2).trajectory_id)
    narrowed = asked.json("audit", question, "--trajectory", second)
    assert 0 < len(narrowed) <= len(everything)
    if question != "policies":
        assert {one["place"]["trajectory_id"] for one in narrowed} == {second}


@pytest.mark.parametrize("question", ["approvals", "authorizations", "effects", "settlements"])
def test_an_answer_that_is_not_read_to_its_end_leaves_no_transaction(
    asked: Cli, cold_bench: ColdBench, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    with cold_bench.connect() as conn:
        conn.rollback()
        answers = getattr(questions, question)(conn, questions.Asked())
        next(answers)
        assert conn.info.transaction_status != TransactionStatus.IDLE
        answers.close()
        assert conn.info.transaction_status == TransactionStatus.IDLE
    assert ignored == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_hostile_text_does_not_act(asked: Cli, question: str) -> None:
    for arguments in ((), ("--json",)):
        said = asked("audit", question, *arguments)
        assert said.code == 0 and not ACTING.search(said.out) and not ACTING.search(said.err)


def test_events_that_cannot_be_read_say_so(asked: Cli, cold_bench: ColdBench) -> None:
    cold_bench.execute("UPDATE trajectory_events SET body = '', erased = true")
    assert {one["decision"] for one in asked.json("audit", "approvals")} == {"unreadable: erased"}
    assert {one["decision"] for one in asked.json("audit", "policies")} == {"unreadable: erased"}
    assert {one["outcome"] for one in asked.json("audit", "effects")} == {"unreadable: erased"}
    cold_bench.execute("UPDATE trajectory_events SET body = 'nonsense', erased = false")
    assert all(one["decision"].startswith("unreadable: ") for one in asked.json("audit", "approvals"))
