"""Trouble from outside: bad files, no permission, a full disk, missing extras, others at work. Nothing is lost."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_cli import EXAMPLES, Cli
from fix_history import message, started

from stratalog.hot import source
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas.errors import DiskBudgetExceeded, InDoubt, Invalid, Locked, MissingExtra

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
SESSION = EXAMPLES / "claude-code" / "c2a8d7a0-1d0e-4e6e-8d6b-7f0f1d2c3b4a.jsonl"
RECORDS = SESSION.read_text().splitlines()
LIBC = ctypes.CDLL(None)
MEMORY_MAX_MB = 600
LINE_MB = 50
# VmHWM, not ru_maxrss: that of a child begins with what its parent had.
MEASURED = "import sys, os, re; from stratalog.cli.app import run; code = run(sys.argv[1:]); " + (
    "peak_kb = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]; "
    "print(int(peak_kb) // 1024, file=sys.stderr); os._exit(code)"
)
# The tiers' own dependencies are not to be found, as after a plain `pip install stratalog`.
BASE_INSTALL = """
import importlib.abc, sys
class Hiding(importlib.abc.MetaPathFinder):
    hidden = "psycopg psycopg_pool pyarrow duckdb fsspec pyiceberg sqlalchemy dagster s3fs matplotlib pytz".split()
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in self.hidden else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


def record(content: str = "x", **changes: Any) -> dict[str, Any]:
    """A user's message, as Claude Code writes it."""
    line = json.loads(RECORDS[0]) | changes
    line["message"] = {"role": "user", "content": content}
    return line


def files() -> dict[str, bytes]:
    """Bad files by name, each of another session."""
    return {
        name: content.replace(SESSION.stem.encode(), str(uuid.uuid5(uuid.NAMESPACE_URL, name)).encode())
        for name, content in _files(SESSION.read_bytes()).items()
    }


def _files(sample: bytes) -> dict[str, bytes]:
    nested = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    deep = json.dumps(record()).encode()[:-1] + b', "deep": ' + nested + b"}"
    return {
        "empty.jsonl": b"",
        "blank.jsonl": b"\n\n \n",
        "nul.jsonl": b"\x00" * 4096,
        "image.jsonl": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
        "parquet.traj": b"PAR1" + b"\x00" * 100,
        "session-in-truth.traj": sample,
        "utf-16.jsonl": sample.decode().encode("utf-16"),
        "latin.jsonl": sample.replace(b"driver", b"dr\xefver"),
        "deep.jsonl": sample + deep + b"\n",
        "deep-document.json": nested,
        "nan.jsonl": sample + json.dumps(record(value=float("nan"))).encode() + b"\n",
        "huge-numbers.jsonl": sample + json.dumps(record(value=2**64, other=-(10**400))).encode() + b"\n",
        "surrogates.jsonl": sample + json.dumps(record("a\ud800b\x00c")).encode() + b"\n",
        "cut.jsonl": sample[: len(sample) // 2],
        "spaces in name \n.jsonl": sample,
    }


def test_bad_files_are_refused_or_counted_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    for name, content in files().items():
        (folder / name).write_bytes(content)
    (folder / "link.jsonl").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / b"not utf-8 \xff.jsonl".decode("utf-8", "surrogateescape")).write_bytes(b"")
    cli = Cli(tmp_path / "home")
    report = cli.json("import", folder, code=3)
    problems: dict[str, list[str]] = {}
    for problem in report["problems"]:
        problems.setdefault(Path(problem["file"]).name, []).append(problem["reason"])
    assert report["files"] == len(files()) + 3
    whole = {"session-in-truth.traj", "spaces in name \n.jsonl", "huge-numbers.jsonl", "nan.jsonl"}
    expected = set(files()) - whole | {"link.jsonl", "pipe.jsonl", "not utf-8 \\udcff.jsonl"}
    assert set(problems) - {"nan.jsonl", "huge-numbers.jsonl"} == expected
    assert report["events"] > len(RECORDS)
    assert cli("import", folder).code == 3
    assert cli.json("import", folder, code=3) == report | {"appended": 0}
    assert cli.json("verify")["ok"] is True


def test_what_is_odd_but_readable_reaches_every_tier_byte_for_byte(cli: Cli, tmp_path: Path) -> None:
    odd = record("tab\t nul\x00 bidi\u202e", big=2**64, negative=-(2**70), float=1e400, text="\x00")
    odd_text = json.dumps(odd).replace("Infinity", "1e400")
    (tmp_path / "odd.jsonl").write_text("\n".join([*RECORDS, odd_text]) + "\n")
    imported = cli.json("import", tmp_path / "odd.jsonl")
    assert imported["problems"] == []
    cli.json("sidecar", "--once")
    cli.json("consolidate", "--older-than", "0d")
    verified = cli.json("verify")
    assert verified["ok"] and len({tier["events"] for tier in verified["tiers"].values()}) == 1
    assert cli.json("sql", "select count(*) n from messages where text like '%nul%bidi%'") == [{"n": 1}]


