"""Looks for a word in everything that lies in a lake: in the bytes, and in what they say once they are decoded."""

from __future__ import annotations

import io
import zlib
from typing import Any

import pyarrow.parquet as pq


def places_of(word: str, files: dict[str, bytes]) -> list[str]:
    """Where the word is; `files` are contents by name."""
    found = []
    for name, content in sorted(files.items()):
        if word.encode() in content:
            found.append(f"{name}: bytes")
        if name.endswith(".parquet"):
            found += [f"{name}: {column}" for column in _columns_with(word, content)]
        elif name.endswith(".avro") and word.encode() in _avro_text(content):
            found.append(f"{name}: decoded")
    return found


def _columns_with(word: str, content: bytes) -> list[str]:
    table = pq.ParquetFile(io.BytesIO(content)).read()
    return [
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if any(word in _text(value) for value in column.to_pylist() if value is not None)
    ]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _avro_text(content: bytes) -> bytes:
    """The blocks of an Avro file, unpacked."""
    stream = io.BytesIO(content)
    assert stream.read(4) == b"Obj\x01"
    metadata: dict[bytes, bytes] = {}
    while count := _long(stream):
        if count < 0:
            count, _ = -count, _long(stream)
        for _ in range(count):
            name = stream.read(_long(stream))
            metadata[name] = stream.read(_long(stream))
    stream.read(16)
    text = b"".join(metadata.values())
    while stream.tell() < len(content):
        _long(stream)
        block = stream.read(_long(stream))
        text += zlib.decompress(block, -15) if metadata.get(b"avro.codec") == b"deflate" else block
        stream.read(16)
    return text


def _long(stream: io.BytesIO) -> int:
    shift = number = 0
    while True:
        byte = stream.read(1)[0]
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7
