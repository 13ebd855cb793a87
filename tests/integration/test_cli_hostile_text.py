"""Foreign text never acts on a terminal: names, models, labels, file names, outputs, errors; JSON stays JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_cli import EXAMPLES, Cli, Said, call, database_of

from stratalog.warm.server import EmbeddedPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
SAMPLE = EXAMPLES / "claude-code" / "c2a8d7a0-1d0e-4e6e-8d6b-7f0f1d2c3b4a.jsonl"
ATTACK = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egpj.exe\u2066\x00\r\x08\nsecond line\u2028\u200b\ufeff[bold red]"
FILE_ATTACK = "\x1b[2Jevil\u202e\nname\x9b31m.jsonl"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
KEPT = {
    "type",
    "uuid",
    "parentUuid",
    "sessionId",
    "timestamp",
    "id",
    "tool_use_id",
    "role",
    "stop_reason",
    "userType",
    "version",
}


def poisoned(value: Any, key: str = "") -> Any:
    """The same record with the attack behind every text that is not part of its structure."""
    if isinstance(value, dict):
        return {name: poisoned(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [poisoned(entry, key) for entry in value]
    return f"{value}{ATTACK}" if isinstance(value, str) and key not in KEPT else value


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres) -> Iterator[Cli]:
    """A home with a trajectory whose every text is an attack, in all tiers."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "in").mkdir()
    lines = [poisoned(json.loads(line)) for line in SAMPLE.read_text().splitlines()]
    text = "".join(json.dumps(line) + "\n" for line in lines) + json.dumps({"type": ATTACK, ATTACK: 1}) + "\n\x1b[2J{\n"
    (folder / "in" / FILE_ATTACK).write_text(text)
    (folder / "in" / f"empty{FILE_ATTACK}").write_text("")
    with database_of(postgres_server) as dsn:
        cli = Cli(folder / "home")
        harmless(cli("import", folder / "in"), 3)
        harmless(cli("import", folder / "in", "--json"), 3)
        cli.use(dsn)
        harmless(cli("sidecar", "--once"))
        harmless(cli("consolidate", "--older-than", "0d"))
        yield cli


def harmless(said: Said, code: int = 0) -> Said:
    assert said.code == code, said
    assert ACTING.findall(said.out) == [] and ACTING.findall(said.err) == []
    return said


def both(cli: Cli, *arguments: str, code: int = 0) -> Any:
    """Run a command in words and as JSON; returns the document."""
    harmless(cli(*arguments), code)
    return harmless(cli(*arguments, "--json"), code).document


def test_the_attack_is_shown_as_text(attacked: Cli) -> None:
    assert ACTING.search(ATTACK) and ACTING.search(FILE_ATTACK)
    spoken = harmless(attacked("trajectory", "list")).out
    assert "\\x1b[2J" in spoken and "\\u202e" in spoken


def test_lists_and_the_trajectory_itself(attacked: Cli) -> None:
    (row,) = both(attacked, "trajectory", "list")
    assert "\x1b[2J" in row["model"] and "\x9b" in row["source"]["name"], "JSON keeps what was there"
    shown = both(attacked, "trajectory", "show", row["trajectory_id"])
    assert "\u202e" in json.dumps(shown["event_list"], ensure_ascii=False)
    lines = harmless(attacked("trajectory", "show", row["trajectory_id"])).out.splitlines()
    assert len(lines[lines.index("") + 2 :]) == row["events"], "a newline in a text makes no line"
    harmless(attacked("trajectory", "show", row["trajectory_id"], "--full"))


@pytest.mark.parametrize("view", ["trajectories", "messages", "tool_calls", "events"])
def test_sql(attacked: Cli, view: str) -> None:
    assert both(attacked, "sql", f"select * from {view}")


def test_sql_with_hostile_names_and_errors(attacked: Cli) -> None:
    (row,) = both(attacked, "sql", "select chr(27) || '[2J' as \"a\x1b[2J\u202e\"")
    assert row == {"a\x1b[2J\u202e": "\x1b[2J"}
    both(attacked, "sql", "select \x1b[2J\u202e", code=1)


def test_everything_else(attacked: Cli) -> None:
    for command in ("status", "verify", "doctor", "config show --origin", "quarantine list"):
        both(attacked, *command.split())
    assert both(attacked, "verify")["ok"] is True


@pytest.mark.parametrize(
    "arguments",
    [
        (ATTACK.replace("\x00", ""),),
        ("import", "x", "--format", "a\x1b[2J\u202e"),
        ("import", "missing\x1b[2J\u202e\n.jsonl"),
        ("trajectory", "show", "\x1b[2J"),
        ("trajectory", "list", "--status", "\x1b[2J\u202e"),
        ("import", "x", "--tenant", "../\x1b[2J"),
        ("status", "--dsn", "host=\x1b[2J"),
        ("verify", "--dsn", "\x9b31m\u202e"),
    ],
)
def test_arguments(attacked: Cli, arguments: tuple[str, ...]) -> None:
    spoken, said = attacked(*arguments), attacked(*arguments, "--json")
    harmless(spoken, spoken.code)
    assert harmless(said, spoken.code).document is not None


def test_a_hostile_home(tmp_path: Path) -> None:
    hostile = Cli(tmp_path / "a\x1b[2J\u202e\nb")
    harmless(hostile("status"), 10)
    assert harmless(call("status", "--home", hostile.home, "--json"), 10).error["code"] == "home_missing"
    harmless(hostile("import", SAMPLE))
    both(hostile, "doctor", code=1)  # a lake cannot lie at such a place
    both(hostile, "status")
