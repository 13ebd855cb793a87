"""The lake in a local folder: publishing, containment, and what is left by the dead and the living."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cold.lake import Lake
from stratalog.cold.scratch import Scratch, clean_scratch
from stratalog.cold.storage import check_path
from stratalog.schemas.errors import Invalid, MissingExtra, NotFound

FOLDER = "events/tenant=acme/date=2026-03-01/model=m"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lake(root: Path) -> Iterator[Lake]:
    with Lake(f"file://{root}") as opened:
        yield opened


def drafted(lake: Lake, content: bytes = b"PAR1") -> Path:
    path = lake.scratch() / "draft"
    path.write_bytes(content)
    return path


def test_a_published_file_can_be_found_read_and_deleted(lake: Lake, root: Path) -> None:
    source = drafted(lake, b"0123456789")
    url = lake.publish(source, f"{FOLDER}/x.parquet")
    assert url == f"file://{root}/{FOLDER}/x.parquet" and not source.exists()
    assert lake.path_of(url) == f"{FOLDER}/x.parquet" and lake.url_of(f"{FOLDER}/x.parquet") == url
    with lake.open(url) as stream:
        stream.seek(4)
        assert stream.read(3) == b"456"
    assert [(entry.path, entry.size) for entry in lake.files()] == [(f"{FOLDER}/x.parquet", 10)]
    entry = lake.entry(url)
    assert entry is not None and entry.size == 10
    lake.delete(url)
    lake.delete(url)
    assert not lake.exists(url) and list(lake.files()) == []
    with pytest.raises(NotFound):
        lake.open(url)


def test_publishing_replaces_the_whole_file(lake: Lake) -> None:
    url = lake.publish(drafted(lake, b"longer than"), f"{FOLDER}/x")
    lake.publish(drafted(lake, b"new"), f"{FOLDER}/x")
    assert lake.open(url).read() == b"new"


def test_a_file_of_another_file_system_is_copied(lake: Lake, root: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == root.parent.stat().st_dev:
        pytest.skip("there is no other file system")
    source = shared / f"stratalog-test-{os.getpid()}"
    source.write_bytes(b"far")
    url = lake.publish(source, f"{FOLDER}/x")
    assert lake.open(url).read() == b"far" and not source.exists()
    assert list(lake.scratch().iterdir()) == []


BAD_PATHS = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/../x",
    "a//b",
    "a/",
    "a\0b",
    "a\nb",
    "a\\b",
    ".hidden",
    "a/.b",
    "a b",
]


@pytest.mark.parametrize("path", [*BAD_PATHS, "ä", "x" * 201, "a/" * 400 + "a", "events/tenant=../x", "tenant=A/x"])
def test_no_path_leaves_the_root(lake: Lake, root: Path, path: str) -> None:
    source = drafted(lake)
    acts = (lambda: lake.publish(source, path), lambda: lake.delete(path), lambda: lake.open(path))
    for act in acts:
        with pytest.raises(Invalid):
            act()
    assert source.exists() and list(lake.files()) == []
    assert [path.name for path in root.parent.iterdir()] == ["lake"]


@given(st.text())
def test_a_path_that_is_taken_stays_below_the_root(path: str) -> None:
    try:
        check_path(path)
    except Invalid:
        return
    assert os.path.normpath(f"/root/{path}") == f"/root/{path}"


def test_a_url_of_another_place_is_refused(lake: Lake, root: Path) -> None:
    for url in (f"file://{root}-2/x", f"file://{root}/../x", "s3://bucket/x", f"file://{root}"):
        with pytest.raises(Invalid):
            lake.delete(url)


def test_a_link_in_the_way_does_not_lead_out(lake: Lake, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    source = drafted(lake)
    (root / "events").symlink_to(outside)
    for act in (lambda: lake.publish(source, "events/x"), lambda: lake.delete("events/precious")):
        with pytest.raises(Invalid, match="leads out"):
            act()
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_a_link_at_the_end_is_removed_and_not_followed(lake: Lake, root: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    drafted(lake)
    (root / "events").mkdir()
    (root / "events" / "x").symlink_to(tmp_path / "precious")
    assert lake.entry("events/x") is None
    lake.delete("events/x")
    assert (tmp_path / "precious").exists() and not (root / "events" / "x").is_symlink()


def test_folders_are_made_from_checked_names() -> None:
    day = dt.date(2026, 3, 1)
    assert Lake.folder_of("acme", day, "gpt-x") == "events/tenant=acme/date=2026-03-01/model=gpt-x"
    folder = Lake.folder_of("acme", day, "a/../../b\0c")
    assert check_path(folder).count("/") == 3
    with pytest.raises(Invalid):
        Lake.folder_of("../x", day, "m")


def test_foreign_files_are_listed_or_passed_over_but_never_removed(lake: Lake, root: Path) -> None:
    lake.publish(drafted(lake), f"{FOLDER}/x")
    (root / FOLDER / "notes.txt").touch()
    (root / "events" / "a folder of somebody").mkdir()
    (root / "events" / "a folder of somebody" / "x").touch()
    assert [entry.path for entry in lake.files()] == [f"{FOLDER}/notes.txt", f"{FOLDER}/x"]
    lake.clean_partial()
    assert (root / "events" / "a folder of somebody" / "x").exists()


def test_cleaning_takes_what_the_dead_left_and_nothing_of_the_living(lake: Lake, root: Path) -> None:
    living = drafted(lake)
    pid = os.fork()
    if pid == 0:
        other = Scratch(root)
        (other.folder() / "half").write_bytes(b"half")
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(root.glob(".partial-*"))) == 2
    assert lake.clean_partial() == 1
    assert living.exists() and list(root.glob(".partial-*")) == [living.parent]
    lake.close()
    assert list(root.glob(".partial-*")) == []


def test_without_its_lock_a_scratch_folder_is_taken_for_dead(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    scratch.folder()
    assert clean_scratch(tmp_path) == 0
    os.close(scratch._descriptor)
    scratch._descriptor = -1
    assert clean_scratch(tmp_path) == 1


def test_a_scratch_folder_that_was_removed_is_made_again(lake: Lake) -> None:
    lake.scratch().rmdir()
    assert lake.publish(drafted(lake), f"{FOLDER}/x")


@pytest.mark.parametrize("url", ["", "http://x/y", "ftp://x", "s3://", "file:///a?b", "/a#b", "/a\0b"])
def test_a_url_that_cannot_hold_a_lake_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        Lake(url)


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtra) as caught:
        Lake("s3://bucket/x")
    assert "stratalog[s3]" in caught.value.hint


def test_a_folder_without_permission_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Lake(str(tmp_path / "file" / "lake")) as lake, pytest.raises(Exception, match="file") as caught:
        lake.scratch()
    assert caught.type.__module__ == "stratalog.schemas.errors"
