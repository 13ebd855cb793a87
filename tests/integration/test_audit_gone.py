"""What retention has deleted and what was erased is said so, with who, when and why; what merely is missing never."""

from __future__ import annotations

import datetime as dt
import uuid
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from fix_audit import Audit
from fix_cli import call
from fix_cold import ColdBench
from fix_retention import load, run_apply

from stratalog.audit import reading
from stratalog.audit.checker import check_bundle
from stratalog.audit.installation import AuditReport, bundle_all, open_answers, verify_all
from stratalog.audit.questions import approvals, authorizations, effects, settlements
from stratalog.audit.reading import Asked
from stratalog.cold.erased import erase_in_cold
from stratalog.cold.installation import Tiers
from stratalog.cold.retention import delete_from_cold
from stratalog.schemas import events as ev
from stratalog.warm import erasure

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
POLICY = '[[policy]]\nname = "short"\nmodel = "gone"\nwarm = "7d"\ncold = "30d"\n'
WARM_ONLY = '[[policy]]\nname = "week"\nwarm = "7d"\n'
CANARY = "canary of the erased one"


def report_of(audit: Audit) -> AuditReport:
    return verify_all(audit.installation, audit.keys)


def tiers_of(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def erase(bench: ColdBench, trajectory_id: uuid.UUID) -> None:
    with closing(bench.connect()) as conn:
        number = erasure.request(
            conn, erasure.Selection(trajectories=(trajectory_id,)), by="mira", reason="a person asked for it"
        )
        assert erasure.proceed(conn, number).trajectories == (trajectory_id,)


@pytest.fixture
def deleted(audit: Audit) -> Audit:
    """Three sealed trajectories that retention has taken out of both tiers, beside two that stay."""
    for number in range(3):
        audit.bench.task(number, model="gone")
    for number in (10, 11):
        audit.bench.task(number)
    audit.seal()
    audit.bench.run()
    load(audit.bench, POLICY)
    run_apply(audit.bench, NOW)
    assert delete_from_cold(tiers_of(audit.bench), NOW, wait_s=0).trajectories == 3
    return audit


def test_a_deletion_by_policy_is_told_with_who_when_and_why(deleted: Audit) -> None:
    report = report_of(deleted)
    (found,) = report.tenants
    assert report.ok and found.problems == [] and found.deleted == 3 == len(found.deletions)
    ids = {str(deleted.bench.author(number).trajectory_id) for number in range(3)}
    assert {one.trajectory_id for one in found.deletions} == ids
    assert {(one.policy, one.version, one.loaded_by) for one in found.deletions} == {("short", 1, "tester")}
    assert all(one.at > 0 for one in found.deletions)


@pytest.mark.parametrize(
    "forgery",
    [
        "DELETE FROM deletions WHERE tier = 'cold'",
        "UPDATE deletions SET state = 'cancelled' WHERE tier = 'cold'",
        "UPDATE deletions SET through_sequence = 1 WHERE tier = 'cold'",
        "UPDATE deletions SET tenant = 'globex' WHERE tier = 'cold'",
        "UPDATE retention_policies SET cold_us = NULL",
        "UPDATE trajectories SET cold_dropped_through = -1",
        "DELETE FROM trajectories WHERE cold_dropped_through >= 0",
    ],
)
def test_without_what_explains_it_a_deletion_is_tampering(deleted: Audit, forgery: str) -> None:
    with deleted.bench.connect() as conn:
        conn.execute("SET session_replication_role = replica")  # histories refuse changes otherwise
        assert conn.execute(forgery.encode()).rowcount >= 3 or "policies" in forgery
    (found,) = report_of(deleted).tenants
    assert sum("is in no tier" in problem for problem in found.problems) == 3 and found.deleted == 0


def test_events_that_are_deleted_by_hand_are_tampering(audit: Audit) -> None:
    audit.bench.task(1)
    audit.bench.task(2, model="gone")
    audit.seal()
    assert report_of(audit).ok
    audit.bench.execute("DELETE FROM trajectory_events WHERE trajectory_id = %s", audit.bench.author(1).trajectory_id)
    (found,) = report_of(audit).tenants
    assert any("is in no tier" in problem for problem in found.problems)


@pytest.mark.parametrize("where", ["warm", "cold", "cold, and the bytes are gone"])
def test_an_erased_trajectory_verifies_and_says_who_asked(audit: Audit, where: str, tmp_path: Path) -> None:
    author = audit.bench.author(5)
    audit.bench.append(author, [ev.TaskStarted(task=CANARY), ev.TaskFinished(status="completed", result=CANARY)])
    audit.bench.task(6)
    audit.seal()
    if where != "warm":
        audit.bench.run()
        load(audit.bench, WARM_ONLY)
        run_apply(audit.bench, NOW)
    bundle_all(audit.installation, audit.keys, audit.clock_us, tmp_path / "before.zip", [author.trajectory_id])
    assert CANARY in text_of(tmp_path / "before.zip")
    erase(audit.bench, author.trajectory_id)
    if "gone" in where:
        assert erase_in_cold(tiers_of(audit.bench), [author.trajectory_id]).gone
    report = report_of(audit)
    (found,) = report.tenants
    assert report.ok and found.erased == 1 and found.deleted == 0
    (told,) = found.erasures
    assert (told.trajectory_id, told.requested_by) == (str(author.trajectory_id), "mira")
    assert told.reason == "a person asked for it"
    output = tmp_path / "after.zip"
    assert bundle_all(audit.installation, audit.keys, audit.clock_us, output, [author.trajectory_id])["ok"]
    assert check_bundle(str(output))["trajectories"][0]["events"] == 2
    assert CANARY not in text_of(output) and "a person asked for it" in text_of(output)


def text_of(path: Path) -> str:
    """Everything in a bundle, bodies decoded."""
    import base64
    import json

    with zipfile.ZipFile(path) as archive:
        texts = [archive.read(name).decode() for name in archive.namelist()]
        lines = [line for name in archive.namelist() if name.endswith("events.jsonl")
                 for line in archive.read(name).splitlines()]  # fmt: skip
    return "\n".join([*texts, *(base64.b64decode(json.loads(line)["body"]).decode() for line in lines)])


def test_an_erased_trajectory_whose_events_are_missing_is_tampering(audit: Audit) -> None:
    author = audit.bench.task(5)
    audit.seal()
    erase(audit.bench, author.trajectory_id)
    audit.bench.execute("DELETE FROM trajectory_events WHERE trajectory_id = %s", author.trajectory_id)
    (found,) = report_of(audit).tenants
    assert found.erased == 1 and any("is in no tier" in problem for problem in found.problems)


def answers(audit: Audit, asked: Asked) -> list[list[object]]:
    found: list[list[object]] = []
    for question in (approvals, authorizations, effects, settlements):
        with open_answers(audit.installation) as (conn, cold), closing(question(conn, asked, cold=cold)) as given:
            found.append(list(given))
    return found


@pytest.mark.parametrize("single_max", [0, 20])
def test_answers_are_the_same_when_events_have_left_the_warm_tier(
    audit: Audit, single_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SINGLE_MAX", single_max)
    for number in range(4):
        author = audit.bench.author(number, day=number % 2, tenant="globex" if number == 3 else "acme")
        audit.bench.append(
            author,
            [
                ev.TaskStarted(task="pay", model=ev.Model(name="atlas-4")),
                ev.Authorized(tool_call_id="c", decision="hold", tool="wire", policy_version=f"p-{number}"),
                ev.ApprovalRequested(tool_call_id="c", tool="wire", reason="large"),
                ev.ApprovalResolved(tool_call_id="c", decision="approved", approver="mira"),
                ev.ToolIntent(tool_call_id="c", tool="wire", effect="irreversible"),
                ev.ToolResult(tool_call_id="c", tool="wire", intent=4, status="timeout"),
            ],
        )
        if number != 2:
            audit.bench.append(author, [ev.TaskFinished(status="failed")])
    audit.bench.run()
    late = audit.bench.author(1, day=1)
    one = Asked(trajectory_id=late.trajectory_id)
    everything = [Asked(), Asked(tenant="acme"), one]
    before = [answers(audit, asked) for asked in everything]
    assert all(all(given) for given in before)
    load(audit.bench, WARM_ONLY)
    assert run_apply(audit.bench, NOW).trajectories == 3
    assert [answers(audit, asked) for asked in everything] == before
    with audit.bench.connect() as conn:  # the control: the warm tier alone does not know any more
        assert len(list(effects(conn, Asked()))) < len(before[0][2])
    audit.bench.append(late, [ev.LateResult(tool_call_id="c", intent=4, status="ok", output="it happened")])
    (effect,) = answers(audit, one)[2]
    assert effect.outcome == "ok"  # type: ignore[attr-defined]  # the intent is in the cold tier, its result in Postgres
    erase(audit.bench, late.trajectory_id)
    assert "erased" in str(answers(audit, one)[0])


def test_the_command_tells_what_has_gone(deleted: Audit) -> None:
    erase(deleted.bench, deleted.bench.author(10).trajectory_id)
    said = call("audit", "verify", "--home", deleted.home.path, "--dsn", deleted.bench.dsn)
    assert said.code == 0 and said.out.splitlines()[-1] == "verified"
    assert "retention has deleted the events of 3 leaves in every tier" in said.out
    assert "3 by policy short of version 1, put into force by tester" in said.out
    assert "1 trajectory erased" in said.out and "asked for by mira: a person asked for it" in said.out
