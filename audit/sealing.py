"""Sealing: a leaf for every trajectory whose head has moved, then a signed head of the tree outside the database.

One sealing of a tenant runs at a time (an advisory lock of the session). Leaves, nodes and the tree move in one
transaction, which is refused unless the tree that comes out of it has every published head as its beginning: shown by
a consistency proof from the stored nodes. Only then the leaves are copied and the head is published. A crash before the
commit leaves nothing; a crash after it leaves leaves without a published head, over which the next sealing goes on; a
crash between the two places of publication is made good by the next sealing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from stratalog.schemas.errors import Corrupt, Locked
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering, check_idle

from .heads import SignedHead, check_head, sign_head
from .keys import KeyProvider
from .leaf_files import LEAVES_PER_FILE
from .publication import Publication
from .stored_tree import StoredTree
from .tree import consistency_proof, verify_consistency


class Sealed(msgspec.Struct, frozen=True):
    """What a sealing did: leaves appended, and the head that now covers the tree (`published` by this very sealing)."""

    tenant: str
    leaves: int
    head: SignedHead
    published: bool


def seal(conn: Connection, publication: Publication, keys: KeyProvider, tenant: str, now_us: int) -> Sealed | None:
    """Seal one tenant; `None` where it has no trajectory. `conn` must be outside a transaction.

    Raises `Locked` where another sealing of the tenant runs, `Corrupt` where a published head is not the beginning of
    the tree or is not signed with our keys: nothing is committed or published then. Raises `Unavailable`.
    """
    check_idle(conn)
    with _locked(conn, tenant):
        published = publication.newest()
        signer = keys.current()
        known = {record.key_id: record for record in [*keys.records(), signer]}
        for head in published:
            check_head(head, known)
        with answering(), conn.transaction():
            tree = StoredTree(conn, tenant)
            added = tree.append_moved()
            for head in published:
                check_extends(tree, head)
            if tree.size == 0:
                return None
            covering = newest_of([head for head in published if head.tree_size == tree.size])
            # Signed before the commit, so that a key that is missing leaves nothing behind.
            head = covering or sign_head(keys, tenant, tree.size, tree.root, now_us, signer.key_id)
            check_head(head, known)
        if covering is None:
            before = newest_of(published)
            _copy_leaves(conn, publication, tenant, before.tree_size if before else 0, head.tree_size)
            publication.publish(head)
        return Sealed(tenant, added, head, covering is None)


def recover(conn: Connection, publication: Publication, keys: KeyProvider, tenant: str) -> int:
    """Put back the leaves that are missing up to the newest published head, from their copies; how many there were.

    For a database that was restored from before that head. The tree must give the head's root, or `Corrupt` is raised
    and nothing is committed; `NotFound` where there are no copies.
    """
    check_idle(conn)
    with _locked(conn, tenant):
        published = publication.newest()
        known = {record.key_id: record for record in keys.records()}
        for head in published:
            check_head(head, known)
        with answering(), conn.transaction():
            conn.execute(statements("audit")["unlimited"])
            tree = StoredTree(conn, tenant)
            newest = newest_of(published)
            if newest is None or newest.tree_size <= tree.size:
                return 0
            added = tree.append(publication.leaves.read(tree.size, newest.tree_size))
            for head in published:
                check_extends(tree, head)
        return added


def _copy_leaves(conn: Connection, publication: Publication, tenant: str, first: int, end: int) -> None:
    """Keep copies of the leaves that the next head is the first to cover; no transaction is open while they go up."""
    for start in range(first, end, LEAVES_PER_FILE):
        stop = min(start + LEAVES_PER_FILE, end)
        with answering(), conn.transaction():
            leaves = StoredTree(conn, tenant).leaves(start, stop)
        publication.leaves.keep(start, leaves)


def check_extends(tree: StoredTree, head: SignedHead) -> None:
    """Raise `Corrupt` unless the tree begins with the tree of a published head."""
    hint = "leaves were changed after they were published; see which: stratalog audit verify"
    if head.tree_size > tree.size:
        raise Corrupt(
            f"the tree of {tree.tenant} has {tree.size} leaves, a head of {head.tree_size} was published", hint=hint
        )
    proof = consistency_proof(tree, head.tree_size, tree.size)
    if not verify_consistency(head.tree_size, tree.size, head.root, tree.root, proof):
        raise Corrupt(
            f"the tree of {tree.tenant} does not begin with the {head.tree_size} leaves of a published head", hint=hint
        )


def newest_of(heads: Sequence[SignedHead]) -> SignedHead | None:
    """The head of the greatest tree."""
    return max(heads, key=lambda head: head.tree_size, default=None)


@contextmanager
def _locked(conn: Connection, tenant: str) -> Iterator[None]:
    sql = statements("audit")
    with answering(), conn.transaction():
        row = conn.execute(sql["lock"], {"tenant": tenant}).fetchone()
    if row != (True,):
        raise Locked(f"another sealing of {tenant} is running", hint="wait for it to end, then seal again")
    try:
        yield
    finally:
        if not conn.closed:
            with answering(), conn.transaction():
                conn.execute(sql["unlock"], {"tenant": tenant})
