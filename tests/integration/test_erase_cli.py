"""`stratalog erase` and `subject` as people use them: a canary in every place that can hold one, and then in none."""

from __future__ import annotations

import base64
import json
import secrets
import uuid
from pathlib import Path

import msgspec
import pytest
from fix_cli import Cli

from stratalog.audit import receipts
from stratalog.audit.keys import KeyRecord
from stratalog.cli.erase import EXIT_OPEN
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.hot.source import SocketSource
from stratalog.schemas import events as ev
from stratalog.schemas.errors import Conflict, Corrupt, Erased, Invalid, NotFound, Unavailable

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
REASON = ("--reason", "request 17")


def canary() -> str:
    return f"canary-{secrets.token_hex(12)}"


def large(word: str, size: int) -> str:
    """Text that does not compress, with the word in it."""
    return f"{secrets.token_hex(size // 4)} {word} {secrets.token_hex(size // 4)}"


def write(log: HotLog, word: str, *, shared: str = "", parent: str = "") -> uuid.UUID:
    """A trajectory that says `word` wherever it can: in a label, a tool's name, content of two sizes."""
    body = ev.TaskStarted(
        task=f"help {word}", agent=f"agent {word}", model=ev.Model(name="m-1"), labels={"customer": word}, parent=parent
    )
    id_ = log.start_blocking(tenant="acme", body=body)
    log.append_blocking(id_, ev.MessageReceived(role="user", parts=(ev.Part(text=f"I am {word}"),)))
    log.append_blocking(id_, ev.ToolIntent(tool_call_id="c", tool=f"tool-{word}", arguments=ev.raw_json({"q": word})))
    for size in (50_000, 3_000_000):
        log.append_blocking(id_, ev.ToolResult(tool_call_id="c", tool=f"tool-{word}", output=large(word, size)))
    if shared:
        log.append_blocking(id_, ev.ToolResult(tool_call_id="d", output=shared))
    log.append_blocking(id_, ev.TaskFinished(status="completed", result=word))
    return id_


def found(home: Cli, *words: str, code: int = 20) -> list[str]:
    """What `erase verify` finds of texts."""
    needles = [argument for word in words for argument in ("--needle", word)]
    problems: list[str] = home.json("erase", "verify", *needles, code=code)["problems"]
    return problems


@pytest.fixture
def home(tmp_path: Path) -> Cli:
    """A home of its own with everything in it: the embedded Postgres, too."""
    with HotLog.open(tmp_path / "home"):
        pass
    return Cli(tmp_path / "home")


def fill(home: Cli, word: str, *, keep: str = "", consolidate: bool = True) -> tuple[uuid.UUID, list[uuid.UUID]]:
    """One trajectory with `word` among others without it, in all tiers; content that both share, if asked for."""
    with HotLog.open(home.home) as log:
        others = [write(log, f"other-{number}", shared=keep) for number in range(3)]
        target = write(log, word, shared=keep)
        others.append(write(log, "other-last"))
    home.json("sidecar", "--once")
    if consolidate:
        assert home.json("consolidate", "--older-than", "0d")["trajectories"] == 5
    return target, others


def test_a_canary_is_in_every_tier_and_then_in_none(home: Cli) -> None:
    word, keep = canary(), large("shared by all", 60_000)
    target, others = fill(home, word, keep=keep)
    home.json("storage", "pack")
    before = " ".join(found(home, word))
    for place in ("hot/", "Postgres, stratalog.trajectory_events", "pg/data", ".parquet, column", "content "):
        assert place in before, f"the control: it was in {place}"

    done = home.json("erase", "--trajectory", str(target), *REASON)
    assert done["finished"] and done["unreadable"] == [str(target)] and done["logs_behind"] == []
    assert set(done["receipts"]) == {"hot", "warm", "cold", "content"}
    assert done["gone"]["content"] == {"deleted": 2, "needed": 1, "open": 0, "problems": []}

    assert found(home, word, code=0) == []
    assert home.json("verify")["ok"]
    assert found(home, "shared by all"), "content that others refer to stays"
    query = "SELECT trajectory_id::VARCHAR AS id, bool_and(erased) AS gone FROM events GROUP BY 1"
    gone = {row["id"]: row["gone"] for row in home.json("sql", query)}
    assert gone == {str(target): True} | {str(other): False for other in others}


