"""Verifying the audit trees: heads outside the database, leaves in it, and the events that the leaves name.

    published heads  →  roots recomputed from all leaves  →  hashes of events in warm and cold  →  bytes of the events

Each arrow is checked from stored bytes, for every tenant that the database, the home or the storage knows. Whatever
was published must still be the beginning of the tree, and each leaf must name an event that is there and has its hash.
Memory is bounded: leaves and events are streamed; kept are the stored subtrees and the leaves that only the
cold tier can vouch for. What retention has deleted, or somebody had erased, is reported with who, when and why
(`gone.py`); what is missing without such a row was tampered with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from stratalog.cold.history import ColdFiles, cold_events, files_of, runs_of
from stratalog.cold.lake import Lake
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.ids import from_us
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering, check_idle
from stratalog.warm.streaming import stream

from .gone import SHOWN_MAX, Deletion, Erasure, Gone
from .heads import SignedHead, check_head
from .keys import KeyRecord
from .leaf import Leaf
from .publication import Publication
from .stored_tree import is_stored
from .tree import Frontier

PROBLEMS_MAX = 1000
ROWS_PER_FETCH = 2_000


class TenantAudit(msgspec.Struct):
    """What was found of one tenant. `unsealed` trajectories have events that no leaf covers yet."""

    tenant: str
    leaves: int = 0
    root_hash: str = ""
    heads_in_file: int = 0
    heads_in_storage: int = 0
    newest_head_size: int = 0
    newest_head_at: int | None = None
    """µs since 1970."""
    unsealed: int = 0
    compared_in_warm: int = 0
    compared_in_cold: int = 0
    deleted: int = 0
    """Leaves whose events retention has deleted in every tier; `deletions` are by which policies, the first 1,000."""
    deletions: list[Deletion] = msgspec.field(default_factory=list)
    erased: int = 0
    """Trajectories whose bodies were erased, their events stay; `erasures` are who asked and why, the first 1,000."""
    erasures: list[Erasure] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    problems_left_out: int = 0

    def report(self, problem: str) -> None:
        """Note a problem; after the first thousand they are only counted."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        else:
            self.problems_left_out += 1


def verify_tenant(
    conn: Connection, publication: Publication, keys: Sequence[KeyRecord], tenant: str, cold: ColdFiles | None = None
) -> TenantAudit:
    """Verify the tree of one tenant; damage becomes a problem, never an exception.

    Without `cold`, leaves whose events have left the warm tier are reported as missing. Raises `Unavailable`.
    """
    check_idle(conn)
    found = TenantAudit(tenant)
    # Before the view of the database is taken: what is published later is not missed in it.
    heads = _read_heads(publication, {record.key_id: record for record in keys}, found)
    with answering(), conn.transaction():
        conn.execute(statements("audit")["begin"])
        conn.execute(statements("audit")["unlimited"])
        only_cold = _check_leaves(conn, heads, found)
        if cold is not None:
            _check_cold(conn, cold, only_cold, found)
        row = conn.execute(statements("audit")["count_moved"], {"tenant": tenant}).fetchone()
        found.unsealed = 0 if row is None else row[0]
        _explain(only_cold, Gone(conn, tenant), found)
    return found


def _explain(missing: Mapping[int, Leaf], gone: Gone, found: TenantAudit) -> None:
    """Tell what has gone on purpose from what is missing."""
    found.erased, found.erasures = len(gone.erasures), gone.erasures[:SHOWN_MAX]
    for index, leaf in sorted(missing.items()):
        deletion = gone.deletion(leaf.trajectory_id, leaf.sequence_number)
        if deletion is None:
            found.report(f"leaf {index}: {_what(leaf)} is in no tier")
            continue
        found.deleted += 1
        if deletion not in found.deletions[-1:] and len(found.deletions) < SHOWN_MAX:
            found.deletions.append(deletion)


def _what(leaf: Leaf) -> str:
    return f"event {leaf.sequence_number} of trajectory {leaf.trajectory_id}"


def _read_heads(publication: Publication, keys: Mapping[str, KeyRecord], found: TenantAudit) -> list[SignedHead]:
    """Every head that can be read, each size and root once; those that are not what they must be are reported."""
    heads: list[SignedHead] = []
    try:
        heads = publication.file.read()
    except Corrupt as error:
        found.report(error.message)
    found.heads_in_file = len(heads)
    stored = publication.store.list()
    found.heads_in_storage = len(stored)
    names = {(entry.tree_size, entry.root_hash) for entry in stored}
    newest = max((head.tree_size for head in heads), default=0)
    for head in heads:
        # The newest one may be on its way; the next sealing sees to it.
        if (head.tree_size, head.root_hash) not in names and head.tree_size != newest:
            found.report(f"the head of {head.tree_size} leaves is in {publication.file.path}, but not in the storage")
    for entry in stored:
        try:
            heads.append(publication.store.read(entry))
        except (Corrupt, NotFound) as error:
            found.report(error.message)
    good = []
    for head in heads:
        try:
            if head.tenant != found.tenant:
                raise Corrupt(f"a head of {head.tenant} lies among those of {found.tenant}")
            check_head(head, dict(keys))
            good.append(head)
        except Corrupt as error:
            found.report(error.message)
    unique = {(head.tree_size, head.root_hash): head for head in good}
    return [unique[key] for key in sorted(unique)]


