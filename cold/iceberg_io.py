"""Gives PyIceberg the lake's own file system, and makes the metadata that it writes durable.

Postgres names the current metadata file; after a power loss that file must be there. So on a local file system every
file that PyIceberg writes is synced before its name is used, and its folder after.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

import fsspec
import msgspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.fsspec import FsspecFileIO, FsspecInputFile, FsspecOutputFile

from .storage import LOCAL_SCHEMES

STORAGE_OPTIONS = "stratalog.storage-options"
"""Catalog property: the lake's fsspec options, as JSON."""
RECORDED_ROOT = "stratalog.recorded-root"
"""Catalog property: the URL of the lake in the table's metadata, which is not rewritten when a home is moved."""
ACTUAL_ROOT = "stratalog.actual-root"
"""Catalog property: where the lake lies now."""


class LakeFileIO(FsspecFileIO):
    """PyIceberg's file access over the file system of the lake."""

    def _get_fs(self, scheme: str, hostname: str | None = None) -> AbstractFileSystem:
        options = msgspec.json.decode(self.properties.get(STORAGE_OPTIONS, "{}"), type=dict[str, Any])
        if scheme in LOCAL_SCHEMES:
            return LocalFileSystem()
        return fsspec.filesystem(scheme, skip_instance_cache=True, **options)

    def new_input(self, location: str) -> FsspecInputFile:
        return super().new_input(self._actual(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        # PyIceberg removes versions of the metadata long after they were replaced; an expiry may have been there first.
        with contextlib.suppress(FileNotFoundError):
            super().delete(self._actual(location if isinstance(location, str) else location.location))

    def new_output(self, location: str) -> FsspecOutputFile:
        actual = self._actual(location)
        output = super().new_output(actual)
        kind = _DurableOutput if isinstance(output._fs, LocalFileSystem) else _Output
        return kind(location, actual, output._fs)

    def _actual(self, location: str) -> str:
        recorded, actual = self.properties.get(RECORDED_ROOT, ""), self.properties.get(ACTUAL_ROOT, "")
        return moved(location, recorded, actual) if recorded else location


def moved(url: str, from_root: str, to_root: str) -> str:
    """`url` below the other root; one that is elsewhere stays as it is."""
    return f"{to_root}{url[len(from_root) :]}" if url.startswith(f"{from_root}/") else url


class _Output(FsspecOutputFile):
    """Lies at `actual`; by `location` it is named in the metadata, which has to hold wherever the home moves next."""

    def __init__(self, location: str, actual: str, fs: AbstractFileSystem) -> None:
        super().__init__(location, fs)
        self._there = FsspecOutputFile(actual, fs)

    def __len__(self) -> int:
        return len(self._there)

    def exists(self) -> bool:
        return self._there.exists()

    def create(self, overwrite: bool = False) -> OutputStream:
        return self._there.create(overwrite)

    def to_input_file(self) -> FsspecInputFile:
        return self._there.to_input_file()


class _DurableOutput(_Output):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(LocalFileSystem._strip_protocol(self._there.location))
        path.parent.mkdir(parents=True, exist_ok=True)
        return _DurableFile(path, "wb" if overwrite else "xb")


class _DurableFile(io.BufferedWriter):
    """A file that is on disk, with its name, when `close` returns."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode.replace("b", "")))
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        os.fsync(self.fileno())
        super().close()
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
