"""What a `Store` promises, shown on RocksDB and on the simulated disk by the same tests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from stratalog.hot.rocks import SPACES, RocksStore
from stratalog.hot.sim import SimDisk, SimStore
from stratalog.schemas.errors import InDoubt, Invalid
from stratalog.schemas.protocols import Put, Range, Store
from stratalog.schemas.settings import HotSettings

SMALL = HotSettings(memtable_bytes=1 << 16, wal_bytes_max=1 << 18)
Opener = Callable[[], Store]


@pytest.fixture(params=["rocks", "sim"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store again and again."""
    if request.param == "rocks":
        return lambda: RocksStore(tmp_path / "db", SMALL)
    disk = SimDisk()
    return lambda: SimStore(disk)


@pytest.fixture
def store(opener: Opener) -> Iterator[Store]:
    opened = opener()
    yield opened
    opened.close()


def fill(store: Store, count: int, space: str = "events") -> list[tuple[bytes, bytes]]:
    pairs = [(number.to_bytes(4, "big"), b"value %d" % number) for number in range(count)]
    store.commit([Put(space, key, value) for key, value in pairs])
    return pairs


def test_an_empty_store_has_nothing(store: Store) -> None:
    for space in SPACES:
        assert store.get(space, b"key") is None
        assert store.last(space) is None
        assert list(store.scan(space, b"")) == []


def test_what_was_committed_is_there_after_reopening(opener: Opener) -> None:
    store = opener()
    pairs = fill(store, 1000)
    store.commit([Put("blobs", b"large", bytes(100_000)), Put("meta", b"empty", b"")])
    store.close()
    store = opener()
    assert list(store.scan("events", b"")) == pairs
    assert store.get("blobs", b"large") == bytes(100_000)
    assert store.get("meta", b"empty") == b""
    store.close()


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (b"", None, 10),
        (b"\0\0\0\3", None, 7),
        (b"\0\0\0\3", b"\0\0\0\7", 4),
        (b"\0\0\0\3", b"\0\0\0\3", 0),
        (b"\0\0\0\7", b"\0\0\0\3", 0),
        (b"\0\0\0\3\0", b"\0\0\0\4\0", 1),
        (b"\xff", None, 0),
    ],
)
def test_a_scan_begins_at_its_start_and_ends_before_its_stop(
    store: Store, start: bytes, stop: bytes | None, expected: int
) -> None:
    pairs = fill(store, 10)
    found = list(store.scan("events", start, stop))
    assert found == [pair for pair in pairs if start <= pair[0] and (stop is None or pair[0] < stop)]
    assert len(found) == expected


def test_last_is_the_greatest_key(store: Store) -> None:
    assert store.last("events") is None
    pairs = fill(store, 300)
    assert store.last("events") == pairs[-1]
    store.delete_range("events", pairs[100][0], pairs[-1][0] + b"\0")
    assert store.last("events") == pairs[99]


def test_spaces_do_not_mix(store: Store) -> None:
    for space in SPACES:
        store.commit([Put(space, b"key", space.encode())])
    store.delete_range("blobs", b"", b"\xff")
    assert {space: store.get(space, b"key") for space in SPACES} == {
        space: None if space == "blobs" else space.encode() for space in SPACES
    }


def test_the_last_put_of_a_key_in_a_commit_wins(store: Store) -> None:
    store.commit([Put("meta", b"key", b"first"), Put("meta", b"key", b"second")])
    assert store.get("meta", b"key") == b"second"


def test_a_range_that_was_deleted_stays_deleted_after_the_next_commit(opener: Opener) -> None:
    store = opener()
    pairs = fill(store, 10)
    store.delete_range("events", pairs[2][0], pairs[5][0])
    store.commit([Put("meta", b"key", b"")])
    expected = pairs[:2] + pairs[5:]
    assert list(store.scan("events", b"")) == expected
    store.close()
    store = opener()
    assert list(store.scan("events", b"")) == expected
    store.close()


def test_a_closed_store_refuses_everything(opener: Opener) -> None:
    store = opener()
    fill(store, 2)
    store.close()
    store.close()
    calls: list[Callable[[], Any]] = [
        lambda: store.get("events", b""),
        lambda: list(store.scan("events", b"")),
        lambda: store.last("events"),
        lambda: store.commit([Put("events", b"", b"")]),
        lambda: store.delete_range("events", b"", b"\xff"),
    ]
    for call in calls:
        with pytest.raises(Invalid, match="closed"):
            call()


def test_a_scan_that_is_not_finished_does_not_keep_the_store(opener: Opener) -> None:
    store = opener()
    pairs = fill(store, 1000)
    scan = store.scan("events", b"")
    assert next(scan) == pairs[0]
    store.close()
    again = opener()  # RocksDB would still be locked by a live iterator
    with pytest.raises(Invalid, match="closed"):
        list(scan)
    assert list(again.scan("events", b"")) == pairs
    again.close()


