"""The first start of a home, killed before each of its file operations: the next start completes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from stratalog.hot import HotLog
from stratalog.hot.home import Home
from stratalog.schemas.errors import Invalid

KILLED = textwrap.dedent("""
    import os, signal, sys
    from stratalog.hot import HotLog
    from stratalog.hot.home import Home

    home, operations_max = sys.argv[1], int(sys.argv[2])
    operations = 0

    def count(event, arguments):
        global operations
        if event in ("open", "os.mkdir", "os.link", "os.rename", "os.remove") and str(arguments[0]).startswith(home):
            operations += 1
            if operations > operations_max:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    opened = Home.open(home, create=True)
    opened.import_key("default")
    with HotLog.open(opened, role="import", serve=False) as log:
        log.start_blocking(tenant="default", task="the first")
    print(operations)
""")


def first_start(home: Path, operations_max: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, os.fspath(home), str(operations_max)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_next_start_completes_a_killed_first_one(tmp_path: Path) -> None:
    whole = first_start(tmp_path / "whole", 1_000)
    assert whole.returncode == 0, whole.stderr
    operations = int(whole.stdout)
    assert operations > 10
    for number in range(operations):
        home = tmp_path / f"killed-{number}"
        assert first_start(home, number).returncode == -signal.SIGKILL
        key = Home.open(home, create=True).import_key("default")
        with HotLog.open(home, role="import") as log:
            log.start_blocking(tenant="default", task="say hello")
        assert Home.open(home).import_key("default") == key
        assert len(Home.open(home).logs()) == 1


def test_many_processes_may_make_one_home(tmp_path: Path) -> None:
    homes: list[str] = []
    threads = [
        threading.Thread(target=lambda: homes.append(Home.open(tmp_path / "home", create=True).id)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(homes) == 8 and len(set(homes)) == 1


@pytest.mark.parametrize("name", ["notes.txt", "hot/notes.txt", "home.json.bak"])
def test_a_folder_with_something_foreign_is_still_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(Invalid, match="is not a stratalog home"):
        Home.open(tmp_path, create=True)


def test_every_name_on_the_way_to_the_log_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fspath(Path(f"/proc/self/fd/{descriptor}").readlink()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    home = tmp_path / "far" / "away"
    with HotLog.open(home) as log:
        log.start_blocking(tenant="default", task="say hello")
        folders = {tmp_path, home.parent, home, home / "hot", home / "hot" / str(log.log_id)}
        assert {os.fspath(folder) for folder in folders} <= synced