def test_unreadable_first_and_the_bytes_later(home: Cli) -> None:
    word = canary()
    target, _ = fill(home, word)
    done = home.json("erase", "--trajectory", str(target), "--unreadable-only", *REASON, code=EXIT_OPEN)
    assert done["gone"] is None and not done["finished"]
    shown = home("sql", f"SELECT * FROM messages WHERE trajectory_id = '{target}'")
    assert word not in shown.out
    assert any("parquet" in problem for problem in found(home, word))
    said = home("erase", "list")
    assert "hot, warm, cold, content" in " ".join(said.out.split())
    assert home.json("erase", "finish")["finished"]
    assert found(home, word, code=0) == []
    assert "nothing" in home("erase", "list").out


def test_receipts_for_somebody_else(home: Cli, tmp_path: Path) -> None:
    target, _ = fill(home, canary())
    home.json("erase", "--trajectory", str(target), *REASON)
    file = tmp_path / "receipts.json"
    assert home("erase", "receipts", "1", "--output", file).code == 0
    document = json.loads(file.read_text())
    keys = msgspec.convert(document["keys"], list[KeyRecord])
    said = []
    for entry in document["receipts"]:
        content = base64.b64decode(entry["document"])
        receipt = receipts.Receipt("", content, entry["key_id"], bytes.fromhex(entry["signature"]), None)  # type: ignore[arg-type]
        said.append(receipts.check(receipt, keys))
        with pytest.raises(Corrupt, match="not signed"):
            receipts.check(
                msgspec.structs.replace(receipt, document=content.replace(b"request 17", b"request 18")), keys
            )
    assert [one.tier for one in said] == ["hot", "warm", "cold", "content"]
    assert all([entry["trajectory_id"] for entry in one.trajectories] == [str(target)] for one in said)
    assert all(one.looked_at and one.outside_reach and one.reason == "request 17" for one in said)
    shown = home("erase", "show", "1")
    assert "out of reach: backups made before" in shown.out and "looked at: log " in shown.out
    assert home.error("erase", "show", "9", code=1)["code"] == "not_found"
    assert home.error("erase", "receipts", "1", "--output", file, code=1)["code"] == "invalid"


def test_nothing_can_be_added_and_an_owner_that_lives_erases(home: Cli) -> None:
    word = canary()
    with HotLog.open(home.home) as log:
        body = ev.TaskStarted(task=word, model=ev.Model(name="m-1"))
        id_ = log.start_blocking(tenant="acme", body=body)
        other = log.start_blocking(tenant="acme", task="goes on")
        home.json("sidecar", "--once")
        assert home.json("erase", "--trajectory", str(id_), *REASON)["finished"]
        with pytest.raises(Erased):
            log.append_blocking(id_, ev.MessageReceived(role="user", parts=(ev.Part(text=word),)))
        log.append_blocking(other, ev.MessageReceived(role="user", parts=(ev.Part(text="more"),)))
        assert found(home, word, code=0) == []
    home.json("sidecar", "--once")
    assert home.json("verify")["ok"]


def test_the_sidecar_follows_the_ledger(home: Cli) -> None:
    """A log that cannot be reached keeps the receipt open; as soon as its sidecar runs, it is given."""
    word = canary()
    with HotLog.open(home.home, role="worker") as log:
        id_ = write(log, word)
        log_id = log.log_id
    home.json("sidecar", "--once")
    away = home.home.parent / "away"
    (home.home / "hot" / str(log_id)).rename(away)
    done = home.json("erase", "--trajectory", str(id_), *REASON, code=EXIT_OPEN)
    assert [log["log_id"] for log in done["logs_behind"]] == [str(log_id)]
    assert set(done["receipts"]) == {"warm", "cold", "content"}
    assert "its sidecar erases there" in home("erase", "finish").out
    away.rename(home.home / "hot" / str(log_id))
    assert any("hot/" in problem for problem in found(home, word))
    home.json("sidecar", "--once")
    assert found(home, word, code=0) == []
    assert home.json("erase", "finish")["receipts"] == ["hot"]


