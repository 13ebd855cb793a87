"""HEAD and REPLICATED: whole, of this log, and told from damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.hot.marks import Mark, MarkFile, peek
from stratalog.schemas.errors import OpenRefused

DIGEST = bytes(range(32))


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_mark_is_read_as_it_was_written(tmp_path: Path, durable: bool, closed: bool) -> None:
    mark = MarkFile(tmp_path / "HEAD", "log")
    assert mark.read() is None and peek(tmp_path / "HEAD") is None
    mark.write(0, b"", durable=durable)
    mark.write(7, DIGEST, durable=durable, closed=closed)
    read = mark.read()
    assert read is not None and (read.log_id, read.lsn, read.hash, read.closed) == ("log", 7, DIGEST.hex(), closed)
    assert peek(tmp_path / "HEAD") == read
    assert [path.name for path in tmp_path.iterdir()] == ["HEAD"]


def test_every_changed_bit_is_found(tmp_path: Path) -> None:
    mark = MarkFile(tmp_path / "HEAD", "log")
    mark.write(7, DIGEST, durable=True, closed=True)
    written = mark.path.read_bytes()
    for offset in range(len(written)):
        for bit in range(8):
            flipped = bytearray(written)
            flipped[offset] ^= 1 << bit
            mark.path.write_bytes(flipped)
            with pytest.raises(OpenRefused):
                mark.read()
            assert peek(mark.path) is None
    for length in range(1, len(written)):
        mark.path.write_bytes(written[:length])
        with pytest.raises(OpenRefused):
            mark.read()


@pytest.mark.parametrize("content", [b"", bytes(1), bytes(200)])
def test_a_file_that_lost_its_content_with_the_power_says_nothing(tmp_path: Path, content: bytes) -> None:
    mark = MarkFile(tmp_path / "HEAD", "log")
    mark.path.write_bytes(content)
    assert mark.read() is None


def test_one_that_was_synced_cannot_have_lost_its_content_with_the_power(tmp_path: Path) -> None:
    mark = MarkFile(tmp_path / "REPLICATED", "log", synced=True)
    mark.path.write_bytes(bytes(200))
    with pytest.raises(OpenRefused, match="damaged"):
        mark.read()


def test_a_mark_of_another_log_is_refused(tmp_path: Path) -> None:
    MarkFile(tmp_path / "HEAD", "other").write(1, DIGEST, durable=False)
    with pytest.raises(OpenRefused, match="belongs to the log other"):
        MarkFile(tmp_path / "HEAD", "log").read()


def test_a_mark_that_no_log_writes_is_not_whole() -> None:
    for mark in (Mark("log", -1, DIGEST.hex()), Mark("log", 1, "xyz")):
        assert not Mark(mark.log_id, mark.lsn, mark.hash, check=mark.checksum()).is_whole()


def test_drafts_of_a_killed_owner_are_removed(tmp_path: Path) -> None:
    mark = MarkFile(tmp_path / "HEAD", "log")
    mark.write(1, DIGEST, durable=True)
    (tmp_path / ".HEAD.123").touch()
    (tmp_path / ".REPLICATED.x").touch()
    mark.forget_drafts()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".REPLICATED.x", "HEAD"]
