"""What `stratalog audit verify` detects: each way of tampering, by somebody who may write everything in the database.

The forger of these tests keeps the database in order with itself (`_straighten`), so that what shows is shown by the
heads outside of it. Without those heads the same forgeries pass, which is the control.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fix_audit import Audit, root_of

from stratalog.audit.heads import sign_head
from stratalog.audit.keys import FolderKeys
from stratalog.schemas import events as ev
from stratalog.schemas.chain import START, Link, next_header

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


@pytest.fixture
def sealed(audit: Audit) -> Audit:
    """Five trajectories, sealed in two heads."""
    for number in range(3):
        audit.bench.task(number)
    audit.seal()
    for number in (3, 4):
        audit.bench.task(number)
    audit.seal()
    assert audit.problems() == []
    return audit


def _straighten(audit: Audit) -> None:
    """Number the leaves again and store the size and the root that they give."""
    audit.bench.execute("UPDATE audit_leaves SET leaf_index = leaf_index + 1000")
    audit.bench.execute(
        "UPDATE audit_leaves l SET leaf_index = n.place FROM (SELECT trajectory_id, sequence_number, "
        "row_number() OVER (ORDER BY leaf_index) - 1 AS place FROM audit_leaves) n "
        "WHERE l.trajectory_id = n.trajectory_id AND l.sequence_number = n.sequence_number"
    )
    leaves = audit.leaves()
    audit.bench.execute("UPDATE audit_trees SET size = %s, root = %s", len(leaves), bytes.fromhex(root_of(leaves)))


def _edit(audit: Audit) -> None:
    """Another event of the same trajectory in a leaf: it is there and has its hash."""
    with audit.bench.connect() as conn:
        conn.execute(
            "UPDATE audit_leaves l SET sequence_number = 1, event_hash = e.cryptographic_hash FROM all_events e "
            "WHERE l.leaf_index = 1 AND e.trajectory_id = l.trajectory_id AND e.sequence_number = 1"
        )


def _swap(audit: Audit) -> None:
    audit.bench.execute("UPDATE audit_leaves SET leaf_index = 100 WHERE leaf_index = 1")
    audit.bench.execute("UPDATE audit_leaves SET leaf_index = 1 WHERE leaf_index = 2")
    audit.bench.execute("UPDATE audit_leaves SET leaf_index = 2 WHERE leaf_index = 100")


def _remove(audit: Audit) -> None:
    audit.bench.execute("DELETE FROM audit_leaves WHERE leaf_index = 1")


def _cut(audit: Audit) -> None:
    audit.bench.execute("DELETE FROM audit_leaves WHERE leaf_index >= 3")


def _rewrite(audit: Audit) -> None:
    """Another history of trajectory 2, whole and with its own hashes, and the leaf that fits it."""
    _write_again(audit, audit.bench.author(2).trajectory_id)


def _write_again(audit: Audit, trajectory_id: uuid.UUID) -> None:
    at: Link = START
    secret = audit.bench.authors[trajectory_id].secret
    with audit.bench.connect() as conn:
        rows = conn.execute(
            "SELECT sequence_number, event_type, epoch, schema_version, "
            "(extract(epoch FROM created_at) * 1000000)::bigint, body "
            "FROM trajectory_events WHERE trajectory_id = %s ORDER BY 1", (trajectory_id,)
        ).fetchall()  # fmt: skip
        for sequence, kind, epoch, version, created_at, body in rows:
            forged = bytes(body).replace(b"please do", b"never do")
            header, at = next_header(
                at, tenant="acme", trajectory_id=trajectory_id, epoch=epoch, created_at=created_at, kind=kind,
                schema_version=version, secret=secret, body=forged,
            )  # fmt: skip
            conn.execute(
                "UPDATE trajectory_events SET body = %s, body_digest = %s, cryptographic_hash = %s "
                "WHERE trajectory_id = %s AND sequence_number = %s",
                (forged, header[76:108], at.hash, trajectory_id, sequence),
            )
        conn.execute("UPDATE trajectories SET head_hash = %s WHERE trajectory_id = %s", (at.hash, trajectory_id))
        conn.execute(
            "UPDATE audit_leaves SET event_hash = %s WHERE trajectory_id = %s AND sequence_number = %s",
            (at.hash, trajectory_id, at.sequence_number),
        )


def _rewrite_all(audit: Audit) -> None:
    """All histories and the whole tree anew."""
    for trajectory_id in list(audit.bench.authors):
        _write_again(audit, trajectory_id)


FORGERIES: dict[str, tuple[Callable[[Audit], None], str]] = {
    "edit of a leaf": (_edit, "the first 3 leaves do not give the root"),
    "swap of two leaves": (_swap, "the first 3 leaves do not give the root"),
    "removal of a leaf": (_remove, "the first 3 leaves do not give the root"),
    "truncation of the tail": (_cut, "a head of 5 leaves was published at"),
    "rewriting of one history": (_rewrite, "the first 3 leaves do not give the root"),
    "rewriting of everything": (_rewrite_all, "no earlier head fits either"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_it_is_detected_though_the_database_agrees_with_itself(sealed: Audit, forgery: str) -> None:
    forge, expected = FORGERIES[forgery]
    forge(sealed)
    _straighten(sealed)
    assert any(expected in problem for problem in sealed.problems()), sealed.problems()
    # Without the heads outside the database nothing is left that could show it.
    sealed.heads_file().unlink()
    for path in sealed.stored():
        path.unlink()
    assert sealed.problems() == []


@pytest.mark.parametrize("forgery", ["edit of a leaf", "truncation of the tail"])
def test_either_place_of_the_heads_is_enough(sealed: Audit, forgery: str) -> None:
    forge, expected = FORGERIES[forgery]
    forge(sealed)
    _straighten(sealed)
    sealed.heads_file().unlink()
    assert any(expected in problem for problem in sealed.problems())


def test_a_forger_who_does_not_straighten_the_database_is_detected_earlier(sealed: Audit) -> None:
    sealed.bench.execute("DELETE FROM audit_leaves WHERE leaf_index = 1")
    assert any("leaf 1 is missing, the next one is 2" in problem for problem in sealed.problems())
    sealed.bench.execute("UPDATE audit_trees SET root = sha256('')")
    sealed.bench.execute("DELETE FROM audit_leaves WHERE leaf_index > 0")
    assert any("was left with 5 leaves, 1 are there" in problem for problem in sealed.problems())


def test_a_rewritten_history_does_not_fit_its_leaf(sealed: Audit) -> None:
    before = sealed.leaves()
    _rewrite(sealed)
    sealed.bench.execute("UPDATE audit_leaves SET event_hash = %s WHERE leaf_index = 2", before[2][3])
    (problem,) = sealed.problems()
    assert problem.startswith("leaf 2: event ") and problem.endswith("has another hash in the warm tier")


def test_events_that_are_gone_are_missed(sealed: Audit) -> None:
    gone = sealed.bench.author(3)
    for table in ("trajectory_events", "trajectories"):
        sealed.bench.execute(f"DELETE FROM {table} WHERE trajectory_id = %s", gone.trajectory_id)
    (problem,) = sealed.problems()
    assert problem == f"leaf 3: event {gone.at.sequence_number} of trajectory {gone.trajectory_id} is in no tier"


def test_the_cut_tail_of_one_history_is_missed(sealed: Audit) -> None:
    short = sealed.bench.author(3)
    sealed.bench.execute(
        "DELETE FROM trajectory_events WHERE trajectory_id = %s AND sequence_number = %s",
        short.trajectory_id, short.at.sequence_number,
    )  # fmt: skip
    sealed.bench.execute(
        "UPDATE trajectories t SET head_sequence = head_sequence - 1, events = events - 1, "
        "head_hash = e.cryptographic_hash FROM all_events e "
        "WHERE t.trajectory_id = %s AND e.trajectory_id = t.trajectory_id AND e.sequence_number = t.head_sequence - 1",
        short.trajectory_id,
    )
    (problem,) = sealed.problems()
    assert problem.startswith("leaf 3: ") and problem.endswith("is in no tier")


def test_an_edited_body_is_found_by_its_digest(sealed: Audit) -> None:
    sealed.bench.execute(
        "UPDATE trajectory_events SET body = body || ' ' WHERE trajectory_id = %s AND sequence_number = 2",
        sealed.bench.author(1).trajectory_id,
    )
    assert any("does not match its digest" in problem for problem in sealed.problems())


def test_a_whole_tenant_that_is_gone_is_missed(sealed: Audit) -> None:
    for table in ("audit_leaves", "audit_nodes", "audit_trees", "trajectory_events", "trajectories"):
        sealed.bench.execute(f"DELETE FROM {table}")
    assert [problem for problem in sealed.problems() if "was published" in problem]


def test_a_stored_node_that_was_changed_is_found(sealed: Audit) -> None:
    sealed.bench.execute("INSERT INTO audit_nodes VALUES ('acme', 8, 0, sha256('x'))")
    assert sealed.problems() == ["node 0 of level 8 is not what its leaves give"]


def test_heads_that_were_changed_or_are_of_another_key_are_found(sealed: Audit) -> None:
    first, second = sealed.heads()
    foreign = FolderKeys(sealed.home.path / "foreign", 1)
    forged = sign_head(foreign, "acme", 2, bytes(32), 1)
    dated = msgspec.structs.replace(second, timestamp=1)
    other = sign_head(sealed.keys, "other", 3, bytes.fromhex(first.root_hash), 1)
    for wrong, expected in (
        (forged, "which this home does not know"),
        (dated, "the signature of the tree head"),
        (other, "lies among those of acme"),
    ):
        sealed.heads_file().write_bytes(b"".join(head.encode() for head in (first, wrong, second)))
        assert any(expected in problem for problem in sealed.problems())
    sealed.heads_file().write_bytes(first.encode() + b"damaged\n" + second.encode())
    assert any("line 2: not a signed tree head" in problem for problem in sealed.problems())


def test_a_head_that_is_gone_from_the_storage_or_was_replaced_there_is_found(sealed: Audit) -> None:
    first, second = sealed.stored()
    second.rename(second.with_name(f"5-{'0' * 64}.json"))
    assert any("holds another head than its name says" in problem for problem in sealed.problems())
    second.with_name(f"5-{'0' * 64}.json").rename(second)
    first.unlink()
    (problem,) = sealed.problems()
    assert problem.startswith("the head of 3 leaves is in ") and problem.endswith("but not in the storage")


def test_two_heads_of_one_size_cannot_both_be_right(sealed: Audit) -> None:
    fork = sign_head(sealed.keys, "acme", 5, bytes(32), 1)
    with sealed.heads_file().open("ab") as file:
        file.write(fork.encode())
    assert any("the first 5 leaves do not give the root 0000000000000000" in found for found in sealed.problems())


def test_events_that_are_only_in_the_cold_tier_are_compared_there(sealed: Audit) -> None:
    running = sealed.bench.task(7, finished=False)
    sealed.seal()
    sealed.bench.append(running, [ev.TaskFinished(status="completed")])
    sealed.seal()
    sealed.bench.run()
    assert sealed.problems() == []
    sealed.bench.execute("DELETE FROM trajectory_events")
    assert sealed.problems() == [], "leaves in the middle of a segment are found as well"
    before = sealed.leaves()
    sealed.bench.execute("UPDATE audit_leaves SET event_hash = sha256('x') WHERE leaf_index = 5")
    problems = sealed.problems()
    assert any(found.startswith("leaf 5: event ") and found.endswith("hash in the cold tier") for found in problems)
    sealed.bench.execute("UPDATE audit_leaves SET event_hash = %s WHERE leaf_index = 5", before[5][3])
    sealed.bench.execute("DELETE FROM stratalog_catalog.iceberg_tables")
    assert len(sealed.problems()) == 7 and all(found.endswith("is in no tier") for found in sealed.problems())


def test_a_damaged_cold_file_is_a_problem_and_the_rest_is_verified(sealed: Audit) -> None:
    sealed.bench.run()
    sealed.bench.execute("DELETE FROM trajectory_events")
    url = sealed.bench.catalog.snapshot_files()[0]
    path = Path(url.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert any("not the one that its name says" in problem for problem in sealed.problems())
