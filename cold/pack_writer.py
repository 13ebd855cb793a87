"""Writes a pack into a scratch file, block by block; memory is that of one piece and one block.

A piece that does not fit into what is left of a block begins the next one, so that reading it takes no second block;
one that is larger than a block is cut. The same pieces in the same order give the same bytes, hence the same name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import google_crc32c
import msgspec
import pyarrow as pa

from stratalog.schemas.errors import Corrupt

from .pack_format import BLOCK_BYTES, Block, PackIndex, Piece, end_of, header, make_index
from .storage import translated

ZSTD_LEVEL = 9
"""A pack is written once: slower than level 3, and smaller by a tenth."""


class Made(msgspec.Struct, frozen=True):
    """A pack that was written: its name (SHA-256 of the file, hex), its index, and the length of the file."""

    name: str
    index: PackIndex
    bytes: int


class PackWriter:
    """One pack in the file at `path`, which must not exist."""

    def __init__(self, tenant: str, path: Path) -> None:
        self.path = path
        self.raw_bytes = 0
        self._tenant = tenant
        self._codec = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
        self._pieces: dict[bytes, Piece] = {}
        self._blocks: list[Block] = []
        self._open = bytearray()
        self._digest = hashlib.sha256()
        self._at = 0
        with translated("write", str(path)):
            self._file = path.open("xb")
        self._write(header())

    def add(self, digest: bytes, content: bytes) -> None:
        """Add a piece; one that is in the pack already is passed over. Raises `Corrupt` for other content."""
        if digest in self._pieces:
            return
        if hashlib.sha256(content).digest() != digest:
            raise Corrupt(f"content {digest.hex()} is not what its name says")
        if self._open and len(self._open) + len(content) > BLOCK_BYTES:
            self._end_block()
        self._pieces[digest] = Piece(digest, self.raw_bytes, len(content))
        self.raw_bytes += len(content)
        view = memoryview(content)
        while len(self._open) + len(view) > BLOCK_BYTES:
            taken = BLOCK_BYTES - len(self._open)
            self._open += view[:taken]
            view = view[taken:]
            self._end_block()
        self._open += view

    def __len__(self) -> int:
        return len(self._pieces)

    def finish(self) -> Made:
        """Write what is left and the index; the file is closed, not synced."""
        if self._open:
            self._end_block()
        index = make_index(self._tenant, self._blocks, list(self._pieces.values()))
        self._write(end_of(index, self._at))
        with translated("write", str(self.path)):
            self._file.close()
        return Made(self._digest.hexdigest(), index, self._at)

    def abandon(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _end_block(self) -> None:
        stored = self._codec.compress(bytes(self._open), asbytes=True)
        self._blocks.append(Block(self._at, len(stored), len(self._open), google_crc32c.value(stored)))
        self._open.clear()
        self._write(stored)

    def _write(self, content: bytes) -> None:
        with translated("write", str(self.path)):
            self._file.write(content)
        self._digest.update(content)
        self._at += len(content)
