"""Optional dependencies, imported when first needed so that the base install stays light."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtra


def require(module: str, extra: str) -> Any:
    """Import `module`, or raise `MissingExtra` that names the pip command for `extra`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(module, extra) from error
