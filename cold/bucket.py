"""A storage in an object store, through fsspec (tested with s3fs).

A put is atomic and durable when the store acknowledges it, which is the store's promise and not ours; the length is
checked afterwards all the same. Large files go up in parts that nobody sees before the last request completes them.
Parts of an upload that never completed are aborted a day later. What may pass by itself is tried again (`patience.py`).
Listings may lag behind: only the name of an object tells for sure whether it is there.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from stratalog.schemas.errors import Conflict, Invalid, Unavailable
from stratalog.schemas.extras import require

from .filesystem import RangeReader, open_range_reader
from .patience import SECONDS_MAX, patiently
from .scratch import Scratch, clean_scratch
from .storage import PARTIAL_AGE_S_MIN, STORE_HINT, Entry, Version, check_length, check_path, translated

_MD5 = re.compile(r"[0-9a-f]{32}")
_TRUE = {"1", "true", "yes", "on"}
_CLIENT = {"connect_timeout": 10.0, "read_timeout": 60.0, "retries": {"max_attempts": 2}}
_CONNECTION = {"key", "secret", "token", "endpoint_url", "profile", "anon", "use_ssl"}
_TIMEOUTS = {"connect_timeout", "read_timeout"}
_S3_OPTIONS = _CONNECTION | _TIMEOUTS | {"region", "addressing_style"}


def s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `s3fs.S3FileSystem` for `cold.storage_options`; raises `Invalid` for an unknown name."""
    unknown = sorted(set(options) - _S3_OPTIONS)
    if unknown:
        raise Invalid(
            f"{unknown[0]!r} is not an option of S3", hint=f"cold.storage_options has {', '.join(sorted(_S3_OPTIONS))}"
        )
    arguments: dict[str, Any] = {name: options[name] for name in options if name in _CONNECTION}
    for name in ("anon", "use_ssl"):
        if name in arguments:
            arguments[name] = arguments[name].lower() in _TRUE
    if "region" in options:
        arguments["client_kwargs"] = {"region_name": options["region"]}
    # Servers other than Amazon's rarely have a host name for each bucket.
    style = options.get("addressing_style", "path" if "endpoint_url" in options else "auto")
    client = {**_CLIENT, **{name: _seconds(name, options[name]) for name in sorted(_TIMEOUTS & set(options))}}
    return {**arguments, "config_kwargs": {**client, "s3": {"addressing_style": style}}}


def _seconds(name: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) <= SECONDS_MAX:
            return seconds
    raise Invalid(f"{name} = {text!r} is no time", hint=f"write seconds, at most {SECONDS_MAX:.0f}")


