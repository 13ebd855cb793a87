"""The audit trees of a bench: sealed, verified, looked at and tampered with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fix_cold import ColdBench

from stratalog.audit.heads import SignedHead
from stratalog.audit.installation import seal_all, verify_all
from stratalog.audit.keys import FolderKeys
from stratalog.audit.leaf import Leaf
from stratalog.audit.publication import HeadFile
from stratalog.audit.sealing import Sealed
from stratalog.audit.tree import Frontier
from stratalog.cold.installation import Installation
from stratalog.hot.home import Home


@dataclass
class Audit:
    """A bench, and the audit trees of its installation."""

    bench: ColdBench
    home: Home
    clock_us: int = 1_800_000_000_000_000

    @property
    def keys(self) -> FolderKeys:
        return FolderKeys(self.home.path / "keys" / "audit", self.clock_us)

    @property
    def installation(self) -> Installation:
        return Installation(self.home)

    def seal(self, tenant: str | None = None) -> list[Sealed]:
        self.clock_us += 3_600_000_000
        return seal_all(self.installation, self.keys, self.clock_us, tenant)

    def problems(self) -> list[str]:
        report = verify_all(self.installation, self.keys)
        found = [*report.warm_problems, *(problem for audit in report.tenants for problem in audit.problems)]
        assert report.ok == (not found)
        return found

    def leaves(self, tenant: str = "acme") -> list[tuple[Any, ...]]:
        with self.bench.connect() as conn:
            return conn.execute(
                "SELECT leaf_index, trajectory_id, sequence_number, event_hash FROM audit_leaves "
                "WHERE tenant = %s ORDER BY leaf_index", (tenant,)
            ).fetchall()  # fmt: skip

    def heads_file(self, tenant: str = "acme") -> Path:
        return self.home.path / "audit" / f"{tenant}.heads.jsonl"

    def heads(self, tenant: str = "acme") -> list[SignedHead]:
        return HeadFile(self.home.path / "audit", tenant).read()

    def stored(self, tenant: str = "acme") -> list[Path]:
        folder = Path(self.bench.lake.url.removeprefix("file://")) / "audit" / "heads" / tenant
        return sorted(folder.glob("*.json"), key=lambda path: int(path.name.split("-")[0]))


@pytest.fixture
def audit(cold_bench: ColdBench, cold_home: Home) -> Iterator[Audit]:
    yield Audit(cold_bench, cold_home)


def root_of(leaves: list[tuple[Any, ...]], tenant: str = "acme") -> str:
    frontier = Frontier()
    for _, trajectory_id, sequence_number, event_hash in leaves:
        list(frontier.append(Leaf(tenant, trajectory_id, sequence_number, event_hash).hash))
    return frontier.root().hex()
