"""A process that dies while it seals: at every step the next sealing goes on, and no lock stays behind."""

from __future__ import annotations

import pytest
from fix_audit import Audit
from fix_cli import Cli

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]

# Each replaces one step by the death of the process, before or after the step itself.
STEPS = {
    "leaves inserted, not committed": "kill_after('stored_tree', 'StoredTree.append_moved')",
    "committed, not in the file": "kill_before('publication', 'HeadFile.append')",
    "within the line of the file": "torn()",
    "in the file, not in the storage": "kill_before('publication', 'HeadStore.keep')",
    "in both places": "kill_after('publication', 'HeadStore.keep')",
}
PRELUDE = """
import importlib, os

def place(module, name):
    owner = importlib.import_module(f"stratalog.audit.{module}")
    *outer, last = name.split(".")
    for step in outer:
        owner = getattr(owner, step)
    return owner, last, getattr(owner, last)

def kill_before(module, name):
    owner, last, _ = place(module, name)
    setattr(owner, last, lambda *arguments: os.kill(os.getpid(), 9))

def kill_after(module, name):
    owner, last, real = place(module, name)
    def dying(*arguments):
        real(*arguments)
        os.kill(os.getpid(), 9)
    setattr(owner, last, dying)

def torn():
    owner, last, _ = place("publication", "HeadFile.append")
    def dying(self, head):
        with self.path.open("ab") as file:
            file.write(head.encode()[:100])
        os.kill(os.getpid(), 9)
    setattr(owner, last, dying)

"""


@pytest.mark.parametrize("step", STEPS)
def test_the_next_sealing_goes_on(audit: Audit, step: str) -> None:
    audit.bench.task(1)
    audit.seal()
    audit.bench.task(2)
    cli = Cli(audit.home.path)
    died = cli.process("audit", "seal", prelude=PRELUDE + STEPS[step])
    assert died.code == -9, died
    committed = len(audit.leaves())
    assert committed == (1 if step.startswith("leaves inserted") else 2)
    assert audit.problems() == []
    audit.bench.task(3)
    (sealed,) = cli.json("audit", "seal")
    assert (sealed["head"]["tree_size"], sealed["leaves"], sealed["published"]) == (3, 3 - committed, True)
    published = step.startswith("in ")
    assert [head.tree_size for head in audit.heads()] == ([1, 2, 3] if published else [1, 3])
    assert [int(path.name.split("-")[0]) for path in audit.stored()] == ([1, 2, 3] if published else [1, 3])
    assert audit.problems() == []
