"""An event as a row of columns, and its exact bytes back from them.

A body is a JSON object. Fields that have a column (`COLUMN_OF`, the one table of them) go there, the others go as raw
slices into `rest`. The rebuild writes the fields in the order of the kind's struct: a field that is in `rest` comes
from `rest`, otherwise from its column, and a column that holds what stands for an absent field (null, or the struct's
default) adds nothing; fields that no struct knows follow at the end. The result is compared with the real body when the
row is made. Where a single field is spelled otherwise than we would spell it, that field goes to `rest` as well; where
even that does not give the exact bytes (white space, another order, repeated keys, an unknown kind), `body_raw` has
them. So whatever the input was, `body_of(row_of(event))` is its exact body.

These rules, and the order of the structs' fields, belong to schema version 1: `tests/compat/` holds files of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stratalog.schemas.arrow import INDEX, NAMES
from stratalog.schemas.blobs import references
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.events import KINDS, SCHEMA_VERSION

Row = list[Any]
"""Values in the order of `schemas.arrow.COLUMNS`; ids as 16 bytes, times in µs and days since 1970."""

INTEGERS = ("intent", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
STRINGS = (
    "role",
    "text",
    "reasoning",
    "tool_call_id",
    "tool",
    "decision",
    "status",
    "output",
    "stop_reason",
    "served_model",
)
SAME_NAME = frozenset((*STRINGS, *INTEGERS, "arguments", "duration_ms", "cost_usd", "inferred"))
OTHER_NAME = {
    ("TaskStarted", "task"): "text",
    ("MessageReceived", "parts"): "text",
    ("Compacted", "summary"): "text",
    ("TaskFinished", "result"): "text",
    ("Annotation", "note"): "text",
    ("ChildStarted", "task"): "text",
    ("EscalationRaised", "question"): "text",
    ("Opaque", "raw_text"): "text",
}
COLUMN_OF: dict[tuple[str, str], str] = {
    (kind, field.encode_name): OTHER_NAME.get((kind, field.encode_name), field.encode_name)
    for kind, struct in KINDS.items()
    for field in msgspec.structs.fields(struct)
    if field.encode_name in SAME_NAME or (kind, field.encode_name) in OTHER_NAME
}
"""(kind, field of its body) to the column that holds the field."""

SPEAKER = {"ModelReplied": "assistant", "ToolResult": "tool", "LateResult": "tool", "ResultRejected": "tool"}
"""`role` of kinds whose body has none; for queries only, the rebuild does not look at it."""

_KIND, _ERASED, _REST, _BODY_RAW = INDEX["kind"], INDEX["erased"], INDEX["rest"], INDEX["body_raw"]
_DIGEST, _BLOB, _ROLE, _INFERRED = INDEX["body_digest"], INDEX["blob"], INDEX["role"], INDEX["inferred"]
_VERSION = INDEX["schema_version"]
INTEGER_MAX = 2**63 - 1
"""The largest integer of a column; beyond it, as beyond its negative, a field lies in `rest`."""
UNREADABLE: tuple[type[Exception], ...] = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""What a decoder raises for bytes that are not what it takes."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class Place(msgspec.Struct, frozen=True):
    """What a row says of its trajectory: start day (days since 1970), folder name and full name of the model."""

    date: int
    model: str
    model_name: str


class Shape(msgspec.Struct, frozen=True):
    """How a JSON slice becomes a column's value, with whether that is all of it; and how it is written again."""

    read: Callable[[msgspec.Raw], tuple[Any, bool]]
    write: Callable[[Any], bytes]


class Field(msgspec.Struct, frozen=True):
    """A field of a kind's body; without a column it lies in `rest`."""

    name: str
    key: bytes
    column: int = -1
    shape: Shape | None = None
    absent: Any = None
    """The column's value where the body lacks the field."""


def _reader(kind: type, fits: Callable[[Any], bool]) -> Callable[[msgspec.Raw], tuple[Any, bool]]:
    decode: Callable[[msgspec.Raw], Any] = msgspec.json.Decoder(kind).decode

    def read(raw: msgspec.Raw) -> tuple[Any, bool]:
        try:
            value = decode(raw)
        except UNREADABLE:
            return None, False
        return (value, True) if fits(value) else (None, False)

    return read


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_json(raw: msgspec.Raw) -> tuple[str | None, bool]:
    try:
        return str(raw, "utf-8"), True
    except UnicodeDecodeError:
        return None, False


_parts = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def _read_parts(raw: msgspec.Raw) -> tuple[str | None, bool]:
    """The text of a message: all of it if it is one plain part, else the texts joined by blank lines, for queries."""
    try:
        parts = _parts.decode(raw)
    except UNREADABLE:
        return None, False
    texts = [text for part in parts if "text" in part and (text := _TEXT.read(part["text"])[0]) is not None]
    plain = len(parts) == 1 and len(texts) == 1 and len(parts[0]) == 1
    return ("\n\n".join(texts) if texts else None), plain


def _write_parts(text: str) -> bytes:
    return b'[{"text":' + _encode(text) + b"}]"


_TEXT = Shape(_reader(str, _is_utf8), _encode)
INTEGER = Shape(_reader(int, lambda value: -INTEGER_MAX <= value <= INTEGER_MAX), _encode)
FLOAT = Shape(_reader(float, math.isfinite), _encode)
FLAG = Shape(_reader(bool, lambda value: True), _encode)
JSON = Shape(_read_json, str.encode)
PARTS = Shape(_read_parts, _write_parts)

