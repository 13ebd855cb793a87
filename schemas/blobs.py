"""Bulky output beside the log: what a reference to it looks like, and how a body is made small.

Any JSON string of more than `inline_bytes_max` bytes is replaced by `{"$blob": {...}}`. The replacement works on the
bytes of the body, so everything else keeps its exact spelling. A reference names the SHA-256 of the string's bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

import msgspec

PREVIEW_CHARS = 160
MARKER = b'{"$blob":'
"""How every reference in a body begins; without it there is none."""

# One JSON string token. Possessive, so that a string of 50 MB leaves no trail of backtracking points. One that never
# ends goes to the end, or the search would begin again at each of its quotes.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
BYTES_PER_QUOTE = 32
"""With more quotes than one in so many bytes, the pattern finds the strings faster than a search for each quote."""
_QUOTE, _BACKSLASH = b'"', ord("\\")
_AFTER_KEY = re.compile(rb"\s*:")
_DIGEST = re.compile("[0-9a-f]{64}")
_REFERENCE = re.compile(rb'\{"\$blob":(\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\})\}', re.DOTALL)


class BlobRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a body for content that lies elsewhere."""

    sha256: str
    """Hex digest of the content; also its name in content-addressed storage."""
    size: int = msgspec.field(name="bytes")
    """Length of the content in bytes."""
    media_type: str = "text/plain"
    preview: str = ""
    """The first characters, for people."""

    @classmethod
    def of(cls, content: bytes, media_type: str = "application/octet-stream", preview: str = "") -> BlobRef:
        """Describe `content`."""
        return cls(hashlib.sha256(content).hexdigest(), len(content), media_type, preview)


class Blob(msgspec.Struct, frozen=True):
    """The JSON form of a reference: `{"$blob": {"sha256": …}}`."""

    ref: BlobRef = msgspec.field(name="$blob")


Text = str | Blob
"""A string, or a reference to one that is too long to lie in the log."""


def text_bytes(text: str) -> bytes:
    """The bytes that a string is stored as outside the log (lone surrogates survive)."""
    return text.encode("utf-8", "surrogatepass")


def text_from_bytes(content: bytes) -> str:
    """The reverse of `text_bytes`."""
    return content.decode("utf-8", "surrogatepass")


def offload(body: bytes, inline_bytes_max: int) -> tuple[bytes, list[tuple[BlobRef, bytes]]]:
    """Replace long strings of a JSON `body` by references; returns the new body and the contents, in order.

    Keys and the references that are already there stay as they are. Never raises.
    """
    if len(body) <= inline_bytes_max:
        return body, []
    given = {found.start(): found.end() for found in _REFERENCE.finditer(body)} if MARKER in body else {}
    pieces: list[bytes] = []
    blobs: list[tuple[BlobRef, bytes]] = []
    done = inside_until = 0
    for start, end in _strings(body):
        inside_until = given.get(start - 1, inside_until)  # a reference starts with a brace and its first key
        if end - start - 2 <= inline_bytes_max or start < inside_until or _AFTER_KEY.match(body, end):
            continue
        text = _decoded(body[start:end])
        if text is None:
            continue
        content = text_bytes(text)
        ref = BlobRef.of(content, "text/plain", _preview(text))
        pieces += [body[done:start], msgspec.json.encode(Blob(ref))]
        blobs.append((ref, content))
        done = end
    if not blobs:
        return body, []
    pieces.append(body[done:])
    return b"".join(pieces), blobs


def _strings(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the strings of a JSON body begin and end, quotes included; one that never ends may be missing."""
    if body.count(_QUOTE) * BYTES_PER_QUOTE > len(body):
        return (token.span() for token in _STRING.finditer(body))
    return _strings_between_quotes(body)


def _strings_between_quotes(body: bytes) -> Iterator[tuple[int, int]]:
    """`_strings` by looking at the quotes alone: a search for one byte is a hundred times faster than a pattern."""
    start = body.find(_QUOTE)
    while start >= 0:
        end = body.find(_QUOTE, start + 1)
        while end > 0 and body[end - 1] == _BACKSLASH and _is_escaped(body, end):
            end = body.find(_QUOTE, end + 1)
        if end < 0:
            return
        yield start, end + 1
        start = body.find(_QUOTE, end + 1)


def _is_escaped(body: bytes, quote: int) -> bool:
    """Whether an odd number of backslashes stands before a quote inside a string."""
    first = quote - 1
    while body[first - 1] == _BACKSLASH:  # ends at the latest where the string begins
        first -= 1
    return (quote - first) % 2 == 1


def _decoded(token: bytes) -> str | None:
    """The text of a JSON string, `None` where the bytes are none (a body of an unknown kind may be no JSON)."""
    try:
        return msgspec.json.decode(token, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _lenient(token)


def _lenient(token: bytes) -> str | None:
    """The text of a string with lone surrogates, which no strict decoder takes."""
    try:
        text: str = json.loads(token)
    except ValueError:
        return None
    return text


def _preview(text: str) -> str:
    return text[:PREVIEW_CHARS].encode("utf-8", "replace").decode("utf-8")


def foreign_json(raw: bytes) -> msgspec.Raw:
    """JSON that somebody else wrote (a model, a tool), for a field of any JSON: the same value, spelled so that nothing
    in it is taken for a reference of ours.
    """
    return msgspec.Raw(raw.replace(MARKER + b"{", MARKER + b" {"))


def digests(body: bytes) -> Iterator[bytes]:
    """The SHA-256 digests, 32 bytes each, of the references in a body; one that is no digest refers to nothing."""
    for ref in references(body):
        if _DIGEST.fullmatch(ref.sha256):
            yield bytes.fromhex(ref.sha256)


def references(body: bytes) -> Iterator[BlobRef]:
    """The references inside a JSON `body`, in order of appearance; text that only looks like one is passed over.

    A reference is written by `offload` or `msgspec.json.encode` and therefore has this exact spelling; inside a JSON
    string its quotes would be escaped, so a plain search over the bytes is exact.
    """
    if MARKER not in body:
        return
    for found in _REFERENCE.finditer(body):
        try:
            yield msgspec.json.decode(found.group(1), type=BlobRef)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue
