"""Hot logs for tests: a home in a folder of its own, a store whose commits a test can hold up, a log without files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stratalog.hot.engine import Engine
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent, Receipt
from stratalog.hot.sim import SimDisk, SimStore
from stratalog.hot.source import Cursor, LogEvent, LogSource
from stratalog.schemas.chain import ChainCheck
from stratalog.schemas.codec import Event
from stratalog.schemas.events import Annotation, ToolResult
from stratalog.schemas.protocols import Put, Range, Store, go_on
from stratalog.schemas.settings import HotSettings

MB = 1 << 20
SMALL_SETTINGS = "[hot]\nmemtable_bytes = 1048576\ndisk_free_min = 0.0\n"
"""Small memtables open and close faster."""


@pytest.fixture
def home() -> Iterator[Home]:
    """An empty home, at a path that is short enough for its sockets."""
    with tempfile.TemporaryDirectory(prefix="stratalog-test-", ignore_cleanup_errors=True) as folder:
        yield make_home(Path(folder) / "home")


def make_home(path: Path) -> Home:
    Home.open(path, create=True)
    (path / "stratalog.toml").write_text(SMALL_SETTINGS)
    return Home.open(path)


def note(text: str) -> Annotation:
    """A small event."""
    return Annotation(name=text)


def names(events: Iterator[Event] | Sequence[Event]) -> list[str]:
    """The names of `note` events, in order."""
    return [event.body.name for event in events if isinstance(event.body, Annotation)]


COPIES_MAX = 200


def crash_copy(home: Home, to: Path) -> Home:
    """The home as a kill -9 just now would leave it, elsewhere. A copy takes a while: it is made again if RocksDB has
    added, removed or changed files in the background meanwhile.
    """
    for _ in range(COPIES_MAX):
        before = _files(home.path)
        with contextlib.suppress(shutil.Error):  # a file has gone
            shutil.copytree(home.path, to, ignore=shutil.ignore_patterns("*.sock"))
            if _files(home.path) == before:
                return Home.open(to)
        shutil.rmtree(to)
    raise AssertionError("the home never rests")


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files below a folder with what changes when they do; RocksDB's own diary does not count."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name != "LOG":
                found[path] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


class GatedStore:
    """A store whose commits wait at a gate, and can be made to fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        """Released each time a commit has arrived at the closed gate."""
        self.commits: list[list[Put]] = []
        self.error: Exception | None = None
        self.before: Callable[[Sequence[Put]], None] = lambda puts: None

    def commit(self, puts: Sequence[Put]) -> None:
        if not self.gate.is_set():
            self.waiting.release()
            self.gate.wait()
        self.before(puts)
        if self.error is not None:
            raise self.error
        self.commits.append(list(puts))
        self._store.commit(puts)

    def get(self, space: str, key: bytes) -> bytes | None:
        return self._store.get(space, key)

    def scan(self, space: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(space, start, stop)

    def last(self, space: str) -> tuple[bytes, bytes] | None:
        return self._store.last(space)

    def delete_range(self, space: str, start: bytes, stop: bytes) -> None:
        self._store.delete_range(space, start, stop)

    def purge(self, ranges: Sequence[Range], pause: Callable[[], None] = go_on) -> None:
        self._store.purge(ranges, pause)

    def disk_bytes(self) -> int:
        return self._store.disk_bytes()

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def gated() -> GatedStore:
    """A gated store in memory."""
    return GatedStore(SimStore(SimDisk()))


@pytest.fixture
def gated_log(gated: GatedStore) -> Iterator[HotLog]:
    """A log on the gated store; the gate is opened at the end."""
    with log_on(gated) as log:
        yield log
        gated.gate.set()


def log_on(store: Store, settings: HotSettings | None = None) -> HotLog:
    """A log on a store, without files."""
    return HotLog.on(Engine(uuid.uuid4(), store, settings or HotSettings()))


def check_chains(log: HotLog) -> int:
    """Check density and every chain of a log that was never pruned, from the stored bytes; returns the last LSN."""
    chains: dict[uuid.UUID, ChainCheck] = {}
    last = 0
    for envelope in log.engine.scan(1):
        assert envelope.lsn == last + 1
        last = envelope.lsn
        if envelope.previous_lsn == 0:
            chains[envelope.header.trajectory_id] = ChainCheck(envelope.secret)
        chains[envelope.header.trajectory_id].feed(envelope)
    for trajectory_id, chain in chains.items():
        head = log.head(trajectory_id)
        assert head is not None and (head.sequence_number, head.hash) == (
            chain.position.sequence_number,
            chain.position.hash,
        )
    return last


def fill(log: HotLog, count: int = 10, bulk: int = 0) -> tuple[uuid.UUID, list[Receipt]]:
    """A trajectory with some events; `bulk` bytes of output in the last one."""
    trajectory_id = log.start_blocking(tenant="t")
    events = [NewEvent(note(str(number))) for number in range(count)]
    if bulk:
        events.append(NewEvent(ToolResult(tool_call_id="1", output="x" * bulk)))
    return trajectory_id, log.append_many_blocking(trajectory_id, events)


def read_all(source: LogSource, events_max: int = 3, bytes_max: int = 4 * MB) -> list[LogEvent]:
    """Everything a source has, in batches."""
    events: list[LogEvent] = []
    while batch := source.read(events[-1].envelope.lsn if events else 0, events_max, bytes_max):
        assert len(batch) <= events_max
        events += batch
    return events


def cursor_of(event: LogEvent) -> Cursor:
    """The position of an event."""
    return Cursor(event.envelope.lsn, event.envelope.hash)
