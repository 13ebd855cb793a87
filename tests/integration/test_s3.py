"""The lake, content-addressed storage and DuckDB on S3 (moto's server): faults, foreign objects, many threads."""

from __future__ import annotations

import datetime as dt
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from fix_parquet import DAY, Trail, write_files
from fix_s3 import S3Bucket

from stratalog.cold import bucket as bucket_module
from stratalog.cold.bucket import open_filesystem, s3_arguments
from stratalog.cold.cas import FsContentStore
from stratalog.cold.filesystem import RangeReader, StatelessFileSystem
from stratalog.cold.lake import Lake
from stratalog.cold.query import connect, run_sql
from stratalog.cold.views import view_statements
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, Invalid, NotFound, Unavailable
from stratalog.schemas.events import ModelReplied, TaskStarted, ToolIntent, ToolResult

pytestmark = pytest.mark.required_in_ci


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module.tempfile, "gettempdir", lambda: str(tmp_path))


@pytest.fixture
def lake(s3_bucket: S3Bucket) -> Iterator[Lake]:
    with Lake(s3_bucket.url, s3_bucket.options) as opened:
        yield opened


@pytest.fixture
def store(s3_bucket: S3Bucket) -> FsContentStore:
    return FsContentStore(f"s3://{s3_bucket.name}/cas", s3_bucket.options)


def keys(bucket: S3Bucket) -> list[str]:
    return [entry["Key"] for entry in bucket.client.list_objects_v2(Bucket=bucket.name).get("Contents", ())]


def test_a_published_file_is_there_whole_and_the_local_one_is_gone(lake: Lake, s3_bucket: S3Bucket) -> None:
    source = lake.scratch() / "x"
    source.write_bytes(b"0123456789")
    url = lake.publish(source, "events/tenant=t/date=2026-01-01/model=m/x.parquet")
    assert url == f"{s3_bucket.url}/events/tenant=t/date=2026-01-01/model=m/x.parquet"
    assert keys(s3_bucket) == ["some/prefix/events/tenant=t/date=2026-01-01/model=m/x.parquet"]
    assert not source.exists()
    with lake.open(url) as stream:
        stream.seek(-3, 2)
        assert (stream.read(2), stream.read(), stream.read(1), stream.tell()) == (b"78", b"9", b"", 10)
    assert [(entry.path, entry.size) for entry in lake.files()] == [(lake.path_of(url), 10)]
    lake.delete(url)
    lake.delete(url)
    assert not lake.exists(url) and keys(s3_bucket) == []


def test_large_files_go_up_in_parts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lake.scratch() / "large"
    content = bytes(range(256)) * (130 << 12)  # 130 MiB: s3fs uses parts above 100 MiB
    source.write_bytes(content)
    lake.publish(source, "events/large")
    entry = lake.entry("events/large")
    assert entry is not None and entry.size == len(content) and "-" in entry.etag


