"""The quickstart does what it shows: its commands, in order, in an empty folder, print what stands below them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _sessions() -> Iterator[tuple[str, list[str]]]:
    """The commands of the quickstart with the lines that it shows for each."""
    for block in _CONSOLE.findall((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield command, shown


def _pattern(shown: list[str]) -> re.Pattern[str]:
    """What must be printed: `…` stands for anything, runs of spaces are one."""
    text = "\n".join(" ".join(line.split()) for line in shown)
    return re.compile(re.escape(text).replace("…", ".*"), re.DOTALL)


def _plain(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.postgres
def test_the_quickstart_prints_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATALOG_")}
    sessions = list(_sessions())
    assert len(sessions) >= 6
    for command, shown in sessions:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            cwd=tmp_path,
            env={**environment, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert shown, command
        assert _pattern(shown).fullmatch(_plain(done.stdout)), f"{command} prints:\n{done.stdout}"
