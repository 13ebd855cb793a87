"""What is erased is in no file of the cold tier any more, however it is looked for; the rest is as it was."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_cold import ColdBench
from fix_lake_words import places_of
from fix_s3 import S3Bucket
from fix_step_crash import Crash, crashing

from stratalog.cold import erased as module
from stratalog.cold import pins, rewrite_settle
from stratalog.cold import rewrite as rewriting
from stratalog.cold.catalog import Catalog
from stratalog.cold.check import verify_cold
from stratalog.cold.columns import Row
from stratalog.cold.consolidate import Consolidation
from stratalog.cold.erased import erase_in_cold
from stratalog.cold.erased_rows import has_content
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.readback import read_rows
from stratalog.cold.rewrite import Rewriting, rewrite, settle_rewrites
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Conflict, Locked

pytestmark = pytest.mark.postgres

ID = INDEX["trajectory_id"]
CANARIES = itertools.count(1)


def tiers_of(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def canary() -> str:
    """Short enough for the bounds of a column."""
    return f"cny{uuid.uuid4().hex[:10]}"


def secret_task(bench: ColdBench, number: int, word: str) -> uuid.UUID:
    """A trajectory that says a word wherever it can."""
    author = bench.author(number)
    arguments = ev.raw_json({"q": word})
    bench.append(
        author,
        [
            ev.TaskStarted(
                task=f"find {word}",
                model=ev.Model(name="atlas-4"),
                agent=word,
                labels={"who": word},
                source=ev.Source(format="claude-code", run_id=word),
            ),
            ev.MessageReceived(role=word, parts=(ev.Part(text=f"I am {word}"),)),
            ev.ModelReplied(text=word, stop_reason=word, served_model=word, input_tokens=1, output_tokens=1),
            ev.Authorized(tool_call_id=word, decision="allow", tool=word),
            ev.ToolIntent(tool_call_id=word, tool=word, arguments=arguments),
            ev.ToolResult(tool_call_id=word, tool=word, status="error", output=word, intent=4),
            ("ToolResult", f'{{ "odd": "{word}" }}'.encode()),
            ev.TaskFinished(status="completed", result=word),
        ],
    )
    return author.trajectory_id


def ledger(bench: ColdBench, *ids: uuid.UUID) -> None:
    """What an erasure has noted before it comes to the cold tier."""
    with bench.connect() as conn:
        row = conn.execute(
            "INSERT INTO erasures (kind, requested_by, reason) VALUES ('trajectories', 'a test', 'asked') "
            "RETURNING erasure_id"
        ).fetchone()
        assert row is not None
        for id_ in ids:
            conn.execute(
                "INSERT INTO erased_trajectories (trajectory_id, tenant, erasure_id) VALUES (%s, 'acme', %s)",
                (id_, row[0]),
            )


def gone_at(bench: ColdBench, id_: uuid.UUID) -> Any:
    with bench.connect() as conn:
        row = conn.execute("SELECT cold_gone_at FROM erased_trajectories WHERE trajectory_id = %s", (id_,)).fetchone()
    assert row is not None
    return row[0]


def files_of(bench: ColdBench) -> dict[str, bytes]:
    """Every file below the root of a local lake, whatever its name."""
    root = Path(bench.lake.url.removeprefix("file://"))
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def rows_of(bench: ColdBench) -> list[Row]:
    rows = [row for url in bench.catalog.snapshot_files() for row in read_rows(bench.lake, url)]
    return sorted(rows, key=lambda row: (row[ID], row[INDEX["sequence_number"]]))


def fill(bench: ColdBench, word: str) -> uuid.UUID:
    """The one trajectory among others, in files of two runs, after which the table has changed twice."""
    for number in range(3):
        bench.task(number, turns=4, blob=b"x" * 400 if number == 1 else None)
    erased = secret_task(bench, 50, word)
    bench.run()
    bench.task(4, turns=4)
    bench.append(bench.author(50), [ev.Annotation(name="late", note=word, score=1.0)])
    bench.run()
    bench.task(5, turns=4, day=1)
    bench.run()
    return erased


def check_erased(bench: ColdBench, erased: uuid.UUID, before: list[Row], files: dict[str, bytes], word: str) -> None:
    assert places_of(word, files) == []
    found = verify_cold(bench.lake, bench.catalog, bench.store)
    assert found.problems == () and found.unknown == () and found.events == len(before)
    rows = rows_of(bench)
    assert [row for row in rows if row[ID] != erased.bytes] == [row for row in before if row[ID] != erased.bytes]
    ours = [row for row in rows if row[ID] == erased.bytes]
    assert len(ours) == 9 and all(row[INDEX["erased"]] and row[INDEX["body_digest"]] for row in ours)
    assert not any(map(has_content, ours))


def test_no_file_has_the_word_any_more_and_the_chains_verify(cold_bench: ColdBench) -> None:
    word = canary()
    erased = fill(cold_bench, word)
    before = rows_of(cold_bench)
    kinds = {place.rpartition(": ")[2] for place in places_of(word, files_of(cold_bench))}
    expected = {"text", "tool", "role", "trajectory_labels", "trajectory_source", "trajectory_agent", "arguments"}
    assert expected | {"body_raw", "output", "stop_reason", "served_model", "decoded", "tool_call_id"} <= kinds
    ledger(cold_bench, erased)
    done = erase_in_cold(tiers_of(cold_bench), [erased])
    check_erased(cold_bench, erased, before, files_of(cold_bench), word)
    assert done.gone and done.left == () and gone_at(cold_bench, erased) is not None
    assert (done.trajectories, done.files_looked_at, done.files_rewritten, done.events) == (1, 3, 2, 9)
    assert done.snapshots_expired >= 2 and done.metadata_files > 0 and done.damaged == ()
    again = erase_in_cold(tiers_of(cold_bench), [erased])
    assert again.gone and again.files_rewritten == again.copies == again.events == 0
    assert cold_bench.run().runs == ()


def test_a_rewrite_alone_would_leave_it_in_what_came_before(cold_bench: ColdBench) -> None:
    # The negative control: the new snapshot is clean, but old ones with their files and manifests are not.
    word = canary()
    erased = fill(cold_bench, word)
    ledger(cold_bench, erased)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "settle", lambda conn, lake, catalog, plan, **named: None)
        patch.setattr(module, "_copies", lambda work, ids: module.Copies())
        patch.setattr(module, "remove_lost_metadata", lambda *given: 0)
        assert erase_in_cold(tiers_of(cold_bench), [erased]).files_rewritten == 2
    assert not any(row[ID] == erased.bytes and has_content(row) for row in rows_of(cold_bench))
    found = places_of(word, files_of(cold_bench))
    assert any(place.endswith(".parquet: tool") for place in found)
    assert any(place.endswith(".avro: decoded") for place in found)
    cold_bench.run()
    assert erase_in_cold(tiers_of(cold_bench), [erased]).gone and places_of(word, files_of(cold_bench)) == []


def test_without_the_ledger_nothing_is_erased(cold_bench: ColdBench) -> None:
    erased = fill(cold_bench, canary())
    with pytest.raises(Conflict, match="not in the ledger"):
        erase_in_cold(tiers_of(cold_bench), [erased])


def test_a_trajectory_that_is_not_here_is_gone_at_once(cold_bench: ColdBench) -> None:
    unknown = uuid.uuid4()
    ledger(cold_bench, unknown)
    assert erase_in_cold(tiers_of(cold_bench), [unknown]).gone and gone_at(cold_bench, unknown) is not None


def test_a_reader_is_not_waited_for(cold_bench: ColdBench) -> None:
    word = canary()
    erased = fill(cold_bench, word)
    ledger(cold_bench, erased)
    with cold_bench.connect() as conn:
        conn.rollback()
        pins.take(conn, "in the way")
        assert erase_in_cold(tiers_of(cold_bench), [erased]).gone
    assert places_of(word, files_of(cold_bench)) == []


def test_while_something_else_runs(cold_bench: ColdBench) -> None:
    erased = fill(cold_bench, canary())
    ledger(cold_bench, erased)
    with cold_bench.steps(), pytest.raises(Locked):
        erase_in_cold(tiers_of(cold_bench), [erased])
    assert gone_at(cold_bench, erased) is None


def test_leftovers_of_a_run_that_died_go_too(cold_bench: ColdBench) -> None:
    word = canary()
    cold_bench.task(1)
    erased = secret_task(cold_bench, 50, word)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consolidation, "read_back", crashing(Consolidation.read_back, after=False))
        with pytest.raises(Crash):
            cold_bench.run()
    assert places_of(word, files_of(cold_bench))
    # Its files are those of a run that nobody will complete: the plan was lost with a restored database.
    cold_bench.execute("UPDATE consolidation_runs SET state = 'marked'")
    ledger(cold_bench, erased)
    done = erase_in_cold(tiers_of(cold_bench), [erased])
    assert done.gone and done.copies == 1 and places_of(word, files_of(cold_bench)) == []


def test_a_file_of_somebody_else_is_named_and_stays(cold_bench: ColdBench) -> None:
    word = canary()
    erased = fill(cold_bench, word)
    settle_rewrites(tiers_of(cold_bench))
    files = cold_bench.catalog.snapshot_files()
    source = next(url for url in files if word in str(list(read_rows(cold_bench.lake, url))))
    name = f"{uuid.uuid4()}-00000-0123456789abcdef.parquet"
    draft = cold_bench.lake.scratch() / "draft"
    with cold_bench.lake.open(source) as stream:
        draft.write_bytes(stream.read())
    cold_bench.lake.publish(draft, path := f"events/tenant=acme/date=2025-01-01/model=m/{name}")
    ledger(cold_bench, erased)
    done = erase_in_cold(tiers_of(cold_bench), [erased])
    assert not done.gone and len(done.left) == 1 and path in done.left[0] and gone_at(cold_bench, erased) is None
    cold_bench.lake.delete(path)
    assert erase_in_cold(tiers_of(cold_bench), [erased]).gone


def test_what_a_compaction_has_kept_for_a_reader_goes(cold_bench: ColdBench) -> None:
    word = canary()
    erased = fill(cold_bench, word)
    with cold_bench.connect() as conn:
        conn.rollback()
        pins.take(conn, "reader")
        merged = rewrite(tiers_of(cold_bench), cold_bench.catalog.snapshot_files(), lambda row: row, "compaction")
        assert not merged.over
        ledger(cold_bench, erased)
        done = erase_in_cold(tiers_of(cold_bench), [erased])
        assert done.gone and done.copies == 2 and places_of(word, files_of(cold_bench)) == []
    assert cold_bench.run().problems == ()


def test_a_run_that_was_committed_before_the_erasure_is_marked_after_it(cold_bench: ColdBench) -> None:
    word = canary()
    erased = secret_task(cold_bench, 50, word)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consolidation, "mark", crashing(Consolidation.mark, after=False))
        with pytest.raises(Crash):
            cold_bench.run()
    cold_bench.execute("UPDATE trajectories SET secret = NULL")
    ledger(cold_bench, erased)
    assert erase_in_cold(tiers_of(cold_bench), [erased]).gone
    assert places_of(word, files_of(cold_bench)) == [] and cold_bench.marks()[erased][0] == 7


STEPS: list[tuple[Any, str]] = [
    (module, "with_content"),
    (rewriting, "make_plan"),
    (Rewriting, "_read_back"),
    (rewriting, "replace_files"),
    (rewriting, "note"),
    (Catalog, "expire"),
    (Lake, "purge"),
    (rewrite_settle, "note"),
    (module, "make_plan"),
    (module, "note"),
    (module, "remove_lost_metadata"),
    (module, "purge_versions"),
    (module, "_left"),
]


@pytest.mark.slow
def test_whatever_step_it_was_the_next_call_erases_it(cold_bench: ColdBench) -> None:
    numbers = itertools.count(100)
    points = 0
    for (owner, name), after in itertools.product(STEPS, (False, True)):
        for on in itertools.count(1):
            word = canary()
            erased = secret_task(cold_bench, next(numbers), word)
            with pytest.MonkeyPatch.context() as patch:
                # An earlier attempt leaves a copy.
                patch.setattr(Consolidation, "read_back", crashing(Consolidation.read_back, after=False))
                with pytest.raises(Crash):
                    cold_bench.run()
            cold_bench.execute("UPDATE consolidation_runs SET state = 'marked'")
            cold_bench.execute("DELETE FROM consolidation_items WHERE trajectory_id = %s", erased)
            cold_bench.run()
            ledger(cold_bench, erased)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
                try:
                    erase_in_cold(tiers_of(cold_bench), [erased])
                except Crash:
                    crashed = True
                else:
                    crashed = False
            assert crashed or on > 1, f"{name} was never called"
            assert crashed == (gone_at(cold_bench, erased) is None)
            assert verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).problems == ()
            assert erase_in_cold(tiers_of(cold_bench), [erased]).gone
            assert places_of(word, files_of(cold_bench)) == [], (name, after, on)
            points += crashed
            if not crashed or name not in ("purge", "with_content"):
                break
    assert points > 2 * len(STEPS)


@pytest.fixture
def bucket_bench(cold_bench: ColdBench, s3_bucket: S3Bucket) -> Iterator[ColdBench]:
    """The cold tier in a bucket that keeps every version."""
    s3_bucket.client.put_bucket_versioning(Bucket=s3_bucket.name, VersioningConfiguration={"Status": "Enabled"})
    with Lake(s3_bucket.url, s3_bucket.options) as lake, Catalog(cold_bench.dsn, lake) as catalog:
        cold_bench.lake, cold_bench.catalog = lake, catalog
        yield cold_bench


def versions_of(bucket: S3Bucket) -> dict[str, bytes]:
    """Every version of every object, deleted ones included."""
    found = {}
    for page in bucket.client.get_paginator("list_object_versions").paginate(Bucket=bucket.name):
        for version in page.get("Versions", ()):
            place = {"Bucket": bucket.name, "Key": version["Key"], "VersionId": version["VersionId"]}
            # The name's end tells what to decode.
            found[f"{version['VersionId']}/{version['Key']}"] = bucket.client.get_object(**place)["Body"].read()
    return found


def test_no_version_of_an_object_has_it(bucket_bench: ColdBench, s3_bucket: S3Bucket) -> None:
    word = canary()
    erased = fill(bucket_bench, word)
    before = rows_of(bucket_bench)
    # Deleted before, as far as a reader can tell: by a compaction that keeps nothing, but the bucket does.
    rewrite(tiers_of(bucket_bench), bucket_bench.catalog.snapshot_files(), lambda row: row, "compaction")
    deleted = {place for place in places_of(word, versions_of(s3_bucket)) if place.endswith(".parquet: tool")}
    assert len(deleted) == 2, "the merged file, and one that it has replaced"
    half = {"Bucket": s3_bucket.name, "Key": "some/prefix/events/half"}
    upload = s3_bucket.client.create_multipart_upload(**half)
    s3_bucket.client.upload_part(**half, PartNumber=1, UploadId=upload["UploadId"], Body=word.encode())
    ledger(bucket_bench, erased)
    done = erase_in_cold(tiers_of(bucket_bench), [erased])
    assert done.gone and done.versions_looked_at > 0 and done.versions_removed > 3
    check_erased(bucket_bench, erased, before, versions_of(s3_bucket), word)
    assert not s3_bucket.client.list_multipart_uploads(Bucket=s3_bucket.name).get("Uploads")


def test_deleting_alone_would_leave_it_in_the_versions(bucket_bench: ColdBench, s3_bucket: S3Bucket) -> None:
    # The negative control.
    word = canary()
    erased = fill(bucket_bench, word)
    ledger(bucket_bench, erased)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "purge", lambda lake, place: lake.delete(place) or 0)
        patch.setattr(module, "purge_versions", lambda lake, ids: (0, 0))
        erase_in_cold(tiers_of(bucket_bench), [erased])
    assert places_of(word, versions_of(s3_bucket))
    assert erase_in_cold(tiers_of(bucket_bench), [erased]).gone and places_of(word, versions_of(s3_bucket)) == []