def test_abandoned_uploads_are_aborted_after_a_day(
    lake: Lake, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("some/prefix/events/x", "other/x"):
        s3_bucket.client.create_multipart_upload(Bucket=s3_bucket.name, Key=key)
    # For moto every upload began in 2010.
    monkeypatch.setattr(bucket_module, "PARTIAL_AGE_S_MIN", 100 * 365 * 86_400)
    assert lake.clean_partial() == 0  # somebody may still be writing it
    monkeypatch.setattr(bucket_module, "PARTIAL_AGE_S_MIN", 24 * 3600)
    assert lake.clean_partial() == 1
    left = s3_bucket.client.list_multipart_uploads(Bucket=s3_bucket.name)["Uploads"]
    assert [upload["Key"] for upload in left] == ["other/x"]


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a//b", "a\0b", "a/./b", "", "events/tenant=../x"])
def test_no_path_leaves_the_prefix(lake: Lake, s3_bucket: S3Bucket, path: str) -> None:
    source = lake.scratch() / "x"
    source.write_bytes(b"x")
    for act in (lambda: lake.publish(source, path), lambda: lake.delete(path), lambda: lake.open(path)):
        with pytest.raises(Invalid):
            act()
    assert keys(s3_bucket) == [] and source.exists()


def test_what_is_missing_is_not_found(lake: Lake, s3_bucket: S3Bucket) -> None:
    assert lake.entry("events/x") is None and list(lake.files()) == []
    with pytest.raises(NotFound):
        lake.open("events/x")
    with Lake(f"s3://{s3_bucket.name}-missing/x", s3_bucket.options) as elsewhere:
        source = elsewhere.scratch() / "x"
        source.write_bytes(b"x")
        for act in (
            lambda: elsewhere.entry("events/x"),
            lambda: list(elsewhere.files()),
            lambda: elsewhere.publish(source, "events/x"),
        ):
            with pytest.raises(NotFound, match="bucket"):
                act()
        assert source.exists()


def test_a_server_that_is_down_is_unavailable_with_a_hint(s3_bucket: S3Bucket, dead_endpoint: str) -> None:
    options = {"endpoint_url": dead_endpoint}
    store = FsContentStore(s3_bucket.url, options)
    ref = BlobRef.of(b"x")
    for act in (lambda: store.put("t", ref, b"x"), lambda: store.get("t", ref.sha256), lambda: list(store.tenants())):
        with pytest.raises(Unavailable) as caught:
            act()
        assert "endpoint_url" in caught.value.hint
    with pytest.raises(Unavailable):
        connect(files=[f"{s3_bucket.url}/x.parquet"], storage_options=options)


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(Invalid, match="endpoint"):
        s3_arguments({"endpoint": "typo"})
    assert s3_arguments({"anon": "false", "use_ssl": "true"})["anon"] is False


def test_no_credentials_is_invalid_with_a_hint(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = FsContentStore(s3_bucket.url, s3_bucket.options)
    with pytest.raises(Invalid) as caught:
        store.put("t", BlobRef.of(b"x"), b"x")
    assert "credentials" in caught.value.hint


def test_content_comes_back_and_tenants_share_nothing(store: FsContentStore, s3_bucket: S3Bucket) -> None:
    ref = BlobRef.of(b"bulky")
    store.put("acme", ref, b"bulky")
    store.put("acme", ref, b"bulky")
    assert store.get("acme", ref.sha256) == b"bulky"
    assert keys(s3_bucket) == [f"cas/acme/{ref.sha256[:2]}/{ref.sha256}"]
    assert not store.has("globex", ref.sha256)
    with pytest.raises(NotFound):
        store.get("globex", ref.sha256)
    assert list(store.tenants()) == ["acme"] and list(store.digests("acme")) == [ref.sha256]
    assert list(store.digests("globex")) == []


@pytest.mark.parametrize("torn", [b"", b"bul", b"BULKY"], ids=["empty", "short", "same length"])
def test_a_damaged_object_is_never_served_and_put_again(
    store: FsContentStore, s3_bucket: S3Bucket, torn: bytes
) -> None:
    ref = BlobRef.of(b"bulky")
    key = f"cas/acme/{ref.sha256[:2]}/{ref.sha256}"
    s3_bucket.client.put_object(Bucket=s3_bucket.name, Key=key, Body=torn)
    with pytest.raises(Corrupt):
        store.get("acme", ref.sha256)
    store.put("acme", ref, b"bulky")
    assert store.get("acme", ref.sha256) == b"bulky"


def test_foreign_objects_are_passed_over(store: FsContentStore, s3_bucket: S3Bucket) -> None:
    ref = BlobRef.of(b"mine")
    store.put("acme", ref, b"mine")
    for key in (f"cas/acme/{ref.sha256[:2]}/readme.txt", f"cas/acme/zz/{ref.sha256}", "cas/Not A Tenant/x", "cas/top"):
        s3_bucket.client.put_object(Bucket=s3_bucket.name, Key=key, Body=b"?")
    assert list(store.tenants()) == ["acme"]
    assert list(store.digests("acme")) == [ref.sha256]


def test_many_may_put_the_same_content_at_once(store: FsContentStore) -> None:
    ref = BlobRef.of(b"z" * 10_000)
    start = threading.Barrier(8)

    def put(_: int) -> None:
        start.wait()
        store.put("acme", ref, b"z" * 10_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(8)))
    assert store.get("acme", ref.sha256) == b"z" * 10_000


def test_a_put_that_did_not_arrive_is_noticed(store: FsContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = BlobRef.of(b"lost")
    storage = store._storage
    assert isinstance(storage, bucket_module.Bucket)
    monkeypatch.setattr(storage.filesystem, "pipe_file", lambda *_: None)
    with pytest.raises(Unavailable, match="found nothing"):
        store.put("acme", ref, b"lost")


def some_trails() -> list[Trail]:
    trails = []
    for number in range(4):
        trail = Trail(number, tenant="acme" if number % 2 else "globex", start=DAY + dt.timedelta(days=number))
        trail.add(TaskStarted(task="do it"), 0)
        for turn in range(300):
            trail.add(ModelReplied(text=f"reply {turn} " * 20, input_tokens=turn), turn)
            intent = trail.add(ToolIntent(tool_call_id=f"c{turn}", tool="ls"), turn)
            trail.add(ToolResult(tool_call_id=f"c{turn}", intent=intent, output=f"{turn} " * 50), turn)
        trails.append(trail)
    return trails


def test_the_views_read_the_files_in_the_bucket(lake: Lake, s3_bucket: S3Bucket) -> None:
    trails = some_trails()
    con = connect(files=write_files(lake, *trails), storage_options=s3_bucket.options)
    assert run_sql(con, "SELECT tenant, count(*) AS n FROM trajectories GROUP BY tenant ORDER BY tenant") == [
        {"tenant": "acme", "n": 2},
        {"tenant": "globex", "n": 2},
    ]
    assert run_sql(con, "SELECT status, count(*) AS n FROM tool_calls GROUP BY status") == [{"status": "ok", "n": 1200}]
    one = f"SELECT count(*) AS n FROM messages WHERE trajectory_id = '{trails[1].id}'"
    assert run_sql(con, one) == [{"n": 600}]


QUESTION = """
SELECT count(*) AS n, sum(length(text)) AS text, sum(length(output)) AS output, sum(input_tokens) AS tokens,
       count(DISTINCT trajectory_id) AS trajectories FROM events
"""


def test_many_threads_and_connections_get_the_same_answer(lake: Lake, s3_bucket: S3Bucket) -> None:
    files = write_files(lake, *some_trails())
    text = len("do it") + sum(len(f"reply {turn} ") * 20 for turn in range(300))
    output = sum(len(f"{turn} ") * 50 for turn in range(300))
    expected = [{"n": 3604, "text": 4 * text, "output": 4 * output, "tokens": 4 * 44_850, "trajectories": 4}]
    con = connect(files=files, storage_options=s3_bucket.options)
    con.execute("SET threads = 8")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: run_sql(con.cursor(), QUESTION), range(24)))
    finally:
        sys.setswitchinterval(interval)
    assert all(answer == expected for answer in answers)


