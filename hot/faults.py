"""RocksDB reports faults as bare exceptions with a prefix in their text; here they become classes of errors.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stratalog.schemas.errors import Corrupt, InDoubt, Invalid, Locked, StratalogError

_NO_SPACE = ("No space left", "Disk quota exceeded")


def translate(error: Exception, doing: str) -> StratalogError:
    """The error that callers understand, for an exception of rocksdict while `doing` something."""
    text = str(error)
    if isinstance(error, StratalogError):
        return error
    if text.startswith("Corruption:") or "Corruption" in text[:40] or "checksum mismatch" in text.lower():
        return Corrupt(f"{doing}: {text}")
    if "lock hold by" in text or "While lock file" in text or "Resource temporarily unavailable" in text:
        return Locked(f"{doing}: {text}")
    if any(sign in text for sign in _NO_SPACE):
        return InDoubt(f"{doing}: the disk is full: {text}", hint="free disk space, then open the log again")
    if text.startswith("IO error") or isinstance(error, OSError):
        return InDoubt(f"{doing}: {text}")
    return Invalid(f"{doing}: {text}", hint="this is not expected; please report it with the text above")


@contextlib.contextmanager
def translating(doing: str) -> Iterator[None]:
    """Errors of the operating system in this block become those that callers understand."""
    try:
        yield
    except OSError as error:
        raise translate(error, doing) from error
