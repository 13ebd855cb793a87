"""Readers of object stores that keep no state between calls, as DuckDB needs them.

DuckDB reads one file on several threads. fsspec's own file objects have one position and one read-ahead buffer for all
of them; with `register_filesystem` DuckDB 2.0 then gets wrong ranges. A `RangeReader` asks the store for each
range on its own, and its position belongs to the thread that set it.
"""

from __future__ import annotations

import io
import threading
from glob import has_magic
from typing import Any, BinaryIO, cast

from fsspec.spec import AbstractFileSystem

from .patience import patiently


class RangeReader(io.RawIOBase):
    """A read-only file of `size` bytes; any number of threads may seek and read it at the same time."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._path = path
        self._position = threading.local()
        self.size = size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set this thread's position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError(f"position {start + offset} is before the file")
        self._position.value = start + offset
        return start + offset

    def tell(self) -> int:
        """This thread's position, 0 at first."""
        return cast(int, getattr(self._position, "value", 0))

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes from this thread's position, fewer only at the end."""
        start = self.tell()
        end = self.size if size is None or size < 0 else min(self.size, start + size)
        if start >= end:
            return b""

        def fetch() -> bytes:
            content = bytes(self._filesystem.cat_file(self._path, start=start, end=end))
            if len(content) != end - start:
                raise OSError(f"asked for {end - start} bytes, got {len(content)}")
            return content

        content = patiently("read", self._path, fetch)
        self._position.value = end
        return content

    def readall(self) -> bytes:
        """Everything from this thread's position."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the file goes."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True


def open_range_reader(filesystem: Any, path: str) -> BinaryIO:
    """A reader of the object at `path`; raises `NotFound`."""
    size = patiently("read", path, lambda: int(filesystem.info(path)["size"]))
    return cast(BinaryIO, RangeReader(filesystem, path, size))


class StatelessFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Another fsspec file system, read-only, whose files are `RangeReader`s: for `register_filesystem` of DuckDB.

    Files are taken for immutable: the store is asked about each of them once, and whether a file that is named in full
    exists shows when it is read. Otherwise every query would begin with many requests for every file of the table.
    """

    cachable = False

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self._known: dict[str, dict[str, Any]] = {}
        self.protocol = inner.protocol

    def open(self, path: str, mode: str = "rb", **_: Any) -> BinaryIO:
        """A reader of the object at `path`."""
        if mode != "rb":
            raise PermissionError(f"{path}: this file system is for reading")
        return cast(BinaryIO, RangeReader(self._inner, self._key(path), int(self.info(path)["size"])))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What the store knows about an object."""
        key = self._key(path)
        if key not in self._known:
            self._known[key] = patiently("read", path, lambda: self._inner.info(key))
        return self._known[key]

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """What lies below a path."""
        return cast(list[Any], patiently("list", path, lambda: self._inner.ls(path, detail=detail, **options)))

    def glob(self, path: str, **options: Any) -> Any:
        """The objects that match a pattern; a name without one is taken as it is."""
        if not has_magic(path):
            return [self._key(path)]
        return patiently("list", path, lambda: self._inner.glob(path, **options))

    def modified(self, path: str) -> Any:
        """When an object was written."""
        return self.info(path)["LastModified"]

    def _key(self, path: str) -> str:
        return cast(str, self._inner._strip_protocol(path))
