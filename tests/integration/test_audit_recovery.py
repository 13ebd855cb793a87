"""A database that was restored from before a published head gets its leaves back, or nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_audit import Audit
from fix_cli import Cli

from stratalog.audit import sealing
from stratalog.audit.installation import recover_all
from stratalog.schemas import events as ev
from stratalog.schemas.errors import Corrupt, NotFound

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


def copies(audit: Audit) -> list[Path]:
    folder = Path(audit.bench.lake.url.removeprefix("file://")) / "audit" / "leaves" / "acme"
    return sorted(folder.glob("*.jsonl"))


def restore_to(audit: Audit, size: int) -> None:
    """What an older database would hold of the tree."""
    head = next(head for head in audit.heads() if head.tree_size == size)
    audit.bench.execute("DELETE FROM audit_leaves WHERE leaf_index >= %s", size)
    audit.bench.execute("UPDATE audit_trees SET size = %s, root = %s", size, head.root)


@pytest.fixture
def sealed(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Seven leaves in three heads, in files of two leaves."""
    monkeypatch.setattr(sealing, "LEAVES_PER_FILE", 2)
    for numbers in ((1,), (2, 3, 4), (5, 6, 7)):
        for number in numbers:
            audit.bench.task(number)
        audit.seal()
    return audit


def test_a_restored_database_gets_its_leaves_back_and_sealing_goes_on(sealed: Audit) -> None:
    before = sealed.leaves()
    names = [path.name for path in copies(sealed)]
    assert names == ["0-1.jsonl", "1-3.jsonl", "3-4.jsonl", "4-6.jsonl", "6-7.jsonl"]
    restore_to(sealed, 1)
    sealed.bench.append(sealed.bench.author(2), [ev.Annotation(name="after the restore")])
    with pytest.raises(Corrupt, match="does not begin with the 7 leaves"):
        sealed.seal()
    assert recover_all(sealed.installation, sealed.keys) == {"acme": 6}
    assert sealed.leaves() == before and sealed.problems() == []
    assert recover_all(sealed.installation, sealed.keys) == {"acme": 0}
    sealed.bench.task(8)
    assert [one.head.tree_size for one in sealed.seal()] == [9]
    assert sealed.problems() == []


def test_a_restored_database_whose_heads_moved_in_the_same_order_makes_the_same_tree(sealed: Audit) -> None:
    before = sealed.leaves()
    restore_to(sealed, 4)
    (again,) = sealed.seal()
    assert (again.leaves, again.published) == (3, False)
    assert sealed.leaves() == before and sealed.problems() == []


def test_an_empty_database_gets_the_whole_tree_back(sealed: Audit) -> None:
    before = sealed.leaves()
    for table in ("audit_leaves", "audit_nodes", "audit_trees"):
        sealed.bench.execute(f"DELETE FROM {table}")
    assert Cli(sealed.home.path).json("audit", "recover") == {"acme": 7}
    assert sealed.leaves() == before and sealed.problems() == []


def test_copies_that_were_changed_are_not_taken(sealed: Audit) -> None:
    restore_to(sealed, 4)
    path = copies(sealed)[-2]
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"sequence_number":', b'"sequence_number":1'))
    with pytest.raises(Corrupt, match="does not begin with the 7 leaves"):
        recover_all(sealed.installation, sealed.keys)
    for damaged in (content[:-20], b"nonsense\n" * 2, content.splitlines(keepends=True)[0]):
        path.write_bytes(damaged)
        with pytest.raises(Corrupt):
            recover_all(sealed.installation, sealed.keys)
    path.unlink()
    with pytest.raises(NotFound, match="no copy of leaf 4"):
        recover_all(sealed.installation, sealed.keys)
    assert len(sealed.leaves()) == 4
    path.write_bytes(content)
    assert recover_all(sealed.installation, sealed.keys) == {"acme": 3}


def test_copies_that_overlap_after_a_crash_are_fine(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Exception):
        pass

    def dying(*_: object) -> None:
        raise Killed

    audit.bench.task(1)
    audit.seal()
    audit.bench.task(2)
    with monkeypatch.context() as patch:
        patch.setattr("stratalog.audit.publication.HeadFile.append", dying)
        with pytest.raises(Killed):
            audit.seal()
    audit.bench.task(3)
    audit.seal()
    assert [path.name for path in copies(audit)] == ["0-1.jsonl", "1-2.jsonl", "1-3.jsonl"]
    before = audit.leaves()
    restore_to(audit, 1)
    assert recover_all(audit.installation, audit.keys) == {"acme": 2}
    assert audit.leaves() == before and audit.problems() == []
