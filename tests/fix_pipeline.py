"""The pipeline as its users drive it: each command a process of its own that may be killed, and what all of it leaves.

`Outcome` is everything that must not depend on what happened on the way; `differences` compares two of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stratalog.cold.installation import Installation
from stratalog.cold.query import connect, run_sql
from stratalog.cold.snapshot import snapshot_files
from stratalog.cold.views import VIEWS
from stratalog.hot.home import Home
from stratalog.hot.source import open_reader
from stratalog.schemas.errors import Corrupt
from stratalog.warm import queries
from stratalog.warm.server_folder import ServerFolder

IMPORT_KEY = bytes(range(32))
"""With the same key, the same sources have the same hashes in every home."""
STEPS = ("import", "sidecar", "consolidate")
VICTIMS = ("process", "postgres", "both")
ATTEMPTS_MAX = 6
COMMAND_TIMEOUT_S = 120
PASSING_ERRORS = {"unavailable", "locked"}
"""What a command may say when its server was killed: errors that tell the user to run it again."""
RUN = "\nfrom stratalog.cli import main\nmain()\n"

Heads = tuple[tuple[str, int, str], ...]
"""Of every trajectory its id, the number of its last event, and that event's hash."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What stands at the end of the pipeline."""

    imported: dict[str, int]
    verified: dict[str, Any]
    heads: Heads
    consolidated: Heads
    quarantined: int
    contents: tuple[tuple[str, str], ...]
    views: dict[str, tuple[int, str]]
    """Rows of each view, and a digest over all their values."""
    events_lost_or_added_by_repeating: int
    files_outside_of_the_table: int


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """The fields in which they differ, with both values."""
    pairs = [(one.name, getattr(expected, one.name), getattr(found, one.name)) for one in fields(Outcome)]
    return [f"{name}: {before} became {after}" for name, before, after in pairs if before != after]


