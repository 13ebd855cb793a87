"""Appends stop before the disk does: a full disk would leave events in doubt, a refused append is simply not done."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stratalog.schemas.errors import DiskBudgetExceeded

CHECK_INTERVAL_S = 0.05


class DiskBudget:
    """Watches the free share of the disk under a folder."""

    def __init__(self, folder: Path | None, free_min: float) -> None:
        self._folder = folder
        self._free_min = free_min
        self._checked_at = 0.0
        self._full: str | None = None

    def check(self) -> None:
        """Raise `DiskBudgetExceeded` where less than the share `disk_free_min` is free."""
        now = time.monotonic()
        if self._folder is not None and now - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = now
            disk = os.statvfs(self._folder)
            share = disk.f_bavail / disk.f_blocks if disk.f_blocks else 1.0
            self._full = f"only {share:.1%} of the disk of {self._folder} is free" if share < self._free_min else None
        if self._full is not None:
            raise DiskBudgetExceeded(f"{self._full}, less than disk_free_min ({self._free_min:.1%})")
