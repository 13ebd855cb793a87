"""Legal holds in a bucket with Object Lock (moto's server): what is held is locked, and rewrites hand locks over."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_cold import Author, ColdBench
from fix_retention import load, place, run_apply
from fix_s3 import S3Bucket
from fix_step_crash import Crash, crashing

from stratalog.cold import bucket as bucket_module
from stratalog.cold import held_objects, object_lock, packs, rewrite_settle
from stratalog.cold.cas import FsContentStore, loose_path
from stratalog.cold.catalog import Catalog
from stratalog.cold.held_objects import Locks, apply_locks
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.pack_table import PackTable
from stratalog.cold.retention import delete_from_cold
from stratalog.cold.retention_content import delete_content
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Conflict
from stratalog.warm import hold
from stratalog.warm.database import connect
from stratalog.warm.migrate import migrate

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
POLICY = '[[policy]]\nname = "all"\nwarm = "7d"\ncold = "30d"\nbulky = "30d"\n'
HELD, FREE = b"held content " * 100, b"free content " * 100


@pytest.fixture
def locked_bucket(s3_bucket: S3Bucket) -> S3Bucket:
    """A bucket with Object Lock."""
    name = f"locked-{uuid.uuid4()}"
    s3_bucket.client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    return S3Bucket(name, f"s3://{name}/some/prefix", s3_bucket.options, s3_bucket.client)


@pytest.fixture
def bench(
    database: str, locked_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ColdBench]:
    """The cold tier in that bucket."""
    monkeypatch.setattr(bucket_module.tempfile, "gettempdir", lambda: str(tmp_path))
    with connect(database, check=False) as conn:
        conn.rollback()
        migrate(conn)
    with Lake(f"{locked_bucket.url}/lake", locked_bucket.options) as lake, Catalog(database, lake) as catalog:
        table = PackTable(lambda: connect(database))
        store = FsContentStore(f"{locked_bucket.url}/cas", locked_bucket.options, table)
        yield ColdBench(database, lake, catalog, store)
        store.close()


def tiers_of(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def locked(bucket: S3Bucket) -> set[str]:
    """The keys of which every version is under a legal hold."""
    found: dict[str, list[bool]] = {}
    for version in bucket.client.list_object_versions(Bucket=bucket.name).get("Versions", ()):
        where = {"Bucket": bucket.name, "Key": version["Key"], "VersionId": version["VersionId"]}
        status = bucket.client.get_object_legal_hold(**where)["LegalHold"]
        found.setdefault(version["Key"], []).append(status.get("Status") == "ON")
    return {key.removeprefix("some/prefix/") for key, states in found.items() if all(states)}


def data_files(bench: ColdBench) -> set[str]:
    return {f"lake/{bench.lake.path_of(file.url)}" for file in bench.catalog.files()}


def path_of(content: bytes) -> str:
    return f"cas/{loose_path('acme', BlobRef.of(content).sha256)}"


def fill(bench: ColdBench) -> tuple[Author, Author]:
    """Two that are due, on different days, each with content of its own."""
    held = bench.task(1, turns=1, blob=HELD)
    free = bench.task(2, turns=1, day=1, blob=FREE)
    bench.run()
    return held, free


def release(bench: ColdBench) -> None:
    with closing(bench.connect()) as conn:
        hold.release(conn, "case", by="tester", reason="over")


def test_files_and_content_of_what_is_held_are_locked_until_the_last_release(
    bench: ColdBench, locked_bucket: S3Bucket
) -> None:
    held, free = fill(bench)
    (file,) = {name for name in data_files(bench) if "2025-01-01" in name}
    place(bench, "case", trajectories=(held.trajectory_id,))
    place(bench, "other", trajectories=(held.trajectory_id,))
    assert apply_locks(tiers_of(bench)) == Locks(("lake", "content"), locked=2)
    assert locked(locked_bucket) == {file, path_of(HELD)}
    bench.execute("INSERT INTO trajectory_links VALUES (%s, %s, 'fork')", held.trajectory_id, free.trajectory_id)
    assert apply_locks(tiers_of(bench)).locked == 2, "what a held branch refers to in its parent"
    bench.execute("DELETE FROM trajectory_links")
    release(bench)
    assert apply_locks(tiers_of(bench)) == Locks(("lake", "content"), kept=2, released=2)
    with closing(bench.connect()) as conn:
        hold.release(conn, "other", by="tester", reason="over")
    assert apply_locks(tiers_of(bench)) == Locks(("lake", "content"), released=2)
    assert locked(locked_bucket) == set()


def test_what_is_written_later_is_locked_by_the_next_run(bench: ColdBench, locked_bucket: S3Bucket) -> None:
    place(bench, "case", tenant="acme")
    apply_locks(tiers_of(bench))
    bench.task(1, turns=1, blob=HELD)
    apply_locks(tiers_of(bench))
    assert locked(locked_bucket) == {path_of(HELD)}, "it is not in the lake yet"
    bench.run()
    packs.pack(tiers_of(bench))
    apply_locks(tiers_of(bench))
    assert data_files(bench) < locked(locked_bucket)
    assert [key for key in locked(locked_bucket) if key.endswith(".pack")]


def test_the_store_refuses_what_is_locked(bench: ColdBench, locked_bucket: S3Bucket) -> None:
    held, _ = fill(bench)
    place(bench, "case", trajectories=(held.trajectory_id,))
    apply_locks(tiers_of(bench))
    for name in locked(locked_bucket):
        place_, _, path = name.partition("/")
        storage = {"lake": bench.lake.storage, "cas": bench.store.storage}[place_]
        with pytest.raises(Conflict, match="the store refuses to delete"):
            storage.purge(path)
    assert len(locked(locked_bucket)) == 2


def test_control_without_locks_the_store_deletes_what_is_held(bench: ColdBench, locked_bucket: S3Bucket) -> None:
    held, _ = fill(bench)
    place(bench, "case", trajectories=(held.trajectory_id,))
    bench.store.storage.purge(path_of(HELD).removeprefix("cas/"))
    versions = locked_bucket.client.list_object_versions(Bucket=locked_bucket.name).get("Versions", ())
    assert not [version for version in versions if version["Key"].endswith(path_of(HELD))]


def both_in_one_file(bench: ColdBench) -> tuple[Author, Author, str]:
    held = bench.task(1, turns=1, blob=HELD)
    gone = bench.task(2, turns=1, blob=FREE)
    bench.run()
    load(bench, POLICY)
    place(bench, "case", trajectories=(held.trajectory_id,))
    apply_locks(tiers_of(bench))
    run_apply(bench, NOW)
    (old,) = data_files(bench)
    return held, gone, old


def keys(bucket: S3Bucket) -> set[str]:
    found = bucket.client.list_object_versions(Bucket=bucket.name).get("Versions", ())
    return {version["Key"].removeprefix("some/prefix/") for version in found}


def test_a_rewrite_locks_the_new_file_and_then_deletes_the_old_one(bench: ColdBench, locked_bucket: S3Bucket) -> None:
    _, _, old = both_in_one_file(bench)
    assert locked(locked_bucket) == {old, path_of(HELD)}
    assert delete_from_cold(tiers_of(bench), NOW, wait_s=0).trajectories == 1
    (new,) = data_files(bench)
    assert new != old and old not in keys(locked_bucket)
    assert locked(locked_bucket) == {new, path_of(HELD)}
    assert apply_locks(tiers_of(bench)) == Locks(("lake", "content"), kept=2)


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (object_lock, "lock", False),
        (object_lock, "release", True),
    ],
)
def test_a_crash_while_locks_are_handed_over_leaves_the_held_rows_locked(
    bench: ColdBench, locked_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    _, _, old = both_in_one_file(bench)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, crashing(getattr(owner, name), after=after))
        with pytest.raises(Crash):
            delete_from_cold(tiers_of(bench), NOW, wait_s=0)
    (new,) = data_files(bench)
    assert {old, new} & locked(locked_bucket), "one that holds the held rows is locked all the time"
    assert delete_from_cold(tiers_of(bench), NOW, wait_s=0).trajectories == 1
    apply_locks(tiers_of(bench))
    assert locked(locked_bucket) == {new, path_of(HELD)} and old not in keys(locked_bucket)


def test_control_without_handing_over_the_store_refuses_and_it_is_said(
    bench: ColdBench, locked_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gone, old = both_in_one_file(bench)
    with monkeypatch.context() as patched:
        patched.setattr(rewrite_settle, "hand_over", lambda *given: None)
        with pytest.raises(Conflict, match="the store refuses to delete"):
            delete_from_cold(tiers_of(bench), NOW, wait_s=0)
    assert old in keys(locked_bucket)
    # The events have left the table; the next run takes the file.
    assert delete_from_cold(tiers_of(bench), NOW, wait_s=0).trajectories == 1
    assert old not in keys(locked_bucket) and gone.trajectory_id not in bench.places.keys() - bench.authors.keys()


def test_a_lock_that_somebody_else_has_set_is_theirs(bench: ColdBench, locked_bucket: S3Bucket) -> None:
    fill(bench)
    theirs = f"some/prefix/{path_of(FREE)}"
    locked_bucket.client.put_object_legal_hold(Bucket=locked_bucket.name, Key=theirs, LegalHold={"Status": "ON"})
    load(bench, POLICY)
    apply_locks(tiers_of(bench))
    assert locked(locked_bucket) == {path_of(FREE)}
    with pytest.raises(Conflict, match="the store refuses to delete"):
        delete_content(tiers_of(bench), NOW)
    assert bench.store.has("acme", BlobRef.of(FREE).sha256) or path_of(FREE) in keys(locked_bucket)


def test_content_in_a_pack_beside_what_is_held_goes_and_the_new_pack_is_locked(
    bench: ColdBench, locked_bucket: S3Bucket
) -> None:
    held, _ = fill(bench)
    packs.pack(tiers_of(bench))
    load(bench, POLICY)
    place(bench, "case", trajectories=(held.trajectory_id,))
    apply_locks(tiers_of(bench))
    (before,) = {key for key in locked(locked_bucket) if key.endswith(".pack")}
    assert delete_content(tiers_of(bench), NOW).pieces == 1
    (after,) = {key for key in locked(locked_bucket) if key.endswith(".pack")}
    assert after != before and before not in keys(locked_bucket)
    assert bench.store.get("acme", BlobRef.of(HELD).sha256) == HELD


def test_a_bucket_without_object_lock_and_a_folder_need_nothing(
    cold_bench: ColdBench, s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module.tempfile, "gettempdir", lambda: str(tmp_path))
    cold_bench.task(1)
    place(cold_bench, "case", tenant="acme")
    assert apply_locks(tiers_of(cold_bench)) == Locks()
    with Lake(s3_bucket.url, s3_bucket.options) as lake:
        assert not held_objects.has_object_lock(lake.storage)
