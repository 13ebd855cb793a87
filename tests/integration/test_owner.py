"""A storage belongs to one database: another one is refused before it deletes what it does not know."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fix_cli import database_of
from fix_cold import ColdBench
from fix_packs import files_of, put_all
from fix_s3 import S3Bucket

from stratalog.cold import owner as module
from stratalog.cold import sweep as sweep_module
from stratalog.cold.cas import FsContentStore
from stratalog.cold.catalog import Catalog
from stratalog.cold.expiry import expire
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.owner import NAME, Owner, places, read_owner, take_over
from stratalog.cold.pack_table import PackTable
from stratalog.cold.packs import pack
from stratalog.cold.storage import open_storage
from stratalog.cold.sweep import sweep
from stratalog.schemas.errors import Conflict, Corrupt
from stratalog.warm.database import connect
from stratalog.warm.migrate import migrate
from stratalog.warm.server import EmbeddedPostgres

pytestmark = pytest.mark.postgres
LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=9)


def tiers(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


@pytest.fixture
def second(cold_bench: ColdBench, postgres_server: EmbeddedPostgres) -> Iterator[ColdBench]:
    """Another database on the same lake and the same content store."""
    with database_of(postgres_server) as dsn:
        with connect(dsn, check=False) as conn:
            conn.rollback()
            migrate(conn)
        with (
            Lake(cold_bench.lake.url) as lake,
            Catalog(dsn, lake) as catalog,
            closing(FsContentStore(cold_bench.store.url, table=PackTable(lambda: connect(dsn)))) as store,
        ):
            yield replace(cold_bench, dsn=dsn, lake=lake, catalog=catalog, store=store, authors={}, places={})


def grow_old(bench: ColdBench) -> None:
    """Let all content be two days older."""
    for path in files_of(bench.store):
        os.utime(path, (time.time() - 172_800,) * 2)


def swept(bench: ColdBench) -> Any:
    return sweep(tiers(bench), bench.store, now=LATER)


def test_the_second_database_is_refused_whatever_it_wants_to_do(cold_bench: ColdBench, second: ColdBench) -> None:
    cold_bench.task(1, blob=b"content of the first")
    tiers(cold_bench).consolidate("0d")
    assert [place.ours for place in places(tiers(cold_bench))] == [True, True]
    assert [place.ours for place in places(tiers(second))] == [False, False]
    before = files_of(cold_bench.store)
    for act in (
        lambda: swept(second),
        lambda: expire(tiers(second), now=LATER),
        lambda: pack(tiers(second)),
        lambda: tiers(second).consolidate("0d"),
        lambda: tiers(second).consolidation(),
    ):
        with pytest.raises(Conflict, match="another database") as caught:
            act()
        assert "--take-over" in caught.value.hint
    assert files_of(cold_bench.store) == before
    assert pack(tiers(cold_bench)).pieces == 1 and swept(cold_bench).needed == 1


def test_without_the_guard_the_second_sweep_would_delete(
    cold_bench: ColdBench, second: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control: nothing in the second database refers to what the first has put.
    cold_bench.task(1, blob=b"content of the first")
    tiers(cold_bench).consolidate("0d")
    grow_old(cold_bench)
    monkeypatch.setattr("stratalog.cold.owner.require_owner", lambda tiers: None)
    monkeypatch.setattr("stratalog.cold.sweep.require_owner", lambda tiers: None)
    assert swept(second).condemned == 1 and swept(second).deleted == 1
    assert list(cold_bench.store.digests("acme")) == []


def test_a_store_that_is_taken_over_while_it_is_swept_is_left_alone(
    cold_bench: ColdBench, second: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all(cold_bench.store, [b"put by somebody"])
    swept(cold_bench)
    grow_old(cold_bench)
    find = sweep_module.find_roots

    def taken(*given: Any) -> Any:
        take_over(tiers(second))
        return find(*given)

    monkeypatch.setattr(sweep_module, "find_roots", taken)
    with pytest.raises(Conflict, match="another database"):
        swept(cold_bench)
    assert len(files_of(cold_bench.store)) == 1


def test_it_is_given_over_on_purpose(cold_bench: ColdBench, second: ColdBench) -> None:
    tiers(cold_bench).consolidate("0d")
    assert all(place.owner is not None and not place.ours for place in places(tiers(second)))
    take_over(tiers(second))
    assert [place.ours for place in places(tiers(second))] == [True, True]
    tiers(second).consolidate("0d")
    with pytest.raises(Conflict):
        tiers(cold_bench).consolidate("0d")


def test_a_store_from_before_is_adopted_where_all_in_it_is_known(cold_bench: ColdBench, second: ColdBench) -> None:
    cold_bench.task(1, blob=b"needed")
    cold_bench.run()  # the steps alone, as an earlier version
    grow_old(cold_bench)
    put_all(cold_bench.store, [b"put a moment ago"])
    root = Path(cold_bench.store.url.removeprefix("file://"))
    assert not (root / NAME).exists()
    with pytest.raises(Conflict, match=r"does not know events/tenant=acme"):
        tiers(second).consolidate("0d")
    # Also where the lake is another one.
    with (
        Lake(f"{cold_bench.lake.url}-other") as lake,
        Catalog(second.dsn, lake) as catalog,
        pytest.raises(Conflict, match=r"does not know content [0-9a-f]{64} of acme"),
    ):
        tiers(replace(second, lake=lake, catalog=catalog)).consolidate("0d")
    tiers(cold_bench).consolidate("0d")
    assert read_owner(cold_bench.store.storage) is not None
    grow_old(cold_bench)
    assert swept(cold_bench).condemned == 1


def test_old_content_that_nothing_refers_to_keeps_a_store_from_being_adopted(cold_bench: ColdBench) -> None:
    put_all(cold_bench.store, [b"of whom?"])
    grow_old(cold_bench)
    with pytest.raises(Conflict, match="does not say"):
        swept(cold_bench)
    take_over(tiers(cold_bench))
    assert swept(cold_bench).condemned == 1


def test_of_two_that_adopt_at_once_one_is_refused(
    cold_bench: ColdBench, second: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = module._strange

    def late(conn: Any, own: Tiers, storage: Any) -> str | None:
        found = strange(conn, own, storage)
        if own.dsn == second.dsn:
            tiers(cold_bench).consolidate("0d")
        return found

    monkeypatch.setattr(module, "_strange", late)
    with pytest.raises(Conflict, match="another database"):
        tiers(second).consolidate("0d")
    assert [place.ours for place in places(tiers(cold_bench))] == [True, True]


def test_a_damaged_mark_is_said_and_can_be_written_anew(cold_bench: ColdBench) -> None:
    cold_bench.store.storage.put(NAME, b"{}")
    with pytest.raises(Corrupt, match="damaged") as caught:
        tiers(cold_bench).consolidate("0d")
    assert "--take-over" in caught.value.hint
    take_over(tiers(cold_bench))
    tiers(cold_bench).consolidate("0d")


def test_a_put_on_the_condition_that_there_is_nothing(s3_bucket: S3Bucket, tmp_path: Path) -> None:
    for storage in (open_storage(s3_bucket.url, s3_bucket.options), open_storage(str(tmp_path / "folder"))):
        assert storage.put_new(NAME, b"first") and not storage.put_new(NAME, b"second")
        assert storage.read(NAME) == b"first"
        storage.close()
    assert Owner("a", "b").product == "stratalog"
