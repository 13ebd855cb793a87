"""Bodies that are too large even with their long strings out of line: the limit is on what stays in the log.

Only foreign JSON with very many short values gets there. Such JSON becomes one JSON string, which goes out of line; if
that is not enough, the whole body is kept opaque.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.schemas.blobs import offload
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.events import Body, Opaque, TaskStarted, raw_json
from stratalog.schemas.settings import HotSettings

_LIMITS = HotSettings()


def fitted(body: Body, format_name: str) -> tuple[Body, bytes]:
    """A body that the log takes, and its bytes."""
    encoded = encode_body(body)
    if _fits(encoded):
        return body, encoded
    smaller: Body = _stringified(body)
    encoded = encode_body(smaller)
    if _fits(encoded):
        return smaller, encoded
    if isinstance(body, TaskStarted):
        smaller = msgspec.structs.replace(body, tool_schemas={}, specification=raw_json(encoded.decode("utf-8")))
    else:
        smaller = Opaque(format=format_name, native_type=f"large/{kind_of(body)}", raw_text=encoded.decode("utf-8"))
    return smaller, encode_body(smaller)


def _fits(encoded: bytes) -> bool:
    if len(encoded) <= _LIMITS.event_bytes_max:
        return True
    return len(offload(encoded, _LIMITS.inline_bytes_max)[0]) <= _LIMITS.event_bytes_max


def _stringified(body: Body) -> Body:
    changed: dict[str, Any] = {}
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if isinstance(value, msgspec.Raw):
            changed[name] = _as_string(value)
        elif isinstance(value, tuple):
            changed[name] = tuple(_part(item) for item in value)
    return msgspec.structs.replace(body, **changed)


def _part(item: object) -> object:
    if not isinstance(item, msgspec.Struct):
        return item
    raws = {
        name: _as_string(value)
        for name in item.__struct_fields__
        if isinstance(value := getattr(item, name), msgspec.Raw)
    }
    return msgspec.structs.replace(item, **raws) if raws else item


def _as_string(value: msgspec.Raw) -> msgspec.Raw:
    raw = bytes(value)
    return raw_json(raw.decode("utf-8")) if len(raw) > _LIMITS.inline_bytes_max else value
