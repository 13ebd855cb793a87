"""Signed tree heads: what a tenant's tree was at one moment, signed with Ed25519.

    signed bytes = "stratalog.audit.head.v1" ‖ 0x00 ‖ length of tenant (u8) ‖ tenant ‖ tree size (u64) ‖ root hash (32)
                   ‖ time (i64, µs since 1970) ‖ key id (32)

A head commits its signer to every leaf below its size, in order. Kept outside the database it shows any later change:
the tree that it names must be the beginning of every tree after it. As JSON, bytes are written in hexadecimal.
"""

from __future__ import annotations

import msgspec

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import TENANT_PATTERN

from .keys import KeyProvider, KeyRecord, check_signature

_DOMAIN = b"stratalog.audit.head.v1\0"
SIZE_MAX = (1 << 63) - 1


class SignedHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signed tree head; `root_hash`, `key_id` (32 bytes each) and `signature` (64) are hexadecimal."""

    tenant: str
    tree_size: int
    root_hash: str
    timestamp: int
    """µs since 1970, by the signer's clock."""
    key_id: str
    signature: str

    @property
    def root(self) -> bytes:
        """The root hash."""
        return bytes.fromhex(self.root_hash)

    def signed_bytes(self) -> bytes:
        """What the signature is made over."""
        tenant = self.tenant.encode("ascii")
        return b"".join(
            (
                _DOMAIN,
                bytes([len(tenant)]),
                tenant,
                self.tree_size.to_bytes(8, "big"),
                self.root,
                self.timestamp.to_bytes(8, "big", signed=True),
                bytes.fromhex(self.key_id),
            )
        )

    def encode(self) -> bytes:
        """One line of JSON, with its newline."""
        return msgspec.json.encode(self) + b"\n"


def sign_head(
    keys: KeyProvider, tenant: str, tree_size: int, root: bytes, timestamp_us: int, key_id: str = ""
) -> SignedHead:
    """A head signed with the current key, which may be named; raises `NotFound` where that does not sign any more."""
    key_id = key_id or keys.current().key_id
    unsigned = SignedHead(tenant, tree_size, root.hex(), timestamp_us, key_id, "")
    return msgspec.structs.replace(unsigned, signature=keys.sign(key_id, unsigned.signed_bytes()).hex())


def decode_head(data: bytes) -> SignedHead:
    """Read a head; raises `Corrupt` for bytes that are none. The signature is not checked here."""
    try:
        head = msgspec.json.decode(data, type=SignedHead)
        lengths = [len(bytes.fromhex(text)) for text in (head.root_hash, head.key_id, head.signature)]
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Corrupt(f"not a signed tree head: {error}") from error
    if lengths != [32, 32, 64] or not 0 < head.tree_size <= SIZE_MAX or TENANT_PATTERN.fullmatch(head.tenant) is None:
        raise Corrupt("not a signed tree head: a field has an impossible value")
    if not -SIZE_MAX <= head.timestamp <= SIZE_MAX or head.root_hash != head.root_hash.lower():
        raise Corrupt("not a signed tree head: a field has an impossible value")
    return head


def check_head(head: SignedHead, records: dict[str, KeyRecord]) -> None:
    """Raise `Corrupt` unless the head was signed with one of these keys (by id)."""
    record = records.get(head.key_id)
    if record is None:
        raise Corrupt(
            f"the tree head of {head.tenant} at {head.tree_size} leaves is signed with the key {head.key_id[:16]}…, "
            "which this home does not know",
            hint="seal from one home only, or copy its keys/audit; see the keys with: stratalog key list",
        )
    if not check_signature(record, head.signed_bytes(), bytes.fromhex(head.signature)):
        raise Corrupt(f"the signature of the tree head of {head.tenant} at {head.tree_size} leaves is wrong")
