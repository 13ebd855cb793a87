"""Gives PyIceberg the lake's own file system, and makes the metadata that it writes durable.

Postgres names the current metadata file; after a power loss that file must be there. So on a local file system every
file that PyIceberg writes is synced before its name is used, and its folder after.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import fsspec
import msgspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pyiceberg.io import OutputStream
from pyiceberg.io.fsspec import FsspecFileIO, FsspecOutputFile

from .storage import LOCAL_SCHEMES

STORAGE_OPTIONS = "stratalog.storage-options"
"""Catalog property: the lake's fsspec options, as JSON."""


class LakeFileIO(FsspecFileIO):
    """PyIceberg's file access over the file system of the lake."""

    def _get_fs(self, scheme: str, hostname: str | None = None) -> AbstractFileSystem:
        options = msgspec.json.decode(self.properties.get(STORAGE_OPTIONS, "{}"), type=dict[str, Any])
        if scheme in LOCAL_SCHEMES:
            return LocalFileSystem()
        return fsspec.filesystem(scheme, skip_instance_cache=True, **options)

    def new_output(self, location: str) -> FsspecOutputFile:
        output = super().new_output(location)
        if isinstance(output._fs, LocalFileSystem):
            return _DurableOutput(location, output._fs)
        return output


class _DurableOutput(FsspecOutputFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(LocalFileSystem._strip_protocol(self.location))
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