def test_an_owner_that_cannot_erase_does_not_hold_up_replication(home: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: SocketSource, trajectory_ids: object) -> None:
        raise Unavailable("the owner runs a version that cannot erase")

    with HotLog.open(home.home) as log:
        id_ = write(log, canary())
        home.json("sidecar", "--once")
        home.json("erase", "--trajectory", str(id_), "--unreadable-only", *REASON, code=EXIT_OPEN)
        write(log, "goes on")
        monkeypatch.setattr(SocketSource, "erase", refuse)
        assert home.json("sidecar", "--once")["events"] == 6
        done = home.json("erase", "finish", code=EXIT_OPEN)
        assert [behind["log_id"] for behind in done["logs_behind"]] == [str(log.log_id)]
        assert "cannot erase" in home("erase", "finish").out
        monkeypatch.undo()
        assert home.json("erase", "finish")["receipts"] == ["hot"]


def test_a_log_that_is_gone_for_good(home: Cli) -> None:
    with HotLog.open(home.home) as log:
        id_ = write(log, canary())
        log_id = log.log_id
    home.json("sidecar", "--once")
    (home.home / "hot" / str(log_id)).rename(home.home.parent / "shredded")
    home.json("erase", "--trajectory", str(id_), *REASON, code=EXIT_OPEN)
    assert home("erase", "abandon-log", str(log_id), "--reason", "disk shredded").code == 0
    assert home.json("erase", "finish")["receipts"] == ["hot"]
    assert "not waited for: disk shredded" in home("erase", "show", "1").out


def test_a_host_that_was_away_brings_nothing_back(home: Cli, tmp_path: Path) -> None:
    """What was never replicated when it was erased: stored without bodies, and erased where it came from."""
    word = canary()
    with HotLog.open(home.home) as log:
        id_ = write(log, word)
        late = log.log_id
    (home.home / "hot" / str(late)).rename(tmp_path / "late")
    home.json("sidecar", "--once")
    assert home.error("erase", "--trajectory", str(id_), *REASON, code=1)["code"] == NotFound.code
    home.json("erase", "--trajectory", str(id_), "--tenant", "acme", *REASON)
    (tmp_path / "late").rename(home.home / "hot" / str(late))
    home.json("sidecar", "--once")
    assert home.json("erase", "finish")["finished"]
    assert found(home, word, code=0) == []
    assert home.json("verify")["ok"]


def test_a_subject(home: Cli) -> None:
    word = canary()
    target, others = fill(home, word, consolidate=False)
    assert home.json("subject", "add", "bob@example.org", "--trajectory", str(target), "--tenant", "acme")["added"] == 1
    assert home.json("subject", "find", "bob@example.org", "--tenant", "acme") == [str(target)]
    assert home.json("subject", "find", "Bob@example.org", "--tenant", "acme") == []
    done = home.json("erase", "--subject", "bob@example.org", "--tenant", "acme", *REASON)
    assert done["unreadable"] == [str(target)]
    assert found(home, word, "bob@example.org", code=0) == []
    assert len(home.json("trajectory", "list")) == len(others) + 1
    label = home("subject", "label", "bob@example.org", "--tenant", "acme").out.strip()
    with HotLog.open(home.home) as log:
        body = ev.TaskStarted(task="t", model=ev.Model(name="m"), labels={"subjects": label})
        new = log.start_blocking(tenant="acme", body=body)
    home.json("sidecar", "--once")
    assert home.json("subject", "find", "bob@example.org", "--tenant", "acme") == [str(new)]


def test_a_hold_wins(home: Cli) -> None:
    word = canary()
    target, _ = fill(home, word, consolidate=False)
    home("hold", "add", "case\x1b[31m", "--trajectory", str(target), "--reason", "letter")
    said = home("erase", "--trajectory", str(target), *REASON)
    assert said.code == EXIT_OPEN and "stays: held by case" in said.out and "\x1b" not in said.out
    assert found(home, word)
    home("hold", "release", "case\x1b[31m", "--reason", "settled")
    assert home.json("erase", "finish")["unreadable"] == [str(target)]
    assert found(home, word, code=0) == []


