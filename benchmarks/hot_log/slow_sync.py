"""A device whose syncs take longer: a library of a few lines that is preloaded into a stage."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path) -> Path | None:
    """The library, compiled into `folder`; `None` where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "slow_sync.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def variables(library: Path, delay_us: int) -> dict[str, str]:
    """The environment of a stage with such a device."""
    return {"LD_PRELOAD": str(library), "SLOW_SYNC_US": str(delay_us)}


def count() -> int:
    """How often this process has synced; only where the library is preloaded."""
    found: int = ctypes.CDLL(None).slow_sync_count()
    return found
