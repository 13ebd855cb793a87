"""Searching files for bytes: every place is found, wherever the blocks end, and nothing else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.hot.residue import Found, search_file, search_files
from stratalog.schemas.errors import Invalid

LETTERS = st.binary(max_size=60).map(lambda raw: bytes(65 + byte % 2 for byte in raw))


@given(
    content=LETTERS,
    needles=st.lists(LETTERS.filter(lambda raw: 0 < len(raw) < 9), max_size=3),
    block=st.integers(1, 20),
)
def test_every_place_is_found_once_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, needles: list[bytes], block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "file"
    path.write_bytes(content)
    expected = [
        (place, index)
        for index, needle in enumerate(needles)
        for place in range(len(content))
        if content.startswith(needle, place)
    ]
    found = [(one.offset, one.needle_index) for one in search_file(path, needles, block)]
    assert sorted(found) == sorted(expected)


def test_a_folder_is_searched_to_its_depths_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"needle")
    folder = tmp_path / "folder"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/file").write_bytes(b"a needle")
    (folder / "empty").touch()
    (folder / "link").symlink_to(outside)
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(folder / "socket"))
        assert list(search_files(folder, [b"thread", b"needle"])) == [Found(folder / "a/b/file", 2, 1)]
    assert list(search_files(outside, [b"needle"])) == [Found(outside, 0, 0)]


def test_what_is_missing_or_goes_away_meanwhile_has_nothing(tmp_path: Path) -> None:
    assert list(search_files(tmp_path / "missing", [b"x"])) == []
    assert list(search_file(tmp_path / "missing", [b"x"])) == []


def test_an_empty_needle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="everywhere"):
        list(search_files(tmp_path, [b"x", b""]))