def test_threads_that_share_a_reader_keep_their_own_positions(lake: Lake, s3_bucket: S3Bucket) -> None:
    content = bytes(range(256)) * 64
    (lake.scratch() / "x").write_bytes(content)
    key = lake.publish(lake.scratch() / "x", "events/x").removeprefix("s3://")
    reader = RangeReader(open_filesystem("s3", s3_bucket.options), key, len(content))
    start = threading.Barrier(6)

    def read(number: int) -> bool:
        start.wait()
        good = True
        for step in range(20):
            position = (number * 997 + step * 131) % len(content)
            reader.seek(position)
            good &= reader.read(100) == content[position : position + 100]
        return good

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(6)))


def positions_are_kept_apart(reader: RangeReader, content: bytes) -> bool:
    """Another thread seeks and reads between this thread's seek and its read."""
    reader.seek(10)
    with ThreadPoolExecutor(1) as other:
        other.submit(lambda: (reader.seek(5000), reader.read(7))).result()
    return reader.read(20) == content[10:30]


def test_a_position_that_threads_share_would_be_noticed(lake: Lake, s3_bucket: S3Bucket) -> None:
    content = bytes(range(256)) * 64
    (lake.scratch() / "x").write_bytes(content)
    key = lake.publish(lake.scratch() / "x", "events/x").removeprefix("s3://")
    reader = RangeReader(open_filesystem("s3", s3_bucket.options), key, len(content))
    assert positions_are_kept_apart(reader, content)
    reader._position = SimpleNamespace()  # type: ignore[assignment] # the control: one position for all
    assert not positions_are_kept_apart(reader, content)


def test_a_file_that_vanishes_under_a_query_is_an_error_not_an_answer(lake: Lake, s3_bucket: S3Bucket) -> None:
    files = write_files(lake, *some_trails())
    con = connect(files=files, storage_options=s3_bucket.options)
    lake.delete(files[2])
    with pytest.raises(NotFound, match=files[2].rpartition("/")[2]):
        run_sql(con, QUESTION)


def test_a_query_asks_for_the_length_of_each_file_only_once(lake: Lake, s3_bucket: S3Bucket) -> None:
    files = write_files(lake, *some_trails())
    filesystem = StatelessFileSystem(open_filesystem("s3", s3_bucket.options))
    asked: list[str] = []
    inner_info = filesystem._inner.info
    filesystem._inner.info = lambda path, **options: asked.append(path) or inner_info(path, **options)
    con = duckdb.connect()
    con.register_filesystem(filesystem)
    for statement in view_statements(files):
        con.execute(statement)
    for _ in range(3):
        run_sql(con, QUESTION)
    assert sorted(asked) == [file.removeprefix("s3://") for file in files]
