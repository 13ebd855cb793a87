"""Runs every example, each in a process and a home of its own; prints one line per example. `make examples` calls it.

The exit code is 1 where an example failed; what it printed is then shown. Nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
EXAMPLES = ("embed_worker.py", "crash_and_recover.py", "query_cold.py")
TIMEOUT_S = 300


def run(name: str) -> tuple[bool, str]:
    """Run one example in a temporary home; whether it worked, and what it printed."""
    with tempfile.TemporaryDirectory(prefix="stratalog-example-") as folder:
        home = Path(folder) / "home"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STRATALOG_")}
        try:
            done = subprocess.run(
                [sys.executable, str(FOLDER / name), str(home)],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return False, f"did not end within {TIMEOUT_S} s\n{error.stdout or ''}"
    return done.returncode == 0, done.stdout


def main() -> int:
    failed = 0
    for name in EXAMPLES:
        started = time.monotonic()
        worked, output = run(name)
        failed += not worked
        print(f"{'ok    ' if worked else 'FAILED'}  {name:<22} {time.monotonic() - started:5.1f} s", flush=True)
        if not worked:
            print(output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
