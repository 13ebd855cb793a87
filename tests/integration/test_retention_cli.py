"""`stratalog retention` and `stratalog hold` as people use them, with text that is hostile."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from fix_cli import EXAMPLES, Cli

from stratalog.schemas.errors import Invalid, NotFound

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
SESSION = EXAMPLES / "claude-code" / "c2a8d7a0-1d0e-4e6e-8d6b-7f0f1d2c3b4a.jsonl"
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egpj.exe\u2066\r\nsecond line\u200b[bold red]"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


@pytest.fixture
def kept(tmp_path: Path, database: str) -> Cli:
    """A home with one imported trajectory in all tiers."""
    made = Cli(tmp_path / "kept")
    assert made.json("import", SESSION)["trajectories"] == 1
    made.use(database)
    made.json("sidecar", "--once")
    assert made.json("consolidate", "--older-than", "0d")["trajectories"] == 1
    return made


def write(cli: Cli, text: str) -> None:
    (cli.home / "retention.toml").write_text(text)


def test_from_no_policy_to_rows_that_have_gone(kept: Cli) -> None:
    said = kept("retention", "plan")
    assert said.code == 0 and "no policy is in force, nothing is ever deleted" in said.out
    assert "nothing is ever deleted" in kept("retention", "apply").out
    assert kept.json("retention", "plan")["file"] == "none"
    detail = {check["name"]: check["detail"] for check in kept.json("doctor")["checks"]}["retention"]
    assert "no policy is in force, so nothing is ever deleted" in detail and "a day" in detail

    write(kept, '[[policy]]\nname = "all"\nwarm = "0d"\ncold = "5000w"\n')
    assert kept.json("retention", "plan")["file"] == "differs"
    said = kept("retention", "load")
    assert said.out == "version 1 with 1 policy is in force now\n"
    assert kept.json("retention", "load")["new"] is False

    plan = kept.json("retention", "plan")
    assert (plan["file"], plan["version"], plan["policies"]) == ("same", 1, 1)
    assert plan["executed_tiers"] == ["warm", "cold", "bulky"]
    (line,) = plan["due"]
    assert (line["tier"], line["tenant"], line["policy"], line["version"]) == ("warm", "default", "all", 1)
    assert line["keeps"] == "" and line["trajectories"] == 1 and line["events"] > 0 and line["bytes"] > 0
    assert [(one["tier"], one["within_7_days"]) for one in plan["upcoming"]] == [("cold", 0)]
    said = kept("retention", "plan")
    assert "would be deleted" in said.out and "all (version 1)" in said.out and "what comes next" in said.out
    assert "hot: each hot log forgets by itself" in said.err

    held = kept("hold", "add", "case-1", "--tenant", "default", "--reason", "a letter", "--by", "counsel")
    assert held.out == "hold 1 of matter case-1 covers 1 trajectory\n"
    said = kept("retention", "apply")
    assert said.code == 0 and "nothing to delete" in said.out and "held by case-1" in said.out
    assert kept.json("retention", "apply")["kept"][0]["matters"] == ["case-1"]
    assert kept.json("hold", "release", "case-1", "--reason", "settled")["released"] == [1]

    done = kept.json("retention", "apply")
    assert done["trajectories"] == 1 and done["events"] == line["events"] and done["bytes"] == line["bytes"]
    assert kept.json("retention", "apply")["trajectories"] == 0
    assert kept.json("verify")["ok"] is True
    (listed,) = kept.json("trajectory", "list")
    assert listed["events"] == line["events"]
    assert kept.json("sql", "select count(*) n from events") == [{"n": line["events"]}]
    assert len(kept.json("trajectory", "show", listed["trajectory_id"])["event_list"]) == line["events"]
    assert kept.json("import", SESSION)["appended"] == 0
    assert kept.json("sidecar", "--once")["quarantined"] == 0


def test_every_tier_by_its_own_clock(kept: Cli) -> None:
    write(kept, '[[policy]]\nname = "all"\nwarm = "0d"\ncold = "0d"\nbulky = "0d"\n')
    kept.json("retention", "load")
    due = {line["tier"]: (line["keeps"], line["trajectories"]) for line in kept.json("retention", "plan")["due"]}
    assert due == {"warm": ("", 1), "cold": ("", 1), "bulky": ("", 1)}
    kept.json("hold", "add", "case-1", "--tenant", "default", "--reason", "a letter")
    held = kept.json("retention", "apply")
    assert (held["trajectories"], held["cold"]["trajectories"], held["bulky"]["planned"]) == (0, 0, 0)
    assert {(line["tier"], line["keeps"]) for line in held["kept"]} == {
        ("warm", "held"),
        ("cold", "held"),
        ("bulky", "held"),
    }
    kept.json("hold", "release", "case-1", "--reason", "settled")
    said = kept("retention", "apply")
    assert said.code == 0 and "have left Postgres" in said.out and "have left the lake" in said.out
    assert kept.json("sql", "select count(*) n from events") == [{"n": 0}]
    assert kept.json("verify")["ok"] is True
    (head,) = kept.json("trajectory", "list")
    assert head["events"] > 0, "the head stays"
    error = kept.json("trajectory", "show", head["trajectory_id"], code=1)["error"]
    assert error["code"] == NotFound.code and "deleted by retention" in error["message"]
    assert kept.json("retention", "plan")["due"] == []
    assert kept.json("import", SESSION)["appended"] == 0
    assert kept.json("sidecar", "--once")["quarantined"] == 0
    placed = kept("hold", "add", "case-2", "--tenant", "default", "--reason", "too late")
    assert "these events are in no tier" in placed.out


def test_a_killed_command_is_finished_below_the_warm_tier(kept: Cli) -> None:
    write(kept, '[[policy]]\nname = "all"\nwarm = "0d"\ncold = "0d"\n')
    kept.json("retention", "load")
    prelude = (
        "import os, signal\nfrom stratalog.cold import rewrite\n"
        "rewrite.note = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert kept.process("retention", "apply", prelude=prelude).code == -signal.SIGKILL
    assert kept.json("verify")["ok"] is True
    assert kept.json("retention", "apply")["cold"]["trajectories"] == 1
    assert kept.json("verify")["ok"] is True


@pytest.mark.parametrize("step", ["move", "detach", "drop"])
def test_a_killed_command_is_finished_by_the_next(kept: Cli, step: str) -> None:
    write(kept, '[[policy]]\nname = "all"\nwarm = "0d"\n')
    kept.json("retention", "load")
    prelude = (
        "import os, signal\nfrom stratalog.warm import deletion_partitions\n"
        f"deletion_partitions.{step} = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert kept.process("retention", "apply", prelude=prelude).code == -signal.SIGKILL
    assert kept.json("verify")["ok"] is True
    done = kept.json("retention", "apply")
    assert done["trajectories"] == 1 and len(done["partitions"]) == 1
    assert kept.json("verify")["ok"] is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[policy]]\nname = ", "Invalid value"),
        ('[[policy]]\nwarm = "1d"\n', "missing required field `name`"),
        ('[[policy]]\nname = "a"\nwarn = "1d"\n', "unknown field `warn`"),
        ('[[policy]]\nname = "a"\nwarm = "soon"\n', "not a duration"),
        ('[[policy]]\nname = "a"\nwarm = "-1d"\n', "not a duration"),
        ('[[policy]]\nname = "a"\nwarm = 7\n', "Expected `str | null`"),
        ('[[policy]]\nname = "a"\nwarm = "9999999w"\n', "longer than a thousand years"),
        ('[[policy]]\nname = "A b"\n', "no name for a policy"),
        ('[[policy]]\nname = "a"\n[[policy]]\nname = "a"\n', "two policies are named a"),
        ('[[policy]]\nname = "a"\ntenant = "No Tenant"\n', "tenant"),
        ('[[policy]]\nname = "a"\nstatus = "finished"\n', "there is no status 'finished'"),
        ('[[policy]]\nname = "a"\nmodel = []\n', "an empty list fits nothing"),
        ('[[policy]]\nname = "a"\nlabels = { a = "\\u0000" }\n', ""),
        ('[[policy]]\nname = "a"\nwarm = "2d"\ncold = "1d"\n', "cold is shorter than warm"),
        ('[[policy]]\nname = "a"\nhot = "1d"\n', "hot has no clock"),
        ('[[policy]]\nname = "a"\nundated = "never"\n', "Invalid enum value"),
        ('policy = "all"\n', "Expected `array`"),
        (f'[[policy]]\nname = "{HOSTILE}"\n'.replace("\x1b", "\\u001b").replace("\x07", "\\u0007"), ""),
    ],
)
def test_a_bad_file_is_explained_and_changes_nothing(cli: Cli, text: str, message: str) -> None:
    write(cli, '[[policy]]\nname = "good"\n')
    cli.json("retention", "load")
    write(cli, text)
    error = cli.error("retention", "load", code=1)
    assert error["code"] == Invalid.code and message in error["message"] and error["hint"]
    assert "retention.toml" in error["message"]
    assert ACTING.search(cli("retention", "load").err.replace("\n", "")) is None
    assert cli.json("retention", "plan")["version"] == 1


def test_a_missing_file_and_bytes_that_are_no_text(cli: Cli, tmp_path: Path) -> None:
    assert cli.error("retention", "load", code=1)["code"] == NotFound.code
    (tmp_path / "p.toml").write_bytes(b'[[policy]]\nname = "\xff"\n')
    assert "UTF-8" in cli.error("retention", "load", tmp_path / "p.toml", code=1)["message"]


def test_hostile_text_of_holds_never_acts_on_a_terminal(cli: Cli) -> None:
    cli.json("sidecar", "--once")
    where = "true or model = 'x\u202ey\x1b[2J'"
    said = cli("hold", "add", HOSTILE, "--where", where, "--reason", HOSTILE, "--by", HOSTILE)
    assert said.code == 0
    spoken = [said, cli("hold", "list", "--all"), cli("hold", "list", "--json")]
    spoken += [cli("hold", "release", HOSTILE, "--reason", HOSTILE), cli("hold", "list", "--all")]
    spoken.append(cli("hold", "release", HOSTILE, "--reason", HOSTILE))
    for one in spoken:
        assert ACTING.search(one.out.replace("\n", "")) is None, one
        assert ACTING.search(one.err.replace("\n", "")) is None, one
    assert "\\x1b[2J" in spoken[1].out
    assert cli.json("hold", "list", "--all")[0]["matter"] == HOSTILE


def test_what_a_hold_needs(cli: Cli) -> None:
    cli.json("sidecar", "--once")
    assert "no bucket with Object Lock is used" in cli("hold", "apply").out
    assert cli.json("hold", "apply") == {"places": [], "locked": 0, "released": 0, "kept": 0}
    id_ = cli.json("trajectory", "list")[0]["trajectory_id"]
    other = "0198c1a2-0000-7000-8000-000000000000"
    placed = cli.json("hold", "add", "m", "--trajectory", id_, "--trajectory", other, "--reason", "r")
    assert (placed["trajectories"], placed["unknown"]) == (1, 1)
    assert cli.error("hold", "add", "m", "--reason", "r", code=1)["code"] == Invalid.code
    assert cli.error("hold", "add", "m", "--tenant", "default", "--reason", " ", code=1)["code"] == Invalid.code
    assert cli("hold", "add", "m", "--tenant", "default").code == 2, "a reason is required"
    error = cli.error("hold", "add", "m", "--where", "nope", "--reason", "r", code=1)
    assert error["code"] == Invalid.code and "nope" in error["message"]
    assert cli.error("hold", "release", "other", "--reason", "r", code=1)["code"] == NotFound.code
    assert len(cli.json("hold", "list")) == 1