_SHAPES = {
    "arguments": JSON,
    "inferred": FLAG,
    "duration_ms": FLOAT,
    "cost_usd": FLOAT,
    **dict.fromkeys(INTEGERS, INTEGER),
}


def _fields_of(kind: str, struct: type[msgspec.Struct]) -> tuple[Field, ...]:
    made = []
    for field in msgspec.structs.fields(struct):
        name = field.encode_name
        key = _encode(name) + b":"
        column = COLUMN_OF.get((kind, name))
        if column is None:
            made.append(Field(name, key))
            continue
        shape = PARTS if name == "parts" else _SHAPES.get(column, _TEXT)
        # Where the absent field means something ("ok", false), queries find that in the column.
        absent = field.default if isinstance(field.default, (str, bool)) and field.default != "" else None
        made.append(Field(name, key, INDEX[column], shape, absent))
    return tuple(made)


FIELDS = {kind: _fields_of(kind, struct) for kind, struct in KINDS.items()}
_BY_NAME = {kind: {field.name: field for field in fields} for kind, fields in FIELDS.items()}
_BLANK: tuple[None, ...] = (None,) * len(NAMES)
_PLACE_COLUMNS = slice(0, INDEX["turn"] + 1)


def _blank_row(kind: str) -> Row:
    row: Row = list(_BLANK)
    row[_INFERRED] = False
    row[_ROLE] = SPEAKER.get(kind)
    for field in FIELDS[kind]:
        if field.absent is not None:
            row[field.column] = field.absent
    return row


_BLANK_ROWS = {kind: _blank_row(kind) for kind in KINDS}


def row_of(envelope: Envelope, turn: int, place: Place) -> Row:
    """The row of an event; its segment columns are null. Never raises for what a body contains."""
    header = envelope.header
    known = header.kind in FIELDS and header.schema_version == SCHEMA_VERSION and not envelope.erased
    row: Row = _BLANK_ROWS[header.kind].copy() if known else list(_BLANK)
    row[_PLACE_COLUMNS] = (
        header.trajectory_id.bytes,
        header.sequence_number,
        header.tenant,
        place.date,
        place.model,
        place.model_name,
        header.kind,
        header.epoch,
        header.schema_version,
        header.created_at,
        turn,
    )
    row[_ERASED] = envelope.erased
    if envelope.erased:
        row[_DIGEST] = header.body_digest
        return row
    if b'{"$blob":' in envelope.body:
        row[_BLOB] = next((ref.sha256 for ref in references(envelope.body)), None)
    if not known or not _fill(row, header.kind, envelope.body):
        row[_REST], row[_BODY_RAW] = None, envelope.body
    return row


def _fill(row: Row, kind: str, body: bytes) -> bool:
    """Spread `body` over the columns; returns whether the columns give exactly it."""
    try:
        slices = _object.decode(body)
        rest = _spread(row, kind, slices)
        row[_REST] = _join(rest)
        if body_of(row) == body:
            return True
        rest.update((name, slices[name]) for name in _misspelled(row, kind, slices) if name not in rest)
        row[_REST] = _join({name: raw for name, raw in slices.items() if name in rest})
        return body_of(row) == body
    except UNREADABLE:
        return False


def _spread(row: Row, kind: str, slices: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Fill the columns; returns the fields that they do not hold."""
    fields = _BY_NAME[kind]
    rest = {}
    for name, raw in slices.items():
        field = fields.get(name)
        if field is None or field.shape is None:
            rest[name] = raw
            continue
        row[field.column], whole = field.shape.read(raw)
        if not whole:
            rest[name] = raw
    return rest


def _misspelled(row: Row, kind: str, slices: dict[str, msgspec.Raw]) -> list[str]:
    """The fields whose bytes in the body are not the ones that their columns would give."""
    found = []
    for name, raw in slices.items():
        field = _BY_NAME[kind].get(name)
        if field is not None and field.shape is not None:
            value = row[field.column]
            if value is None or value == field.absent or field.shape.write(value) != bytes(raw):
                found.append(name)
    return found


def _join(fields: dict[str, msgspec.Raw]) -> str | None:
    if not fields:
        return None
    joined = b",".join(b"%b:%b" % (_encode(name), raw) for name, raw in fields.items())
    return (b"{" + joined + b"}").decode()


def body_of(row: Sequence[Any]) -> bytes:
    """The exact bytes of the body of a row (empty where erased); raises `Corrupt` for a row that is none of ours."""
    if row[_ERASED]:
        return b""
    raw_body: bytes | None = row[_BODY_RAW]
    if raw_body is not None:
        return raw_body
    fields = FIELDS.get(row[_KIND])
    if fields is None or row[_VERSION] != SCHEMA_VERSION:
        raise Corrupt(f"no rebuild rule for kind {row[_KIND]!r} of schema version {row[_VERSION]}")
    rest = _rest_of(row)
    pieces = []
    for field in fields:
        raw = rest.pop(field.name, None)
        if raw is not None:
            pieces.append(b"%b%b" % (field.key, raw))
        elif field.shape is not None:
            value = row[field.column]
            if value is not None and value != field.absent:
                pieces.append(field.key + field.shape.write(value))
    pieces += [b"%b:%b" % (_encode(name), raw) for name, raw in rest.items()]
    return b"{" + b",".join(pieces) + b"}"


def _rest_of(row: Sequence[Any]) -> dict[str, msgspec.Raw]:
    text: str | None = row[_REST]
    if text is None:
        return {}
    try:
        return _object.decode(text)
    except UNREADABLE as error:
        raise Corrupt(f"the rest of a {row[_KIND]} is not a JSON object: {error}") from error
