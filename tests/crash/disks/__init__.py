"""Disks that crash: a loop image whose file system is shut down, one with a volatile cache, and a shim that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """A mounted file system whose power can be cut; `path` is where it is mounted."""

    path: Path

    def renew(self) -> None:
        """Begin with an empty file system."""

    def cut_power(self) -> None:
        """Stop at once: what has not reached the device is gone."""

    def restart(self) -> None:
        """Mount what is left, as after a power failure. Nobody may use it."""