def test_an_import_of_it_is_refused(home: Cli, tmp_path: Path) -> None:
    word = canary()
    session = tmp_path / "session.jsonl"
    session.write_text(_session(word))
    home.json("import", session)
    home.json("sidecar", "--once")
    (row,) = home.json("trajectory", "list")
    assert home.json("erase", "--trajectory", row["trajectory_id"], *REASON)["finished"]
    again = home.json("import", session, code=3)
    assert again["appended"] == 0 and "erased" in again["problems"][0]["reason"]
    home.json("sidecar", "--once")
    assert found(home, word, code=0) == []


def _session(word: str) -> str:
    lines = [
        {"type": "user", "uuid": str(uuid.uuid4()), "sessionId": "c2a8d7a0-1d0e-4e6e-8d6b-7f0f1d2c3b4a",
         "timestamp": "2026-03-01T10:00:00.000Z", "message": {"role": "user", "content": f"I am {word}"}},
    ]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_restored_backup_brings_nothing_back(home: Cli, tmp_path: Path) -> None:
    word, keep = canary(), large("shared by all", 60_000)
    target, _ = fill(home, word, keep=keep)
    backup = Path(home.json("backup", "create", tmp_path / "backups")["path"])
    assert home.json("erase", "--trajectory", str(target), *REASON)["finished"]

    elsewhere = Cli(tmp_path / "nowhere")
    elsewhere.json("backup", "restore", backup, tmp_path / "forgetful")
    assert found(Cli(tmp_path / "forgetful"), word), "the control: without a ledger it is there again"

    ledger = home.home / "audit" / "erasures.json"
    for name, asked, options in (("known", home, ()), ("told", elsewhere, ("--ledger", ledger))):
        asked.json("backup", "restore", backup, tmp_path / name, *options)
        restored = Cli(tmp_path / name)
        assert found(restored, word, code=0) == []
        assert found(restored, "shared by all")
        assert restored.json("verify")["ok"]
        (request,) = restored.json("erase", "list")
        assert (request["kind"], request["reason"]) == ("ledger", "request 17")
    drilled = home.json("backup", "drill", backup)
    assert (drilled["ok"], drilled["erased"]) == (True, 1)
    later = Path(home.json("backup", "create", tmp_path / "backups")["path"])
    assert not any(word.encode() in path.read_bytes() for path in later.rglob("*") if path.is_file())


def test_a_damaged_ledger_is_refused(home: Cli, tmp_path: Path) -> None:
    target, _ = fill(home, canary(), consolidate=False)
    backup = Path(home.json("backup", "create", tmp_path / "backups")["path"])
    home.json("erase", "--trajectory", str(target), *REASON)
    ledger = home.home / "audit" / "erasures.json"
    ledger.write_bytes(ledger.read_bytes().replace(str(target).encode(), str(uuid.uuid4()).encode()))
    error = home.error("backup", "restore", backup, tmp_path / "restored", code=20)
    assert "does not match its checksum" in error["message"]
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ((), 1, Invalid),
        (("--where", "nonsense"), 1, Invalid),
        (("--where", "false"), 1, NotFound),
        (("--trajectory", str(uuid.uuid4())), 1, NotFound),
        (("--subject", " "), 1, Invalid),
    ],
)
def test_what_is_wrong_is_told(cli: Cli, arguments: tuple[str, ...], code: int, error: type[Exception]) -> None:
    assert cli.error("erase", *arguments, *REASON, code=code)["code"] == error.code  # type: ignore[attr-defined]
    assert "reason" in cli.error("erase", *arguments, code=1)["message"]


def test_another_homes_key_is_refused(home: Cli) -> None:
    target, _ = fill(home, canary(), consolidate=False)
    home.json("subject", "add", "bob", "--trajectory", str(target), "--tenant", "acme")
    (home.home / "keys" / "subject.key").unlink()
    error = home.error("erase", "--subject", "bob", "--tenant", "acme", *REASON, code=1)
    assert error["code"] == Conflict.code and "keys/subject.key" in error["hint"]
    assert Home.open(home.home).subject_key()
