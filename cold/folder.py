"""A storage in a local folder.

A file is written in the scratch folder below the root, synced and renamed, then its new folder is synced: after a crash
or a power loss it is there whole or not at all. Folders are synced up to the root before the first file in them counts
as durable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stratalog.schemas.errors import Invalid, NotFound

from .scratch import Scratch, clean_scratch
from .storage import Entry, Version, check_length, check_path, translated


class Folder:
    """Files below a local folder, which is made with the first of them."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root.expanduser()))  # noqa: PTH100 - `resolve` would follow links
        self.url = f"file://{self.root}"
        self.arguments: dict[str, Any] = {}
        self._scratch = Scratch(self.root)
        self._synced: set[Path] = set()

    def put(self, path: str, content: bytes) -> None:
        """Write a file; durable when it returns."""
        target = self._inside(path)
        with translated("write", str(target)):
            self._ensure(target.parent)
            with self._written(content) as source:
                _rename(source, target)

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a file on the condition that there is none of its name; whether what is there then is this content."""
        target = self._inside(path)
        with translated("write", str(target)):
            self._ensure(target.parent)
            with self._written(content) as source:
                # A link, unlike a rename, replaces nothing.
                with contextlib.suppress(FileExistsError):
                    target.hardlink_to(source)
                _sync_folder(target.parent)
                return target.read_bytes() == content

    @contextlib.contextmanager
    def _written(self, content: bytes) -> Iterator[Path]:
        """A file of the scratch folder with this content, on disk; gone after the block unless it was renamed."""
        source = self._scratch.file()
        try:
            with source.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield source
        finally:
            source.unlink(missing_ok=True)

    def keeps(self, path: str, content: bytes) -> bool:
        """Whether the file has this very content; makes sure then that it is durable, and marks it as used now."""
        target = self._inside(path)
        with translated("check", str(target)):
            try:
                descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):
                return False
            with os.fdopen(descriptor, "rb") as file:
                if os.fstat(descriptor).st_size != len(content) or file.read() != content:
                    return False
                # Whoever wrote it may not have come to these; and a sweep must see that it is used again.
                os.utime(descriptor)
                os.fsync(descriptor)
            self._ensure(target.parent)
            _sync_folder(target.parent)
            return True

    def scratch(self) -> Path:
        """A locked folder on the same file system, so that `move` can rename."""
        with translated("write", str(self.root)):
            self._ensure(self.root)
            return self._scratch.folder()

    def move(self, source: Path, path: str) -> None:
        """Publish a local file, from the scratch folder by a rename, from elsewhere by a copy."""
        target = self._inside(path)
        with translated("write", str(target)):
            self._ensure(target.parent)
            with source.open("rb") as file:
                os.fsync(file.fileno())
            try:
                _rename(source, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy(source, target)

    def _copy(self, source: Path, target: Path) -> None:
        near = self._scratch.file()
        try:
            shutil.copyfile(source, near)
            with near.open("rb") as file:
                os.fsync(file.fileno())
            _rename(near, target)
        except BaseException:
            near.unlink(missing_ok=True)
            raise
        source.unlink()

    def entry(self, path: str) -> Entry | None:
        """The file at `path`, or `None`."""
        target = self._inside(path)
        with translated("look at", str(target)):
            try:
                status = target.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Entry(path, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    def open(self, path: str) -> BinaryIO:
        """A reader of the file."""
        target = self._inside(path)
        with translated("read", str(target)):
            return target.open("rb")

    def read(self, path: str) -> bytes:
        """The whole content."""
        target = self._inside(path)
        with translated("read", str(target)):
            return target.read_bytes()

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`."""
        target = self._inside(path)
        with translated("read", str(target)):
            descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                file.seek(start)
                content = file.read(end - start)
        return check_length(content, start, end, str(target))

    def delete(self, path: str) -> None:
        """Remove the file, durably."""
        target = self._inside(path)
        with translated("delete", str(target)):
            try:
                target.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            _sync_folder(target.parent)

    def purge(self, path: str) -> int:
        """Remove the file; a folder keeps no old versions."""
        there = self.entry(path) is not None
        self.delete(path)
        return int(there)

    def kept_versions(self, folder: str) -> Iterator[Version]:
        """Nothing: what is deleted in a folder is gone."""
        return iter(())

    def open_version(self, version: Version) -> BinaryIO:
        """Never there."""
        raise NotFound(f"{version.path} has no old versions")

    def abort_uploads(self, folder: str) -> int:
        """Nothing: what is being written lies in a scratch folder."""
        return 0

    def files(self, folder: str) -> Iterator[Entry]:
        """Every file below `folder`, sorted within each folder; links are not followed."""
        place = self._inside(folder) if folder else self.root
        for found in _entries(place):
            path = f"{folder}/{found.name}" if folder else found.name
            if found.is_file(follow_symlinks=False):
                status = found.stat(follow_symlinks=False)
                yield Entry(path, status.st_size, status.st_mtime)
            elif found.is_dir(follow_symlinks=False):
                # A folder whose name is not one of ours, also a scratch folder, holds nothing that was published.
                with contextlib.suppress(Invalid):
                    check_path(path)
                    yield from self.files(path)

    def folders(self, folder: str) -> list[str]:
        """The names of the folders right below `folder`."""
        place = self._inside(folder) if folder else self.root
        return [entry.name for entry in _entries(place) if entry.is_dir(follow_symlinks=False)]

    def clean_partial(self) -> int:
        """Remove the scratch folders of dead writers."""
        with translated("clean", str(self.root)):
            return clean_scratch(self.root)

    def close(self) -> None:
        """Remove the scratch folder."""
        self._scratch.close()

    def _inside(self, path: str) -> Path:
        """The absolute path; raises `Invalid` where a link on the way leads out of the root."""
        target = self.root / check_path(path)
        root, parent = os.path.realpath(self.root), os.path.realpath(target.parent)
        if os.path.commonpath([root, parent]) != root:
            raise Invalid(f"{target.parent} leads out of {self.root}", hint="remove the link that is in the way")
        return target

    def _ensure(self, folder: Path) -> None:
        """Make `folder` with what is above it, and every name on the way durable."""
        if folder in self._synced and folder.is_dir():
            return
        chain = [folder, *folder.parents]
        chain = chain[: chain.index(self.root) + 1]
        above = self.root.parent
        while not above.is_dir():
            chain.append(above)
            above = above.parent
        for place in reversed(chain):
            made = not place.is_dir()
            place.mkdir(exist_ok=True)
            # The root's own parent is somebody else's: synced only when something was made in it.
            if made or place != self.root:
                _sync_folder(place.parent)
        self._synced.add(folder)


def _entries(place: Path) -> list[os.DirEntry[str]]:
    with translated("list", str(place)):
        try:
            with os.scandir(place) as found:
                return sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _rename(source: Path, target: Path) -> None:
    source.replace(target)
    _sync_folder(target.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
