"""The ledger of erasures outside the database, and how a restored database is brought up to it.

    HOME/audit/erasures.json             replaced whole, durably, after each erasure
    <cold.url>/audit/erasures.json       the same

`{"product": "stratalog", "format": 1, "home_id": …, "entries": [{trajectory_id, tenant, erased_at, reason,
requested_by}], "sha256": hex of the JSON of the entries}`. It only grows; where the file that is there knows more than
the database (which was restored from an older backup), both are kept: what was ever erased stays erased.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stratalog.hot.files import write_durably
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.warm import erasure_ledger
from stratalog.warm.database import Connection
from stratalog.warm.erasure_ledger import Entry

from .installation import Installation, Tiers
from .storage import open_storage

FORMAT = 1
NAME = "audit/erasures.json"


class LedgerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    product: str = "stratalog"
    format: int = FORMAT
    home_id: str
    entries: list[Entry]
    sha256: str


def encode_ledger(home_id: str, entries: list[Entry]) -> bytes:
    """The bytes of the file."""
    digest = hashlib.sha256(msgspec.json.encode(entries)).hexdigest()
    return msgspec.json.encode(LedgerFile(home_id=home_id, entries=entries, sha256=digest)) + b"\n"


def decode_ledger(content: bytes, where: str) -> LedgerFile:
    """What a file says; raises `Corrupt` for one that is damaged or of a newer format."""
    try:
        file = msgspec.json.decode(content, type=LedgerFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{where} is no ledger of erasures: {error}") from error
    if (file.product, file.format) != ("stratalog", FORMAT):
        raise Corrupt(f"{where} is a ledger of format {file.format} of {file.product[:40]!r}")
    if hashlib.sha256(msgspec.json.encode(file.entries)).hexdigest() != file.sha256:
        raise Corrupt(f"{where} does not match its checksum", hint="use another copy of the ledger")
    return file


def read_ledger(path: Path) -> list[Entry]:
    """The entries of a file; raises `NotFound`, `Corrupt`."""
    try:
        return decode_ledger(path.read_bytes(), str(path)).entries
    except FileNotFoundError as error:
        raise NotFound(f"there is no ledger of erasures at {path}") from error


def publish_ledger(conn: Connection, installation: Installation, tiers: Tiers) -> int:
    """Bring both files up to the ledger of the database; returns how many entries they have. Raises `Unavailable`."""
    path = installation.home.path / NAME
    storage = open_storage(tiers.lake.url, tiers.settings.storage_options)
    try:
        known = [read_ledger(path)] if path.exists() else []
        if storage.entry(NAME) is not None:
            known.append(decode_ledger(storage.read(NAME), f"{tiers.lake.url}/{NAME}").entries)
        entries = merged([erasure_ledger.entries(conn), *known])
        if entries:
            content = encode_ledger(installation.home.id, entries)
            installation.home.folder("audit")
            write_durably(path, content, mode=0o600)
            storage.put(NAME, content)
    finally:
        storage.close()
    return len(entries)


def known_ledger(installation: Installation) -> list[Entry]:
    """All that is known outside the database of what was erased: the home's file and that of the storage."""
    path = installation.home.path / NAME
    known = [read_ledger(path)] if path.exists() else []
    settings = installation.settings.cold
    if settings.url or (installation.home.path / "cold").is_dir():
        storage = open_storage(settings.url or f"file://{installation.home.folder('cold')}", settings.storage_options)
        try:
            if storage.entry(NAME) is not None:
                known.append(decode_ledger(storage.read(NAME), f"{storage.url}/{NAME}").entries)
        finally:
            storage.close()
    return merged(known)


def merged(ledgers: Iterable[Iterable[Entry]]) -> list[Entry]:
    """Every trajectory once, as the first ledger says it, in the order of the times."""
    entries: dict[uuid.UUID, Entry] = {}
    for ledger in ledgers:
        for entry in ledger:
            entries.setdefault(entry.trajectory_id, entry)
    return sorted(entries.values(), key=lambda entry: (entry.erased_at, entry.trajectory_id))
