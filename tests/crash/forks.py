"""A server that forks children which have everything imported: a child starts in milliseconds and may be killed.

The server itself opens no log and has one thread, so a fork of it is a clean process. Children die with it, and it
dies with the test. What a child returns, or its traceback, comes back through a file outside the disk under test.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
PRELOADED = ("crash.writer", "crash.checker", "crash.damage", "crash.workloads")
TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1


class Child:
    """A forked process that runs one function."""

    def __init__(self, forks: Forks, pid: int, outcome: Path) -> None:
        self.pid = pid
        self._forks = forks
        self._outcome = outcome
        self.status: int | None = None

    def kill(self) -> int:
        """SIGKILL it; returns its exit status, negative for a signal."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait until it has ended."""
        if self.status is None:
            self.status = self._forks.ask(wait=self.pid, timeout_s=timeout_s)
        return self.status

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        if self.status is None:
            self.status = self._forks.ask(wait=self.pid, timeout_s=0)
        return self.status is not None

    def result(self) -> Any:
        """What its function returned; raises `AssertionError` with its traceback where it raised."""
        status = self.wait()
        if status is None:
            self.kill()
            raise AssertionError(f"the child did not end within {TIMEOUT_S:g} s")
        outcome = self._read()
        if "result" not in outcome:
            raise AssertionError(outcome.get("traceback") or f"the child ended with {status} and said nothing")
        return outcome["result"]

    def traceback(self) -> str:
        """The traceback of what its function raised; empty where it did not."""
        return str(self._read().get("traceback", ""))

    def _read(self) -> dict[str, Any]:
        try:
            outcome: dict[str, Any] = json.loads(self._outcome.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return outcome


class Forks:
    """Starts children; `environment` is what they see beside the test's own."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._number = 0
        paths = [os.fspath(TESTS), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONWARNINGS": "ignore::DeprecationWarning"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "crash.forks"],
            env={**os.environ, **own, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, function: str, environment: Mapping[str, str] | None = None, **arguments: Any) -> Child:
        """Fork a child that calls `module:function` with these arguments (what JSON can hold)."""
        self._number += 1
        outcome = self._folder / f"outcome-{self._number % 16}.json"
        outcome.unlink(missing_ok=True)
        pid = self.ask(
            run=function, arguments=arguments, environment=dict(environment or {}), outcome=os.fspath(outcome)
        )
        return Child(self, pid, outcome)

    def ask(self, **question: Any) -> Any:
        """One line to the server, one line back."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise AssertionError(f"the server of forks has ended with {self._server.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """End the server, and with it every child."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(TIMEOUT_S)
        self._server.stdout.close()


@contextmanager
def forking(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Forks]:
    """A server of forks, ended with the block."""
    forks = Forks(folder, environment)
    try:
        yield forks
    finally:
        forks.close()


def _die_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve() -> None:
    _die_with_the_parent()
    for name in PRELOADED:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        answer = _wait(question["wait"], question["timeout_s"]) if "wait" in question else _fork(question)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _fork(question: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _be_the_child(question)
    return pid


def _be_the_child(question: dict[str, Any]) -> None:
    status = 1
    try:
        _die_with_the_parent()
        os.environ.update(question["environment"])
        module, name = question["run"].split(":")
        outcome: dict[str, Any] = {"result": getattr(importlib.import_module(module), name)(**question["arguments"])}
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the test must hear of it
        outcome = {"traceback": traceback.format_exc()}
    try:
        Path(question["outcome"]).write_text(json.dumps(outcome))
    finally:
        os._exit(status)


def _wait(pid: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while True:
        waited, status = os.waitpid(pid, os.WNOHANG)
        if waited:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.001)


if __name__ == "__main__":
    _serve()
