"""Receipts of erasures: for each tier, what was looked at, what is gone, and what is out of reach. Signed.

    signed bytes = "stratalog.erasure.receipt.v1" ‖ 0x00 ‖ the document, the exact bytes of its JSON

A receipt covers the trajectories that it names; one that is erased later, because a hold was released or because it
arrived late, gets a further one. Receipts lie in the database, whoever asks for them gets files that need nothing else:
`{"document": base64, "key_id": …, "signature": hex}` and the public keys.
"""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from typing import Any

import msgspec

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .keys import KeyProvider, KeyRecord, check_signature

FORMAT = 1
TIERS = ("hot", "warm", "cold", "content")
_DOMAIN = b"stratalog.erasure.receipt.v1\0"


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a receipt says. Times are ISO 8601, UTC."""

    product: str = "stratalog"
    format: int = FORMAT
    erasure_id: int
    tier: str
    requested_at: dt.datetime
    requested_by: str
    reason: str
    made_at: dt.datetime
    trajectories: list[dict[str, Any]]
    """Id and tenant of each, and since when it is unreadable and its bytes are gone from this tier."""
    looked_at: list[str]
    outside_reach: list[str]
    """What this receipt says nothing about."""


class Receipt(msgspec.Struct, frozen=True):
    """A signed document; `document` are the bytes that were signed."""

    tier: str
    document: bytes
    key_id: str
    signature: bytes
    made_at: dt.datetime

    def decoded(self) -> Document:
        """What it says; raises `Corrupt`."""
        try:
            return msgspec.json.decode(self.document, type=Document)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"a receipt of the {self.tier} tier is damaged: {error}") from error

    def exported(self) -> dict[str, Any]:
        """For somebody who has nothing of ours."""
        return {
            "document": base64.b64encode(self.document).decode(),
            "key_id": self.key_id,
            "signature": self.signature.hex(),
        }


def signed_bytes(document: bytes) -> bytes:
    """What the signature is made over."""
    return _DOMAIN + document


def sign(keys: KeyProvider, document: Document) -> Receipt:
    """Sign with the current key; raises `NotFound` where it is missing."""
    content = msgspec.json.encode(document)
    key = keys.current()
    return Receipt(document.tier, content, key.key_id, keys.sign(key.key_id, signed_bytes(content)), document.made_at)


def check(receipt: Receipt, records: list[KeyRecord]) -> Document:
    """What a receipt says, if one of our keys has signed it; raises `Corrupt`."""
    for record in records:
        if record.key_id == receipt.key_id and check_signature(
            record, signed_bytes(receipt.document), receipt.signature
        ):
            return receipt.decoded()
    raise Corrupt(
        f"the receipt of the {receipt.tier} tier is not signed with our keys",
        hint="keys/audit is not the one that signed it, or the receipt was changed",
    )


def store(conn: Connection, erasure_id: int, receipt: Receipt) -> None:
    """Keep a receipt; durable when it returns."""
    values = {"erasure_id": erasure_id, "tier": receipt.tier, "document": receipt.document}
    values |= {"key_id": receipt.key_id, "signature": receipt.signature}
    with answering(), conn.transaction():
        conn.execute(statements("erasure")["insert_receipt"], values)


def receipts_of(conn: Connection, erasure_id: int) -> list[Receipt]:
    """The receipts of a request, oldest first."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("erasure")["receipts"], {"erasure_id": erasure_id}).fetchall()
    return [Receipt(tier, bytes(document), key, bytes(signature), at) for tier, document, key, signature, at in rows]


def covered(receipts: list[Receipt], tier: str) -> frozenset[uuid.UUID]:
    """The trajectories for which a tier has given a receipt."""
    return frozenset(
        uuid.UUID(entry["trajectory_id"])
        for receipt in receipts
        if receipt.tier == tier
        for entry in receipt.decoded().trajectories
    )
