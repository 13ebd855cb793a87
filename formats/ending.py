"""Where a file ended when it was imported, and what it said up to there.

A file that ends in the middle of something leaves events that depend on the place. When it has grown, it is read as if
it still ended there; a copy that says something else before that place never ended there, and must not be read so. The
digest of the file's beginning tells the two apart, also after both have been imported as one trajectory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

DIGEST_BYTES = 16
_CHUNK_BYTES = 1 << 20


class Ending(msgspec.Struct, frozen=True):
    """The file's end at an import: its offset, and the digest of everything before it; empty where nobody noted it."""

    offset: int
    digest: bytes = b""

    def fits(self, beginnings: Mapping[int, bytes]) -> bool:
        """Whether a file with these beginnings may have ended here once; without a digest nothing speaks against it."""
        return self.offset in beginnings and self.digest in (b"", beginnings[self.offset])


def beginnings(path: Path, offsets: Iterable[int]) -> dict[int, bytes]:
    """The digests of the first bytes of a file, by their number; of what is longer than the file there is none.

    Reads the file once, up to the last offset; raises `OSError` where it cannot be read.
    """
    found: dict[int, bytes] = {}
    seen, done = hashlib.sha256(), 0
    with path.open("rb") as stream:
        for offset in sorted(set(offsets)):
            while done < offset and (chunk := stream.read(min(_CHUNK_BYTES, offset - done))):
                seen.update(chunk)
                done += len(chunk)
            if done < offset:
                break
            found[offset] = seen.digest()[:DIGEST_BYTES]
    return found
