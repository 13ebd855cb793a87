"""A long life of one tree, at random from a seed: every head that was ever published stays the beginning of it."""

from __future__ import annotations

import random

import pytest
from fix_audit import Audit, root_of

from stratalog.audit.installation import recover_all
from stratalog.audit.publication import HeadFile, HeadStore
from stratalog.schemas import events as ev

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
STEPS = 40
ACTIONS = ["start", "go on", "seal", "die before the file", "die before the storage", "torn line", "rotate",
           "lose the file", "lose an object", "restore"]  # fmt: skip
WEIGHTS = [4, 4, 5, 1, 1, 1, 1, 1, 1, 2]


class Killed(Exception):
    """The process ends here."""


class Life:
    """The actions, and all heads that were ever published."""

    def __init__(self, audit: Audit, seed: int) -> None:
        self.audit = audit
        self.random = random.Random(seed)
        self.started = 0
        self.published: dict[int, str] = {}

    def act(self, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
        audit = self.audit
        if action == "start":
            self.started += 1
            audit.bench.append(audit.bench.author(self.started), [ev.TaskStarted(task=str(self.started))])
        elif action == "go on" and self.started:
            author = audit.bench.author(self.random.randint(1, self.started))
            audit.bench.append(author, [ev.Annotation(name="more")] * self.random.randint(1, 3))
        elif action == "seal":
            audit.seal()
        elif action.startswith("die"):
            owner, method = (HeadFile, "append") if action.endswith("file") else (HeadStore, "keep")
            with monkeypatch.context() as patch:
                patch.setattr(owner, method, _die)
                try:
                    audit.seal()
                except Killed:
                    pass
        elif action == "torn line" and audit.heads():
            with audit.heads_file().open("ab") as file:
                file.write(b'{"tenant"')
        elif action == "rotate":
            audit.keys.rotate(audit.clock_us)
        elif action == "lose the file" and audit.stored():
            # Only what the storage has as well: a head that is in the file alone would be gone everywhere.
            audit.seal()
            audit.heads_file().unlink()
        elif action == "lose an object" and audit.heads():
            audit.stored()[-1].unlink()
        elif action == "restore" and self.published:
            self._restore(self.random.choice(sorted(self.published)))

    def _restore(self, size: int) -> None:
        """The database as it was when the tree had `size` leaves, then its recovery."""
        self.audit.bench.execute("DELETE FROM audit_leaves WHERE leaf_index >= %s", size)
        self.audit.bench.execute("DELETE FROM audit_nodes WHERE (node_index + 1) << level > %s", size)
        root = bytes.fromhex(self.published[size])
        self.audit.bench.execute("UPDATE audit_trees SET size = %s, root = %s", size, root)
        recover_all(self.audit.installation, self.audit.keys)

    def check(self) -> None:
        """Every head ever published is the beginning of the leaves that there are."""
        self.published |= {head.tree_size: head.root_hash for head in self.audit.heads()}
        leaves = self.audit.leaves()
        for size, root in self.published.items():
            assert size <= len(leaves) and root == root_of(leaves[:size])


def _die(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("seed", [1, 2])
def test_every_published_head_stays_true(audit: Audit, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    life = Life(audit, seed)
    for _ in range(STEPS):
        (action,) = life.random.choices(ACTIONS, WEIGHTS)
        life.act(action, monkeypatch)
        life.check()
    audit.seal()
    life.check()
    assert len(life.published) > 3 and audit.problems() == []
