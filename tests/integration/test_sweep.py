"""The sweep deletes content that nothing refers to, after its grace; never what somebody needs or is just putting."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fix_cli import Cli
from fix_cold import ColdBench
from fix_history import message, started
from fix_step_crash import Crash, crashing

from stratalog.cold import sweep as module
from stratalog.cold.cas import FsContentStore
from stratalog.cold.check import verify_cold
from stratalog.cold.consolidate import Consolidation
from stratalog.cold.folder import Folder
from stratalog.cold.installation import Tiers
from stratalog.cold.pack_table import PackTable
from stratalog.cold.sweep import Swept, sweep
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas import events as ev
from stratalog.schemas.blobs import Blob, BlobRef, text_bytes
from stratalog.schemas.codec import encode_body
from stratalog.schemas.errors import Conflict, Corrupt, Invalid, Locked
from stratalog.warm import condemned as putters
from stratalog.warm.check import verify_warm
from stratalog.warm.sidecar import Sidecar

pytestmark = pytest.mark.postgres
WAIT_S = 30


def swept(bench: ColdBench, days: float = 0, **options: Any) -> Swept:
    """A sweep as it would be in so many days."""
    tiers = Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)
    return sweep(tiers, bench.store, now=dt.datetime.now(dt.UTC) + dt.timedelta(days=days), **options)


def put(bench: ColdBench, content: bytes, tenant: str = "acme") -> BlobRef:
    bench.store.put(tenant, ref := BlobRef.of(content, "text/plain"), content)
    return ref


def condemned(bench: ColdBench) -> set[str]:
    with bench.connect() as conn:
        return {bytes(digest).hex() for (digest,) in conn.execute("SELECT sha256 FROM condemned_content")}


def stored(bench: ColdBench) -> set[tuple[str, str]]:
    return {(tenant, sha256) for tenant in bench.store.tenants() for sha256 in bench.store.digests(tenant)}


def grow_old(bench: ColdBench) -> None:
    """Let everything that lies in the store, and every condemnation, be two days older."""
    root = Path(bench.store.url.removeprefix("file://"))
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 172_800,) * 2)
    bench.execute("UPDATE condemned_content SET condemned_at = condemned_at - interval '2 days'")


def problems(bench: ColdBench) -> tuple[str, ...]:
    return verify_cold(bench.lake, bench.catalog, bench.store).problems


def test_content_without_a_reference_goes_after_the_grace(cold_bench: ColdBench) -> None:
    cold_bench.task(1, blob=b"needed" * 100)
    cold_bench.run()
    lost, other = put(cold_bench, b"lost" * 100), put(cold_bench, b"lost" * 100, "globex")
    assert swept(cold_bench) == Swept(needed=1, condemned=2)
    assert swept(cold_bench) == Swept(needed=1, waiting=2) and len(stored(cold_bench)) == 3
    assert swept(cold_bench, 2, dry_run=True) == Swept(needed=1, deleted=2, bytes=800)
    assert len(stored(cold_bench)) == 3
    assert swept(cold_bench, 2) == Swept(needed=1, deleted=2, bytes=800)
    assert not cold_bench.store.has("acme", lost.sha256) and not cold_bench.store.has("globex", other.sha256)
    assert condemned(cold_bench) == set() and problems(cold_bench) == ()
    assert swept(cold_bench, 9) == Swept(needed=1)


def reply(bench: ColdBench, number: int, *contents: bytes, raw: bool = False, tenant: str = "acme") -> None:
    """A trajectory with one reply that refers to all of `contents`; `raw` spells it so that no column can hold it."""
    refs = [put(bench, content, tenant) for content in contents]
    author = bench.author(number, tenant)
    parts = tuple(ev.Part(text=Blob(ref)) for ref in refs)
    body: Any = ev.MessageReceived(role="user", parts=parts)
    if raw:
        body = ("MessageReceived", b" " + encode_body(body))
    bench.append(
        author, [ev.TaskStarted(task="t", model=ev.Model(name="m")), body, ev.TaskFinished(status="completed")]
    )


def forget_warm(bench: ColdBench) -> None:
    bench.execute("DELETE FROM trajectory_events")


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("cold", [False, True])
def test_every_reference_of_an_event_counts_in_each_tier(cold_bench: ColdBench, cold: bool, raw: bool) -> None:
    reply(cold_bench, 1, b"first", b"second", b"third", raw=raw)
    if cold:
        cold_bench.run()
        forget_warm(cold_bench)
    assert swept(cold_bench) == Swept(needed=3) and swept(cold_bench, 9) == Swept(needed=3)
    assert len(stored(cold_bench)) == 3


def test_a_reference_is_one_of_its_tenant(cold_bench: ColdBench) -> None:
    reply(cold_bench, 1, b"shared")
    put(cold_bench, b"shared", "globex")
    swept(cold_bench)
    assert swept(cold_bench, 2).deleted == 1 and {tenant for tenant, _ in stored(cold_bench)} == {"acme"}


def test_quarantine_and_strays_and_open_plans_count(cold_bench: ColdBench) -> None:
    reply(cold_bench, 1, b"in quarantine")
    reply(cold_bench, 2, b"astray")
    reply(cold_bench, 3, b"planned")
    cold_bench.execute(
        "INSERT INTO quarantine (log_id, lsn, trajectory_id, sequence_number, tenant, reason, detail, header, body) "
        "SELECT gen_random_uuid(), 1, trajectory_id, sequence_number, tenant, 'r', 'd', '', body "
        "FROM all_events WHERE trajectory_id = %s AND sequence_number = 1",
        cold_bench.author(1).trajectory_id,
    )
    cold_bench.execute("DELETE FROM trajectory_events WHERE trajectory_id = %s", cold_bench.author(1).trajectory_id)
    two = cold_bench.author(2).trajectory_id
    cold_bench.execute(
        "INSERT INTO trajectory_events_stray SELECT * FROM trajectory_events WHERE trajectory_id = %s", two
    )
    cold_bench.execute("DELETE FROM trajectory_events WHERE trajectory_id = %s", two)
    with cold_bench.steps() as steps:
        assert steps.plan("0d")[0] is not None
    assert swept(cold_bench).needed == 3 and swept(cold_bench, 9) == Swept(needed=3)


def test_what_is_put_or_referred_to_again_is_spared(cold_bench: ColdBench) -> None:
    put(cold_bench, b"put again")
    kept = put(cold_bench, b"needed again")
    assert swept(cold_bench).condemned == 2
    grow_old(cold_bench)
    put(cold_bench, b"put again")
    cold_bench.append(cold_bench.author(1), [ev.ToolResult(tool_call_id="c", output=Blob(kept))])
    assert swept(cold_bench) == Swept(needed=1, spared=2)
    # Its grace has begun anew.
    assert condemned(cold_bench) == {BlobRef.of(b"put again").sha256}
    assert swept(cold_bench) == Swept(needed=1, waiting=1)
    grow_old(cold_bench)
    assert swept(cold_bench) == Swept(needed=1, deleted=1, bytes=9)


@pytest.mark.parametrize("text", ["59m", "0h", "a day"])
def test_too_short_or_no_grace(cold_bench: ColdBench, text: str) -> None:
    with pytest.raises(Invalid):
        swept(cold_bench, grace=text)


def test_nothing_while_references_cannot_be_told(cold_bench: ColdBench) -> None:
    cold_bench.task(1, blob=b"needed")
    cold_bench.run()
    put(cold_bench, b"lost")
    swept(cold_bench)
    with cold_bench.steps(), pytest.raises(Locked):
        swept(cold_bench, 2)
    cold_bench.execute("UPDATE event_partitions SET drop_state = 'marked' WHERE lower = date '2025-01-01'")
    with pytest.raises(Conflict, match="being dropped"):
        swept(cold_bench, 2)
    cold_bench.execute("UPDATE event_partitions SET drop_state = NULL")
    path = Path(cold_bench.catalog.snapshot_files()[0].removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(Corrupt):
        swept(cold_bench, 2)
    assert len(stored(cold_bench)) == 2
    path.write_bytes(content)
    assert swept(cold_bench, 2).deleted == 1


STEPS: list[tuple[Any, str, bool, int]] = [
    (Consolidation, "__enter__", True, 1),
    (module, "find_roots", True, 1),
    (module, "_walk", True, 1),
    (module, "spare", True, 1),
    (module, "_delete", False, 1),
    (FsContentStore, "delete_unused", False, 1),
    (FsContentStore, "delete_unused", True, 1),
    (FsContentStore, "delete_unused", True, 3),
    (PackTable, "kill", True, 1),
    (module, "compact", False, 1),
    (module, "_delete", True, 1),
    (module, "_delete", True, 2),
]


@pytest.mark.parametrize(("owner", "name", "after", "on"), STEPS)
def test_the_next_sweep_finishes_whatever_step_it_was(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool, on: int
) -> None:
    monkeypatch.setattr(module, "BATCH_PIECES", 3)
    cold_bench.task(1, blob=b"needed")
    cold_bench.run()
    lost = [put(cold_bench, b"lost %d" % number) for number in range(5)]
    assert swept(cold_bench).condemned == 5
    # Something to spare, and something that has gone by itself.
    cold_bench.append(cold_bench.author(2), [ev.ToolResult(tool_call_id="c", output=Blob(lost[0]))])
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
        with pytest.raises(Crash):
            swept(cold_bench, 2)
    assert problems(cold_bench) == () and cold_bench.store.get("acme", lost[0].sha256)
    swept(cold_bench, 2)
    assert condemned(cold_bench) == set() and len(stored(cold_bench)) == 2
    assert problems(cold_bench) == () and cold_bench.store.get("acme", lost[0].sha256)


class Race:
    """A sidecar that replicates an event with content in the very moment in which a sweep deletes that content."""

    def __init__(self, bench: ColdBench, home: Home) -> None:
        self.bench, self.home = bench, home
        self.text = "the same output once more " * 2_000
        self.ref = BlobRef.of(text_bytes(self.text))
        self.waited = False
        self.writer = threading.Thread(target=self._replicate)

    def _replicate(self) -> None:
        store = FsContentStore(self.bench.store.url)
        Sidecar(self.home, self.bench.dsn, store).run_once()
        store.close()

    def begin(self) -> None:
        """The content lies there, condemned long ago; an event with it has just been appended to the hot log."""
        put(self.bench, text_bytes(self.text), "default")
        assert swept(self.bench).condemned == 1
        grow_old(self.bench)
        with HotLog.open(self.home, role="worker", serve=False) as log:
            id_ = log.start_blocking(tenant="default", body=started())
            log.append_blocking(id_, message(self.text))

    def interfere(self) -> None:
        """Start the sidecar; returns when it waits for the sweep or has done its work."""
        self.writer.start()
        deadline = time.monotonic() + WAIT_S
        with self.bench.connect() as conn:
            conn.autocommit = True
            while self.writer.is_alive() and time.monotonic() < deadline:
                row = conn.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND wait_event_type = 'Lock' AND query LIKE '%%condemned_content%%'"
                ).fetchone()
                if row != (0,):
                    self.waited = True
                    return
                time.sleep(0.02)

    def run(self, patch: pytest.MonkeyPatch) -> Swept:
        """Sweep, with the sidecar between the last look at the file and its deletion."""
        deleted = Folder.delete

        def delete(folder: Folder, path: str) -> None:
            if path.endswith(self.ref.sha256):
                self.interfere()
            deleted(folder, path)

        patch.setattr(Folder, "delete", delete)
        done = swept(self.bench)
        self.writer.join(WAIT_S)
        assert not self.writer.is_alive()
        return done

    @property
    def lost(self) -> bool:
        """Whether an event refers to content that is not there."""
        with self.bench.connect() as conn:
            assert conn.execute("SELECT count(*) FROM all_events").fetchone() == (2,)
        return not self.bench.store.has("default", self.ref.sha256)


@pytest.fixture
def race(cold_bench: ColdBench, tmp_path: Path) -> Race:
    made = Race(cold_bench, Home.open(tmp_path / "home", create=True))
    made.begin()
    return made


def test_whoever_puts_content_while_it_is_deleted_wins(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    assert race.run(monkeypatch).deleted == 1
    assert race.waited and not race.lost
    assert race.bench.store.get("default", race.ref.sha256) == text_bytes(race.text)
    with race.bench.connect() as conn:
        conn.rollback()
        assert list(verify_warm(conn).problems) == []
    assert swept(race.bench, 9) == Swept(needed=1)


def test_whoever_puts_content_before_the_sweep_locks_it_wins(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = module._walk

    def walked(*given: Any) -> Any:
        found = walk(*given)
        race.interfere()
        return found

    monkeypatch.setattr(module, "_walk", walked)
    assert swept(race.bench).deleted == 0
    race.writer.join(WAIT_S)
    assert not race.waited and not race.lost


def test_without_sparing_it_first_content_would_be_lost(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control: a sidecar that only puts finds the content there, and then it is deleted.
    monkeypatch.setattr(putters, "spare", lambda conn, pieces: 0)
    race.run(monkeypatch)
    assert not race.waited and race.lost


def test_without_the_second_look_content_would_be_lost(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another control: references that are read once and then believed for ever.
    ref = put(cold_bench, b"needed later")
    first = module.find_roots
    with cold_bench.connect() as conn:
        conn.rollback()
        stale = first(conn, cold_bench.lake, cold_bench.catalog)
    swept(cold_bench)
    cold_bench.append(cold_bench.author(1), [ev.ToolResult(tool_call_id="c", output=Blob(ref))])
    monkeypatch.setattr(module, "find_roots", lambda *given: stale)
    assert swept(cold_bench, 2).deleted == 1 and not cold_bench.store.has("acme", ref.sha256)


def test_the_command(broken: Cli) -> None:
    found = broken.json("storage", "sweep")
    assert found["needed"] == 1 and found["deleted"] == found["condemned"] == 0
    assert broken("storage", "sweep", "--dry-run").code == 0
    assert broken.error("storage", "sweep", "--grace", "1m", code=1)["code"] == "invalid"
    assert broken("verify").code == 0
