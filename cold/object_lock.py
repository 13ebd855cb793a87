"""Legal holds on single objects of a bucket with Object Lock: the store itself then refuses to delete their versions.

What we have locked is noted in `object_locks` before, and forgotten after it was released; holds that others have set
on an object are never taken away. Which objects are to be locked says `held_objects.py`; whoever replaces a file hands
its lock over: what comes instead is locked first, then the old one is released and can be deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from stratalog.schemas.errors import Invalid
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .bucket import Bucket
from .lake import Lake
from .patience import patiently
from .storage import Storage

_SQL = statements("object_locks")


def has_object_lock(storage: Storage) -> bool:
    """Whether a storage is a bucket with Object Lock; raises `Unavailable` where that cannot be told."""
    if not isinstance(storage, Bucket) or not storage.url.startswith("s3://"):
        return False
    bucket, _ = _split(storage, "")

    def look() -> bool:
        try:
            found = storage.filesystem.call_s3("get_object_lock_configuration", Bucket=bucket)
        except OSError as error:
            # fsspec has its own errors; which of the store's it was stands in the cause.
            if "ObjectLockConfigurationNotFound" in _code(error):
                return False
            raise
        return bool(found.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled")

    return patiently("look at", storage.url, look)


def lock(conn: Connection, storage: Storage, place: str, path: str) -> None:
    """Set a legal hold on every version of an object; noted before."""
    with answering(), conn.transaction():
        conn.execute(_SQL["note"], {"place": place, "path": path})
    set_legal_hold(storage, path, on=True)


def release(conn: Connection, storage: Storage, place: str, path: str) -> None:
    """Take the legal hold from every version of an object; forgotten after."""
    set_legal_hold(storage, path, on=False)
    with answering(), conn.transaction():
        conn.execute(_SQL["forget"], {"place": place, "path": path})


def hand_over(conn: Connection, lake: Lake, rewrite_id: uuid.UUID, old: Collection[str]) -> None:
    """Before the files `old` (paths in the lake) go: lock what a rewrite has written instead of them, release them.

    That may lock more than is held; the next `apply_locks` releases it.
    """
    values = {"place": "lake", "paths": sorted(old), "rewrite_id": rewrite_id}
    with answering(), conn.transaction():
        locked = [path for (path,) in conn.execute(_SQL["locks_among"], values)]
        new = [path for (path,) in conn.execute(_SQL["new_files"], values)]
    if not locked:
        return
    folders = {path.rpartition("/")[0] for path in locked}
    for path in new:
        if path.rpartition("/")[0] in folders and lake.exists(path):
            lock(conn, lake.storage, "lake", path)
    for path in locked:
        release(conn, lake.storage, "lake", path)


def set_legal_hold(storage: Storage, path: str, *, on: bool) -> None:
    """Set a legal hold on every version of an object, or take it away; harmless where there is none."""
    if not isinstance(storage, Bucket):
        raise Invalid(f"{storage.url} is no bucket", hint="only objects of a bucket can be locked")
    status = "ON" if on else "OFF"
    bucket, key = _split(storage, path)
    call = storage.filesystem.call_s3

    def change() -> None:
        marker: dict[str, str] = {}
        while True:
            page = call("list_object_versions", Bucket=bucket, Prefix=key, **marker)
            for version in page.get("Versions", ()):
                if version["Key"] == key:
                    call(
                        "put_object_legal_hold",
                        Bucket=bucket,
                        Key=key,
                        VersionId=version["VersionId"],
                        LegalHold={"Status": status},
                    )
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    patiently("set a legal hold on", storage.url_of(path), change)


def _split(storage: Bucket, path: str) -> tuple[str, str]:
    """Name of the bucket, and key of an object."""
    bucket, _, key = storage.url_of(path).removeprefix("s3://").partition("/")
    return bucket, key


def _code(error: BaseException) -> str:
    """What the store calls an error."""
    response = getattr(error.__cause__, "response", {})
    return str(response.get("Error", {}).get("Code", "")) + str(error)
