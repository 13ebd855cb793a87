"""Sealing: every head that moved gets a leaf, signed heads outside commit to them, a crash is made good."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from fix_audit import Audit, root_of
from fix_s3 import S3Bucket

from stratalog.audit import stored_tree
from stratalog.audit.leaf_files import LeafFiles
from stratalog.audit.publication import HeadFile, HeadStore, Publication
from stratalog.audit.sealing import Sealed, seal
from stratalog.cold.bucket import Bucket
from stratalog.cold.folder import Folder
from stratalog.schemas import events as ev
from stratalog.schemas.errors import Corrupt, Locked

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


def test_every_head_that_moved_gets_a_leaf_also_of_running_trajectories(audit: Audit) -> None:
    done, running = audit.bench.task(1), audit.bench.task(2, finished=False)
    (first,) = audit.seal()
    assert (first.leaves, first.head.tree_size, first.published) == (2, 2, True)
    audit.bench.append(running, [ev.Annotation(name="more")])
    (second,) = audit.seal()
    assert (second.leaves, second.head.tree_size) == (1, 3)
    leaves = audit.leaves()
    assert [row[0] for row in leaves] == [0, 1, 2]
    assert {(row[1], row[2], row[3]) for row in leaves} >= {
        (done.trajectory_id, done.at.sequence_number, done.at.hash),
        (running.trajectory_id, running.at.sequence_number, running.at.hash),
    }
    assert second.head.root_hash == root_of(leaves) and first.head.root_hash == root_of(leaves[:2])
    assert audit.heads() == [first.head, second.head]
    assert [json.loads(path.read_bytes())["tree_size"] for path in audit.stored()] == [2, 3]
    assert audit.problems() == []


def test_where_nothing_moved_nothing_is_published(audit: Audit) -> None:
    assert audit.seal() == []
    audit.bench.task(1)
    (first,) = audit.seal()
    (again,) = audit.seal()
    assert again == Sealed("acme", 0, first.head, False)
    assert audit.heads() == [first.head] and len(audit.stored()) == 1


def test_tenants_have_trees_of_their_own(audit: Audit) -> None:
    audit.bench.task(1)
    audit.bench.task(2, tenant="other")
    assert {sealed.tenant: sealed.head.tree_size for sealed in audit.seal()} == {"acme": 1, "other": 1}
    assert audit.heads("acme")[0].root_hash != audit.heads("other")[0].root_hash
    assert [sealed.tenant for sealed in audit.seal("other")] == ["other"]
    assert audit.problems() == []


def test_a_large_tree_is_sealed_in_batches_from_stored_nodes(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_tree, "BATCH_LEAVES", 100)
    author = audit.bench.task(1)
    audit.bench.execute(
        "INSERT INTO trajectories (trajectory_id, tenant, origin_log, head_sequence, head_hash) "
        "SELECT gen_random_uuid(), 'bulk', %s, 0, sha256(n::text::bytea) FROM generate_series(1, 700) n",
        audit.bench.log_id,
    )
    audit.seal("bulk")
    audit.bench.execute("UPDATE trajectories SET head_sequence = 1 WHERE tenant = 'bulk' AND head_hash < '\\x10'")
    (second,) = audit.seal("bulk")
    leaves = audit.leaves("bulk")
    assert len(leaves) == 700 + second.leaves and second.leaves > 0
    assert second.head.root_hash == root_of(leaves, "bulk")
    with audit.bench.connect() as conn:
        nodes = conn.execute("SELECT level, node_index FROM audit_nodes ORDER BY 1, 2").fetchall()
        assert nodes == [(8, 0), (8, 1), *([(8, 2)] if len(leaves) >= 768 else [])]
    assert author.tenant == "acme"


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("step", ["before the file", "torn line", "before the storage"])
def test_a_crash_is_made_good_by_the_next_sealing(audit: Audit, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    audit.bench.task(1)
    audit.seal()
    audit.bench.task(2)

    def dying(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(HeadStore if step == "before the storage" else HeadFile,
                      "keep" if step == "before the storage" else "append", dying)  # fmt: skip
        with pytest.raises(Killed):
            audit.seal()
    if step == "torn line":
        with audit.heads_file().open("ab") as file:
            file.write(b'{"tenant":"acme","tree_si')
    assert audit.problems() == [], "a crash is no damage"
    audit.bench.task(3)
    (sealed,) = audit.seal()
    assert (sealed.head.tree_size, sealed.published) == (3, True)
    sizes = [head.tree_size for head in audit.heads()]
    assert sizes == ([1, 2, 3] if step == "before the storage" else [1, 3])
    assert [int(path.name.split("-")[0]) for path in audit.stored()] == sizes
    assert audit.problems() == []


def test_a_crash_before_the_commit_leaves_nothing(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    audit.bench.task(1)
    with monkeypatch.context() as patch:
        patch.setattr("stratalog.audit.sealing.sign_head", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            audit.seal()
    assert audit.leaves() == [] and audit.heads() == []
    assert [sealed.leaves for sealed in audit.seal()] == [1]


def test_a_tree_that_does_not_extend_its_published_head_is_refused(audit: Audit) -> None:
    for number in range(5):
        audit.bench.task(number)
    audit.seal()
    audit.bench.task(9)
    before = audit.leaves()
    with audit.bench.connect() as conn:
        conn.execute("UPDATE audit_leaves SET sequence_number = sequence_number + 1 WHERE leaf_index = 2")
    with pytest.raises(Corrupt, match="do not give the root"):
        audit.seal()
    # A forger who brings the database in order with itself is refused by the head outside.
    forged = audit.leaves()
    with audit.bench.connect() as conn:
        conn.execute("UPDATE audit_trees SET root = %s", (bytes.fromhex(root_of(forged)),))
    with pytest.raises(Corrupt, match="does not begin with the 5 leaves of a published head"):
        audit.seal()
    assert len(audit.leaves()) == len(before) and len(audit.heads()) == 1


def test_a_tree_that_is_shorter_than_its_published_head_is_refused(audit: Audit) -> None:
    for number in range(3):
        audit.bench.task(number)
        audit.seal()
    audit.bench.execute("DELETE FROM audit_leaves WHERE leaf_index = 2")
    with pytest.raises(Corrupt, match="has 3 leaves, the last one that is stored is 1"):
        audit.seal()
    audit.bench.execute("UPDATE audit_trees SET size = 2, root = %s", bytes.fromhex(audit.heads()[1].root_hash))
    audit.bench.execute("DELETE FROM trajectories WHERE trajectory_id = %s", audit.bench.author(2).trajectory_id)
    with pytest.raises(Corrupt, match="has 2 leaves, a head of 3 was published"):
        audit.seal()


def test_a_lost_file_is_made_good_from_the_storage_and_the_other_way(audit: Audit) -> None:
    audit.bench.task(1)
    (first,) = audit.seal()
    audit.heads_file().unlink()
    audit.seal()
    assert audit.heads() == [first.head]
    audit.stored()[0].unlink()
    audit.seal()
    assert len(audit.stored()) == 1 and audit.problems() == []


def test_one_sealing_of_a_tenant_at_a_time(audit: Audit) -> None:
    audit.bench.task(1)
    with psycopg.connect(audit.bench.dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended('stratalog.audit.acme', 0))")
        with pytest.raises(Locked, match="another sealing of acme"):
            audit.seal()
        other.execute("SELECT pg_advisory_unlock_all()")
    assert [sealed.leaves for sealed in audit.seal()] == [1]
    with psycopg.connect(audit.bench.dsn, autocommit=True) as other:
        held = other.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
        assert held == (0,)


def test_a_key_that_is_missing_stops_a_sealing_before_anything_is_written(audit: Audit) -> None:
    audit.bench.task(1)
    audit.seal()
    audit.bench.task(2)
    for path in (audit.home.path / "keys" / "audit").glob("*.private"):
        path.unlink()
    with pytest.raises(Exception, match="nothing can be signed"):
        audit.seal()
    assert len(audit.leaves()) == 1


def test_heads_go_on_under_a_new_key(audit: Audit) -> None:
    audit.bench.task(1)
    audit.seal()
    new = audit.keys.rotate(audit.clock_us)
    audit.bench.task(2)
    (sealed,) = audit.seal()
    assert sealed.head.key_id == new.key_id != audit.heads()[0].key_id
    assert audit.problems() == []


def test_a_head_in_the_storage_is_never_replaced(audit: Audit, tmp_path: Path, s3_bucket: S3Bucket) -> None:
    s3 = Bucket("s3", s3_bucket.url.removeprefix("s3://"), s3_bucket.options)
    for storage in (Folder(tmp_path / "heads"), s3):
        assert storage.put_new("audit/heads/acme/1-x.json", b"first")
        assert not storage.put_new("audit/heads/acme/1-x.json", b"second")
        assert storage.read("audit/heads/acme/1-x.json") == b"first"
        storage.put("audit/heads/acme/1-x.json", b"third")
        assert storage.read("audit/heads/acme/1-x.json") == b"third", "the control: a plain put replaces"


def test_heads_in_a_bucket(audit: Audit, s3_bucket: S3Bucket) -> None:
    audit.bench.task(1)
    storage = Bucket("s3", s3_bucket.url.removeprefix("s3://"), s3_bucket.options)
    publication = Publication(
        HeadFile(audit.home.path / "audit", "acme"), HeadStore(storage, "acme"), LeafFiles(storage, "acme")
    )
    with audit.installation.connection() as conn:
        first = seal(conn, publication, audit.keys, "acme", audit.clock_us)
        audit.bench.task(2)
        second = seal(conn, publication, audit.keys, "acme", audit.clock_us)
    assert first is not None and second is not None
    assert [entry.path for entry in storage.files("audit/leaves/acme")] == [
        f"audit/leaves/acme/{name}.jsonl" for name in ("0-1", "1-2")
    ]
    names = [entry.path for entry in storage.files("audit/heads/acme")]
    assert names == [
        f"audit/heads/acme/{sealed.head.tree_size}-{sealed.head.root_hash}.json" for sealed in (first, second)
    ]
