"""Object stores that are slow, refuse, break off or list late: tried again with a bound, and nothing is lost by it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fix_cold import ColdBench
from fix_faulty_store import FaultyStore
from fix_packs import put_all, report_of_tests
from fix_s3 import S3Bucket

from stratalog.cold import bucket as bucket_module
from stratalog.cold import patience
from stratalog.cold.bucket import Bucket, s3_arguments
from stratalog.cold.cas import FsContentStore, loose_path
from stratalog.cold.catalog import Catalog
from stratalog.cold.check import verify_cold
from stratalog.cold.expiry import expire
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.pack_shelf import PackShelf
from stratalog.cold.pack_table import PackTable
from stratalog.cold.packs import pack
from stratalog.cold.sweep import sweep
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Invalid, NotFound, Unavailable

pytestmark = pytest.mark.required_in_ci
CONTENT = b"bulky " * 1000
REF = BlobRef.of(CONTENT)


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module.tempfile, "gettempdir", lambda: str(tmp_path))


@pytest.fixture
def store(s3_bucket: S3Bucket, faulty_options: dict[str, str]) -> Iterator[FsContentStore]:
    opened = FsContentStore(f"s3://{s3_bucket.name}/cas", faulty_options)
    yield opened
    opened.close()


def keys(bucket: S3Bucket) -> list[str]:
    return [entry["Key"] for entry in bucket.client.list_objects_v2(Bucket=bucket.name).get("Contents", ())]


def calls(store: FsContentStore, tmp_path: Path) -> dict[str, Callable[[], Any]]:
    """Everything that is asked of a store; the content is there."""
    source = tmp_path / "source"
    source.write_bytes(CONTENT)
    path = loose_path("acme", REF.sha256)
    storage = store.storage
    return {
        "put": lambda: store.put("acme", BlobRef.of(b"other"), b"other"),
        "put new": lambda: storage.put_new("acme/new", b"new"),
        "get": lambda: store.get("acme", REF.sha256),
        "range": lambda: storage.read_range(path, 3, 9),
        "open": lambda: storage.open(path).read(7),
        "has": lambda: store.has("acme", REF.sha256),
        "list": lambda: list(store.digests("acme")),
        "folders": lambda: list(store.tenants()),
        "move": lambda: storage.move(source, "acme/moved"),
        "delete": lambda: storage.delete("acme/gone"),
        "purge": lambda: storage.purge("acme/gone"),
    }


CALLS = ["put", "put new", "get", "range", "open", "has", "list", "folders", "move", "delete", "purge"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", ["503", "drop", "hang"])
def test_what_passes_by_itself_is_tried_again(
    store: FsContentStore, faulty: FaultyStore, tmp_path: Path, how: str, call: str
) -> None:
    store.put("acme", REF, CONTENT)
    act = calls(store, tmp_path)[call]
    faulty.fail(how, times=1 if how == "hang" else 2)
    act()
    assert len(faulty.requests) > 1
    assert store.get("acme", REF.sha256) == CONTENT


@pytest.mark.parametrize("call", ["put", "get", "list", "move"])
@pytest.mark.parametrize("how", ["503", "hang"])
def test_what_does_not_pass_is_unavailable_after_a_bound_and_loses_nothing(
    store: FsContentStore, faulty: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, call: str
) -> None:
    store.put("acme", REF, CONTENT)
    act = calls(store, tmp_path)[call]
    monkeypatch.setattr(patience, "ATTEMPTS_MAX", 2)
    faulty.fail(how)
    with pytest.raises(Unavailable) as caught:
        act()
    assert "check that the object store runs" in caught.value.hint
    assert len(faulty.requests) == 2 and (tmp_path / "source").exists()
    faulty.heal()
    act()
    assert store.get("acme", REF.sha256) == CONTENT


def test_without_patience_one_refusal_would_be_an_error(
    store: FsContentStore, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control: nothing below tries again, but for a connection that breaks off, which the client opens anew once.
    monkeypatch.setattr(patience, "ATTEMPTS_MAX", 1)
    for how in ("503", "hang"):
        faulty.fail(how, times=1)
        with pytest.raises(Unavailable):
            store.put("acme", REF, CONTENT)


def test_there_is_a_bound_in_time_too(
    store: FsContentStore, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ATTEMPTS_MAX", 1000)
    monkeypatch.setattr(patience, "SECONDS_MAX", 0.2)
    faulty.fail("503")
    with pytest.raises(Unavailable):
        store.put("acme", REF, CONTENT)
    assert len(faulty.requests) < 100


def test_an_upload_that_is_cut_off_leaves_nothing_and_is_made_again(
    store: FsContentStore, faulty: FaultyStore, s3_bucket: S3Bucket
) -> None:
    faulty.fail("cut", methods=("PUT",))
    with pytest.raises(Unavailable):
        store.put("acme", REF, CONTENT)
    assert keys(s3_bucket) == []
    faulty.fail("cut", times=2, methods=("PUT",))
    store.put("acme", REF, CONTENT)
    assert store.get("acme", REF.sha256) == CONTENT


def test_a_store_that_keeps_half_of_an_upload_is_noticed(
    store: FsContentStore, faulty: FaultyStore, s3_bucket: S3Bucket
) -> None:
    # The control of the one before: here something is there under the name.
    faulty.fail("shorten", methods=("PUT",))
    with pytest.raises(Unavailable, match=r"wrote 6000 bytes, found 3000"):
        store.put("acme", REF, CONTENT)
    assert keys(s3_bucket) != []
    faulty.heal()
    store.put("acme", REF, CONTENT)
    assert store.get("acme", REF.sha256) == CONTENT


def test_parts_of_an_upload_that_breaks_off_are_removed(
    store: FsContentStore, faulty: FaultyStore, s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = store.storage
    assert isinstance(storage, Bucket)
    put_file = storage.filesystem.put_file
    monkeypatch.setattr(storage.filesystem, "put_file", lambda *given: put_file(*given, chunksize=5 << 20))
    source = tmp_path / "large"
    source.write_bytes(os.urandom(12 << 20))
    content = source.read_bytes()
    faulty.fail("cut", methods=("PUT",), after=1)
    with pytest.raises(Unavailable):
        storage.move(source, "acme/large")
    assert keys(s3_bucket) == [] and source.exists()
    assert s3_bucket.client.list_multipart_uploads(Bucket=s3_bucket.name).get("Uploads", []) == []
    faulty.fail("cut", times=1, methods=("PUT",), after=1)
    storage.move(source, "acme/large")
    assert storage.read("acme/large") == content and not source.exists()


def test_a_condition_holds_also_where_the_answer_was_lost(
    store: FsContentStore, faulty: FaultyStore, s3_bucket: S3Bucket
) -> None:
    faulty.fail("drop", times=1, methods=("PUT",))
    assert store.storage.put_new("mark", b"mine")
    faulty.fail("drop", times=1, methods=("PUT",))
    assert not store.storage.put_new("mark", b"another's")
    assert store.storage.read("mark") == b"mine"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a//b", "a\0b", ""])
def test_no_write_and_no_delete_leaves_the_root(store: FsContentStore, faulty: FaultyStore, path: str) -> None:
    storage = store.storage
    for act in (
        lambda: storage.put(path, b"x"),
        lambda: storage.put_new(path, b"x"),
        lambda: storage.delete(path),
        lambda: storage.purge(path),
        lambda: storage.read_range(path, 0, 1),
    ):
        with pytest.raises(Invalid):
            act()
    assert faulty.requests == []


def test_timeouts_are_settings() -> None:
    client = s3_arguments({"read_timeout": "7", "connect_timeout": "0.5"})["config_kwargs"]
    assert (client["read_timeout"], client["connect_timeout"]) == (7.0, 0.5)
    for text in ("0", "-1", "soon", "1e9", "nan"):
        with pytest.raises(Invalid, match="read_timeout"):
            s3_arguments({"read_timeout": text})


@pytest.fixture
def bench(
    cold_bench: ColdBench, s3_bucket: S3Bucket, faulty: FaultyStore, faulty_options: dict[str, str]
) -> Iterator[ColdBench]:
    """The cold tier in a bucket, behind the proxy."""
    options = {**faulty_options, "read_timeout": "10"}
    with Lake(f"{s3_bucket.url}/cold", options) as lake, Catalog(cold_bench.dsn, lake) as catalog:
        store = FsContentStore(f"{s3_bucket.url}/cas", options, PackTable(cold_bench.connect))
        settings = replace_settings(cold_bench, options)
        yield replace(cold_bench, lake=lake, catalog=catalog, store=store, settings=settings)
        store.close()


def replace_settings(bench: ColdBench, options: dict[str, str]) -> Any:
    from msgspec.structs import replace as changed

    return changed(bench.settings, storage_options=options)


def tiers(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def alone(bench: ColdBench, s3_bucket: S3Bucket) -> FsContentStore:
    """The store for somebody who has no Postgres and comes without the proxy."""
    return FsContentStore(bench.store.url, s3_bucket.options)


@pytest.mark.postgres
@pytest.mark.parametrize("after", [3, 10, 21])
def test_a_store_that_fails_while_content_is_packed_loses_nothing(
    bench: ColdBench, faulty: FaultyStore, s3_bucket: S3Bucket, after: int
) -> None:
    contents = [report_of_tests(number, 40) for number in range(3)]
    for number, content in enumerate(contents):
        bench.task(number, blob=content)
    tiers(bench).consolidate("0d")
    faulty.fail("503", after=after)
    with pytest.raises(Unavailable):
        pack(tiers(bench))
    reader = alone(bench, s3_bucket)
    assert [reader.get("acme", BlobRef.of(content).sha256) for content in contents] == contents
    faulty.heal()
    assert pack(tiers(bench)).problems == ()
    reader = alone(bench, s3_bucket)
    assert [reader.get("acme", BlobRef.of(content).sha256) for content in contents] == contents
    assert [key for key in keys(s3_bucket) if "/cas/acme/" in key and not key.endswith(".pack")] == []
    assert len([key for key in keys(s3_bucket) if key.endswith(".pack")]) == 1
    reader.close()


@pytest.mark.postgres
def test_what_is_not_listed_yet_is_neither_missing_nor_unneeded(
    bench: ColdBench, faulty: FaultyStore, s3_bucket: S3Bucket
) -> None:
    faulty.lists_late = True
    contents = [report_of_tests(number, 40) for number in range(3)]
    for number, content in enumerate(contents):
        bench.task(number, blob=content)
    assert list(bench.store.digests("acme")) == [] and list(bench.store.tenants()) == []  # the control: it lags
    done = tiers(bench).consolidate("0d")
    assert (done.trajectories, done.problems) == (3, ())
    assert verify_cold(bench.lake, bench.catalog, bench.store).problems == ()
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=30)
    swept = sweep(tiers(bench), bench.store, now=later)
    assert (swept.needed, swept.condemned, swept.deleted) == (3, 0, 0)
    expire(tiers(bench), now=later)
    packed = pack(tiers(bench))
    assert (packed.pieces, packed.waiting, packed.deleted, packed.problems) == (3, 3, 0, ())
    assert verify_cold(bench.lake, bench.catalog, bench.store).problems == ()
    late = FsContentStore(bench.store.url, {**s3_bucket.options, "endpoint_url": faulty.endpoint})
    assert [late.get("acme", BlobRef.of(content).sha256) for content in contents] == contents
    late.close()
    faulty.catch_up()
    assert pack(tiers(bench)).deleted == 3
    reader = alone(bench, s3_bucket)
    assert [reader.get("acme", BlobRef.of(content).sha256) for content in contents] == contents
    reader.close()
    assert sweep(tiers(bench), bench.store, now=later).condemned == 0


@pytest.mark.postgres
def test_deleting_loose_copies_before_their_pack_is_listed_would_hide_them(
    bench: ColdBench, faulty: FaultyStore, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control: packing that believes every pack to be listed. Whoever has Postgres finds the content all the same.
    bench.task(1, blob=CONTENT)
    tiers(bench).consolidate("0d")
    faulty.lists_late = True
    names = PackShelf.names

    class Every(dict[str, int]):
        def __contains__(self, name: object) -> bool:
            return True

    with monkeypatch.context() as patch:
        patch.setattr(PackShelf, "names", lambda shelf, tenant: Every(names(shelf, tenant)))
        assert pack(tiers(bench)).deleted == 1
    late = FsContentStore(bench.store.url, {**s3_bucket.options, "endpoint_url": faulty.endpoint})
    with pytest.raises(NotFound):
        late.get("acme", REF.sha256)
    told = FsContentStore(
        bench.store.url, {**s3_bucket.options, "endpoint_url": faulty.endpoint}, PackTable(bench.connect)
    )
    assert told.get("acme", REF.sha256) == CONTENT
    for opened in (late, told):
        opened.close()


@pytest.mark.postgres
def test_erasing_finds_a_pack_that_is_not_listed_yet_and_every_version(
    bench: ColdBench, faulty: FaultyStore, s3_bucket: S3Bucket
) -> None:
    s3_bucket.client.put_bucket_versioning(Bucket=s3_bucket.name, VersioningConfiguration={"Status": "Enabled"})
    bench.task(1, blob=CONTENT)
    bench.task(2, blob=b"kept " * 100)
    tiers(bench).consolidate("0d")
    pack(tiers(bench))
    put_all(bench.store, [CONTENT])
    bench.store.storage.delete(loose_path("acme", REF.sha256))
    versions = s3_bucket.client.list_object_versions(Bucket=s3_bucket.name)
    assert any(version["Key"].endswith(REF.sha256) for version in versions["Versions"])  # the control
    faulty.lists_late = True
    for key in keys(s3_bucket):
        if key.endswith(".pack"):
            faulty.note("PUT", f"/{s3_bucket.name}/{key}")
    fresh = FsContentStore(bench.store.url, bench.settings.storage_options, PackTable(bench.connect))
    assert fresh.erase_content("acme", [REF.sha256]).packs == 1
    versions = s3_bucket.client.list_object_versions(Bucket=s3_bucket.name)
    left = [version["Key"] for version in (*versions["Versions"], *versions.get("DeleteMarkers", ()))]
    assert not any(key.endswith(REF.sha256) for key in left) and sum(key.endswith(".pack") for key in left) == 1
    assert fresh.get("acme", BlobRef.of(b"kept " * 100).sha256) == b"kept " * 100 and not fresh.has("acme", REF.sha256)
    fresh.close()
