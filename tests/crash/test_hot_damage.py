"""Damaged logs: each damage is found when the log is opened or read, or is a torn tail; never is one silently shorter.

After an accepted loss the readable beginning goes on under a new id, and the damaged log is kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_hot import check_chains, crash_copy, names, note
from rocksdict import DBRecoveryMode

from stratalog.hot import recovery, salvage
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent, Receipt
from stratalog.hot.marks import MarkFile
from stratalog.hot.rocks import RocksStore
from stratalog.hot.source import Cursor, open_source
from stratalog.schemas.errors import Corrupt, CursorMismatch, InDoubt, NotFound, OpenRefused
from stratalog.schemas.events import Source, TaskFinished, TaskStarted, ToolResult

EVENTS = 40
Damage = Callable[[Path], None]


class Case:
    """A home with one log as a kill -9 leaves it, all in the write-ahead log; or `closed`, all in tables."""

    def __init__(self, home: Home, *, closed: bool = False, pruned: bool = False) -> None:
        with HotLog.open(home) as log:
            self.log_id = log.log_id
            self.receipts: list[Receipt] = []
            if pruned:
                old = log.start_blocking(tenant="t", body=TaskStarted(source=Source(format="f")))
                log.append_many_blocking(old, [NewEvent(note("old")) for _ in range(5)])
                self.old = log.append_blocking(old, TaskFinished(status="completed"))
                log.acknowledge(self.old.lsn, self.old.hash)
            self.trajectory_id = log.start_blocking(tenant="t")
            if pruned:
                assert log.prune() == self.old.lsn
            for number in range(EVENTS):
                body = (
                    ToolResult(tool_call_id="1", output=f"{number} " * 20_000)
                    if number % 10 == 5
                    else note(str(number))
                )
                self.receipts.append(log.append_blocking(self.trajectory_id, body))
            self.copy = home if closed else crash_copy(home, home.path.with_name("crashed"))
        self.home = self.copy
        self.database = self.home.log_folder(self.log_id) / "db"

    @property
    def wal(self) -> Path:
        return max(self.database.glob("*.log"), key=lambda path: path.stat().st_size)

    @property
    def folder(self) -> Path:
        return self.home.log_folder(self.log_id)

    def open(self, *, accept_loss: bool = False) -> HotLog:
        log_id = None if accept_loss else self.log_id
        return HotLog.open(self.home, log_id=log_id, accept_loss=accept_loss, serve=False)

    def refused(self) -> None:
        """Opening refuses, again and again, and changes nothing for worse."""
        for _ in range(2):
            with pytest.raises(OpenRefused):
                self.open().__enter__()

    def accept(self) -> list[int]:
        """Accept the loss; returns the sequence numbers of the trajectory that are still there, from its beginning."""
        with self.open(accept_loss=True) as log:
            assert log.log_id != self.log_id and log.durable_lsn == log.engine.durable.value
            assert self.folder.with_name(f"{self.log_id}.damaged").is_dir() and not self.folder.exists()
            assert self.home.log_ids() == [log.log_id]
            try:
                kept = [event.header.sequence_number for event in log.read(self.trajectory_id)]
            except NotFound:
                return []
            hashes = [event.hash for event in log.read(self.trajectory_id, 1)]
            assert hashes == [receipt.hash for receipt in self.receipts][: len(hashes)]
            log.append_blocking(self.trajectory_id, note("goes on"))
            new_id = log.log_id
        with HotLog.open(self.home, log_id=new_id) as log:
            assert names(log.read(self.trajectory_id))[-1] == "goes on"
        with pytest.raises((NotFound, CursorMismatch)):
            open_source(self.home, self.log_id, Cursor(self.receipts[0].lsn, self.receipts[0].hash))
        return kept


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def test_a_killed_log_that_is_whole_opens(home: Home) -> None:
    case = Case(home)
    with case.open() as log:
        assert check_chains(log) == EVENTS + 1
        assert log.durable_lsn == EVENTS + 1


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flip_in_the_middle_of_the_write_ahead_log_is_refused(home: Home, where: float, pruned: bool) -> None:
    case = Case(home, pruned=pruned)
    flip(case.wal, int(case.wal.stat().st_size * where))
    case.refused()
    kept = case.accept()
    assert kept == list(range(len(kept))) and len(kept) < EVENTS + 1
    if where == 0.9:
        assert len(kept) > EVENTS // 2


def test_a_torn_tail_opens_with_everything_before_it(home: Home) -> None:
    case = Case(home)
    content = case.wal.read_bytes()
    (case.folder / "HEAD").unlink()
    case.wal.write_bytes(content[:-20])
    with case.open() as log:
        assert check_chains(log) == EVENTS


@pytest.mark.parametrize("tail", [b"\xff" * 100, bytes(range(1, 200)), bytes(4096)])
def test_what_was_being_written_is_no_damage(home: Home, tail: bytes) -> None:
    case = Case(home)
    with case.wal.open("ab") as file:
        file.write(tail)
    with case.open() as log:
        assert check_chains(log) == EVENTS + 1


def test_an_acknowledged_event_that_looks_like_a_torn_tail_is_missed_by_head(home: Home) -> None:
    with HotLog.open(home) as log:
        trajectory_id = log.start_blocking(tenant="t")
        log.append_blocking(trajectory_id, note("last"))
        while (mark := log.engine._head and log.engine._head.read()) is None or mark.lsn < 2:
            log.engine.durable.wait(3, 0.01)  # HEAD follows while nothing else happens
        copy = crash_copy(home, home.path.with_name("crashed"))
    wal = max((copy.log_folder(log_id := copy.log_ids()[0]) / "db").glob("*.log"), key=lambda path: path.stat().st_size)
    wal.write_bytes(wal.read_bytes()[:-20])
    with pytest.raises(OpenRefused, match="HEAD says that 2 was durable"):
        HotLog.open(copy, log_id=log_id).__enter__()


def each(pattern: str, damage: Damage) -> Damage:
    """The damage done to all files of a kind."""

    def damage_all(database: Path) -> None:
        for path in database.glob(pattern):
            damage(path)

    return damage_all


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: dict[str, Damage] = {
    "wal deleted": each("*.log", Path.unlink),
    "wal emptied": each("*.log", emptied),
    "wal zeroed": each("*.log", zeroed),
    "CURRENT deleted": each("CURRENT", Path.unlink),
    "CURRENT emptied": each("CURRENT", emptied),
    "CURRENT flipped": each("CURRENT", lambda path: flip(path, 3)),
    "MANIFEST deleted": each("MANIFEST-*", Path.unlink),
    "MANIFEST emptied": each("MANIFEST-*", emptied),
    "MANIFEST flipped": each("MANIFEST-*", lambda path: flip(path, 30)),
    "all deleted": lambda database: shutil.rmtree(database),
    "HEAD flipped": lambda database: flip(database.parent / "HEAD", 60),
    "HEAD ahead": lambda database: MarkFile(database.parent / "HEAD", database.parent.name).write(
        5000, bytes(32), durable=True
    ),
}


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_gone_is_noticed(home: Home, name: str, closed: bool) -> None:
    case = Case(home, closed=closed)
    before = sorted(path.name for path in case.database.iterdir() if path.suffix in (".sst", ".blob"))
    DAMAGES[name](case.database)
    if closed and name.startswith("wal"):
        with case.open() as log:  # nothing was in it
            assert check_chains(log) == EVENTS + 1
        return
    case.refused()
    if case.database.is_dir() and name != "all deleted":
        after = sorted(path.name for path in case.database.iterdir() if path.suffix in (".sst", ".blob"))
        assert set(before) <= set(after), "what could be salvaged was removed"
    kept = case.accept()
    assert kept == list(range(len(kept)))
    if name.startswith("HEAD"):
        assert len(kept) == EVENTS + 1


def test_negative_control_without_head_a_deleted_log_opens_empty(home: Home) -> None:
    case = Case(home)
    DAMAGES["wal deleted"](case.database)
    (case.folder / "HEAD").unlink()
    with case.open() as log:
        assert log.durable_lsn == 0


def test_negative_control_rocksdb_by_its_default_hides_damage(home: Home) -> None:
    case = Case(home)
    flip(case.wal, case.wal.stat().st_size // 2)
    store = RocksStore(case.database, case.home.settings.hot, mode=DBRecoveryMode.point_in_time())
    assert 0 < len(list(store.scan("events", b""))) < EVENTS
    store.close()


def test_damage_in_a_table_is_found_by_whoever_reads_it(home: Home) -> None:
    case = Case(home, closed=True)
    for table in case.database.glob("*.sst"):
        content = bytearray(table.read_bytes())
        for offset in range(0, len(content) // 2, 64):
            content[offset] ^= 1
        table.write_bytes(content)
    outcomes = []
    for read in (
        lambda log: list(log.scan()),
        lambda log: list(log.read(case.trajectory_id)),
        lambda log: log.get(3),
    ):
        with pytest.raises(Corrupt), case.open() as log:
            outcomes.append(read(log))
    assert outcomes == []
    assert case.accept() == []


@pytest.mark.parametrize("where", [0.2, 0.5, 0.8])
def test_a_flip_in_a_table_never_shortens_the_log(home: Home, where: float) -> None:
    case = Case(home, closed=True)
    largest = max(case.database.glob("*.sst"), key=lambda path: path.stat().st_size)
    flip(largest, int(largest.stat().st_size * where))
    try:
        with case.open() as log:
            assert len(list(log.scan())) == EVENTS + 1 == len(list(log.read(case.trajectory_id)))
    except Corrupt:
        pass


def test_damage_in_a_blob_file_is_found(home: Home) -> None:
    case = Case(home, closed=True)
    for path in case.database.glob("*.blob"):
        flip(path, path.stat().st_size // 2)
    found = 0
    with case.open() as log:
        for receipt in case.receipts:
            event = log.get(receipt.lsn)
            assert event is not None
            if isinstance(event.body, ToolResult):
                try:
                    log.blob(receipt.lsn, event.body.output.ref.sha256)  # type: ignore[union-attr]
                except Corrupt:
                    found += 1
    assert found == 1


def test_a_home_from_an_older_copy_is_not_mistaken_for_the_one_that_was_replicated(home: Home) -> None:
    case = Case(home)  # the copy ends at EVENTS + 1
    with HotLog.open(home, log_id=case.log_id) as log:
        later = log.append_many_blocking(case.trajectory_id, [NewEvent(note(f"later {n}")) for n in range(5)])
        log.acknowledge(later[2].lsn, later[2].hash)
    cursor = Cursor(later[2].lsn, later[2].hash)
    with pytest.raises(CursorMismatch):  # ends before
        open_source(case.home, case.log_id, cursor)
    with case.open() as log:
        log.append_many_blocking(case.trajectory_id, [NewEvent(note(f"other {n}")) for n in range(5)])
    with pytest.raises(CursorMismatch):  # another event lies there
        open_source(case.home, case.log_id, cursor)
    open_source(home, case.log_id, cursor).close()


@pytest.mark.parametrize("step", ["_salvage", "_keep_readable", "_set_aside"])
def test_accepting_a_loss_can_be_interrupted_anywhere_and_repeated(
    home: Home, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(home)
    flip(case.wal, case.wal.stat().st_size // 2)

    class Killed(BaseException):
        pass

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(salvage, step, die)
        with pytest.raises(Killed):
            case.open(accept_loss=True).__enter__()
    assert case.folder.is_dir()
    case.refused()
    kept = case.accept()
    assert 0 < len(kept) < EVENTS
    assert len(list((case.home.path / "hot").iterdir())) == 2


def test_a_disk_error_while_opening_is_not_taken_for_a_loss(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(home)
    for text in ("IO error: No space left on device: x", "IO error: While open: Too many open files"):
        monkeypatch.setattr("stratalog.hot.rocks._check_spaces", lambda path, text=text: _raise(text))
        for accept_loss in (False, True):
            with pytest.raises(InDoubt):
                HotLog.open(case.home, accept_loss=accept_loss).__enter__()
    assert case.folder.is_dir() and case.home.log_ids() == [case.log_id]


def _raise(text: str) -> None:
    raise Exception(text)


def test_the_rule_for_remains_lets_a_first_open_that_was_killed_go_on(home: Home) -> None:
    with HotLog.open(home) as log:
        log_id = log.log_id
    database = home.log_folder(log_id) / "db"
    shutil.rmtree(database)
    (home.log_folder(log_id) / "HEAD").unlink()
    database.mkdir()
    (database / "MANIFEST-000001").write_bytes(b"")
    (database / "IDENTITY").write_text("x")
    recovery.check_database(database)
    with HotLog.open(home, log_id=log_id) as log:
        log.start_blocking(tenant="t")