def filesystem_arguments(scheme: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `fsspec.filesystem(scheme, …)`, as JSON values; no listing cache, it would be stale."""
    return {**(s3_arguments(options) if scheme == "s3" else options), "use_listings_cache": False}


def open_filesystem(scheme: str, options: Mapping[str, str]) -> Any:
    """The fsspec file system of an object store, which tries nothing again by itself: `patience.py` does.

    Raises `MissingExtra` without s3fs, `Invalid` for bad options.
    """
    fsspec = require("fsspec", "cold")
    arguments = filesystem_arguments(scheme, options)
    if scheme == "s3":
        require("s3fs", "s3")
        arguments["config_kwargs"] = {**arguments["config_kwargs"], "retries": {"max_attempts": 0}}
    try:
        opened = fsspec.filesystem(scheme, skip_instance_cache=True, **arguments)
    except ImportError as error:
        raise Invalid(f"{scheme}:// needs a package: {error}", hint="install the package it names") from error
    if scheme == "s3":
        opened.retries = 1
    return opened


REFUSED_HINT = (
    "a legal hold or a retention period is on it, or these credentials may not: look at stratalog hold list, "
    "then run stratalog hold apply"
)


class Bucket:
    """Objects below `<scheme>://<root>`."""

    is_local = False

    def __init__(self, scheme: str, root: str, options: Mapping[str, str]) -> None:
        self._root = root.strip("/")
        self.url = f"{scheme}://{self._root}"
        self.arguments = filesystem_arguments(scheme, options)
        self.filesystem = open_filesystem(scheme, options)
        self._scheme = scheme
        self._scratch: Scratch | None = None

    def put(self, path: str, content: bytes) -> None:
        """Write an object, then ask for its length."""
        key = self._key(path)
        patiently("write", self.url_of(path), lambda: self.filesystem.pipe_file(key, content))
        self._check(path, len(content))

    def put_new(self, path: str, content: bytes) -> bool:
        """Write an object on the condition that there is none of its name; whether what is there is this content.

        Where the answer to a first attempt was lost, what is there is ours, and refused to the second one.
        """
        key = self._key(path)

        def put() -> bool:
            try:
                self.filesystem.pipe_file(key, content, mode="create")
            except OSError:
                # How a store says that the object exists differs from store to store; that it exists decides.
                if not self.filesystem.exists(key):
                    raise
            return bytes(self.filesystem.cat_file(key)) == content

        return patiently("write", self.url_of(path), put)

    def keeps(self, path: str, content: bytes) -> bool:
        """Whether the object has this length and, where the store tells, this MD5."""
        entry = self.entry(path)
        if entry is None or entry.size != len(content):
            return False
        if _MD5.fullmatch(entry.etag) is None:
            return True
        return entry.etag == hashlib.md5(content, usedforsecurity=False).hexdigest()

    def scratch(self) -> Path:
        """A locked folder among the temporary files of this machine."""
        if self._scratch is None:
            self._scratch = Scratch(_scratch_parent())
        return self._scratch.folder()

    def move(self, source: Path, path: str) -> None:
        """Upload a local file, check its length there, then remove it here."""
        size, key = source.stat().st_size, self._key(path)
        patiently("write", self.url_of(path), lambda: self.filesystem.put_file(str(source), key))
        self._check(path, size)
        source.unlink()

    def entry(self, path: str) -> Entry | None:
        """The object at `path`, or `None`; raises `NotFound` where even the bucket is missing."""
        key = self._key(path)

        def look() -> Entry | None:
            try:
                found = self.filesystem.info(key)
            except FileNotFoundError as error:
                if error.__cause__ is not None and "bucket" in str(error).lower():
                    raise
                return None
            return _entry(path, found) if found["type"] == "file" else None

        return patiently("look at", self.url_of(path), look)

    def open(self, path: str) -> BinaryIO:
        """A reader that asks for ranges."""
        return open_range_reader(self.filesystem, self._key(path))

    def read(self, path: str) -> bytes:
        """The whole object."""
        key = self._key(path)
        return patiently("read", self.url_of(path), lambda: bytes(self.filesystem.cat_file(key)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`."""
        key, where = self._key(path), self.url_of(path)
        content = patiently("read", where, lambda: bytes(self.filesystem.cat_file(key, start=start, end=end)))
        return check_length(content, start, end, where)

    def delete(self, path: str) -> None:
        """Remove the object."""
        key = self._key(path)

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.rm_file(key)

        patiently("delete", self.url_of(path), remove)

    def purge(self, path: str) -> int:
        """Remove every version and every delete marker of the object; of stores other than S3, the object."""
        if self._scheme != "s3":
            there = self.entry(path) is not None
            self.delete(path)
            return int(there)
        key = self._key(path)
        bucket, _, name = key.partition("/")

        def remove() -> int:
            found = [version["VersionId"] for version in self._versions(bucket, name) if version["Key"] == name]
            for version_id in found:
                try:
                    self.filesystem.call_s3("delete_object", Bucket=bucket, Key=name, VersionId=version_id)
                except PermissionError as error:
                    what = f"the store refuses to delete {self.url_of(path)}: {error}"
                    raise Conflict(what, hint=REFUSED_HINT) from error
            return len(found)

        return patiently("delete", self.url_of(path), remove)

    def kept_versions(self, folder: str) -> Iterator[Version]:
        """Old versions of objects that were deleted; nothing where the store is not S3, or keeps none."""
        if self._scheme != "s3":
            return
        bucket, _, prefix = f"{self._prefix(folder)}/".partition("/")
        found = patiently("list", self.url_of(folder), lambda: list(self._versions(bucket, prefix)))
        there = {version["Key"] for version in found if version["IsLatest"] and "Size" in version}
        for version in found:
            if version["Key"] not in there and "Size" in version:
                path = f"{bucket}/{version['Key']}".removeprefix(self._root).lstrip("/")
                with contextlib.suppress(Invalid):
                    yield Version(check_path(path), version["VersionId"], int(version["Size"]))

    def open_version(self, version: Version) -> BinaryIO:
        """A reader that asks for ranges of this version."""
        at = _AtVersion(self.filesystem, version.version_id)
        return cast(BinaryIO, RangeReader(at, self._key(version.path), version.size))

    def abort_uploads(self, folder: str) -> int:
        """Abort all uploads below `folder`, however new they are."""
        return self._abort_uploads(f"{self._prefix(folder)}/", dt.datetime.now(dt.UTC)) if self._scheme == "s3" else 0

    def _versions(self, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
        """All versions and delete markers of the keys that begin with `prefix`."""
        marker: dict[str, str] = {}
        while True:
            page = self.filesystem.call_s3("list_object_versions", Bucket=bucket, Prefix=prefix, **marker)
            yield from (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    def files(self, folder: str) -> Iterator[Entry]:
        """Every object below `folder`, sorted; only plain names, others are not ours."""
        prefix = self._prefix(folder)
        found = patiently("list", self.url_of(folder), lambda: self.filesystem.find(prefix, detail=True))
        for key in sorted(found):
            path = str(key).removeprefix(self._root).lstrip("/")
            with contextlib.suppress(Invalid):
                yield _entry(check_path(path), found[key])

    def folders(self, folder: str) -> list[str]:
        """The last names of the prefixes right below `folder`."""
        prefix = self._prefix(folder)

        def look() -> list[Any]:
            try:
                return list(self.filesystem.ls(prefix, detail=True))
            except FileNotFoundError as error:
                if error.__cause__ is not None and "bucket" in str(error).lower():
                    raise
                return []

        found = patiently("list", self.url_of(folder), look)
        names = {str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in found if entry["type"] == "directory"}
        return sorted(names - {""})

    def clean_partial(self) -> int:
        """Remove scratch folders of dead processes here, and abort uploads that have not completed for a day."""
        cleaned = clean_scratch(_scratch_parent())
        if self._scheme == "s3":
            before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=PARTIAL_AGE_S_MIN)
            cleaned += self._abort_uploads(f"{self._root}/", before)
        return cleaned

    def close(self) -> None:
        """Remove the scratch folder."""
        if self._scratch is not None:
            self._scratch.close()

    def url_of(self, path: str) -> str:
        """The object's URL."""
        return f"{self.url}/{path}" if path else self.url

    def _key(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _prefix(self, folder: str) -> str:
        return self._key(folder) if folder else self._root

    def _check(self, path: str, size: int) -> None:
        entry = self.entry(path)
        if entry is None or entry.size != size:
            there = "nothing" if entry is None else f"{entry.size} bytes"
            raise Unavailable(f"{self.url_of(path)}: wrote {size} bytes, found {there}", hint=STORE_HINT)

    def _abort_uploads(self, place: str, before: dt.datetime) -> int:
        bucket, _, prefix = place.partition("/")
        aborted = 0
        with translated("clean", self.url):
            found = self.filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
            for upload in found.get("Uploads", ()):
                if upload["Initiated"] < before:
                    self.filesystem.call_s3(
                        "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    aborted += 1
        return aborted


class _AtVersion:
    """The part of a file system that a `RangeReader` needs, for one version of an object."""

    def __init__(self, filesystem: Any, version_id: str) -> None:
        self._filesystem = filesystem
        self._version_id = version_id

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`."""
        return bytes(self._filesystem.cat_file(path, version_id=self._version_id, start=start, end=end))


def _entry(path: str, found: Mapping[str, Any]) -> Entry:
    modified = found.get("LastModified") or found.get("created")
    seconds = modified.timestamp() if isinstance(modified, dt.datetime) else 0.0
    return Entry(path, int(found["size"]), seconds, str(found.get("ETag", "")).strip('"'))


def _scratch_parent() -> Path:
    """A folder among the temporary files that only this user can enter."""
    parent = Path(tempfile.gettempdir()) / f"stratalog-scratch-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Invalid(f"{parent} is not private to this user", hint="remove it, or set TMPDIR to a folder of your own")
    return parent
