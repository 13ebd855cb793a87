"""The collected real files, all of them: those of the three formats import, the others are refused, none crashes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_trajectories import COLLECTED

from stratalog.formats import import_files
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas.record import TrajectoryRecord, fold

FORMATS = ("claude-code", "swe-agent", "atif")
FILES = 279
TRAJECTORIES = 97
REPLY_TOKENS = 22_901
"""Output tokens of one real session, counted once per reply; its lines say 121,943."""

pytestmark = pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collected trajectories are not here")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home", create=True)


@pytest.fixture
def log(home: Home) -> Iterator[HotLog]:
    with HotLog.open(home, serve=False) as opened:
        yield opened


def test_all_collected_files_import_or_are_refused(home: Home, log: HotLog) -> None:
    report = import_files(log, [COLLECTED], tenant="default", import_key=home.import_key)
    again = import_files(log, [COLLECTED], tenant="default", import_key=home.import_key)
    assert (report.files, report.trajectories) == (FILES, TRAJECTORIES)
    assert (again.appended, again.events) == (0, report.events)
    refused = [p for p in report.problems if Path(p.file).relative_to(COLLECTED).parts[0] in FORMATS]
    assert {problem.reason for problem in refused if problem.line is None} == {
        "empty file",
        "no format that can be imported: NeMo Gym rollouts",
    }
    for head in log.heads():
        assert fold(TrajectoryRecord(), log.read(head.trajectory_id)).unknown_events == 0


def test_tokens_of_a_real_session_are_counted_once_per_reply(home: Home, log: HotLog) -> None:
    (path,) = COLLECTED.rglob("ef958aa1-0e93-49f0-bb71-150f63befcd1.jsonl")
    import_files(log, [path], tenant="default", import_key=home.import_key)
    (head,) = log.heads()
    assert fold(TrajectoryRecord(), log.read(head.trajectory_id)).spent.output_tokens == REPLY_TOKENS