@pytest.mark.parametrize("shape", ["session", "document"])
def test_a_line_of_50_mb_needs_bounded_memory(tmp_path: Path, shape: str) -> None:
    text = "0123456789abcdef" * (LINE_MB << 16)
    if shape == "session":
        file = tmp_path / "large.jsonl"
        file.write_text("\n".join([*RECORDS, json.dumps(record(text))]) + "\n")
    else:
        file = tmp_path / "large.traj"
        sample = json.loads((EXAMPLES / "swe-agent" / "slow-importer-3.traj").read_text())
        sample["trajectory"][0]["observation"] = text
        file.write_text(json.dumps(sample))
    command = [sys.executable, "-c", MEASURED, "import", file, "--home", tmp_path / "home", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["problems"] == [] and done.returncode == 0
    assert int(done.stderr) < MEMORY_MAX_MB
    cli = Cli(tmp_path / "home")
    (row,) = cli.json("trajectory", "list")
    assert f"{len(text):,} bytes" in cli("trajectory", "show", row["trajectory_id"]).out
    assert cli.json("verify")["blobs"] == {"checked": 1, "problems": []}


def test_two_imports_of_one_file_at_once(tmp_path: Path) -> None:
    cli, alone = Cli(tmp_path / "home"), Cli(tmp_path / "alone")
    both = [cli.start("import", EXAMPLES, "--json") for _ in range(2)]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    expected = alone.json("import", EXAMPLES)
    assert sum(report.pop("appended") for report in reports) == expected.pop("appended")
    assert reports == [expected, expected]
    assert cli.json("verify") == alone.json("verify")


@pytest.mark.parametrize("tenant", ["../x", "", "A", "a/b", "a" * 64, "a\x00b", ".", "tenant=a"])
def test_a_tenant_that_is_none(tmp_path: Path, tenant: str) -> None:
    cli = Cli(tmp_path / "home")
    error = cli.error("import", SESSION, "--tenant", tenant, code=1)
    assert error["code"] == Invalid.code and "tenant" in error["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["home"])
    assert not list(tmp_path.rglob("*.key"))


def drop_privileges() -> None:
    """Let the permissions of files hold for root too (PR_CAPBSET_DROP of DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER)."""
    for capability in (1, 2, 3):
        LIBC.prctl(24, capability, 0, 0, 0)


def test_without_permission(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "closed" / "home")
    cli.home.parent.mkdir(mode=0o500)
    said = cli.process("import", SESSION, "--json", preexec_fn=drop_privileges)
    assert said.code == 1 and said.error["code"] == Invalid.code and said.error["hint"]
    cli.home.parent.chmod(0o700)
    assert cli("import", SESSION).code == 0
    cli.home.chmod(0o000)  # as the home of somebody else
    for command in ("status", "import", "verify", "sidecar", "doctor"):
        arguments = [command, SESSION] if command == "import" else [command]
        said = cli.process(*arguments, "--json", preexec_fn=drop_privileges)
        assert said.code == 1 and "denied" in said.error["message"].lower() and said.error["hint"], command
    cli.home.chmod(0o700)
    database = next((cli.home / "hot").iterdir()) / "db"
    database.chmod(0o500)
    said = cli.process("import", EXAMPLES, "--json", preexec_fn=drop_privileges)
    assert said.code == 1 and said.error["hint"]
    database.chmod(0o700)
    assert cli.json("import", SESSION)["appended"] == 0


def test_an_unreadable_file_is_a_problem_of_that_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("readable.jsonl", "secret.jsonl"):
        shutil.copy(SESSION, tmp_path / "in" / name)
    (tmp_path / "in" / "secret.jsonl").chmod(0o000)
    said = Cli(tmp_path / "home").process("import", tmp_path / "in", "--json", preexec_fn=drop_privileges)
    assert said.code == 3 and said.document["trajectories"] == 1
    (problem,) = said.document["problems"]
    assert "secret" in problem["file"] and "Permission denied" in problem["reason"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("reserve", ["0.05", "0"])
def test_a_full_disk(small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserve: str) -> None:
    monkeypatch.setenv("STRATALOG_HOT__DISK_FREE_MIN", reserve)
    sessions = tmp_path / "in"
    sessions.mkdir()
    for number in range(8):
        lines = [json.dumps(record(f"{at} " * 2000, uuid=f"{number}-{at}", sessionId=str(number))) for at in range(400)]
        (sessions / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    cli = Cli(small_disk / "home")
    said = cli.process("import", sessions, "--json")
    assert said.code == 1 and said.error["code"] in (DiskBudgetExceeded.code, InDoubt.code)
    assert said.error["hint"]
    # More of the same changes nothing and says the same; reading goes on.
    assert cli.process("import", sessions, "--json").code == 1
    assert "Traceback" not in cli("verify").err, "opening may need room too"
    subprocess.run(["mount", "-o", "remount,size=400m", small_disk], check=True)
    acknowledged = cli.json("verify")
    assert acknowledged["ok"] is True and acknowledged["tiers"]["hot"]["events"] > 0
    report = cli.json("import", sessions)
    assert report["problems"] == [] and report["appended"] == report["events"] - acknowledged["tiers"]["hot"]["events"]
    verified = cli.json("verify")
    assert verified["ok"] is True and verified["tiers"]["hot"]["events"] == report["events"]


def test_a_base_install_says_what_to_install(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    assert "Usage" in cli.process("--help", prelude=BASE_INSTALL).out
    said = cli.process("import", SESSION, "--json", prelude=BASE_INSTALL)
    assert said.code == 0 and said.document["trajectories"] == 1
    assert cli.process("config", "show", "--json", prelude=BASE_INSTALL).code == 0
    commands = {
        "sidecar --once": "warm",
        "consolidate": "cold",
        "verify": "cold",
        "status": "warm",
        "trajectory list": "warm",
        "quarantine list": "warm",
        "demo": "all",
        "dagster": "pipelines",
    }
    for command, extra in {**commands, "sql 'select 1'": "cold"}.items():
        arguments = ["sql", "select 1"] if command.startswith("sql") else command.split()
        said = cli.process(*arguments, "--json", prelude=BASE_INSTALL)
        assert said.code == 1 and said.error["code"] == MissingExtra.code, command
        assert said.error["hint"] == f"install it with: pip install 'stratalog[{extra}]'", command
    checks = {
        check["name"]: check for check in cli.process("doctor", "--json", prelude=BASE_INSTALL).document["checks"]
    }
    assert "pip install" in checks["postgres"]["detail"] and checks["logs"]["ok"]


def test_a_server_that_is_too_old(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratalog.warm import migrate

    monkeypatch.setattr(migrate, "SERVER_VERSION_MIN", 990000)
    for command in ("sidecar --once", "trajectory list", "verify"):
        error = cli.error(*command.split(), code=1)
        assert "needs 99 or newer" in error["message"] and error["hint"]
    monkeypatch.undo()
    assert cli.json("sidecar", "--once")["trajectories"] == 1


@pytest.mark.parametrize("command", ["trajectory list", "--help", "config show", "sql --init"])
def test_a_closed_pipe(filled: Cli, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = filled.start(*command.split(), stdout=writing)
    os.close(writing)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 1) and errors == ""


def test_reading_while_a_worker_appends(cli: Cli) -> None:
    stop, appended = threading.Event(), 0
    with HotLog.open(Home.open(cli.home)) as log:
        trajectory = log.start_blocking(tenant="default", body=started())

        def work() -> None:
            nonlocal appended
            while not stop.is_set():
                log.append_blocking(trajectory, message("busy"))
                appended += 1
                stop.wait(0.002)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for command in ("status", "trajectory list", f"trajectory show {trajectory}", "verify"):
                before = appended
                said = cli.process(*command.split(), "--json")
                assert said.code == 0 and appended > before, said
            assert {entry["owned"] for entry in cli.json("status")["logs"]} == {True, False}
            assert cli.process("sidecar", "--once", "--json").document["events"] > 0
        finally:
            stop.set()
            worker.join()
    assert cli.json("trajectory", "show", str(trajectory))["events"] == appended + 1


def test_a_log_that_does_not_answer_is_locked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CONNECT_TIMEOUT_S", 0.2)
    with HotLog.open(Home.open(cli.home), serve=False) as log:
        error = cli.error("trajectory", "list", code=11)
        assert error["code"] == Locked.code and str(os.getpid()) in error["message"]
        assert cli.json("status")["logs"][-1]["error"]["code"] == Locked.code
        log.start_blocking(tenant="default", body=started())
    assert len(cli.json("trajectory", "list")) == 2


def test_a_reader_yields_to_a_worker(cli: Cli) -> None:
    with HotLog.open(Home.open(cli.home), serve=False) as log:
        log_id, trajectory = log.log_id, log.start_blocking(tenant="default", body=started())
        for _ in range(100):
            log.append_blocking(trajectory, message("x"))
    slow = "import time\nfrom stratalog.cli import trajectories\nshown = trajectories.describe\n" + (
        "trajectories.describe = lambda body: (time.sleep(0.02), shown(body))[1]"
    )
    reader = cli.start("trajectory", "show", str(trajectory), prelude=slow)
    try:
        assert reader.stdout is not None
        while "TaskStarted" not in reader.stdout.readline():
            assert reader.poll() is None
        began = time.monotonic()
        with HotLog.open(Home.open(cli.home), log_id=log_id, serve=False) as log:
            waited = time.monotonic() - began
            log.append_blocking(trajectory, message("y"))
    finally:
        _, errors = reader.communicate(timeout=60)
    assert "Traceback" not in errors
    assert waited < 3


@pytest.mark.parametrize(("times", "code"), [(2, 0), (1000, 11)])
def test_a_verification_that_gave_way_starts_again(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, times: int, code: int
) -> None:
    answers = iter([True] * times)
    monkeypatch.setattr(source, "wanted", lambda folder: next(answers, False))
    found = cli.json("verify", code=code)
    assert found["ok"] is True if code == 0 else found["error"]["code"] == Locked.code
