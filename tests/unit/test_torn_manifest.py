"""A manifest whose last record a power loss has torn is mended; one that is damaged is left to be refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from stratalog.hot.recovery import mend_manifest
from stratalog.hot.rocks import RocksStore
from stratalog.hot.walscan import SECTOR_BYTES, torn_at
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

SMALL = HotSettings(memtable_bytes=1 << 20)
PAIR = Put("events", b"key", b"value")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "log" / "db"
    path.parent.mkdir()
    store = RocksStore(path, SMALL)
    store.commit([PAIR])
    store.close()
    return path


def manifest_of(database: Path) -> Path:
    return database / (database / "CURRENT").read_text().strip()


def whole(database: Path) -> bool:
    store = RocksStore(database, SMALL)
    try:
        return store.get(PAIR.space, PAIR.key) == PAIR.value
    finally:
        store.close()


def append_record(manifest: Path, lost: range) -> int:
    """A record of four sectors that is not whole: those in `lost` never reached the disk. Returns where it begins."""
    content = bytearray(manifest.read_bytes())
    start = len(content)
    content += struct.pack("<IHB", 12345, 4 * SECTOR_BYTES, 1) + b"\7" * (4 * SECTOR_BYTES)
    first = start // SECTOR_BYTES
    for sector in lost:
        begin = max(start, (first + sector) * SECTOR_BYTES)
        end = (first + sector + 1) * SECTOR_BYTES
        content[begin:end] = bytes(len(content[begin:end]))
    manifest.write_bytes(content)
    return start


@pytest.mark.parametrize("lost", [range(1, 9), range(2, 3), range(3, 4)])
def test_a_torn_last_record_is_cut_off_and_kept(database: Path, lost: range) -> None:
    before = manifest_of(database).read_bytes()
    start = append_record(manifest_of(database), lost)
    with pytest.raises(Corrupt):  # so it is without the mending
        RocksStore(database, SMALL)
    assert torn_at(manifest_of(database)) == start
    mend_manifest(database)
    assert manifest_of(database).read_bytes() == before
    assert [path.stat().st_size for path in database.parent.glob("TORN-*")] == [7 + 4 * SECTOR_BYTES]
    assert whole(database)


def test_a_whole_manifest_is_left_alone(database: Path) -> None:
    before = manifest_of(database).read_bytes()
    mend_manifest(database)
    assert manifest_of(database).read_bytes() == before and whole(database)


@pytest.mark.parametrize("position", ["first", "middle", "last"])
def test_a_flipped_manifest_is_not_taken_for_a_torn_one(database: Path, position: str) -> None:
    manifest = manifest_of(database)
    content = bytearray(manifest.read_bytes())
    content[{"first": 20, "middle": len(content) // 2, "last": len(content) - 3}[position]] ^= 0x10
    manifest.write_bytes(content)
    mend_manifest(database)
    assert manifest.read_bytes() == bytes(content)
    with pytest.raises(Corrupt):
        RocksStore(database, SMALL)


def test_a_lost_sector_that_valid_records_follow_is_damage(database: Path) -> None:
    manifest = manifest_of(database)
    content = bytearray(manifest.read_bytes())
    after = bytes(content)[:]
    append_record(manifest, range(1, 9))
    manifest.write_bytes(manifest.read_bytes() + after)
    mend_manifest(database)
    assert manifest.read_bytes().endswith(after)


@pytest.mark.parametrize("current", [b"", b"\xff\xfe", b"MANIFEST-999999\n", b"../MANIFEST-1\n"])
def test_a_damaged_current_is_left_to_rocksdb(database: Path, current: bytes) -> None:
    (database / "CURRENT").write_bytes(current)
    mend_manifest(database)
    assert (database / "CURRENT").read_bytes() == current
    with pytest.raises(Exception, match="opening"):
        RocksStore(database, SMALL)
