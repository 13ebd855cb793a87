"""Mounting for tests: what is mounted is unmounted again, also after a failed test."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

UNMOUNT_TIMEOUT_S = 10.0


def command(*arguments: str | os.PathLike[str]) -> str:
    """Run a program; returns its output, raises with what it said where it fails."""
    ended = subprocess.run([os.fspath(argument) for argument in arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError(f"{arguments[0]} failed: {ended.stderr.strip()}")
    return ended.stdout.strip()


def missing(*programs: str, device: str = "") -> str:
    """Why disks cannot be mounted here; empty where they can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    for program in programs:
        if shutil.which(program) is None and not Path("/usr/sbin", program).exists():
            return f"{program} is not installed"
    if device and not Path(device).exists():
        return f"the kernel has no {device}"
    return ""


def unmount(place: Path) -> None:
    """Unmount; a process that was just killed may hold on for a moment."""
    deadline = time.monotonic() + UNMOUNT_TIMEOUT_S
    while os.path.ismount(place):
        try:
            command("umount", place)
        except OSError:
            if time.monotonic() > deadline:
                command("umount", "--lazy", place)
                raise
            time.sleep(0.01)
