"""What storage costs: prices that an operator writes into `prices.toml` in the home.

    currency = "USD"

    [per_gb_month]      # for 10^9 bytes that lie for a month
    hot = 0.08
    warm = 0.115
    cold = 0.023
    content = 0.023

A tier that is not named has no price, so no cost is shown for it. Without the file no cost is shown at all: a price
that we had made up would be taken for a fact.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import msgspec

from stratalog.schemas.errors import Invalid

FILE_NAME = "prices.toml"
FILE_BYTES_MAX = 1 << 16
GB = 1_000_000_000
_HINT = "write it like [per_gb_month] with warm = 0.115; see docs/storage.md"


class PerGbMonth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of 10^9 bytes for a month, by tier; `None` where none is set."""

    hot: float | None = None
    warm: float | None = None
    cold: float | None = None
    content: float | None = None


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    per_gb_month: PerGbMonth
    currency: str = "USD"

    def cost(self, tier: str, bytes_: float) -> float | None:
        """What `bytes_` in a tier cost a month, `None` without a price."""
        price: float | None = getattr(self.per_gb_month, tier)
        return None if price is None else bytes_ / GB * price


def read_prices(folder: Path) -> Prices | None:
    """The prices in a home, `None` where it has no `prices.toml`; raises `Invalid` for a file that says otherwise."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    if len(text) > FILE_BYTES_MAX:
        raise Invalid(f"{path} is longer than {FILE_BYTES_MAX} bytes", hint=_HINT)
    try:
        prices = msgspec.convert(tomllib.loads(text.decode()), Prices)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise Invalid(f"{path}: {error}", hint=_HINT) from error
    for tier, price in msgspec.to_builtins(prices.per_gb_month).items():
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise Invalid(f"{path}: the price of {tier} is {price}", hint="a price is a number from 0 on")
    return prices
