"""Imports into a real hot log: again, grown, changed, interrupted, side by side."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fix_trajectories import COLLECTED, SAMPLES

from stratalog.formats import ImportReport, import_files, tracks
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent, Receipt
from stratalog.schemas import events as ev
from stratalog.schemas.errors import Invalid
from stratalog.schemas.record import TrajectoryRecord, fold

Json = dict[str, Any]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home", create=True)


@pytest.fixture
def log(home: Home) -> Iterator[HotLog]:
    with HotLog.open(home, serve=False) as opened:
        yield opened


@pytest.fixture
def load(home: Home, log: HotLog) -> Callable[..., ImportReport]:
    def call(*paths: Path, tenant: str = "default", **options: Any) -> ImportReport:
        return import_files(log, paths, tenant=tenant, import_key=home.import_key, **options)

    return call


def records(count: int, *, text: str = "step") -> list[Json]:
    made: list[Json] = []
    for number in range(count):
        common = {"uuid": f"u{number}", "sessionId": "s1", "isSidechain": False}
        stamp = f"2026-01-02T03:{number // 60:02d}:{number % 60:02d}.000Z"
        if number % 2 == 0:
            message: Json = {"role": "user", "content": f"{text} {number}"}
            made.append({"type": "user", "timestamp": stamp, "message": message} | common)
        else:
            message = {"id": f"m{number}", "role": "assistant", "model": "claude-x", "usage": {"output_tokens": 1}}
            message["content"] = [{"type": "text", "text": f"answer {number}"}]
            made.append({"type": "assistant", "timestamp": stamp, "message": message} | common)
    return made


def write(path: Path, made: Sequence[Json]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in made))
    return path


def contents(log: HotLog) -> dict[uuid.UUID, list[bytes]]:
    """The hashes of everything in the log."""
    return {
        head.trajectory_id: [event.hash for event in log.read(head.trajectory_id)]
        for head in sorted(log.heads(), key=lambda head: head.trajectory_id)
    }


def test_importing_again_adds_nothing(tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]) -> None:
    first = load(SAMPLES)
    before = contents(log)
    again = load(SAMPLES)
    assert (first.files, first.trajectories, first.problems) == (7, 7, [])
    assert first.appended == first.events == sum(map(len, before.values()))
    assert again.appended == 0
    assert again.to_json() == first.to_json() | {"appended": 0}
    assert contents(log) == before


def test_a_copy_of_a_file_is_the_same_source(tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]) -> None:
    shutil.copytree(SAMPLES, tmp_path / "copy")
    renamed = tmp_path / "copy" / "atif" / "export-2.json"
    renamed.rename(renamed.with_name("other-name.json"))
    load(SAMPLES)
    report = load(SAMPLES, tmp_path / "copy")
    assert (report.appended, report.trajectories) == (0, 7)


def test_another_home_gives_the_same_ids_and_another_tenant_others(
    tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]
) -> None:
    load(SAMPLES)
    other = Home.open(tmp_path / "other", create=True)
    with HotLog.open(other, serve=False) as elsewhere:
        import_files(elsewhere, [SAMPLES], tenant="default", import_key=other.import_key)
        ids = {head.trajectory_id for head in elsewhere.heads()}
    assert ids == {head.trajectory_id for head in log.heads()}
    assert load(SAMPLES, tenant="acme").trajectories == 7
    assert len(log.heads()) == 14


def test_growth_is_appended(tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]) -> None:
    made = records(2001)
    path = tmp_path / "s1.jsonl"
    counts = [load(write(path, made[:length])).events for length in (2, 3, 400, 401, 1500, 2001)]
    assert counts == sorted(counts)
    assert len(log.heads()) == 1
    growing = contents(log)
    whole = Home.open(tmp_path / "whole", create=True)
    key = bytes(32)
    with HotLog.open(whole, serve=False) as other, HotLog.open(whole, serve=False) as at_once:
        for length in (2, 3, 400, 2001):
            import_files(other, [write(path, made[:length])], tenant="default", import_key=lambda _: key)
        import_files(at_once, [path], tenant="default", import_key=lambda _: key)
        assert contents(other) == contents(at_once)
    assert [len(hashes) for hashes in growing.values()] == [counts[-1]]


def test_an_older_copy_adds_nothing(tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]) -> None:
    made = records(1301)
    load(write(tmp_path / "new" / "s1.jsonl", made))
    report = load(write(tmp_path / "backup" / "s1.jsonl", made[:601]))
    assert (report.appended, report.trajectories) == (0, 1)
    assert report.events == load(tmp_path / "new").events
    assert len(log.heads()) == 1


def test_a_changed_beginning_is_a_new_trajectory_that_names_the_old_one(
    tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]
) -> None:
    made = records(9)
    path = tmp_path / "s1.jsonl"
    load(write(path, made))
    (old,) = (head.trajectory_id for head in log.heads())
    changed = made[:2] + records(9, text="another")[2:]
    report = load(write(path, changed))
    assert (report.trajectories, report.appended) == (1, report.events)
    (new,) = (head.trajectory_id for head in log.heads() if head.trajectory_id != old)
    started = next(log.read(new)).body
    assert isinstance(started, ev.TaskStarted)
    assert started.source is not None
    assert started.source.replaces == str(old)
    assert load(path).appended == 0
    assert load(write(path, changed + records(12)[9:])).appended > 0
    assert load(write(path, made)).appended == 0
    assert len(log.heads()) == 2


def test_what_others_append_is_not_overwritten(tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]) -> None:
    made = records(6)
    path = write(tmp_path / "s1.jsonl", made[:3])
    load(path)
    (first,) = (head.trajectory_id for head in log.heads())
    log.append_blocking(first, ev.Annotation(name="note"))
    assert load(path).appended == 0
    load(write(path, made))
    assert len(log.heads()) == 2


def test_every_event_is_what_the_fold_expects(log: HotLog, load: Callable[..., ImportReport]) -> None:
    load(SAMPLES)
    statuses = []
    for head in log.heads():
        record = fold(TrajectoryRecord(), log.read(head.trajectory_id))
        assert record.unknown_events == 0
        assert [a for a in record.anomalies if "without an open intent" not in a.reason] == []
        statuses.append((record.source.format if record.source else "", record.status))
    assert sorted(statuses) == [
        *[("atif", "completed")] * 2,
        *[("claude-code", "imported")] * 3,
        ("swe-agent", "completed"),
        ("swe-agent", "failed"),
    ]


def test_sub_agents_of_the_same_file_name_their_parent(log: HotLog, load: Callable[..., ImportReport]) -> None:
    load(SAMPLES / "atif")
    started = {str(head.trajectory_id): next(log.read(head.trajectory_id)).body for head in log.heads()}
    parents = [body.parent for body in started.values() if isinstance(body, ev.TaskStarted)]
    assert sorted(map(bool, parents)) == [False, True]
    assert {parent for parent in parents if parent} < set(started)


def test_a_bad_file_stops_no_other(tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]) -> None:
    folder = tmp_path / "in"
    write(folder / "b.jsonl", records(3))
    (folder / "a.jsonl").write_bytes(b"")
    (folder / "c.bin").write_bytes(b"\x00\x01\x02\xff" * 99)
    (folder / "d.jsonl").write_bytes(b'{"type":"user","x"\n' + json.dumps(records(1)[0] | {"sessionId": "d"}).encode())
    os.mkfifo(folder / "e.pipe")
    (folder / "f.link").symlink_to("nowhere")
    report = load(folder, tmp_path / "missing")
    told = {(Path(problem.file).name, problem.line) for problem in report.problems}
    assert told == {
        ("a.jsonl", None),
        ("c.bin", None),
        ("d.jsonl", 1),
        ("e.pipe", None),
        ("f.link", None),
        ("missing", None),
    }
    assert (report.files, report.trajectories, report.partial, report.opaque_events) == (7, 2, True, 1)
    assert set(report.to_json()) == {"files", "trajectories", "events", "appended", "opaque_events", "problems"}
    assert set(report.to_json()["problems"][0]) == {"file", "line", "reason"}


def test_bad_arguments_do_nothing(tmp_path: Path, load: Callable[..., ImportReport]) -> None:
    for options in ({"tenant": "../x"}, {"format": "nonsense"}):
        with pytest.raises(Invalid):
            load(tmp_path, **options)


def test_long_and_hostile_values_reach_the_log(tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]) -> None:
    made = records(5)
    made[0]["message"]["content"] = "x" * 3_000_000
    made[2]["message"]["content"] = [{"type": "odd", "values": [[n] for n in range(300_000)]}]
    made[4]["message"]["content"] = [{"$blob": {"sha256": "0" * 64, "bytes": 1}}]
    report = load(write(tmp_path / "s1.jsonl", made))
    assert report.problems == []
    (head,) = log.heads()
    assert all(not isinstance(event.body, ev.Unknown) for event in log.read(head.trajectory_id))


def test_two_imports_of_one_file_at_once_are_one(
    tmp_path: Path, log: HotLog, load: Callable[..., ImportReport]
) -> None:
    path = write(tmp_path / "s1.jsonl", records(801))
    reports: list[ImportReport] = []
    threads = [threading.Thread(target=lambda: reports.append(load(path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({report.events for report in reports}) == 1
    assert sum(report.appended for report in reports) == reports[0].events
    assert len(log.heads()) == 1


def live_sessions() -> list[Path]:
    """Sessions to be imported while they grow: our longest, and some real ones where they are present."""
    found = [max((SAMPLES / "claude-code").glob("*.jsonl"), key=lambda path: path.stat().st_size)]
    names = ("ef958aa1-0e93-49f0-bb71-150f63befcd1", "5c0375b4-57a5-4f26-b12d-d022ee4e51b7", "sidechain", "small")
    return found + [path for name in names for path in COLLECTED.rglob(f"{name}.jsonl")]


def spent(log: HotLog) -> tuple[int, int]:
    """Tokens of all trajectories in the log."""
    totals = [fold(TrajectoryRecord(), log.read(head.trajectory_id)).spent for head in log.heads()]
    return sum(total.input_tokens for total in totals), sum(total.output_tokens for total in totals)


@pytest.mark.parametrize("session", live_sessions(), ids=lambda path: path.stem[:8])
@pytest.mark.parametrize("seed", range(4))
def test_a_session_imported_while_it_grows_stays_one_trajectory(
    tmp_path: Path, home: Home, log: HotLog, load: Callable[..., ImportReport], session: Path, seed: int
) -> None:
    raw = session.read_bytes()
    moments = random.Random(seed)
    dated = raw.index(b"\n", raw.index(b'"timestamp"'))  # before, there is no start that the id could be made of
    ends = sorted(moments.randrange(dated, len(raw)) for _ in range(9))
    if seed % 2:  # at line ends, as a program that writes whole lines leaves it
        ends = [raw.rfind(b"\n", 0, end) + 1 or len(raw) for end in ends]
    path = tmp_path / session.name
    for end in [*ends, len(raw)]:
        path.write_bytes(raw[:end])
        load(path)
    again = load(path)
    assert again.appended == 0
    whole = Home.open(tmp_path / "whole", create=True)
    with HotLog.open(whole, serve=False) as other:
        import_files(other, [path], tenant="default", import_key=whole.import_key)
        assert len(log.heads()) == len(other.heads()) == again.trajectories
        assert spent(log) == spent(other)
    for head in log.heads():
        assert fold(TrajectoryRecord(), log.read(head.trajectory_id)).unknown_events == 0


# --- interrupted -------------------------------------------------------------------------------------------------


class Dying:
    """A log that fails after some commits, before or after the commit itself."""

    def __init__(self, log: HotLog, commits: int, *, after: bool) -> None:
        self._log = log
        self._left = commits
        self._after = after

    def _commit(self, call: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise KeyboardInterrupt
        result = call()
        if self._left < 0:
            raise KeyboardInterrupt
        return result

    def head(self, trajectory_id: uuid.UUID) -> Any:
        return self._log.head(trajectory_id)

    def note(self, key: bytes) -> bytes | None:
        return self._log.note(key)

    def start_blocking(self, **arguments: Any) -> object:
        return self._commit(lambda: self._log.start_blocking(**arguments))

    def append_many_blocking(
        self, trajectory_id: uuid.UUID, events: Sequence[NewEvent], *, notes: Mapping[bytes, bytes]
    ) -> Sequence[Receipt]:
        result: Sequence[Receipt] = self._commit(
            lambda: self._log.append_many_blocking(trajectory_id, events, notes=notes)
        )
        return result


@pytest.mark.parametrize("after", [False, True])
def test_an_import_that_dies_between_any_two_commits_is_completed(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(tracks, "BATCH_EVENTS_MAX", 7)
    key = bytes(32)
    with HotLog.open(home, serve=False) as whole:
        expected = import_files(whole, [SAMPLES], tenant="default", import_key=lambda _: key)
        hashes = contents(whole)
    for commits in (0, 1, 2, 5, 11, 17):
        other = Home.open(tmp_path / f"{commits}", create=True)
        with HotLog.open(other, serve=False) as log:
            with pytest.raises(KeyboardInterrupt):
                import_files(Dying(log, commits, after=after), [SAMPLES], tenant="default", import_key=lambda _: key)
            report = import_files(log, [SAMPLES], tenant="default", import_key=lambda _: key)
            assert contents(log) == hashes
            assert report.to_json() == expected.to_json() | {"appended": report.appended}


IMPORT = """
import sys
from stratalog.formats import import_files, tracks
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
tracks.BATCH_EVENTS_MAX = 4
home = Home.open(sys.argv[1], create=True)
with HotLog.open(home, serve=False) as log:
    print("open", flush=True)
    import_files(log, sys.argv[2:], tenant="default", import_key=lambda _: bytes(32))
"""


def test_kill_9_at_any_moment_ends_with_the_same_events(tmp_path: Path) -> None:
    path = write(tmp_path / "s1.jsonl", records(1201))
    moments = random.Random(7)
    command = [sys.executable, "-c", IMPORT, tmp_path / "killed", SAMPLES, path]
    for _ in range(4):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                process.wait(moments.uniform(0.005, 0.15))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run([*command[:3], tmp_path / "whole", *command[4:]], check=True, capture_output=True)
    found = []
    for name in ("killed", "whole"):
        with HotLog.open(Home.open(tmp_path / name), serve=False) as log:
            found.append(contents(log))
    assert found[0] == found[1]