@dataclass(slots=True)
class Pipeline:
    """The commands on one home. `sabotage` is Python that runs in each process before the command."""

    home: Path
    sources: Path
    sabotage: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    kills: int = 0

    def __post_init__(self) -> None:
        Home.open(self.home, create=True).adopt_import_key("default", IMPORT_KEY)

    @property
    def installation(self) -> Installation:
        return Installation(Home.open(self.home))

    def start(self, step: str) -> subprocess.Popen[bytes]:
        arguments = {
            "import": ["import", os.fspath(self.sources)],
            "sidecar": ["sidecar", "--once"],
            "follow": ["sidecar"],
            "consolidate": ["consolidate", "--older-than", "0d"],
            "verify": ["verify"],
        }[step]
        program = ["-c", self.sabotage + RUN] if self.sabotage else ["-m", "stratalog"]
        return subprocess.Popen(
            [sys.executable, *program, *arguments, "--json", "--home", os.fspath(self.home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | self.environment,
            start_new_session=True,
        )

    def run(self, step: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run a command undisturbed, to its end."""
        code, document = self._ended(self.start(step))
        assert code in codes, f"{step} ended with {code}: {document}"
        return document

    def finish(self, step: str) -> dict[str, Any]:
        """Run the same command until it succeeds, as a user would; only passing errors may come in between."""
        for _ in range(ATTEMPTS_MAX):
            code, document = self._ended(self.start(step))
            if code == 0:
                return document
            self._check_passing(step, document)
        raise AssertionError(f"{step} did not succeed in {ATTEMPTS_MAX} attempts: {document}")

    def disturb(self, step: str, victims: Sequence[str], duration_s: float, source: random.Random) -> None:
        """Run a command once for each victim, which is killed at a random moment of its `duration_s`."""
        for victim in victims:
            while not self._killed(step, victim, moment(source, duration_s)):
                duration_s /= 2  # it had ended: there is less to do by now, or the machine has become faster

    def _killed(self, step: str, victim: str, delay_s: float) -> bool:
        """Start a command and kill the victim after `delay_s`; false if the command has ended by then."""
        process = self.start(step)
        try:
            self._ended(process, delay_s)
            return False
        except subprocess.TimeoutExpired:
            self.kills += 1
        if victim != "process":
            kill_postgres(self.home)
        if victim != "postgres":
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return True
        code, document = self._ended(process)
        if code != 0:
            self._check_passing(step, document)
        return True

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """A sidecar that follows the logs, and is killed at the end."""
        process = self.start("follow")
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _ended(self, process: subprocess.Popen[bytes], timeout_s: float = COMMAND_TIMEOUT_S) -> tuple[int, Any]:
        output, errors = process.communicate(timeout=timeout_s)
        assert b"Traceback" not in errors, errors.decode()
        return process.returncode, json.loads(output)

    def _check_passing(self, step: str, document: Any) -> None:
        assert document.get("error", {}).get("code") in PASSING_ERRORS, f"{step}: {document}"

    def outcome(self) -> Outcome:
        """Look at everything, after running the first two commands once more: that must not change anything."""
        again = self.run("import")
        installation = self.installation
        with installation.postgres():
            moved = self.run("consolidate")["events"]
            verified = self.run("verify", (0, Corrupt.exit_code))
            with installation.connection() as conn:
                heads = list(queries.trajectories(conn))
                quarantined = queries.counts(conn).quarantined
            store = installation.content_store()
            contents = tuple((tenant, digest) for tenant in store.tenants() for digest in store.digests(tenant))
            views, listed = _views(installation.home), set(snapshot_files(installation.home))
            with installation.lake() as lake:
                files = {f"{lake.url}/{file.path}" for file in lake.files()}
        del verified["tiers"]["hot"]["events"], verified["tiers"]["hot"]["trajectories"]  # depends on what was pruned
        verified["blobs"].pop("checked")
        return Outcome(
            imported={name: again[name] for name in ("files", "trajectories", "events", "opaque_events")},
            verified=verified,
            heads=_sorted((head.trajectory_id, head.head.sequence_number, head.head.hash) for head in heads),
            consolidated=_sorted(
                (head.trajectory_id, head.consolidated.sequence_number, head.consolidated.hash) for head in heads
            ),
            quarantined=quarantined,
            contents=contents,
            views=views,
            events_lost_or_added_by_repeating=again["appended"] + moved,
            files_outside_of_the_table=len({file for file in files if file.endswith(".parquet")} ^ listed),
        )

    def hot_heads(self) -> Heads:
        """The heads in the hot logs of the home."""
        found = []
        for log_id in self.installation.home.log_ids():
            reader = open_reader(self.installation.home, log_id)
            found += [(head.trajectory_id, head.sequence_number, head.hash) for head in reader.heads()]
            reader.close()
        return _sorted(found)

    def warm_heads(self) -> Heads:
        """The heads of the canonical histories."""
        with self.installation.connection() as conn:
            return _sorted(
                (head.trajectory_id, head.head.sequence_number, head.head.hash) for head in queries.trajectories(conn)
            )


def _sorted(heads: Any) -> Heads:
    return tuple(sorted((str(identity), number, digest.hex()) for identity, number, digest in heads))


def _views(home: Home) -> dict[str, tuple[int, str]]:
    found = {}
    with connect(home) as connection:
        for view in VIEWS:
            query = f"SELECT count(*) AS n, coalesce(sum(hash(v)), 0)::VARCHAR AS digest FROM {view} v"
            row = run_sql(connection, query)[0]
            found[view] = (row["n"], row["digest"])
    return found


def kill_postgres(home: Path) -> None:
    """kill -9 of the main process of this home's server, if there is one."""
    folder = ServerFolder((home / "pg").resolve())
    pid = folder.postmaster()
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            # The descriptor stands for one process: what is asked of it now holds for the signal too.
            if folder.postmaster() == pid:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def measured(pipeline: Pipeline, steps: tuple[str, ...] = STEPS) -> dict[str, float]:
    """Run the steps undisturbed; how long each took, in seconds."""
    seconds = {}
    for step in steps:
        started = time.monotonic()
        pipeline.run(step)
        seconds[step] = time.monotonic() - started
    return seconds


def moment(source: random.Random, duration_s: float) -> float:
    """A random moment within a command's duration, rather while it works than while Python starts."""
    return source.triangular(0, duration_s, 0.7 * duration_s)


def fresh(folder: Path) -> Path:
    """A new place for a home."""
    return folder / uuid.uuid4().hex[:8]