def test_closing_waits_for_calls_of_other_threads(opener: Opener) -> None:
    store = opener()
    pairs = fill(store, 2000)
    errors: list[BaseException] = []
    reading = threading.Barrier(5)

    def read() -> None:
        reading.wait()
        try:
            while True:
                assert list(store.scan("events", b"")) == pairs
        except Exception as error:  # noqa: BLE001 - the type is what is tested
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    reading.wait()
    store.close()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [Invalid] * 4
    opener().close()


def test_what_is_committed_during_a_scan_does_not_disturb_it(store: Store) -> None:
    pairs = fill(store, 600)
    scan = store.scan("events", b"")
    found = [next(scan) for _ in range(10)]
    store.commit([Put("events", b"\xff" * 4, b"new")])
    found += [pair for pair in scan if pair[1] != b"new"]
    assert found == pairs


class FailingDatabase:
    """A RocksDB whose sync fails."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def flush_wal(self, sync: bool) -> None:
        raise Exception("IO error: While fdatasync: Input/output error")


def test_after_a_failed_commit_rocksdb_is_not_written_to_any_more(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", SMALL)
    store.commit([Put("events", b"before", b"")])
    database = store._db
    store._db = FailingDatabase(database)
    with pytest.raises(InDoubt, match="fdatasync"):
        store.commit([Put("events", b"doubtful", b"")])
    store._db = database
    for _ in range(2):
        with pytest.raises(InDoubt, match="earlier commit failed"):
            store.commit([Put("events", b"after", b"")])
    with pytest.raises(InDoubt, match="earlier commit failed"):
        store.delete_range("events", b"", b"\xff")
    assert store.get("events", b"before") == b""
    store.close()
    store = RocksStore(tmp_path / "db", SMALL)
    assert store.get("events", b"before") == b"" and store.get("events", b"after") is None
    store.commit([Put("events", b"after", b"")])
    store.close()


@pytest.mark.parametrize("step", ["write", "sync"])
def test_after_a_failed_commit_the_simulated_store_refuses_too(step: str) -> None:
    failing = False

    def fault(at: str) -> None:
        if failing and at == step:
            raise OSError("no")

    disk = SimDisk(fault)
    store = SimStore(disk)
    store.commit([Put("events", b"before", b"")])
    failing = True
    with pytest.raises(InDoubt):
        store.commit([Put("events", b"doubtful", b"")])
    failing = False
    with pytest.raises(InDoubt, match="earlier commit failed"):
        store.commit([Put("events", b"after", b"")])
    store.close()
    disk.crash()
    store = SimStore(disk)
    assert [key for key, _ in store.scan("events", b"")] == [b"before"]


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_crash_of_the_simulated_disk_takes_only_what_was_not_synced(keep: int) -> None:
    disk = SimDisk()
    store = SimStore(disk)
    store.commit([Put("events", b"a", b""), Put("events", b"b", b"")])
    store.delete_range("events", b"a", b"b")
    store.delete_range("events", b"b", b"c")
    disk.crash(keep)
    keys = [key for key, _ in SimStore(disk).scan("events", b"")]
    assert keys == [[b"a", b"b"], [b"b"], []][keep]
    disk.crash()  # what an open has recovered is durable
    assert [key for key, _ in SimStore(disk).scan("events", b"")] == keys


def raw(store: Store) -> bytes:
    """All that lies in the files of a store."""
    if isinstance(store, RocksStore):
        return b"".join(path.read_bytes() for path in store.path.iterdir())
    assert isinstance(store, SimStore)
    puts = [operation for batch in store._disk.batches for operation in batch if isinstance(operation, Put)]
    return b"\0".join(put.value for put in puts)


def test_what_was_replaced_or_deleted_is_in_no_file_after_a_purge(store: Store) -> None:
    values = {(space, place): f"{space} {place} ".encode() * 4000 for space in SPACES for place in ("old", "deleted")}
    for (space, place), value in values.items():
        fill(store, 50, space)
        store.commit([Put(space, place.encode(), value), Put(space, b"kept", b"kept" * 4000)])
    for space in SPACES:
        store.commit([Put(space, b"old", b"new")])
        store.delete_range(space, b"deleted", b"deletee")
    assert all(value[:20] in raw(store) for value in values.values())  # the control
    store.purge([Range(space) for space in SPACES])
    found = raw(store)
    assert not any(value[:20] in found for value in values.values())
    for space in SPACES:
        assert (store.get(space, b"old"), store.get(space, b"deleted")) == (b"new", None)
        assert store.get(space, b"kept") == b"kept" * 4000


def test_a_purge_makes_durable_what_was_written_before(opener: Opener) -> None:
    store = opener()
    pairs = fill(store, 10)
    store.delete_range("events", pairs[2][0], pairs[5][0])
    store.purge([Range("events")])
    store.close()
    store = opener()
    assert list(store.scan("events", b"")) == pairs[:2] + pairs[5:]
    store.close()


def test_a_purge_can_be_stopped_and_done_again(store: Store) -> None:
    store.commit([Put("blobs", b"a", b"old" * 4000)])
    store.commit([Put("blobs", b"a", b"new" * 4000)])

    def stop() -> None:
        raise InDoubt("stop")

    with pytest.raises(InDoubt, match="stop"):
        store.purge([Range("blobs"), Range("chunks")], stop)
    store.purge([Range("blobs"), Range("chunks")])
    assert b"oldold" not in raw(store)
    assert store.get("blobs", b"a") == b"new" * 4000


def test_others_commit_and_read_during_a_purge(store: Store) -> None:
    for number in range(20):
        store.commit([Put("blobs", bytes([number]), number.to_bytes(2, "big") * 50_000)])
    written: list[bytes] = []
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            key = len(written).to_bytes(4, "big")
            store.commit([Put("events", key, key * 100)])
            assert store.get("blobs", b"\3") == b"\0\3" * 50_000
            written.append(key)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            store.purge([Range(space) for space in SPACES])
    finally:
        done.set()
        thread.join()
    assert list(store.scan("events", b"")) == [(key, key * 100) for key in written]


KEYS = st.binary(max_size=3)
VALUES = st.one_of(st.binary(max_size=20), st.integers(0, 9000).map(bytes))
PUTS = st.lists(st.builds(Put, st.sampled_from(SPACES), KEYS, VALUES), max_size=8)


def machine(opener: Opener) -> type[RuleBasedStateMachine]:
    """Random commits, deletes and reopenings against a dictionary."""

    class StoreMachine(RuleBasedStateMachine):
        @initialize()
        def start(self) -> None:
            self.store = opener()
            self.numbers, self.unique = itertools.count(10_000_000), list[bytes]()
            for space in SPACES:
                self.store.delete_range(space, b"", b"\xff" * 8)
            self.model: dict[str, dict[bytes, bytes]] = {space: {} for space in SPACES}

        @rule(puts=PUTS)
        def commit(self, puts: list[Put]) -> None:
            self.store.commit(puts)
            for put in puts:
                self.model[put.space][put.key] = put.value

        @rule(space=st.sampled_from(SPACES), start=KEYS, stop=KEYS)
        def delete_range(self, space: str, start: bytes, stop: bytes) -> None:
            if start < stop:
                self.store.delete_range(space, start, stop)
                self.model[space] = {key: value for key, value in self.model[space].items() if not start <= key < stop}

        @rule(space=st.sampled_from(SPACES), start=KEYS, stop=st.none() | KEYS)
        def scan(self, space: str, start: bytes, stop: bytes | None) -> None:
            expected = [
                (key, value)
                for key, value in sorted(self.model[space].items())
                if key >= start and (stop is None or key < stop)
            ]
            assert list(self.store.scan(space, start, stop)) == expected

        @rule(puts=st.lists(st.tuples(st.sampled_from(SPACES), KEYS, st.booleans()), min_size=1, max_size=4))
        def commit_unique(self, puts: list[tuple[str, bytes, bool]]) -> None:
            """Values that can be told from all others, also in a file of values."""
            for space, key, large in puts:
                value = b"<%d>" % next(self.numbers)
                self.unique.append(value)
                self.store.commit([Put(space, key, value * (2000 if large else 1))])
                self.model[space][key] = value * (2000 if large else 1)

        @rule()
        def purge(self) -> None:
            self.store.purge([Range(space) for space in SPACES])
            found = raw(self.store)
            valid = {value for values in self.model.values() for value in values.values()}
            gone = [value for value in self.unique if value not in valid and value * 2000 not in valid]
            assert [value for value in gone if value in found] == []

        @rule()
        def reopen(self) -> None:
            self.store.close()
            self.store = opener()

        @invariant()
        def agrees(self) -> None:
            for space, values in self.model.items():
                assert self.store.last(space) == max(values.items(), default=None)
                for key in list(values)[:5]:
                    assert self.store.get(space, key) == values[key]

        def teardown(self) -> None:
            self.store.close()

    return StoreMachine


def test_it_is_a_dictionary_that_survives_closing(opener: Opener) -> None:
    run_state_machine_as_test(
        machine(opener),
        settings=settings(
            max_examples=20,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