def _check_leaves(conn: Connection, heads: Sequence[SignedHead], found: TenantAudit) -> dict[int, Leaf]:
    """Recompute the tree from its leaves; returns the leaves whose events are not in the warm tier."""
    frontier = Frontier()
    expected = {size: list(group) for size, group in groupby(heads, key=lambda head: head.tree_size)}
    nodes: dict[tuple[int, int], bytes] = {}
    only_cold: dict[int, Leaf] = {}
    intact_up_to, broken = 0, False
    parameters = {"tenant": found.tenant}
    for row in stream(conn, statements("audit")["leaves"], parameters, rows_per_fetch=ROWS_PER_FETCH):
        index, leaf = row[0], Leaf(found.tenant, row[1], row[2], bytes(row[3]))
        if index != frontier.size:
            found.report(f"leaf {frontier.size} is missing, the next one is {index}")
            broken = True
            break
        nodes |= {(n.level, n.index): n.hash for n in frontier.append(leaf.hash) if is_stored(n.level)}
        _compare(leaf, index, row[4:6], only_cold, found)
        for head in expected.pop(frontier.size, ()):
            if head.root == frontier.root():
                intact_up_to = frontier.size
            else:
                found.report(_differs(head, intact_up_to))
    found.leaves, found.root_hash = frontier.size, frontier.root().hex()
    for size, group in sorted(expected.items()):
        found.report(f"a head of {size} leaves was published {_when(group[0])}, the tree has {frontier.size}")
    if not broken:
        _check_stored(conn, frontier, nodes, found)
    if heads:
        found.newest_head_size, found.newest_head_at = heads[-1].tree_size, heads[-1].timestamp
    return only_cold


def _compare(leaf: Leaf, index: int, event: Sequence[object], only_cold: dict[int, Leaf], found: TenantAudit) -> None:
    event_hash, tenant = event
    what = _what(leaf)
    if event_hash is None:
        only_cold[index] = leaf
        return
    found.compared_in_warm += 1
    if event_hash != leaf.event_hash:
        found.report(f"leaf {index}: {what} has another hash in the warm tier")
    elif tenant != leaf.tenant:
        found.report(f"leaf {index}: {what} belongs to another tenant in the warm tier")


def _differs(head: SignedHead, intact_up_to: int) -> str:
    proven = f"the first {intact_up_to} are intact" if intact_up_to else "no earlier head fits either"
    return (
        f"the first {head.tree_size} leaves do not give the root {head.root_hash[:16]}… that was published "
        f"{_when(head)}; {proven}"
    )


def _when(head: SignedHead) -> str:
    return f"at {from_us(head.timestamp).strftime('%Y-%m-%d %H:%M:%S')} UTC"


def _check_stored(
    conn: Connection, frontier: Frontier, nodes: dict[tuple[int, int], bytes], found: TenantAudit
) -> None:
    """Compare what the database keeps of the tree beside its leaves."""
    sql, parameters = statements("audit"), {"tenant": found.tenant}
    row = conn.execute(sql["tree"], parameters).fetchone()
    size, root = (0, b"") if row is None else (row[0], bytes(row[1]))
    if size != frontier.size:
        found.report(f"the tree was left with {size} leaves, {frontier.size} are there")
    elif size and root != frontier.root():
        found.report("the leaves do not give the root that the tree was left with")
    for level, index, digest in stream(conn, sql["nodes"], parameters, rows_per_fetch=ROWS_PER_FETCH):
        if nodes.pop((level, index), None) != bytes(digest):
            found.report(f"node {index} of level {level} is not what its leaves give")
    for level, index in sorted(nodes):
        found.report(f"node {index} of level {level} is missing")


def _check_cold(conn: Connection, cold: ColdFiles, only_cold: dict[int, Leaf], found: TenantAudit) -> None:
    """Compare every leaf whose event is in the cold tier; those that are found there leave `only_cold`."""
    for files in runs_of(files_of(cold.urls, found.tenant)):
        try:
            for index, leaf, event_hash in _leaves_in(conn, found.tenant, cold.lake, files):
                found.compared_in_cold += 1
                only_cold.pop(index, None)
                if event_hash != leaf.event_hash:
                    found.report(f"leaf {index}: {_what(leaf)} has another hash in the cold tier")
        except (Corrupt, NotFound) as error:
            found.report(error.message)


def _leaves_in(conn: Connection, tenant: str, lake: Lake, files: Sequence[str]) -> Iterator[tuple[int, Leaf, bytes]]:
    """The leaves whose events lie in these files, with their numbers and the hashes of the events."""
    sql = statements("audit")
    for trajectory_id, events in groupby(cold_events(lake, files), key=lambda event: event.header.trajectory_id):
        rows = conn.execute(sql["leaves_of"], {"trajectory_id": trajectory_id}).fetchall()
        leaves = {row[2]: (row[1], Leaf(tenant, trajectory_id, *row[2:])) for row in rows if row[0] == tenant}
        for event in events:
            at = leaves.get(event.header.sequence_number)
            if at is not None:
                yield at[0], at[1], event.hash
