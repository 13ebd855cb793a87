"""Fixtures of the crash tests of the hot log: the server that forks their children, and the disks that crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.disks import cached, loop, shim
from crash.forks import Forks, forking


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """A server of forks for this test process."""
    with forking(tmp_path_factory.mktemp("forks")) as server:
        yield server


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty ext4 file system in a file."""
    if reason := loop.why_not():
        pytest.skip(reason)
    return loop.make_image(tmp_path_factory.mktemp("image") / "ext4")


@pytest.fixture
def disk(image: Path, tmp_path: Path) -> Iterator[loop.LoopDisk]:
    """A disk whose power can be cut."""
    with loop.loop_disk(image, tmp_path) as mounted:
        yield mounted


@pytest.fixture(scope="session")
def shimmed_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """A server of forks whose children can be made to die or to fail at a file operation."""
    if reason := shim.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("shim")
    with forking(folder, shim.preloaded(shim.build(folder))) as server:
        yield server


@pytest.fixture(scope="session")
def cached_image(image: Path) -> Path:
    """An empty file system for a disk with a volatile cache."""
    if reason := cached.why_not():
        pytest.skip(reason)
    return image
