"""The catalog of the cold table: one snapshot a run, never two, whoever commits beside it; also in an object store."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from fix_cold import ColdBench
from fix_s3 import S3Bucket
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import make_url

from stratalog.cold.cas import FsContentStore
from stratalog.cold.catalog import CATALOG_SCHEMA, RUN_ID, Catalog, iceberg_schema, sqlalchemy_url
from stratalog.cold.check import verify_cold
from stratalog.cold.lake import Lake
from stratalog.schemas.arrow import NAMES
from stratalog.schemas.errors import NotFound, Unavailable

pytestmark = pytest.mark.postgres


def published(bench: ColdBench, number: int) -> tuple[str, list[str]]:
    """Files of a run that is not committed."""
    bench.task(number)
    with bench.steps() as steps:
        run, _ = steps.plan("0d")
        assert run is not None
        files = [file.url for file in steps.write_files(run).files]
    return str(run.run_id), files


def test_reading_makes_nothing(cold_bench: ColdBench) -> None:
    assert cold_bench.catalog.snapshot_files() == [] and not cold_bench.catalog.has_run("x")
    with cold_bench.connect() as conn:
        assert conn.execute("SELECT to_regnamespace(%s)", [CATALOG_SCHEMA]).fetchone() == (None,)


def test_a_run_is_one_snapshot_that_carries_its_id(cold_bench: ColdBench) -> None:
    run_id, files = published(cold_bench, 1)
    totals = cold_bench.catalog.commit(files, run_id)
    assert (totals.files, totals.events) == (1, 18)
    assert cold_bench.catalog.has_run(run_id) and not cold_bench.catalog.has_run(str(uuid.uuid4()))
    assert cold_bench.catalog.snapshot_files() == files
    with Catalog(cold_bench.dsn, cold_bench.lake) as other:
        assert other.snapshot_files() == files
        assert other.commit(files, run_id) == totals, "and again changes nothing"
        assert other.snapshot_files() == files


def test_concurrent_commits_all_arrive(cold_bench: ColdBench) -> None:
    runs = [published(cold_bench, 1)]
    for number in (2, 3, 4):
        run_id, files = runs[0]
        copies = [url.replace(run_id, str(uuid.UUID(int=number))) for url in files]
        for url, copy in zip(files, copies, strict=True):
            Path(copy.removeprefix("file://")).write_bytes(Path(url.removeprefix("file://")).read_bytes())
        runs.append((str(uuid.UUID(int=number)), copies))
    cold_bench.catalog.ensure()
    failed: list[Exception] = []

    def commit(run_id: str, files: list[str]) -> None:
        try:
            with Catalog(cold_bench.dsn, cold_bench.lake) as catalog:
                catalog.commit(files, run_id)
        except Exception as error:  # noqa: BLE001 - what a thread raises is looked at below
            failed.append(error)

    # Each run is committed by two threads at once.
    threads = [threading.Thread(target=commit, args=run) for run in runs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert cold_bench.catalog.snapshot_files() == sorted(url for _, files in runs for url in files)


def test_an_outcome_that_was_lost_is_looked_up(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id, files = published(cold_bench, 1)
    cold_bench.catalog.ensure()
    commit_table = SqlCatalog.commit_table

    def lossy(*arguments: object, **named: object) -> object:
        commit_table(*arguments, **named)  # type: ignore[arg-type]
        raise psycopg.OperationalError("the connection broke after the commit")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lossy)
        with pytest.raises(Unavailable):
            cold_bench.catalog.commit(files, run_id)
    cold_bench.catalog.commit(files, run_id)
    assert cold_bench.catalog.snapshot_files() == files


def test_two_processes_may_make_the_catalog_at_once(cold_bench: ColdBench) -> None:
    failed: list[Exception] = []

    def ensure() -> None:
        try:
            with Catalog(cold_bench.dsn, cold_bench.lake) as catalog:
                catalog.ensure()
        except Exception as error:  # noqa: BLE001 - what a thread raises is looked at below
            failed.append(error)

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and cold_bench.catalog.snapshot_files() == []


def test_other_readers_of_iceberg_find_partitions_and_descriptions(cold_bench: ColdBench) -> None:
    run_id, files = published(cold_bench, 1)
    cold_bench.catalog.commit(files, run_id)
    table = cold_bench.catalog._table()
    assert table is not None
    assert [field.name for field in table.spec().fields] == ["tenant", "date", "model"]
    assert [field.name for field in table.schema().fields] == list(NAMES)
    assert table.schema() == iceberg_schema() and all(field.doc for field in table.schema().fields)
    assert table.scan("tenant == 'acme' and date == '2025-01-01'").to_arrow().num_rows == 18
    assert list(table.scan("tenant == 'globex'").plan_files()) == []
    snapshot = table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary.additional_properties[RUN_ID] == run_id


def test_metadata_that_is_gone_is_an_error(cold_bench: ColdBench, tmp_path: Path) -> None:
    run_id, files = published(cold_bench, 1)
    cold_bench.catalog.commit(files, run_id)
    for path in (tmp_path / "cold" / "iceberg").rglob("*.metadata.json"):
        path.unlink()
    with pytest.raises(NotFound):
        cold_bench.catalog.snapshot_files()


@pytest.mark.parametrize(
    "dsn",
    [
        "host='/tmp/a b/run' port=5433 user=me dbname=logs",
        "postgresql://me:p%40ss%2F@db.example:6000/logs?sslmode=require",
        "postgresql://a.example:5432,b.example:5433/logs",
        "host=db options='-c statement_timeout=5'",
        "",
    ],
)
def test_any_dsn_becomes_a_url_with_the_same_meaning(dsn: str) -> None:
    url = make_url(sqlalchemy_url(dsn))
    (_, arguments) = url.get_dialect()().create_connect_args(url)
    options = arguments.pop("options")
    expected = {name: value for name, value in conninfo_to_dict(dsn).items() if value is not None}
    assert options.endswith(f"-c search_path={CATALOG_SCHEMA}") and options.startswith(expected.pop("options", ""))
    assert {name: str(value) for name, value in arguments.items()} == expected


def test_a_server_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    with Lake(f"file://{tmp_path}/cold") as lake, Catalog(f"host={tmp_path} dbname=x", lake) as catalog:
        for call in (catalog.snapshot_files, catalog.ensure, lambda: catalog.commit([], "x")):
            with pytest.raises(Unavailable):
                call()


def test_the_whole_way_over_an_object_store(cold_bench: ColdBench, s3_bucket: S3Bucket) -> None:
    with Lake(f"{s3_bucket.url}/cold", s3_bucket.options) as lake, Catalog(cold_bench.dsn, lake) as catalog:
        store = FsContentStore(f"{s3_bucket.url}/cas", s3_bucket.options)
        bench = replace(cold_bench, lake=lake, catalog=catalog, store=store)
        bench.task(1, turns=40)
        bench.task(2, day=1, blob=b"bulky" * 1_000)
        done = bench.run()
        assert (done.trajectories, done.files, done.problems) == (2, 2, ())
        assert all(url.startswith(f"{s3_bucket.url}/cold/events/") for url in catalog.snapshot_files())
        found = verify_cold(lake, catalog, store)
        assert (found.problems, found.unknown, found.blobs, found.trajectories) == ((), (), 1, 2)
        key = catalog.snapshot_files()[0].removeprefix(f"s3://{s3_bucket.name}/")
        content = bytearray(s3_bucket.client.get_object(Bucket=s3_bucket.name, Key=key)["Body"].read())
        content[len(content) // 2] ^= 1
        s3_bucket.client.put_object(Bucket=s3_bucket.name, Key=key, Body=bytes(content))
        assert "not the one that its name says" in verify_cold(lake, catalog, store).problems[0]
        store.close()
