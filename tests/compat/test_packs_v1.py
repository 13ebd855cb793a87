"""A pack that an earlier version wrote still gives the same content, also to a reader made from docs/packs.md alone.

`packs_v1/` was written once, by running this file (`python tests/compat/test_packs_v1.py`), and is never written again:
a test that fails here means that packs in somebody's store would be lost. Another layout needs another version.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

import google_crc32c
import pyarrow as pa

from stratalog.cold.cas import FsContentStore
from stratalog.cold.pack_writer import PackWriter

FOLDER = Path(__file__).parent / "packs_v1"
CONTENTS = [
    b"",
    b"a small piece\n",
    b"".join(b"line %d of a log that goes on\n" % (number % 977) for number in range(20_000)),
    b"\x00\xff" * 5_000,
]
"""The third is longer than two blocks."""


def read_by_the_document(content: bytes, tenant: str) -> dict[str, bytes]:
    """All pieces of a pack by digest."""
    assert hashlib.sha256(content).digest() and content[:16] == b"STRATPCK" + b"\x00\x01" + bytes(6)
    at, length, checksum, magic = struct.unpack(">QII8s", content[-24:])
    index = content[at:-24]
    assert magic == b"STRATPCK" and len(index) == length and google_crc32c.value(index) == checksum
    name_length = index[0]
    assert index[1 : 1 + name_length].decode("ascii") == tenant
    cursor = 1 + name_length
    (blocks,) = struct.unpack_from(">I", index, cursor)
    cursor += 4
    stream = b""
    expected = 16
    for number in range(blocks):
        offset, stored, raw, block_checksum = struct.unpack_from(">QIII", index, cursor + 20 * number)
        block = content[offset : offset + stored]
        assert offset == expected and google_crc32c.value(block) == block_checksum
        stream += pa.Codec("zstd").decompress(block, decompressed_size=raw, asbytes=True)
        expected = offset + stored
    assert expected == at
    cursor += 20 * blocks
    (pieces,) = struct.unpack_from(">I", index, cursor)
    found = {}
    for number in range(pieces):
        digest, start, size = struct.unpack_from(">32sQQ", index, cursor + 4 + 48 * number)
        found[digest.hex()] = stream[start : start + size]
        assert hashlib.sha256(found[digest.hex()]).digest() == digest
    return found


def test_the_document_says_how_to_read_it() -> None:
    (path,) = FOLDER.glob("*.pack")
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == path.stem
    expected = {hashlib.sha256(piece).hexdigest(): piece for piece in CONTENTS}
    assert read_by_the_document(content, "acme") == expected


def test_this_version_reads_it(tmp_path: Path) -> None:
    (path,) = FOLDER.glob("*.pack")
    place = tmp_path / "acme" / "packs"
    place.mkdir(parents=True)
    shutil.copy(path, place / path.name)
    store = FsContentStore(str(tmp_path))
    assert [store.get("acme", hashlib.sha256(piece).hexdigest()) for piece in CONTENTS] == CONTENTS
    assert len(list(store.digests("acme"))) == len(CONTENTS)
    store.close()


def write() -> None:
    """Write the pack; only for a new version."""
    FOLDER.mkdir(exist_ok=True)
    writer = PackWriter("acme", FOLDER / "new")
    for piece in CONTENTS:
        writer.add(hashlib.sha256(piece).digest(), piece)
    made = writer.finish()
    (FOLDER / "new").rename(FOLDER / f"{made.name}.pack")


if __name__ == "__main__":
    write()
