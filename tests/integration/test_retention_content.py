"""The bulky clock executed: content goes while the events stay, exactly what nobody else needs, and holds win."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from fix_cold import Author, ColdBench
from fix_retention import events_here, load, place, rows
from fix_step_crash import Crash, crashing

from stratalog.cold import packs
from stratalog.cold import retention_content as module
from stratalog.cold.cas import FsContentStore
from stratalog.cold.installation import Installation, Tiers
from stratalog.cold.retention_content import BulkyDeletions, delete_content
from stratalog.cold.sweep import sweep
from stratalog.cold.verification import verify_all
from stratalog.hot.home import Home
from stratalog.schemas import events as ev
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.errors import NotFound
from stratalog.warm import deletion_lower
from stratalog.warm.condemned import putting
from stratalog.warm.database import connect

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
BULKY = '[[policy]]\nname = "short"\nmodel = "gone"\nbulky = "30d"\n'


def fill(bench: ColdBench) -> dict[str, BlobRef]:
    """Two that are due and share a piece; a third, that is not due, shares another piece with the first."""
    refs = {name: BlobRef.of(name.encode() * 50, "text/plain") for name in ("own", "both", "shared", "kept")}
    for name, ref in refs.items():
        bench.store.put("acme", ref, name.encode() * 50)
    refer(bench, 1, refs["own"], refs["both"], refs["shared"], model="gone")
    refer(bench, 2, refs["both"], model="gone")
    refer(bench, 3, refs["shared"], refs["kept"], model="other")
    bench.run()
    load(bench, BULKY)
    return refs


def refer(bench: ColdBench, number: int, *refs: BlobRef, model: str, tenant: str = "acme") -> Author:
    author = bench.author(number, tenant)
    results = [ev.ToolResult(tool_call_id=str(at), output=Blob(ref)) for at, ref in enumerate(refs)]
    started, finished = ev.TaskStarted(task="t", model=ev.Model(name=model)), ev.TaskFinished(status="completed")
    bench.append(author, [started, *results, finished])
    return author


def delete(bench: ColdBench) -> BulkyDeletions:
    return delete_content(Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings), NOW)


def there(bench: ColdBench, refs: dict[str, BlobRef]) -> set[str]:
    return {name for name, ref in refs.items() if bench.store.has("acme", ref.sha256)}


def states(bench: ColdBench) -> dict[str, int]:
    return dict(rows(bench, "SELECT state, count(*) FROM deletions WHERE tier = 'bulky' GROUP BY 1"))  # type: ignore[arg-type]


def sound(home: Home) -> None:
    report = verify_all(Installation(home))
    assert report["ok"], report


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_what_only_they_need_goes_and_the_events_stay(cold_bench: ColdBench, cold_home: Home, packed: bool) -> None:
    refs = fill(cold_bench)
    tiers = Tiers(cold_bench.dsn, cold_bench.lake, cold_bench.catalog, cold_bench.store, cold_bench.settings)
    if packed:
        assert packs.pack(tiers).pieces == 4
    before = events_here(cold_bench)
    done = delete(cold_bench)
    assert (done.planned, done.trajectories, done.pieces, done.bytes) == (2, 2, 2, 50 * 3 + 50 * 4)
    assert there(cold_bench, refs) == {"shared", "kept"} and events_here(cold_bench) == before
    assert states(cold_bench) == {"done": 2} and done.problems == ()
    assert rows(cold_bench, "SELECT sum(bytes)::bigint FROM deletions WHERE tier = 'bulky'") == [(done.bytes,)]
    with pytest.raises(NotFound, match=r"was dropped by policy short \(version 1\)"):
        cold_bench.store.get("acme", refs["own"].sha256)
    sound(cold_home)
    assert packs.pack(tiers).problems == ()
    assert delete(cold_bench) == BulkyDeletions()
    sweep(tiers, cold_bench.store)
    assert there(cold_bench, refs) == {"shared", "kept"}


def test_the_same_content_of_another_tenant_stays(cold_bench: ColdBench) -> None:
    refs = fill(cold_bench)
    cold_bench.store.put("globex", refs["own"], b"own" * 50)
    refer(cold_bench, 9, refs["own"], model="other", tenant="globex")
    delete(cold_bench)
    assert cold_bench.store.has("globex", refs["own"].sha256)


def test_what_is_put_again_goes_again_and_what_is_needed_again_stays(cold_bench: ColdBench, cold_home: Home) -> None:
    refs = fill(cold_bench)
    delete(cold_bench)
    cold_bench.store.put("acme", refs["own"], b"own" * 50)
    cold_bench.store.put("acme", refs["both"], b"both" * 50)
    refer(cold_bench, 4, refs["both"], model="other")
    assert delete(cold_bench).pieces == 1
    assert there(cold_bench, refs) == {"both", "shared", "kept"}
    # From here on nobody may call it dropped.
    assert rows(cold_bench, "SELECT count(*) FROM dropped_content") == [(1,)]
    sound(cold_home)


def test_what_comes_later_keeps_its_content_until_it_is_due_as_well(cold_bench: ColdBench) -> None:
    refs = fill(cold_bench)
    delete(cold_bench)
    late = BlobRef.of(b"late", "text/plain")
    cold_bench.store.put("acme", late, b"late")
    author = cold_bench.author(1)
    cold_bench.append(author, [ev.LateResult(tool_call_id="x", output=Blob(late))])
    assert delete(cold_bench).pieces == 0 and cold_bench.store.has("acme", late.sha256)
    cold_bench.run()
    assert delete(cold_bench).pieces == 1 and there(cold_bench, refs) == {"shared", "kept"}


def test_holds_win_also_over_what_was_started(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = fill(cold_bench)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_read_cold", crashing(module._read_cold, after=False))
        with pytest.raises(Crash):
            delete(cold_bench)
    placed = place(cold_bench, "case", trajectories=(cold_bench.author(2).trajectory_id,))
    assert (placed.started, placed.content_done) == (1, 0)
    done = delete(cold_bench)
    assert done.pieces == 1 and there(cold_bench, refs) == {"both", "shared", "kept"}
    assert states(cold_bench) == {"done": 1, "cancelled": 1}


def hold_at(bench: ColdBench, patch: pytest.MonkeyPatch, name: str) -> None:
    """Place a hold on the second trajectory right before a step."""
    original: Callable[..., Any] = getattr(module, name)
    placed: list[Any] = []

    def step(*given: Any) -> Any:
        if not placed:
            placed.append(place(bench, "case", trajectories=(bench.author(2).trajectory_id,)))
        return original(*given)

    patch.setattr(module, name, step)


@pytest.mark.parametrize("step", ["_read_cold", "_condemn", "_note", "_delete"])
def test_a_hold_wins_until_the_transaction_that_deletes(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    refs = fill(cold_bench)
    hold_at(cold_bench, monkeypatch, step)
    assert delete(cold_bench).pieces == 1
    assert there(cold_bench, refs) == {"both", "shared", "kept"}
    assert rows(cold_bench, "SELECT count(*) FROM dropped_content") == [(1,)]
    sound(cold_home)


def test_control_without_the_second_look_the_hold_is_beaten(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = fill(cold_bench)
    hold_at(cold_bench, monkeypatch, "_condemn")
    monkeypatch.setattr(module, "_unheld", lambda conn, pieces: pieces)
    delete(cold_bench)
    assert "both" not in there(cold_bench, refs)


class Writer:
    """Somebody who puts the same content, and commits the event that refers to it a moment later."""

    def __init__(self, bench: ColdBench, ref: BlobRef, content: bytes) -> None:
        self.bench, self.ref, self.content = bench, ref, content
        self.has_put, self.go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        with closing(connect(self.bench.dsn)) as conn:
            conn.rollback()
            with putting(conn, [("acme", self.ref.sha256)]):
                self.bench.store.put("acme", self.ref, self.content)
                self.has_put.set()
                self.go.wait(30)
                refer(self.bench, 7, self.ref, model="other")


def test_who_puts_the_same_content_at_the_same_time_wins(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = fill(cold_bench)
    writer = Writer(cold_bench, refs["own"], b"own" * 50)
    original = module._condemn

    def condemn(*given: Any) -> None:
        # It has looked for references already, and the event is not there yet.
        writer.thread.start()
        assert writer.has_put.wait(30)
        original(*given)
        threading.Timer(0.3, writer.go.set).start()

    monkeypatch.setattr(module, "_condemn", condemn)
    delete(cold_bench)
    writer.thread.join()
    assert there(cold_bench, refs) == {"own", "shared", "kept"}
    sound(cold_home)


def test_control_without_waiting_for_who_puts_the_content_is_lost(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = fill(cold_bench)
    writer = Writer(cold_bench, refs["own"], b"own" * 50)
    original = module._condemn

    def condemn(*given: Any) -> None:
        writer.thread.start()
        assert writer.has_put.wait(30)
        original(*given)

    monkeypatch.setattr(module, "_condemn", condemn)
    monkeypatch.setitem(module._SWEEP, "wait_for_putting", b"SELECT 1")
    delete(cold_bench)
    writer.go.set()
    writer.thread.join()
    assert "own" not in there(cold_bench, refs)


STEPS: list[tuple[Any, str, bool]] = [
    (deletion_lower, "plan", True),
    (deletion_lower, "start", False),
    (deletion_lower, "start", True),
    (module, "_read_cold", True),
    (module, "_condemn", True),
    (module, "_note", False),
    (module, "_note", True),
    (FsContentStore, "erase_content", False),
    (FsContentStore, "erase_content", True),
    (module, "_delete", True),
    (deletion_lower, "finish_bulky", False),
    (deletion_lower, "finish_bulky", True),
]


@pytest.mark.parametrize(("owner", "name", "after"), STEPS)
def test_a_crash_at_any_step_is_finished_by_the_next_call(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    refs = fill(cold_bench)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, crashing(getattr(owner, name), after=after))
        with pytest.raises(Crash):
            delete(cold_bench)
    sound(cold_home)
    delete(cold_bench)
    assert there(cold_bench, refs) == {"shared", "kept"} and states(cold_bench) == {"done": 2}
    sound(cold_home)


def test_control_content_that_no_policy_dropped_is_damage(cold_bench: ColdBench, cold_home: Home) -> None:
    refs = fill(cold_bench)
    delete(cold_bench)
    cold_bench.store.delete_unused("acme", refs["kept"].sha256, 1e12)
    assert not verify_all(Installation(cold_home))["ok"]


def test_a_parent_keeps_its_content_while_a_branch_stays(cold_bench: ColdBench) -> None:
    refs = fill(cold_bench)
    child, parent = cold_bench.author(3).trajectory_id, cold_bench.author(1).trajectory_id
    cold_bench.execute("INSERT INTO trajectory_links VALUES (%s, %s, 'fork')", child, parent)
    assert delete(cold_bench).trajectories == 1
    assert there(cold_bench, refs) == {"own", "both", "shared", "kept"}
    assert uuid.UUID(str(parent)) in events_here(cold_bench)
