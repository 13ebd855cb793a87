"""Whom a trajectory is about, as keyed hashes: a name never lies in the log, and without the key no hash leads to one.

    subject hash = HMAC-SHA256(key, "stratalog.subject.v1" ‖ 0x00 ‖ tenant ‖ 0x00 ‖ subject)
    key id       = SHA-256("stratalog.subject-key.v1" ‖ 0x00 ‖ key)

A trajectory says so at its start by the label `subjects`: the hashes in hexadecimal, with commas between them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping

from .errors import Invalid
from .ids import check_tenant

LABEL = "subjects"
KEY_BYTES = 32
SUBJECT_BYTES_MAX = 1000
_DOMAIN = b"stratalog.subject.v1\0"
_KEY_DOMAIN = b"stratalog.subject-key.v1\0"
_HASH = re.compile("[0-9a-f]{64}")


def subject_hash(key: bytes, tenant: str, subject: str) -> bytes:
    """The 32 bytes that stand for a subject of a tenant; raises `Invalid` for a text that is none."""
    check_tenant(tenant)
    try:
        name = subject.encode()
    except UnicodeEncodeError as error:
        raise Invalid("the subject is not UTF-8") from error
    if not subject.strip() or "\0" in subject or len(name) > SUBJECT_BYTES_MAX:
        raise Invalid(f"a subject is a text of 1 to {SUBJECT_BYTES_MAX:,} bytes without NUL")
    return hmac.digest(key, _DOMAIN + tenant.encode() + b"\0" + name, "sha256")


def key_id(key: bytes) -> bytes:
    """32 bytes that name a key."""
    return hashlib.sha256(_KEY_DOMAIN + key).digest()


def label(hashes: Iterable[bytes]) -> str:
    """The value of the label for these subjects."""
    return ",".join(sorted({digest.hex() for digest in hashes}))


def hashes_in(labels: Mapping[str, str]) -> list[bytes]:
    """The subjects that labels name; text that is no hash names nobody."""
    return [bytes.fromhex(part) for part in labels.get(LABEL, "").split(",") if _HASH.fullmatch(part)]
