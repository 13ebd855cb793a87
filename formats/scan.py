"""A forgiving look at JSON that a strict parser refuses: where values begin and end, without reading them.

Only strings and brackets are told apart, so NaN, lone surrogates and nesting of any depth pass; the work is linear and
needs no recursion. The slices are then decoded one by one, so that damage stays where it is.
"""

from __future__ import annotations

import re
from itertools import accumulate

import msgspec

# A string token, or a structural character. Possessive: a string of 50 MB leaves no backtracking points.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},:]', re.DOTALL)
_OPENING = b"[{"
_CLOSING = b"]}"


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def deeper_than(raw: bytes, levels: int) -> bool:
    """Whether brackets are nested more than `levels` deep.

    The parser has a limit of its own, but it depends on the Python version and on how deep the caller is, and the same
    bytes must always give the same events.
    """
    if raw.count(b"[") + raw.count(b"{") <= levels:
        return False
    brackets = _STRING.sub(b"", raw).translate(None, _NO_BRACKETS)
    return max(accumulate(_STEP[mark] for mark in brackets), default=0) > levels


def values(raw: bytes) -> list[bytes]:
    """The JSON objects and arrays that stand one after the other in `raw`; what lies between them is a piece too."""
    pieces: list[bytes] = []
    depth = done = 0
    for token in _TOKEN.finditer(raw):
        mark = raw[token.start()]
        if mark in _OPENING:
            if depth == 0:
                pieces.append(raw[done : token.start()])
                done = token.start()
            depth += 1
        elif mark in _CLOSING and depth > 0:
            depth -= 1
            if depth == 0:
                pieces.append(raw[done : token.end()])
                done = token.end()
    pieces.append(raw[done:])
    return [piece for piece in (piece.strip() for piece in pieces) if piece]


def members(raw: bytes) -> dict[str, bytes]:
    """The members of the object that `raw` begins with; of a truncated one those that are there."""
    found: dict[str, bytes] = {}
    for piece in _children(raw):
        key = _TOKEN.match(piece)
        if key is None or piece[:1] != b'"':
            continue
        colon = piece.find(b":", key.end())
        try:
            name = msgspec.json.decode(key.group(), type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if colon >= 0 and name not in found:
            found[name] = piece[colon + 1 :].strip()
    return found


def elements(raw: bytes) -> list[bytes]:
    """The elements of the array that `raw` begins with; of a truncated one those that are there."""
    return _children(raw)


def _children(raw: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    depth = 0
    done = 0
    for token in _TOKEN.finditer(raw):
        mark = raw[token.start()]
        if mark in _OPENING:
            depth += 1
            if depth == 1:
                done = token.end()
        elif mark in _CLOSING:
            depth -= 1
            if depth == 0:
                pieces.append(raw[done : token.start()])
                return [piece for piece in (piece.strip() for piece in pieces) if piece]
        elif mark == ord(",") and depth == 1:
            pieces.append(raw[done : token.start()])
            done = token.end()
    if depth > 0:
        pieces.append(raw[done:])
    return [piece for piece in (piece.strip() for piece in pieces) if piece]
