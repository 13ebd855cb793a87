"""Freeing bytes where the cold tier is elsewhere: in an object store, or in a home that was moved."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fix_cold import ColdBench
from fix_s3 import S3Bucket

from stratalog.cold.cas import FsContentStore
from stratalog.cold.catalog import Catalog
from stratalog.cold.check import verify_cold
from stratalog.cold.expiry import expire
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.metadata_files import named_by
from stratalog.cold.pack_table import PackTable
from stratalog.cold.sweep import sweep
from stratalog.schemas.blobs import BlobRef

pytestmark = pytest.mark.postgres


def check(bench: ColdBench) -> None:
    """Expire and sweep everything that can go; what is needed is there and whole, and nothing else."""
    tiers = Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=30)
    done = expire(tiers, now=later)
    assert len(done.snapshots) == 2 and done.unknown == () and done.bytes > 0
    table = bench.catalog.table()
    assert table is not None
    named = named_by(bench.catalog, table, table.metadata.snapshots)
    assert {entry.path for entry in bench.lake.files("iceberg")} == set(named.metadata)
    lost = BlobRef.of(b"lost")
    bench.store.put("acme", lost, b"lost")
    assert sweep(tiers, bench.store, now=later).condemned == 1
    assert sweep(tiers, bench.store, now=later).deleted == 1 and not bench.store.has("acme", lost.sha256)
    found = verify_cold(bench.lake, bench.catalog, bench.store)
    assert (found.problems, found.unknown, found.trajectories, found.blobs) == ((), (), 3, 3)
    assert bench.run().runs == ()


def fill(bench: ColdBench) -> None:
    for number in range(3):
        bench.task(number, blob=b"bulky %d" % number)
        bench.run()


def test_in_an_object_store(cold_bench: ColdBench, s3_bucket: S3Bucket) -> None:
    with Lake(f"{s3_bucket.url}/cold", s3_bucket.options) as lake, Catalog(cold_bench.dsn, lake) as catalog:
        table = PackTable(cold_bench.connect)
        store = FsContentStore(f"{s3_bucket.url}/cas", s3_bucket.options, table)
        bench = replace(cold_bench, lake=lake, catalog=catalog, store=store)
        fill(bench)
        check(bench)
        store.close()


def test_in_a_home_that_was_moved(cold_bench: ColdBench, tmp_path: Path) -> None:
    fill(cold_bench)
    cold_bench.catalog.close()
    shutil.move(tmp_path / "cold", tmp_path / "elsewhere")
    with (
        Lake(f"file://{tmp_path}/elsewhere") as lake,
        Catalog(cold_bench.dsn, lake, movable=True) as catalog,
    ):
        check(replace(cold_bench, lake=lake, catalog=catalog))
    assert not (tmp_path / "cold").exists()


def test_a_home_that_is_moved_again_and_again_and_written_to_in_each_place(
    cold_bench: ColdBench, tmp_path: Path
) -> None:
    fill(cold_bench)
    cold_bench.catalog.close()
    before, bench = tmp_path / "cold", cold_bench
    for number, place in enumerate(("second", "third", "fourth"), start=10):
        before = Path(shutil.move(before, tmp_path / place))
        with (
            Lake(f"file://{before}") as lake,
            Catalog(cold_bench.dsn, lake, movable=True) as catalog,
        ):
            bench = replace(bench, lake=lake, catalog=catalog)
            bench.task(number)
            assert bench.run().trajectories == 1
            found = verify_cold(bench.lake, bench.catalog, bench.store)
            assert (found.problems, found.trajectories) == ((), number - 6)
