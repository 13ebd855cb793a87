"""The bytes of a pack: independent zstd blocks, then an index of what is in them (docs/packs.md).

    header · block · block · … · index · footer

All pieces of content of a pack follow each other in one stream of bytes; blocks cut the stream, and a piece is a range
of it. So a small piece is read from one block, a large one from several. The index says everything that reading needs,
its tenant included: a pack that was moved into the folder of somebody else is refused.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import google_crc32c
import msgspec

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import TENANT_PATTERN

MAGIC = b"STRATPCK"
VERSION = 1
BLOCK_BYTES = 256 << 10
"""How much content a block has before it is compressed."""
BLOCK_BYTES_MAX = 64 << 20
"""A block that says to be larger is damaged: it is never unpacked."""
INDEX_BYTES_MAX = 1 << 30

HEADER = struct.Struct(">8sH6x")
FOOTER = struct.Struct(">QII8s")
_BLOCK = struct.Struct(">QIII")
_PIECE = struct.Struct(">32sQQ")
_COUNT = struct.Struct(">I")


class Block(msgspec.Struct, frozen=True, gc=False):
    """Where a block lies in the file, its length there and unpacked, and the CRC-32C of its bytes in the file."""

    offset: int
    stored: int
    raw: int
    crc32c: int


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A piece of content: its SHA-256, and its range in the stream."""

    digest: bytes
    offset: int
    length: int


class PackIndex:
    """What is in a pack. Pieces stay encoded: there may be millions in memory, and each is looked for rarely."""

    def __init__(self, tenant: str, blocks: Sequence[Block], pieces: bytes) -> None:
        self.tenant = tenant
        self.blocks = tuple(blocks)
        self._pieces = pieces
        self._starts: list[int] = []
        at = 0
        for block in self.blocks:
            self._starts.append(at)
            at += block.raw
        self.raw_bytes = at

    def __len__(self) -> int:
        return len(self._pieces) // _PIECE.size

    def pieces(self) -> Iterator[Piece]:
        """All pieces, sorted by digest."""
        return (Piece(*values) for values in _PIECE.iter_unpack(self._pieces))

    def find(self, digest: bytes) -> Piece | None:
        """The piece with this digest, or `None`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            at = middle * _PIECE.size
            found = self._pieces[at : at + 32]
            if found == digest:
                return Piece(*_PIECE.unpack_from(self._pieces, at))
            if found < digest:
                low = middle + 1
            else:
                high = middle
        return None

    def blocks_of(self, offset: int, length: int) -> tuple[range, int]:
        """The blocks (by number) that hold a range of the stream, and where in it the first one begins."""
        if not length:
            return range(0), offset
        first = bisect_right(self._starts, offset) - 1
        last = bisect_right(self._starts, offset + length - 1) - 1
        return range(first, last + 1), self._starts[first]

    def encode(self) -> bytes:
        """The bytes of the index, as they are in the file."""
        name = self.tenant.encode()
        return b"".join(
            (
                bytes([len(name)]),
                name,
                _COUNT.pack(len(self.blocks)),
                *(_BLOCK.pack(block.offset, block.stored, block.raw, block.crc32c) for block in self.blocks),
                _COUNT.pack(len(self)),
                self._pieces,
            )
        )


def make_index(tenant: str, blocks: Sequence[Block], pieces: Sequence[Piece]) -> PackIndex:
    """The index of these blocks and pieces; each digest comes once."""
    ordered = sorted(pieces, key=lambda piece: piece.digest)
    encoded = b"".join(_PIECE.pack(piece.digest, piece.offset, piece.length) for piece in ordered)
    return PackIndex(tenant, blocks, encoded)


def header() -> bytes:
    """The first bytes of a pack."""
    return HEADER.pack(MAGIC, VERSION)


def end_of(index: PackIndex, offset: int) -> bytes:
    """Index and footer; `offset` is where the last block ends."""
    encoded = index.encode()
    return encoded + FOOTER.pack(offset, len(encoded), google_crc32c.value(encoded), MAGIC)


def check_header(content: bytes) -> None:
    """Raise `Corrupt` unless a pack of this version begins like this."""
    if len(content) < HEADER.size or content[: len(MAGIC)] != MAGIC:
        raise Corrupt("it does not begin as a pack does")
    if content[: HEADER.size] != header():
        raise Corrupt(f"it is a pack of version {HEADER.unpack_from(content)[1]}", hint="upgrade stratalog")


def decode_footer(content: bytes, size: int) -> tuple[int, int, int]:
    """Where the index lies, how long it is, and its CRC-32C, from the last bytes of a file of `size` bytes."""
    if len(content) < FOOTER.size:
        raise Corrupt("it is too short for a pack")
    offset, length, checksum, magic = FOOTER.unpack(content[-FOOTER.size :])
    if magic != MAGIC or offset < HEADER.size or length > INDEX_BYTES_MAX or offset + length + FOOTER.size != size:
        raise Corrupt("its end is not that of a pack")
    return offset, length, checksum


def decode_index(content: bytes, checksum: int, offset: int) -> PackIndex:
    """The index whose bytes are `content` and which lies at `offset`; raises `Corrupt`."""
    if google_crc32c.value(content) != checksum:
        raise Corrupt("its index is damaged")
    try:
        index = _decode(content)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Corrupt(f"its index cannot be read: {error}") from error
    at = HEADER.size
    for block in index.blocks:
        if block.offset != at or not 0 < block.raw <= BLOCK_BYTES_MAX:
            raise Corrupt("its blocks do not follow each other")
        at += block.stored
    if at != offset:
        raise Corrupt("its blocks do not end where its index begins")
    before = b""
    for piece in index.pieces():
        if piece.digest <= before or piece.offset + piece.length > index.raw_bytes:
            raise Corrupt("a piece of its index is not in it")
        before = piece.digest
    return index


def _decode(content: bytes) -> PackIndex:
    at = 1 + content[0]
    tenant = content[1:at].decode("ascii")
    if TENANT_PATTERN.fullmatch(tenant) is None:
        raise Corrupt("its index names no tenant")
    (count,) = _COUNT.unpack_from(content, at)
    at += _COUNT.size
    end = at + count * _BLOCK.size
    blocks = [Block(*values) for values in _BLOCK.iter_unpack(content[at:end])]
    (count_pieces,) = _COUNT.unpack_from(content, end)
    pieces = content[end + _COUNT.size :]
    if len(blocks) != count or len(pieces) != count_pieces * _PIECE.size:
        raise Corrupt("its index is not as long as it says")
    return PackIndex(tenant, blocks, pieces)
