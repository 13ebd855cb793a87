"""Where files lie: a local folder or an object store, named by a URL, behind one small contract.

    file:///srv/lake   /srv/lake   lake          a local folder (`folder.py`)
    s3://bucket/lake   (gs://, az://, memory://) an object store through fsspec (`bucket.py`)

Paths are relative to the URL and made of plain names only, so nothing can leave the root: every write and delete
checks its path first. Errors of the operating system and of the store are translated here and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from stratalog.schemas.errors import Corrupt, DiskBudgetExceeded, Invalid, NotFound, Unavailable
from stratalog.schemas.ids import check_tenant

PARTIAL_PREFIX = ".partial-"
"""Names of scratch folders; no published name can start with it."""
PARTIAL_AGE_S_MIN = 24 * 3600
"""An unfinished upload of an object store is taken for abandoned after this long."""
PATH_BYTES_MAX = 800
LOCAL_SCHEMES = ("", "file", "local")
OBJECT_SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "memory")
"""Stores whose puts are atomic: a reader sees the old object, the new one or none."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_UNREACHABLE_LIBRARIES = {"aiobotocore", "aiohttp", "botocore", "urllib3"}
_WITHOUT_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}
STORE_HINT = "check that the object store runs and that cold.storage_options (endpoint_url, region) name it"
CREDENTIALS_HINT = "check the credentials: cold.storage_options (key, secret), the AWS_ variables or ~/.aws"


class Entry(msgspec.Struct, frozen=True):
    """A published file: its path below the root, its length in bytes, when it was written (seconds since 1970)."""

    path: str
    size: int
    modified_s: float = 0.0
    etag: str = ""
    """What the store calls this version of the object; empty for local files."""


class Version(msgspec.Struct, frozen=True):
    """An old version that a store keeps of a file that is not there any more."""

    path: str
    version_id: str
    size: int


class Storage(Protocol):
    """Files below one URL. A file appears whole and durable or not at all; replacing one is atomic.

    Every method may raise `Unavailable`, `Invalid` (a bad path, no access) and `DiskBudgetExceeded`.
    """

    url: str
    """The root, absolute, without a slash at its end."""
    is_local: bool
    arguments: dict[str, Any]
    """The arguments of `fsspec.filesystem` for this place, as JSON values."""

    def put(self, path: str, content: bytes) -> None:
        """Write a file; durable when it returns."""

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a file on the condition that there is none of its name; whether what is there then is this content."""

    def keeps(self, path: str, content: bytes) -> bool:
        """Whether the file is there with this very content; makes sure then that it is durable."""

    def scratch(self) -> Path:
        """A local folder, private to this object, to write files in that `move` publishes."""

    def move(self, source: Path, path: str) -> None:
        """Publish a local file under `path`; durable when it returns, and only then is the source gone."""

    def entry(self, path: str) -> Entry | None:
        """The file at `path`, or `None`."""

    def open(self, path: str) -> BinaryIO:
        """A seekable reader; raises `NotFound`."""

    def read(self, path: str) -> bytes:
        """The whole content; raises `NotFound`."""

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`; raises `NotFound`, and `Corrupt` where the file is shorter."""

    def delete(self, path: str) -> None:
        """Remove the file, durably; harmless when it is not there."""

    def purge(self, path: str) -> int:
        """Remove the file with all that the store keeps of it (old versions); returns how many versions there were."""

    def kept_versions(self, folder: str) -> Iterator[Version]:
        """What the store keeps below `folder` of files that were deleted."""

    def open_version(self, version: Version) -> BinaryIO:
        """A seekable reader of an old version; raises `NotFound`."""

    def abort_uploads(self, folder: str) -> int:
        """Remove the parts of all uploads below `folder` that have not completed; returns how many uploads."""

    def files(self, folder: str) -> Iterator[Entry]:
        """Every file below `folder`, at any depth, sorted; unfinished ones are left out."""

    def folders(self, folder: str) -> list[str]:
        """The names of the folders right below `folder`, sorted."""

    def clean_partial(self) -> int:
        """Remove what killed writers have left, never what a live one is writing; returns how many."""

    def close(self) -> None:
        """Remove the scratch folder."""


def check_path(path: str) -> str:
    """Return `path`, or raise `Invalid`: plain names between single slashes, a `tenant=` that is a tenant name."""
    names = path.split("/")
    if len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX or not all(map(_NAME.fullmatch, names)):
        raise Invalid(
            f"{path[:120]!r} is not a path below the root",
            hint="use names of letters, digits and . _ - = +, with single slashes between them",
        )
    for name in names:
        key, equals, value = name.partition("=")
        if equals and key == "tenant":
            check_tenant(value)
    return path


def split_url(url: str) -> tuple[str, str]:
    """Scheme and rest of a storage URL; a plain path has the scheme ''. Raises `Invalid` for what cannot be one."""
    found = _URL.fullmatch(url)
    scheme, rest = (found[1], found[2]) if found else ("", url)
    if (not rest.strip("/") and scheme not in LOCAL_SCHEMES) or not url or re.search(r"[\x00-\x1f\x7f?#]", rest):
        raise Invalid(
            f"{url!r} is not the URL of a storage", hint="write file:///folder or s3://bucket/folder, without ? and #"
        )
    if scheme not in LOCAL_SCHEMES + OBJECT_SCHEMES:
        raise Invalid(
            f"{scheme}:// is not a storage with atomic writes", hint=f"use one of file, {', '.join(OBJECT_SCHEMES)}"
        )
    return scheme, rest


def open_storage(url: str, storage_options: Mapping[str, str] | None = None) -> Storage:
    """The storage at `url`; `storage_options` go to fsspec (`endpoint_url`, `key`, `secret`, `region`, …).

    Raises `Invalid` for a bad URL or option, `MissingExtra` where the client of the store is not installed.
    """
    from .bucket import Bucket
    from .folder import Folder

    scheme, rest = split_url(url)
    if scheme in LOCAL_SCHEMES:
        return Folder(Path(rest))
    return Bucket(scheme, rest, storage_options or {})


def check_length(content: bytes, start: int, end: int, where: str) -> bytes:
    """Return a range that was read, or raise `Corrupt` where the file ended before it."""
    if len(content) != end - start:
        raise Corrupt(f"{where} ends before byte {end:,}: it was cut off or replaced")
    return content


@contextlib.contextmanager
def translated(action: str, where: str) -> Iterator[None]:
    """Turn what the system and the clients of object stores raise into our errors."""
    try:
        yield
    except FileNotFoundError as error:
        if "bucket" in str(error).lower() and error.__cause__ is not None:
            raise NotFound(f"{action} {where}: there is no such bucket", hint="create the bucket first") from error
        raise NotFound(f"{where} does not exist", hint="see what is there with: stratalog verify") from error
    except PermissionError as error:
        hint = f"check who may use {error.filename}" if error.filename else CREDENTIALS_HINT
        raise Invalid(f"{action} {where}: access denied ({error})", hint=hint) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskBudgetExceeded(f"{action} {where}: {error}", hint="free disk space, then run it again") from error
        raise Unavailable(f"{action} {where}: {error}", hint=STORE_HINT) from error
    except Exception as error:
        if type(error).__name__ in _WITHOUT_CREDENTIALS:
            raise Invalid(f"{action} {where}: {error}", hint=CREDENTIALS_HINT) from error
        if type(error).__module__.split(".")[0] in _UNREACHABLE_LIBRARIES:
            raise Unavailable(f"{action} {where}: {error}", hint=STORE_HINT) from error
        raise
