"""The audit trees of one installation: who has one; sealing, verifying and proving; bundles."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stratalog.cold.history import ColdFiles, open_cold
from stratalog.cold.installation import Installation
from stratalog.cold.storage import open_storage
from stratalog.schemas.ids import TENANT_PATTERN, check_tenant
from stratalog.warm.check import WarmCheck, verify_warm
from stratalog.warm.database import Connection, answering

from .bundle import Proven, Sources, write_bundle
from .heads import SignedHead
from .keys import KeyProvider
from .proof import InclusionProof, chain_heads, newest_leaf, prove, published_heads
from .publication import HEADS_FOLDER, open_publication
from .reading import needs_cold
from .sealing import Sealed, recover, seal
from .stored_tree import tenants
from .verification import TenantAudit, verify_tenant

READER = "stratalog audit"
"""How it is called in the list of pins."""
HEADS_BUNDLED = 100
"""The newest heads of a tenant that go into a bundle."""


def seal_all(installation: Installation, keys: KeyProvider, now_us: int, tenant: str | None = None) -> list[Sealed]:
    """Seal every tenant, or one; tenants follow each other, and an error stops at the tenant it is about."""
    done = []
    with installation.connection() as conn:
        names = [check_tenant(tenant)] if tenant is not None else _in_database(conn)
        for name in names:
            with open_publication(installation, name) as publication:
                sealed = seal(conn, publication, keys, name, now_us)
            if sealed is not None:
                done.append(sealed)
    return done


def recover_all(installation: Installation, keys: KeyProvider, tenant: str | None = None) -> dict[str, int]:
    """Put back leaves that a restored database lacks, from their copies; per tenant how many. See `sealing.recover`."""
    done = {}
    with installation.connection() as conn:
        names = {tenant} if tenant is not None else {*_in_database(conn), *_outside(installation)}
        for name in sorted(map(check_tenant, names)):
            with open_publication(installation, name) as publication:
                done[name] = recover(conn, publication, keys, name)
    return done


class AuditReport(msgspec.Struct, frozen=True):
    """What a verification has found: the events of the warm tier, and the tree of each tenant."""

    ok: bool
    warm_events: int
    warm_problems: list[str]
    tenants: list[TenantAudit]


def verify_all(installation: Installation, keys: KeyProvider, tenant: str | None = None) -> AuditReport:
    """Verify the warm tier's events from their bytes, then every tenant's tree against its heads and both tiers.

    Damage becomes a problem, never an exception; raises `Unavailable`.
    """
    records = keys.records()
    with installation.connection() as conn, open_cold(installation, conn, READER) as cold:
        warm: WarmCheck = verify_warm(conn)
        names = {tenant} if tenant is not None else {*_in_database(conn), *_outside(installation)}
        found = []
        for name in sorted(map(check_tenant, names)):
            with open_publication(installation, name) as publication:
                found.append(verify_tenant(conn, publication, records, name, cold))
    ok = not warm.problems and not any(audit.problems for audit in found)
    return AuditReport(ok, warm.events, warm.problems, found)


def prove_one(installation: Installation, trajectory_id: uuid.UUID) -> InclusionProof:
    """Prove the newest leaf of a trajectory against the newest published head; raises `NotFound`, `Corrupt`."""
    with installation.connection() as conn:
        index, leaf = newest_leaf(conn, trajectory_id)
        with open_publication(installation, leaf.tenant) as publication:
            heads = published_heads(publication)
        return prove(conn, heads[-1] if heads else None, index, leaf)


def bundle_all(
    installation: Installation, keys: KeyProvider, now_us: int, output: Path, trajectory_ids: Sequence[uuid.UUID]
) -> dict[str, Any]:
    """Write a bundle of trajectories, of one tenant or several; returns what the checker says of it.

    Raises `NotFound` where something is not sealed, `Corrupt` where it does not verify.
    """
    with (
        installation.connection() as conn,
        open_cold(installation, conn, READER) as cold,
        contextlib.closing(installation.content_store()) as store,
    ):
        heads: dict[str, list[SignedHead]] = {}
        proven = []
        for trajectory_id in dict.fromkeys(trajectory_ids):
            index, leaf = newest_leaf(conn, trajectory_id)
            if leaf.tenant not in heads:
                with open_publication(installation, leaf.tenant) as publication:
                    heads[leaf.tenant] = published_heads(publication)[-HEADS_BUNDLED:]
            newest = heads[leaf.tenant][-1] if heads[leaf.tenant] else None
            proven.append(Proven(leaf, prove(conn, newest, index, leaf)))
        chains = {tenant: chain_heads(conn, kept) for tenant, kept in sorted(heads.items())}
        return write_bundle(output, Sources(conn, cold, store), keys, proven, chains, now_us)


def _in_database(conn: Connection) -> list[str]:
    with answering(), conn.transaction():
        return tenants(conn)


def _outside(installation: Installation) -> Iterator[str]:
    """Tenants of whom there are published heads: the database may have forgotten them."""
    suffix = ".heads.jsonl"
    for path in (installation.home.path / "audit").glob(f"*{suffix}"):
        yield path.name.removesuffix(suffix)
    settings = installation.settings.cold
    storage = open_storage(settings.url or f"file://{installation.home.folder('cold')}", settings.storage_options)
    try:
        yield from (name for name in storage.folders(HEADS_FOLDER) if TENANT_PATTERN.fullmatch(name))
    finally:
        storage.close()


@contextlib.contextmanager
def open_answers(installation: Installation) -> Iterator[tuple[Connection, ColdFiles | None]]:
    """Where answers to `questions` come from: the warm tier, and the cold one if events have left the warm tier."""
    with contextlib.ExitStack() as stack:
        conn = stack.enter_context(installation.connection())
        cold = stack.enter_context(open_cold(installation, conn, READER)) if needs_cold(conn) else None
        yield conn, cold


def as_document(report: AuditReport) -> dict[str, Any]:
    """The JSON object of `stratalog audit verify`."""
    return {
        "ok": report.ok,
        "warm": {"events": report.warm_events, "problems": report.warm_problems},
        "tenants": msgspec.to_builtins(report.tenants),
    }
