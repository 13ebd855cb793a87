"""Bodies to bytes and back. The bytes are canonical: they are hashed, and no tier serialises them again."""

from __future__ import annotations

from typing import get_args, get_type_hints

import msgspec

from .envelope import Envelope, Header
from .errors import Invalid
from .events import KINDS, Body, EventBody, Unknown

_encoder = msgspec.json.Encoder()
_skip = msgspec.json.Decoder(msgspec.Raw).decode
_decoders = {name: msgspec.json.Decoder(struct) for name, struct in KINDS.items()}


def _may_hold_raw(annotation: object) -> bool:
    if annotation is msgspec.Raw:
        return True
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return any(map(_may_hold_raw, get_type_hints(annotation).values()))
    return any(map(_may_hold_raw, get_args(annotation)))


_WITH_RAW = frozenset(kind for kind in KINDS.values() if _may_hold_raw(kind))
"""The kinds with fields of any JSON, which a caller may fill with bytes that are none."""


class Event(msgspec.Struct, frozen=True):
    """An event as programs read it: the header, the decoded body, the hash."""

    header: Header
    body: EventBody
    hash: bytes
    erased: bool = False

    @property
    def kind(self) -> str:
        """The kind by its name in the log."""
        return self.header.kind


def kind_of(body: EventBody) -> str:
    """The kind name of a body."""
    return body.kind if isinstance(body, Unknown) else type(body).__name__


def encode_body(body: EventBody) -> bytes:
    """The canonical bytes of a body: UTF-8 JSON; those of an `Unknown` are its own.

    Raises `Invalid` for text that JSON cannot hold (lone surrogates) and for values without a JSON form, among them
    `Raw` bytes that are no JSON.
    """
    if isinstance(body, Unknown):
        return body.raw
    try:
        encoded = _encoder.encode(body)
        if type(body) in _WITH_RAW:
            _skip(encoded)
        return encoded
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise Invalid(
            f"this {type(body).__name__} has no JSON form: {error}",
            hint="keep foreign bytes in an Opaque event (raw_text or raw_base64)",
        ) from error


def decode_body(kind: str, body: bytes) -> EventBody:
    """Decode a body. Never raises: what cannot be read is `Unknown` with the reason."""
    decoder = _decoders.get(kind)
    if decoder is None:
        return Unknown(kind, body, "unknown kind")
    try:
        decoded: Body = decoder.decode(body)
        return decoded
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError, ValueError) as error:
        return Unknown(kind, body, str(error))


def decode_event(envelope: Envelope) -> Event:
    """The event of an envelope; an erased one has an `Unknown` body with the reason `erased`."""
    header = envelope.header
    if envelope.erased:
        return Event(header, Unknown(header.kind, b"", "erased"), envelope.hash, True)
    return Event(header, decode_body(header.kind, envelope.body), envelope.hash)
