"""A part of everything, chosen by a seed: the same seed chooses the same again.

What is chosen depends on the seed and on the name of each thing alone, so it is the same in every process, and grows
with the share: what 5 % look at, 10 % look at as well.
"""

from __future__ import annotations

import hashlib
import re
import secrets

import msgspec

from stratalog.schemas.errors import Invalid

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%")
_RANGE = 1 << 64
SEED_MAX = (1 << 32) - 1


class Sample(msgspec.Struct, frozen=True):
    """Each thing is looked at with the probability `share` (0 to 1)."""

    share: float = 1.0
    seed: int = 0

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.share >= 1

    def takes(self, name: bytes) -> bool:
        """Whether the thing of this name is looked at."""
        if self.is_all:
            return True
        digest = hashlib.blake2b(name, digest_size=8, key=self.seed.to_bytes(8, "big")).digest()
        return int.from_bytes(digest, "big") < self.share * _RANGE


EVERYTHING = Sample()


def parse_sample(text: str, seed: int | None = None) -> Sample:
    """The sample that `all` or a percentage such as `5%` means; without a seed one is drawn. Raises `Invalid`."""
    if text == "all":
        return EVERYTHING
    found = _PERCENT.fullmatch(text)
    share = float(found[1]) / 100 if found else 0.0
    if not 0 < share <= 1:
        raise Invalid(f"{text!r} is not a part of the data", hint="write all, or a percentage such as 5%")
    if seed is not None and not 0 <= seed <= SEED_MAX:
        raise Invalid(f"{seed} is not a seed", hint=f"take a number from 0 to {SEED_MAX}")
    return Sample(share, secrets.randbelow(SEED_MAX + 1) if seed is None else seed)
