"""Erasure that is cut at every statement and every step, and erasure beside holds and beside those who put content."""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")  # required_in_ci

from fix_cli import Cli, call
from fix_cold import ColdBench
from fix_erasure import BY, arrive, canary_story, tables_with
from fix_history import assert_sound
from fix_retention import Crash as StatementCrash
from fix_retention import hooked
from fix_step_crash import Crash, crashing

from stratalog.audit import erasure as end_to_end
from stratalog.audit import receipts
from stratalog.cold import erasure as cold_erasure
from stratalog.cold.installation import Tiers
from stratalog.hot.log import HotLog
from stratalog.schemas import events as ev
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.statements import statements
from stratalog.warm import erasure, erasure_bytes, erasure_ledger, hold
from stratalog.warm.condemned import putting
from stratalog.warm.database import Connection, connect
from stratalog.warm.erasure import Selection

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


def canary() -> str:
    return f"canary{secrets.token_hex(12)}"


# --- every statement of the transaction ------------------------------------------------------------------------------


def test_cut_at_every_statement_it_is_as_it_was_or_erased(warm: Connection, warm_dsn: str) -> None:
    at, states = 0, set()
    while True:
        word = canary()
        story = canary_story(word)
        arrive(warm, story)
        number = erasure.request(warm, Selection((story.trajectory_id,)), **BY)
        with closing(connect(warm_dsn)) as conn:
            seen = _cut(conn, at)
            try:
                erasure.proceed(conn, number)
                ended = True
            except StatementCrash:
                ended = False
        readable = bool(tables_with(warm, word.encode()))
        erased = bool(erasure_ledger.among(warm, [story.trajectory_id]))
        assert readable is not erased, f"cut at statement {at}"
        states.add(erased)
        erasure.proceed(warm)
        assert tables_with(warm, word.encode()) == []
        if ended:
            break
        assert seen
        at += 1
    assert at > 30 and states == {False, True}
    assert_sound(warm)


def _cut(conn: Connection, at: int) -> list[int]:
    """Crash before or after a statement, counted from 0, each twice; tells whether it came to that."""
    seen: list[int] = []
    count = 0

    def hook(query: bytes, when: str) -> None:
        nonlocal count
        count += 1
        if count == at + 1:
            seen.append(at)
            conn.close()
            raise StatementCrash

    hooked(conn, hook)
    return seen


# --- beside holds ----------------------------------------------------------------------------------------------------


def _erase_while_a_hold_is_placed(conn: Connection, dsn: str, id_: uuid.UUID) -> bool:
    """Whether a hold was in place, for whoever placed it, before the trajectory was erased all the same."""
    number = erasure.request(conn, Selection((id_,)), **BY)
    placed = threading.Event()

    def place() -> None:
        with closing(connect(dsn)) as other:
            hold.place(other, "case", hold.Scope(trajectories=(id_,)), **BY)
        placed.set()

    thread = threading.Thread(target=place)
    in_time: list[bool] = []

    def pause(query: bytes, when: str) -> None:
        if query == statements("erasure")["insert_erased"] and when == "before":
            thread.start()
            in_time.append(placed.wait(1.0))

    with closing(connect(dsn)) as eraser:
        done = erasure.proceed(hooked(eraser, pause), number)
    thread.join()
    return in_time == [True] and done.trajectories == (id_,)


def test_a_hold_that_is_placed_is_never_overlooked(warm: Connection, warm_dsn: str) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    assert not _erase_while_a_hold_is_placed(warm, warm_dsn, story.trajectory_id)


def test_without_the_lock_it_would_be(warm: Connection, warm_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "lock_out_holds", lambda conn: None)
    story = canary_story(canary())
    arrive(warm, story)
    assert _erase_while_a_hold_is_placed(warm, warm_dsn, story.trajectory_id)


# --- beside those who put content ------------------------------------------------------------------------------------


class Putting:
    """Content of something erased, which another trajectory is just putting, too."""

    def __init__(self, bench: ColdBench) -> None:
        self.bench = bench
        self.tiers = Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)
        self.content = secrets.token_bytes(100)
        self.ref = BlobRef.of(self.content)
        self.author = bench.task(1, blob=self.content)
        with closing(bench.connect()) as conn:
            chosen = Selection((self.author.trajectory_id,))
            erasure.proceed(conn, erasure.request(conn, chosen, **BY))

    def erase(self) -> cold_erasure.ContentGone:
        with closing(self.bench.connect()) as conn:
            return cold_erasure.erase_content(conn, self.tiers)

    def put(self, number: int, began: threading.Event, go_on: threading.Event) -> None:
        """As a sidecar does: the content, then the event, with a pause between them."""
        with closing(self.bench.connect()) as conn, putting(conn, [("acme", self.ref.sha256)]):
            self.bench.store.put("acme", self.ref, self.content)
            began.set()
            go_on.wait(10)
            output = ev.ToolResult(tool_call_id="again", output=Blob(BlobRef.of(self.content, "text/plain")))
            self.bench.append(self.bench.author(number), [ev.TaskStarted(task="t", model=ev.Model(name="m")), output])

    @property
    def there(self) -> bool:
        return self.bench.store.has("acme", self.ref.sha256)


