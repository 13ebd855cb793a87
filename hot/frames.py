"""What the owner of a log and its sidecar say to each other: length-prefixed msgpack over a unix socket.

Every request is answered by one reply, in order. A request that cannot be served is answered by an `error`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from stratalog.schemas.errors import Unavailable

FRAME_BYTES_MAX = (1 << 31) - 1
REQUEST_BYTES_MAX = 16 << 20
"""A request names positions or trajectories; what claims to be larger is no request, and its length is not believed."""
_LENGTH = struct.Struct(">I")


class Request(msgspec.Struct, frozen=True, array_like=True):
    """`operation` is one of those that `serving` knows; the rest as it needs."""

    operation: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The result, or the code and message of the error."""

    result: Any = None
    error: str = ""
    message: str = ""


_encode = msgspec.msgpack.encode
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def send(connection: socket.socket, message: Request | Reply) -> None:
    """Send one frame."""
    payload = _encode(message)
    if len(payload) > FRAME_BYTES_MAX:
        raise Unavailable(f"a frame of {len(payload)} bytes is too large")
    connection.sendall(_LENGTH.pack(len(payload)) + payload)


def receive_request(connection: socket.socket) -> Request | None:
    """The next request, `None` when the peer has gone; raises `Unavailable` for one that is too large."""
    payload = _receive(connection, REQUEST_BYTES_MAX)
    return None if payload is None else _requests.decode(payload)


def receive_reply(connection: socket.socket) -> Reply:
    """The next reply; raises `Unavailable` when the peer has gone."""
    payload = _receive(connection, FRAME_BYTES_MAX)
    if payload is None:
        raise Unavailable("the owner of the log has gone", hint="")
    return _replies.decode(payload)


def _receive(connection: socket.socket, bytes_max: int) -> bytes | None:
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > bytes_max:
        raise Unavailable(f"a frame of {length} bytes is too large", hint="")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    buffer = bytearray(count)
    view = memoryview(buffer)
    filled = 0
    while filled < count:
        received = connection.recv_into(view[filled:])
        if received == 0:
            return None
        filled += received
    return bytes(buffer)
