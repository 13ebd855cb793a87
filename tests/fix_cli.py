"""The command line as users call it: inside this process, because Python starts slowly, or as one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stratalog.cli.app import run
from stratalog.warm.server import EmbeddedPostgres

EXAMPLES = Path(__file__).parents[1] / "examples" / "trajectories"


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error that the document is."""
        assert set(self.document) == {"error"} and set(self.document["error"]) == {"code", "message", "hint"}
        found: dict[str, str] = self.document["error"]
        return found


def call(*arguments: str | Path) -> Said:
    """Run a command in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run([os.fspath(argument) for argument in arguments])
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
    said = Said(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]
    assert "Traceback" not in said.err
    return said


def _heed_interrupts() -> None:
    """Undo what a shell that runs the tests in the background has set: an ignored SIGINT is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class Cli:
    """The command line on one home."""

    home: Path

    def __call__(self, *arguments: str | Path) -> Said:
        return call(*arguments, "--home", self.home)

    def json(self, *arguments: str | Path, code: int = 0) -> Any:
        """The document of a command that must end with `code`."""
        said = call(*arguments, "--home", self.home, "--json")
        assert said.code == code, said
        return said.document

    def error(self, *arguments: str | Path, code: int) -> dict[str, str]:
        """The error of a command that must end with `code`; in words it is the same, on stderr."""
        said = call(*arguments, "--home", self.home, "--json")
        assert said.code == code, said
        spoken = self(*arguments)
        assert (spoken.code, spoken.out) == (code, "")
        assert spoken.err.splitlines()[-1].startswith("hint: ") or not said.error["hint"]
        return said.error

    def start(self, *arguments: str | Path, prelude: str = "", **options: Any) -> subprocess.Popen[str]:
        """Start a command as a process of its own; `prelude` is Python that runs before it."""
        program = ["-c", f"{prelude}\nfrom stratalog.cli import main\nmain()"] if prelude else ["-m", "stratalog"]
        command = [sys.executable, *program, *arguments, "--home", self.home]
        streams = {"preexec_fn": _heed_interrupts, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(command, text=True, **streams)  # type: ignore[call-overload,no-any-return]

    def process(self, *arguments: str | Path, prelude: str = "", **options: Any) -> Said:
        """Run a command as a process of its own, to its end."""
        process = self.start(*arguments, prelude=prelude, **options)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in (err or "")
        return Said(process.returncode, out or "", err or "")

    def use(self, dsn: str) -> None:
        """Let the home use this Postgres."""
        (self.home / "stratalog.toml").write_text(f'[warm]\ndsn = "{dsn}"\n')


@contextlib.contextmanager
def database_of(server: EmbeddedPostgres, template: str | None = None) -> Iterator[str]:
    """The DSN of a new database, a copy of that of the DSN `template` if one is given."""
    name = sql.Identifier(f"cli_{uuid.uuid4().hex}")
    made = sql.SQL("CREATE DATABASE {}").format(name)
    if template is not None:
        made += sql.SQL(" TEMPLATE {}").format(sql.Identifier(str(conninfo_to_dict(template)["dbname"])))
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(made)
    try:
        yield make_conninfo(server.dsn, dbname=name.as_string().strip('"'))
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    """A new home with a Postgres of its own."""
    made = Cli(tmp_path / "home")
    assert made("import", EXAMPLES / "swe-agent" / "slow-importer-3.traj").code == 0
    made.use(database)
    return made


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres) -> Iterator[Cli]:
    """A home with the sample trajectories in all tiers, for tests that only look."""
    with database_of(postgres_server) as dsn:
        made = Cli(tmp_path_factory.mktemp("filled") / "home")
        made.json("import", EXAMPLES)
        made.use(dsn)
        made.json("sidecar", "--once")
        made.json("consolidate", "--older-than", "0d")
        yield made


@pytest.fixture
def broken(tmp_path: Path, filled: Cli, postgres_server: EmbeddedPostgres) -> Iterator[Cli]:
    """A copy of that home and of its database, to damage; its cold tier stays where it was."""
    home = shutil.copytree(filled.home, tmp_path / "broken", ignore=shutil.ignore_patterns("*.sock"))
    template = next(line for line in (filled.home / "stratalog.toml").read_text().splitlines() if "dsn" in line)
    with database_of(postgres_server, template.split('"')[1]) as dsn:
        (home / "stratalog.toml").write_text(
            f'[warm]\ndsn = "{dsn}"\n[cold]\nurl = "file://{filled.home}/cold"\ncas_url = "file://{home}/cas"\n'
        )
        yield Cli(home)
