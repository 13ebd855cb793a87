"""Telling a torn tail from damage, in write-ahead logs that RocksDB wrote; and what RocksDB then makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.hot.recovery import check_wal
from stratalog.hot.rocks import RocksStore
from stratalog.hot.walscan import scan_wal
from stratalog.schemas.errors import OpenRefused
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

SIZES = [10, 500, 0, 40_000, 7, 33_000, 1, 120_000, 300, 64, 5_000, 20]
"""Of values; some batches span several blocks of 32 KiB."""
SMALL = HotSettings(memtable_bytes=1 << 20)


class Written:
    """A database with one commit per entry of `SIZES`, as a kill -9 leaves it, and where each commit ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = RocksStore(folder / "open", SMALL)
        self.ends = []
        for number, size in enumerate(SIZES):
            value = bytes((number * 7 + index) % 251 for index in range(size))
            store.commit([Put("events", bytes([number]), value), Put("meta", b"last", bytes([number]))])
            self.ends.append(self._log(folder / "open").stat().st_size)
        shutil.copytree(folder / "open", folder / "db")
        store.close()
        self.content = self._log(folder / "db").read_bytes()
        assert self.ends[-1] == len(self.content)

    @staticmethod
    def _log(database: Path) -> Path:
        return max(database.glob("*.log"))

    def damaged(self, content: bytes) -> Path:
        """A copy of the database with this log; returns the log."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "db", copy)
        path = self._log(copy)
        path.write_bytes(content)
        return path

    def commits_before(self, offset: int) -> int:
        """How many commits end at or before an offset."""
        return sum(end <= offset for end in self.ends)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("wal"))


def commits_read(path: Path) -> int:
    """Check the log, open the database, and count what is there."""
    check_wal(path.parent)
    store = RocksStore(path.parent, SMALL)
    try:
        events = [key[0] for key, _ in store.scan("events", b"")]
        last = store.get("meta", b"last")
        assert events == list(range(len(events)))
        assert last == (bytes([len(events) - 1]) if events else None)
        return len(events)
    finally:
        store.close()


def test_a_log_as_it_was_written_is_clean(written: Written) -> None:
    report = scan_wal(written.damaged(written.content))
    assert (report.verdict, report.bad_at) == ("clean", None)
    assert report.records > len(SIZES)  # the large ones in several fragments
    assert commits_read(written.damaged(written.content)) == len(SIZES)


def test_an_empty_log_is_clean(tmp_path: Path) -> None:
    (tmp_path / "1.log").touch()
    assert scan_wal(tmp_path / "1.log").verdict == "clean"


CUTS = sorted({0, 1, 6, 7, 8, 32767, 32768, 32769, 65535, 65536})


def test_a_log_cut_anywhere_is_torn_and_gives_every_commit_before_the_cut(written: Written) -> None:
    around = {end + delta for end in written.ends for delta in (-12, -7, -1, 0, 1, 3, 6, 7, 8, 11, 19)}
    for cut in sorted(around | set(CUTS)):
        if not 0 <= cut <= len(written.content):
            continue
        path = written.damaged(written.content[:cut])
        assert scan_wal(path).verdict in ("clean", "torn_tail"), cut
        assert commits_read(path) == written.commits_before(cut), cut


@pytest.mark.parametrize("zeros", [1, 4096, 200_000])
def test_zeros_behind_the_end_are_no_data(written: Written, zeros: int) -> None:
    path = written.damaged(written.content + bytes(zeros))
    assert scan_wal(path).verdict == "clean"
    assert commits_read(path) == len(SIZES)


@pytest.mark.parametrize("kept", [0, 1, 7, 30, 45])
def test_a_last_record_that_turns_into_zeros_is_torn(written: Written, kept: int) -> None:
    start = written.ends[-2] + kept
    path = written.damaged(written.content[:start] + bytes(len(written.content) - start))
    assert scan_wal(path).verdict in ("clean", "torn_tail")
    assert commits_read(path) == len(SIZES) - 1


@pytest.mark.parametrize("garbage", [bytes(range(1, 200)), b"\xff" * 70_000, b"\x07" * 40, b"x"])
def test_garbage_behind_the_end_is_torn_and_does_not_hang_rocksdb(written: Written, garbage: bytes) -> None:
    path = written.damaged(written.content + garbage)
    assert scan_wal(path).verdict in ("clean", "torn_tail")
    assert commits_read(path) == len(SIZES)


def test_what_is_cut_off_is_kept(written: Written) -> None:
    path = written.damaged(written.content + b"\xff" * 100)
    check_wal(path.parent)
    kept = path.parent.parent / f"TORN-{path.stem}-{len(written.content)}"
    assert kept.read_bytes() == b"\xff" * 100
    assert path.read_bytes() == written.content
    kept.unlink()


def test_every_flip_before_the_last_commit_is_damage(written: Written) -> None:
    last_start = written.ends[-2]
    edges = {end + delta for end in [0, *written.ends] for delta in range(-2, 13)}
    blocks = {block + delta for block in range(32768, last_start, 32768) for delta in (-1, 0, 4, 6, 7, 20)}
    for offset in sorted(edges | blocks):
        if not 0 <= offset < last_start:
            continue
        flipped = bytearray(written.content)
        flipped[offset] ^= 0x10
        path = written.damaged(bytes(flipped))
        assert scan_wal(path).verdict == "damaged", offset
        with pytest.raises(OpenRefused, match="damaged at byte"):
            check_wal(path.parent)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_never_shortens_a_log_silently(written: Written, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(written.content) - 1))
    length = data.draw(st.integers(1, 64))
    replacement = data.draw(st.binary(min_size=length, max_size=length))
    content = bytearray(written.content)
    content[offset : offset + length] = replacement[: len(content) - offset]
    path = written.damaged(bytes(content))
    unchanged = bytes(content) == written.content
    try:
        found = commits_read(path)
    except OpenRefused:
        assert not unchanged
    else:
        # Only the last commit may be missing: its own damage cannot be told from a torn tail.
        assert found >= len(SIZES) - 1 + unchanged


def test_two_damages_in_a_row_do_not_hide_each_other(written: Written) -> None:
    flipped = bytearray(written.content)
    for end in written.ends[3:7]:
        flipped[end + 20] ^= 1
    assert scan_wal(written.damaged(bytes(flipped))).verdict == "damaged"


def test_damage_far_before_the_next_commit_is_found(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", HotSettings())
    store.commit([Put("blobs", b"huge", bytes(12 << 20))])
    store.commit([Put("events", b"small", b"")])
    path = max((tmp_path / "db").glob("*.log"))
    content = bytearray(path.read_bytes())
    store.close()
    content[100] ^= 1
    (tmp_path / "copy.log").write_bytes(content)
    assert scan_wal(tmp_path / "copy.log").verdict == "damaged"