@pytest.fixture
def contended(cold_bench: ColdBench) -> Putting:
    return Putting(cold_bench)


def test_content_that_nobody_else_needs_goes(contended: Putting) -> None:
    assert contended.there
    assert contended.erase() == cold_erasure.ContentGone(deleted=1)
    assert not contended.there and contended.erase() == cold_erasure.ContentGone()


def _put_while_it_is_erased(contended: Putting) -> None:
    """The content has been put before the erasure looks, its event comes after."""
    began, go_on = threading.Event(), threading.Event()
    writer = threading.Thread(target=contended.put, args=(2, began, go_on))
    writer.start()
    began.wait(10)
    threading.Timer(1.0, go_on.set).start()
    contended.erase()
    go_on.set()
    writer.join()


def test_who_has_put_content_and_not_yet_its_event_is_waited_for(contended: Putting) -> None:
    _put_while_it_is_erased(contended)
    assert contended.there
    with closing(contended.bench.connect()) as conn:
        assert erasure_ledger.content_counts(conn, 1) == (0, 1)


def test_without_waiting_content_would_be_lost(contended: Putting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(statements("sweep"), "wait_for_putting", b"SELECT 1")
    _put_while_it_is_erased(contended)
    assert not contended.there


def _put_after_the_references_were_read(contended: Putting, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    go_on.set()
    read = cold_erasure.find_roots
    writers: list[threading.Thread] = []

    def then_put(*arguments: Any) -> Any:
        roots = read(*arguments)
        if not writers:
            writers.append(threading.Thread(target=contended.put, args=(3, began, go_on)))
            writers[0].start()
            writers[0].join(10)
        return roots

    monkeypatch.setattr(cold_erasure, "find_roots", then_put)
    contended.erase()


def test_content_that_is_put_after_looking_is_looked_at_again(
    contended: Putting, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_after_the_references_were_read(contended, monkeypatch)
    assert contended.there


def test_without_the_note_it_would_be_lost(contended: Putting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(statements("sweep"), "note_put", b"SELECT %(tenants)s::text[], %(digests)s::bytea[]")
    _put_after_the_references_were_read(contended, monkeypatch)
    assert not contended.there


# --- every step from end to end --------------------------------------------------------------------------------------

STEPS = [
    (end_to_end, "publish_ledger"),
    (erasure_ledger, "followed"),
    (erasure_bytes, "wait_for_older_transactions"),
    (erasure_bytes, "_write_anew"),
    (erasure_bytes, "remove_wal"),
    (cold_erasure, "note_cold_content"),
    (cold_erasure, "erase_in_cold"),
    (cold_erasure, "_erase_batch"),
    (receipts, "sign"),
    (receipts, "store"),
]


def _write(log: HotLog, word: str) -> uuid.UUID:
    body = ev.TaskStarted(task=word, model=ev.Model(name="m"), labels={"customer": word})
    id_ = log.start_blocking(tenant="acme", body=body)
    bulky = f"{secrets.token_hex(20_000)} {word}"
    log.append_blocking(id_, ev.ToolResult(tool_call_id="c", tool=f"tool-{word}", output=bulky))
    log.append_blocking(id_, ev.TaskFinished(status="completed", result=word))
    return id_


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[tuple[Cli, list[tuple[uuid.UUID, str]]]]:
    """A home with a trajectory for each crash, and one that nobody erases."""
    words = [canary() for _ in range(2 * len(STEPS))]
    with HotLog.open(tmp_path / "home") as log:
        targets = [(_write(log, word), word) for word in words]
        kept = _write(log, "kept")
    home = Cli(tmp_path / "home")
    home.json("sidecar", "--once")
    home.json("consolidate", "--older-than", "0d")
    yield home, targets
    assert home.json("verify")["ok"]
    shown = home.json(
        "sql", f"SELECT bool_or(erased) AS gone, count(*) AS n FROM events WHERE trajectory_id = '{kept}'"
    )
    assert shown == [{"gone": False, "n": 3}]


def test_cut_at_every_step_the_next_run_ends_it(crowded: tuple[Cli, list[tuple[uuid.UUID, str]]]) -> None:
    home, targets = crowded
    cuts = [(module, name, after) for module, name in STEPS for after in (False, True)]
    for (module, name, after), (id_, word) in zip(cuts, targets, strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, crashing(getattr(module, name), after=after))
            with pytest.raises(Crash):
                call("erase", "--trajectory", str(id_), "--reason", "r", "--home", home.home)
        shown = home("sql", f"SELECT * FROM messages WHERE trajectory_id = '{id_}'")
        assert word not in shown.out, f"readable after a crash at {name}"
        done = home.json("erase", "finish")
        assert done["finished"], f"after a crash at {name}: {done}"
    needles = [argument for _, word in targets for argument in ("--needle", word)]
    assert home.json("erase", "verify", *needles)["problems"] == []
    assert [request["unreadable"] for request in home.json("erase", "list")] == [1] * len(targets)
