"""One pack in a storage: its index, read once; pieces of it, each verified; and all of it, checked from end to end."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator

import google_crc32c
import pyarrow as pa

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import check_tenant

from .pack_format import FOOTER, HEADER, PackIndex, Piece, check_header, decode_footer, decode_index
from .storage import Storage

FOLDER = "packs"
TAIL_BYTES = 64 << 10
"""Read at once from the end: the whole index of most packs."""
RUN_BYTES = 4 << 20
"""How much is asked for at once where blocks follow each other."""
BLOCKS_KEPT = 4
"""Unpacked blocks that are remembered: those who read a trajectory read its pieces in the order in which they lie."""
_NAME = re.compile(r"([0-9a-f]{64})\.pack")


def pack_path(tenant: str, name: str) -> str:
    """Where the pack of this name lies in the content store."""
    return f"{check_tenant(tenant)}/{FOLDER}/{name}.pack"


def pack_name(path: str) -> str | None:
    """The name of the pack at a path, `None` for any other file."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return found[1] if found else None


class PackFile:
    """A pack that is there; immutable, so what was read of it stays true. Safe for several threads."""

    def __init__(self, storage: Storage, tenant: str, name: str, size: int) -> None:
        """Read the index; raises `NotFound` where the pack is gone, `Corrupt` where it is damaged or misplaced."""
        self.tenant = tenant
        self.name = name
        self.size = size
        self._storage = storage
        self._path = pack_path(tenant, name)
        self._codec = pa.Codec("zstd")
        self._guard = threading.Lock()
        self._unpacked: OrderedDict[int, bytes] = OrderedDict()
        try:
            self.index = self._read_index()
        except Corrupt as error:
            raise self._damaged(error) from error

    def read(self, piece: Piece) -> bytes:
        """The content of a piece, verified; raises `NotFound` where the pack is gone, `Corrupt` where it is damaged."""
        numbers, start = self.index.blocks_of(piece.offset, piece.length)
        try:
            if len(numbers) <= BLOCKS_KEPT:
                content = b"".join(self._block(number) for number in numbers)
            else:
                content = b"".join(self._unpack(number, stored) for number, stored in self._stored(numbers))
            begin = piece.offset - start
            content = content[begin : begin + piece.length]
            if hashlib.sha256(content).digest() != piece.digest:
                raise Corrupt(f"content {piece.digest.hex()} in it is not what its name says")
        except Corrupt as error:
            raise self._damaged(error) from error
        return content

    def scan(self, problems: list[str]) -> Iterator[tuple[Piece, bytes]]:
        """Read all of the file once; the pieces that are whole, in the order in which they lie.

        What is wrong is added to `problems`: damaged blocks and pieces, and a file that is not what its name says.
        Raises `NotFound` where it is gone.
        """
        digest = hashlib.sha256(self._storage.read_range(self._path, 0, HEADER.size))
        coming = sorted(self.index.pieces(), key=lambda piece: piece.offset, reverse=True)
        begun: list[tuple[Piece, bytearray | None]] = []
        at, end = 0, HEADER.size
        empty = [piece for piece in coming if not piece.length]
        coming = [piece for piece in coming if piece.length]
        yield from self._whole([(piece, bytearray()) for piece in empty], problems)
        for number, stored in self._stored(range(len(self.index.blocks))):
            digest.update(stored)
            content = self._unpacked_or_none(number, stored, problems)
            raw = self.index.blocks[number].raw
            while coming and coming[-1].offset < at + raw:
                begun.append((coming.pop(), bytearray()))
            done: list[tuple[Piece, bytearray | None]] = []
            rest: list[tuple[Piece, bytearray | None]] = []
            for piece, gathered in begun:
                if gathered is not None and content is not None:
                    gathered += content[max(0, piece.offset - at) : piece.offset + piece.length - at]
                ends = piece.offset + piece.length <= at + raw
                (done if ends else rest).append((piece, None if content is None else gathered))
            begun = rest
            yield from self._whole(done, problems)
            at, end = at + raw, end + len(stored)
        digest.update(self._storage.read_range(self._path, end, self.size))
        if digest.hexdigest() != self.name:
            problems.append(f"pack {self.name} of {self.tenant} is not the file that its name says")

    def _unpacked_or_none(self, number: int, stored: bytes, problems: list[str]) -> bytes | None:
        try:
            return self._unpack(number, stored)
        except Corrupt as error:
            problems.append(self._damaged(error).message)
            return None

    def _whole(
        self, pieces: list[tuple[Piece, bytearray | None]], problems: list[str]
    ) -> Iterator[tuple[Piece, bytes]]:
        for piece, gathered in pieces:
            if gathered is not None and hashlib.sha256(gathered).digest() == piece.digest:
                yield piece, bytes(gathered)
            else:
                problems.append(f"pack {self.name} of {self.tenant}: content {piece.digest.hex()} is damaged")

    def _read_index(self) -> PackIndex:
        check_header(self._storage.read_range(self._path, 0, min(HEADER.size, self.size)))
        start = max(0, self.size - TAIL_BYTES)
        tail = self._storage.read_range(self._path, start, self.size)
        offset, length, checksum = decode_footer(tail, self.size)
        if offset >= start:
            encoded = tail[offset - start : offset - start + length]
        else:
            encoded = self._storage.read_range(self._path, offset, self.size - FOOTER.size)
        index = decode_index(encoded, checksum, offset)
        if index.tenant != self.tenant:
            raise Corrupt(f"it belongs to {index.tenant}")
        return index

    def _block(self, number: int) -> bytes:
        with self._guard:
            content = self._unpacked.get(number)
        if content is None:
            block = self.index.blocks[number]
            content = self._unpack(number, self._storage.read_range(self._path, block.offset, self._end(number)))
            with self._guard:
                self._unpacked[number] = content
                while len(self._unpacked) > BLOCKS_KEPT:
                    self._unpacked.popitem(last=False)
        return content

    def _unpack(self, number: int, stored: bytes) -> bytes:
        block = self.index.blocks[number]
        if google_crc32c.value(stored) != block.crc32c:
            raise Corrupt(f"block {number} is damaged")
        try:
            content: bytes = self._codec.decompress(stored, decompressed_size=block.raw, asbytes=True)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"block {number} cannot be unpacked: {error}") from error
        if len(content) != block.raw:
            raise Corrupt(f"block {number} has {len(content)} bytes, not {block.raw}")
        return content

    def _stored(self, numbers: range) -> Iterator[tuple[int, bytes]]:
        """The bytes of blocks as they are in the file, asked for many at once."""
        at = numbers.start
        while at < numbers.stop:
            last = at
            begin = self.index.blocks[at].offset
            while last + 1 < numbers.stop and self._end(last + 1) - begin <= RUN_BYTES:
                last += 1
            stored = self._storage.read_range(self._path, begin, self._end(last))
            for number in range(at, last + 1):
                yield number, stored[self.index.blocks[number].offset - begin : self._end(number) - begin]
            at = last + 1

    def _end(self, number: int) -> int:
        block = self.index.blocks[number]
        return block.offset + block.stored

    def _damaged(self, error: Corrupt) -> Corrupt:
        return Corrupt(f"pack {self.name} of {self.tenant}: {error.message}", hint=error.hint)
