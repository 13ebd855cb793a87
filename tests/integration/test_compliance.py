"""Every command of docs/compliance.md, in its order, on demo data and a generated workload: the answers are right."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")  # required_in_ci

from fix_cli import EXAMPLES, Cli, Said

from stratalog.cold.installation import Installation
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas import events as ev
from stratalog.testing.workload import workload
from stratalog.testing.writing import write

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
PAGE = (Path(__file__).parents[2] / "docs" / "compliance.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^\$ stratalog (.*)$", re.MULTILINE)
SECTIONS = {
    int(number): COMMAND.findall(text)
    for number, text in re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
POLICIES = next(iter(re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)))
SHOWN = "019b9630-af7b-713c-83f8-fc7ab5a40942"
HELD = "019cdc1f-dfe0-7e61-b1e4-09b50b786a3d"
ABOUT_BOB = ("019cd6f9-8638-785f-b3f6-31c7b070e1df", "019cd6f9-9da8-7d5e-b0f8-fd1ff6b3decd")
GENERATED = list(workload(7, 30))
EXIT_CODES = {14: 3, 20: 20}
"""Of the last command of a section, where it is not 0."""


@dataclass
class Audited:
    """The answers, section by section."""

    home: Cli
    answers: dict[int, list[Said]] = field(default_factory=dict)

    def last(self, section: int) -> str:
        return self.answers[section][-1].out

    def said(self, section: int) -> str:
        return "".join(said.out for said in self.answers[section])


def bodies(kind: type, tenant: str = "") -> list[ev.EventBody]:
    """The generated bodies of a kind."""
    return [
        event.body
        for trajectory in GENERATED
        if tenant in ("", trajectory.tenant)
        for event in trajectory.events
        if isinstance(event.body, kind)
    ]


def tamper(home: Cli) -> None:
    """What an administrator can do: change what somebody said, with its hash and all."""
    with Installation(Home.open(home.home)).connection() as conn, conn.transaction():
        conn.execute(
            "UPDATE trajectory_events SET body = %s WHERE trajectory_id = %s AND sequence_number = 1",
            (b'{"role":"user","parts":[{"text":"never mind"}]}', SHOWN),
        )


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """A home with both, and the page run in it from the first command to the last."""
    folder = tmp_path_factory.mktemp("compliance")
    home = Cli(folder / "audited")
    home.json("import", EXAMPLES)
    with HotLog.open(home.home) as log:
        write(log, GENERATED)
    home.json("sidecar", "--once")
    home.json("consolidate", "--older-than", "0d")
    (home.home / "retention.toml").write_text(POLICIES)
    found = Audited(home)
    before = Path.cwd()
    os.chdir(folder)
    try:
        home("audit", "seal")
        for number, commands in SECTIONS.items():
            found.answers[number] = [_run(home, number, command, commands) for command in commands]
    finally:
        os.chdir(before)
    return found


def _run(home: Cli, number: int, command: str, commands: list[str]) -> Said:
    words = shlex.split(command)
    if words[:2] == ["backup", "drill"]:
        words[2] = str(next(Path("backups").iterdir()))
    last = command == commands[-1]
    if number == 20 and last:
        tamper(home)
    said = home(*words)
    assert said.code == (EXIT_CODES.get(number, 0) if last else 0), (command, said)
    return said


def test_there_are_twenty_questions_and_each_has_a_command() -> None:
    assert list(SECTIONS) == list(range(1, 21))
    assert all(SECTIONS.values())


def test_nothing_was_changed(audited: Audited) -> None:
    counts = Counter(trajectory.tenant for trajectory in GENERATED) + Counter(default=7)
    rows = [line.split() for line in audited.last(1).splitlines()]
    assert {row[0]: int(row[2]) for row in rows if row[1:2] == ["ok"]} == counts
    assert audited.last(1).splitlines()[-1] == "verified"


def test_all_bytes(audited: Audited) -> None:
    assert "seed 7" in audited.last(2) + audited.answers[2][-1].err and "verified" in audited.last(2)


def test_a_bundle_for_somebody_else(audited: Audited) -> None:
    (shown,) = [trajectory for trajectory in GENERATED if str(trajectory.trajectory_id) == SHOWN]
    row = next(line for line in audited.last(3).splitlines() if line.startswith(SHOWN)).split()
    assert (int(row[1]), row[-1]) == (len(shown.events), shown.tenant)
    assert "verified" in audited.last(3)


def test_one_trajectory(audited: Audited) -> None:
    (shown,) = [trajectory for trajectory in GENERATED if str(trajectory.trajectory_id) == SHOWN]
    table = audited.last(4).split("\n\n", 1)[1]
    kinds = [line.split()[4] for line in table.splitlines()[1:] if re.match(r" *\d+  ", line)]
    assert kinds == [type(event.body).__name__ for event in shown.events]


def test_approvals(audited: Audited) -> None:
    resolved = bodies(ev.ApprovalResolved, "initech")
    rows = [line for line in audited.last(5).splitlines() if re.match(r"\d{4}-", line)]
    assert Counter(row.split()[4] for row in rows) == Counter(body.approver for body in resolved)  # type: ignore[union-attr]


def test_policies(audited: Audited) -> None:
    under = [body for body in bodies(ev.Authorized) if body.policy_version == "2026-01-02"]  # type: ignore[union-attr]
    rows = [line for line in audited.last(6).splitlines() if re.match(r"\d{4}-", line)]
    counted = re.search(r"([\d,]+) calls", audited.said(6) + audited.answers[6][-1].err)
    assert counted is not None and int(counted[1].replace(",", "")) == len(under) == len(rows)


def test_effects(audited: Audited) -> None:
    intents = [body for body in bodies(ev.ToolIntent) if body.tool == "create_replica"]  # type: ignore[union-attr]
    rows = [line for line in audited.last(7).splitlines() if re.match(r"\d{4}-", line)]
    assert len(rows) == len(intents) > 0
    approvers = {body.approver for body in bodies(ev.ApprovalResolved)}  # type: ignore[union-attr]
    assert {row.split()[6] for row in rows} & approvers


def test_settlements(audited: Audited) -> None:
    settled = bodies(ev.IntentSettled)
    rows = [line.split() for line in audited.last(8).splitlines() if re.match(r"\d{4}-", line)]
    assert Counter((row[4], row[5]) for row in rows) == Counter((one.outcome, one.method) for one in settled)  # type: ignore[union-attr]


def test_models_and_drift(audited: Audited) -> None:
    models, drifts = (said.out for said in audited.answers[9])
    started = Counter(body.model.name for body in bodies(ev.TaskStarted))  # type: ignore[union-attr]
    assert all(re.search(rf"^{re.escape(model)} +{count}$", models, re.MULTILINE) for model, count in started.items())
    expected = {tenant: len(bodies(ev.DriftResolved, tenant)) for tenant in ("acme", "globex", "initech")}
    assert {line.split()[0]: int(line.split()[1]) for line in drifts.splitlines()[1:4]} == expected


def test_no_divergent_history(audited: Audited) -> None:
    assert "0 events in quarantine" in audited.last(10) + audited.answers[10][-1].err


def test_where_it_lies(audited: Audited) -> None:
    events = sum(len(trajectory.events) for trajectory in GENERATED) + 127
    assert f"{events:,} events of 37 trajectories" in audited.last(11)
    assert {"hot", "warm", "cold", "content"} <= {
        line.split()[0] for line in audited.answers[11][0].out.splitlines() if line
    }


def test_how_long(audited: Audited) -> None:
    due = sum(trajectory.tenant == "globex" and trajectory.ended for trajectory in GENERATED)
    assert "version 1 with 1 policy" in audited.answers[12][0].out
    assert re.search(rf"globex .*short.* {due}\b", audited.last(12)), audited.last(12)


def test_holds(audited: Audited) -> None:
    assert "case-17" in audited.last(13) and "counsel" in audited.last(13) and "letter of 3 May" in audited.last(13)


def test_a_hold_wins(audited: Audited) -> None:
    assert f"{HELD} stays: held by case-17" in audited.last(14)
    shown = audited.home.json("trajectory", "list", "--limit", "100")
    assert HELD in {row["trajectory_id"] for row in shown}
    assert "(erased)" not in audited.home("trajectory", "show", HELD).out


def test_what_was_deleted(audited: Audited) -> None:
    ended = [trajectory for trajectory in GENERATED if trajectory.tenant == "globex" and trajectory.ended]
    assert f"{len(ended)} trajectories" in audited.answers[15][0].out, audited.answers[15][0].out
    assert re.search(r"^globex +ok", audited.last(15), re.MULTILINE)


def test_a_person_is_forgotten(audited: Audited) -> None:
    assert "2 trajectories with 27 events cannot be read any more" in audited.last(16)
    assert "2 of 2 unreadable; has all its receipts" in audited.last(16)
    for erased in ABOUT_BOB:
        assert "(erased)" in audited.home("trajectory", "show", erased).out


def test_it_is_gone(audited: Audited) -> None:
    shown = audited.answers[17][0].out
    assert all(f"{tier}: receipt for 2 trajectories" in shown for tier in ("hot", "warm", "cold", "content"))
    assert "out of reach: backups made before" in shown
    receipts = json.loads((audited.home.home.parent / "receipts.json").read_text())
    assert len(receipts["receipts"]) == 4 and receipts["keys"]
    assert "nothing was found" in audited.last(17)


def test_the_proof_stays(audited: Audited) -> None:
    assert re.search(r"^default +ok +7 ", audited.last(18), re.MULTILINE)
    assert "2 trajectories erased, their events stay without bodies" in audited.last(18)


def test_backups(audited: Audited) -> None:
    assert "verified" in audited.last(19)


def test_keys_and_an_administrator_who_rewrites_history(audited: Audited) -> None:
    _, listed, _, verified = (said.out for said in audited.answers[20])
    assert len(re.findall(r"^[0-9a-f]{16} ", listed, re.MULTILINE)) == 2 and "retired" in listed
    assert SHOWN in verified and "verified" not in verified.splitlines()[-1]
