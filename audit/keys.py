"""Signing keys (Ed25519): where they lie, how they are rotated, and what the outside knows of them.

    HOME/keys/audit/            0700
      <key id>.json             the public record; kept for ever
      <key id>.private          the private key, 32 bytes; 0600; gone once the key was rotated away
      current                   the id of the key that signs

    key id       = SHA-256("stratalog.audit.key.v1" ‖ 0x00 ‖ public key (32))
    endorsement  = Ed25519 of the key before over "stratalog.audit.rotation.v1" ‖ 0x00 ‖ previous key id (32)
                   ‖ public key (32) ‖ created at (i64, µs since 1970)

Whoever trusts the first key can follow the endorsements to every later one. `current` is replaced last and whole, so a
crash leaves the old key or the new one in force; what a rotation that did not get so far has left belongs to no chain,
and the next one destroys its private key. Another place for keys (an HSM, a key service) is another `KeyProvider`.
"""

from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from stratalog.hot.files import FileLock, make_folder, sync_folder, write_durably
from stratalog.schemas.errors import Corrupt, Invalid, NotFound
from stratalog.schemas.extras import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES = 32
_KEY_DOMAIN = b"stratalog.audit.key.v1\0"
_ROTATION_DOMAIN = b"stratalog.audit.rotation.v1\0"
_KEY_ID = re.compile("[0-9a-f]{64}")
_RESTORE = "restore keys/audit from a backup of the keys"


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public side of a key; bytes are hexadecimal. The first key has no `previous` and no `endorsement`."""

    key_id: str
    public_key: str
    created_at: int
    """µs since 1970."""
    previous: str = ""
    endorsement: str = ""
    algorithm: str = "ed25519"

    def rotation_bytes(self) -> bytes:
        """What the key before has signed."""
        created_at = self.created_at.to_bytes(8, "big", signed=True)
        return b"".join((_ROTATION_DOMAIN, bytes.fromhex(self.previous), bytes.fromhex(self.public_key), created_at))


class KeyProvider(Protocol):
    """Where the signing key lives. Private keys never leave it; records are kept for ever, oldest first."""

    def current(self) -> KeyRecord:
        """The key that signs; made, durably, on first use."""

    def records(self) -> list[KeyRecord]:
        """All keys up to the current one, oldest first; each is endorsed by the one before. Raises `Corrupt`."""

    def sign(self, key_id: str, message: bytes) -> bytes:
        """64 bytes of Ed25519 with this key; raises `NotFound` where it does not sign any more."""

    def rotate(self, created_at_us: int) -> KeyRecord:
        """Put a new key into force, endorsed by the current one; durable when it returns."""


class FolderKeys:
    """A `KeyProvider` in a folder, readable by its owner alone. `now_us` dates the key that is made on first use."""

    def __init__(self, folder: Path, now_us: int) -> None:
        require("cryptography", "audit")
        self._folder = folder
        self._now_us = now_us

    def current(self) -> KeyRecord:
        """The key that signs; made, durably, on first use."""
        if not (self._folder / "current").exists():
            return self._make(self._now_us, first=True)
        return self._record(self._current_id())

    def records(self) -> list[KeyRecord]:
        """All keys up to the current one, oldest first; empty before first use. Raises `Corrupt`."""
        if not (self._folder / "current").exists():
            return []
        found = [self._record(self._current_id())]
        while found[-1].previous:
            if any(record.key_id == found[-1].previous for record in found):
                raise Corrupt(f"the keys in {self._folder} follow each other in a circle", hint=_RESTORE)
            found.append(self._record(found[-1].previous))
        found.reverse()
        check_records(found)
        return found

    def sign(self, key_id: str, message: bytes) -> bytes:
        """64 bytes of Ed25519 with this key; raises `NotFound` where it was rotated away or lost."""
        return self._private(key_id).sign(message)

    def rotate(self, created_at_us: int) -> KeyRecord:
        """Put a new key into force, endorsed by the current one; the old private key is destroyed."""
        return self._make(created_at_us, first=False)

    def _make(self, created_at_us: int, *, first: bool) -> KeyRecord:
        make_folder(self._folder)
        lock = FileLock(self._folder / ".lock")
        lock.acquire(wait=True)
        try:
            there = (self._folder / "current").exists()
            if first and there:  # another process was faster
                return self._record(self._current_id())
            return self._put_into_force(created_at_us, self.records() if there else [])
        finally:
            lock.release()

    def _put_into_force(self, created_at_us: int, known: list[KeyRecord]) -> KeyRecord:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        private = Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        record = KeyRecord(key_id_of(public), public.hex(), created_at_us)
        if known:
            record = msgspec.structs.replace(record, previous=known[-1].key_id)
            signature = self._private(known[-1].key_id).sign(record.rotation_bytes())
            record = msgspec.structs.replace(record, endorsement=signature.hex())
        write_durably(self._folder / f"{record.key_id}.private", private.private_bytes_raw(), mode=0o600)
        write_durably(self._folder / f"{record.key_id}.json", msgspec.json.encode(record), mode=0o600)
        write_durably(self._folder / "current", record.key_id.encode(), mode=0o600)
        if known:
            self._destroy_all_but(record.key_id)
        return record

    def _destroy_all_but(self, key_id: str) -> None:
        """Destroy the private keys that are not in force: rotated away now, or left by a rotation that was killed."""
        for path in self._folder.glob("*.private"):
            if path.stem != key_id:
                path.unlink(missing_ok=True)
        sync_folder(self._folder)

    def _current_id(self) -> str:
        text = (self._folder / "current").read_text("ascii", "replace")
        if _KEY_ID.fullmatch(text) is None:
            raise Corrupt(f"{self._folder / 'current'} does not name a key", hint=_RESTORE)
        return text

    def _record(self, key_id: str) -> KeyRecord:
        path = self._folder / f"{key_id}.json"
        try:
            record = msgspec.json.decode(path.read_bytes(), type=KeyRecord)
        except FileNotFoundError as error:
            raise NotFound(f"{path} is missing", hint=_RESTORE) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"{path} is damaged: {error}", hint=_RESTORE) from error
        if record.key_id != key_id:
            raise Corrupt(f"{path} is the record of another key", hint=_RESTORE)
        return record

    def _private(self, key_id: str) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        path = self._folder / f"{key_id}.private"
        try:
            mode, secret = path.stat().st_mode, path.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"{path} is missing: nothing can be signed", hint=_RESTORE) from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Invalid(f"{path} can be read by others", hint=f"chmod 600 {path}, then: stratalog key rotate")
        if len(secret) != KEY_BYTES:
            raise Corrupt(f"{path} is not a private key of {KEY_BYTES} bytes", hint=_RESTORE)
        private = Ed25519PrivateKey.from_private_bytes(secret)
        if key_id_of(private.public_key().public_bytes_raw()) != key_id:
            raise Corrupt(f"{path} is another key than its name says", hint=_RESTORE)
        return private


def key_id_of(public_key: bytes) -> str:
    """The id of a public key, hexadecimal."""
    return hashlib.sha256(_KEY_DOMAIN + public_key).hexdigest()


def check_records(records: list[KeyRecord]) -> None:
    """Raise `Corrupt` unless every id fits its key and every key but the first is endorsed by the one before."""
    before: KeyRecord | None = None
    for record in records:
        try:
            fits = key_id_of(bytes.fromhex(record.public_key)) == record.key_id
            if before is None:
                endorsed = not record.previous and not record.endorsement
            else:
                endorsed = record.previous == before.key_id and check_signature(
                    before, record.rotation_bytes(), bytes.fromhex(record.endorsement)
                )
        except (ValueError, OverflowError) as error:
            raise Corrupt(f"the record of the key {record.key_id[:16]}… is damaged: {error}", hint=_RESTORE) from error
        if not fits or not endorsed or record.algorithm != "ed25519":
            raise Corrupt(
                f"the key {record.key_id[:16]}… is not what its record says, or was not endorsed by the key before",
                hint=_RESTORE,
            )
        before = record


def check_signature(record: KeyRecord, message: bytes, signature: bytes) -> bool:
    """Whether `signature` was made with this key over `message`."""
    exceptions: Any = require("cryptography.exceptions", "audit")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(record.public_key)).verify(signature, message)
    except (exceptions.InvalidSignature, ValueError):
        return False
    return True
