"""Foreign JSON, taken apart without changing it.

A record is decoded one level deep; every value below stays the exact slice of bytes that the file has (`msgspec.Raw`),
so numbers of any size, key order and spelling survive. What is not a JSON object in UTF-8 raises `Damaged`.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from stratalog.schemas.events import Opaque, raw_json
from stratalog.schemas.ids import to_us

from . import scan

Record = dict[str, msgspec.Raw]

NOTHING = msgspec.Raw()
INTEGER_MAX = 2**63 - 1
DEPTH_MAX = 200
"""Deeper JSON is kept as text."""
_BLOB_KEY = b'"$blob"'

_records = msgspec.json.Decoder(Record)
_arrays = msgspec.json.Decoder(list[msgspec.Raw])
_strings = msgspec.json.Decoder(str)
_numbers = msgspec.json.Decoder(int | float)
_errors = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError, ValueError)


class Damaged(ValueError):
    """These bytes are not a JSON object; the message says why."""


def decode_record(raw: bytes) -> Record:
    """The members of a JSON object as slices of `raw`; raises `Damaged`."""
    try:
        if not raw.isascii():
            raw.decode("utf-8")
        if scan.deeper_than(raw, DEPTH_MAX):
            raise Damaged(f"nested deeper than {DEPTH_MAX} levels")
        return _records.decode(raw)
    except Damaged:
        raise
    except UnicodeDecodeError as error:
        raise Damaged(f"not UTF-8 (byte {error.start})") from error
    except msgspec.ValidationError as error:
        raise Damaged("not a JSON object") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise Damaged(f"not valid JSON: {error}") from error


def members(value: msgspec.Raw | None) -> Record | None:
    """The members of an object, else `None`."""
    found: Record | None = _decoded(_records, value)
    return found


def elements(value: msgspec.Raw | None) -> list[msgspec.Raw] | None:
    """The elements of an array, else `None`."""
    found: list[msgspec.Raw] | None = _decoded(_arrays, value)
    return found


def string(value: msgspec.Raw | None) -> str | None:
    """The text of a string, else `None`."""
    found: str | None = _decoded(_strings, value)
    return found


def integer(value: msgspec.Raw | None) -> int | None:
    """A number from 0 up to 63 bits as an integer, else `None`."""
    number = _decoded(_numbers, value)
    if isinstance(number, float) and not number.is_integer():
        return None
    return int(number) if number is not None and 0 <= number <= INTEGER_MAX else None


def number(value: msgspec.Raw | None) -> float | None:
    """A number as a float, else `None`."""
    found = _decoded(_numbers, value)
    return float(found) if found is not None and abs(found) < 1e300 else None


def _decoded(decoder: msgspec.json.Decoder[Any], value: msgspec.Raw | None) -> Any:
    if value is None or not memoryview(value).nbytes:
        return None
    try:
        return decoder.decode(value)
    except _errors:
        return None


def _is(value: msgspec.Raw, literal: bytes) -> bool:
    """Compare without a copy of the value, which may be long."""
    view = memoryview(value)
    return view.nbytes == len(literal) and view.tobytes() == literal


def is_true(value: msgspec.Raw | None) -> bool:
    """Whether the value is `true`."""
    return value is not None and _is(value, b"true")


def is_null(value: msgspec.Raw | None) -> bool:
    """Whether the value is absent or `null`."""
    return value is None or _is(value, b"") or _is(value, b"null")


def foreign(value: bytes | msgspec.Raw) -> msgspec.Raw:
    """JSON that may stand in a body.

    An object that looks like one of our blob references would be taken for one, so such JSON becomes a JSON string.
    """
    raw = bytes(value)
    if _BLOB_KEY in raw:
        return raw_json(raw.decode("utf-8"))
    return msgspec.Raw(raw)


def remainder(record: Mapping[str, msgspec.Raw], taken: Collection[str]) -> Record:
    """The members that nothing else of the event says."""
    return {name: value for name, value in record.items() if name not in taken and not is_null(value)}


def packed(record: Mapping[str, Any]) -> msgspec.Raw:
    """A JSON object for the `Raw` field of a body; nothing when it is empty."""
    return foreign(msgspec.json.encode(record)) if record else NOTHING


def opaque(format_name: str, native_type: str, raw: bytes) -> Opaque:
    """A record kept whole: as text where its bytes are UTF-8, else in base64."""
    try:
        return Opaque(format=format_name, native_type=native_type, raw_text=raw.decode("utf-8"))
    except UnicodeDecodeError:
        return Opaque(format=format_name, native_type=native_type, raw_base64=base64.b64encode(raw).decode())


def digest(raw: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(raw).digest()


def time_us(value: msgspec.Raw | None) -> int | None:
    """µs since 1970 of an ISO 8601 string (UTC where it names no zone), else `None`; never below 0."""
    text = string(value)
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return max(to_us(moment), 0)
    except (ValueError, OverflowError):
        return None
