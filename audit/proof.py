"""The proof that a trajectory's newest sealed event is in its tenant's tree, against a published signed head."""

from __future__ import annotations

import uuid

import msgspec

from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .heads import SignedHead
from .leaf import Leaf
from .publication import Publication
from .sealing import check_extends, newest_of
from .stored_tree import StoredTree
from .tree import inclusion_proof, verify_inclusion

SEAL = "seal it first: stratalog audit seal"


class InclusionProof(msgspec.Struct, frozen=True):
    """Leaf `leaf_index` of the tree that `head` names is this event; `path` leads from the leaf to the root (RFC 9162).

    Hashes are hexadecimal. Whoever has the events can recompute `event_hash`, from it the leaf, from it the root.
    """

    tenant: str
    trajectory_id: str
    sequence_number: int
    event_hash: str
    leaf_index: int
    path: list[str]
    head: SignedHead


def prove(conn: Connection, publication: Publication, leaf: Leaf, index: int) -> InclusionProof:
    """Prove a leaf against the newest published head; raises `NotFound` where no head covers it, `Corrupt`."""
    stored = publication.store.list()[-1:]
    head = newest_of([*publication.file.read(), *map(publication.store.read, stored)])
    if head is None or head.tree_size <= index:
        raise NotFound(f"no published head covers event {leaf.sequence_number} of {leaf.trajectory_id}", hint=SEAL)
    with answering(), conn.transaction():
        tree = StoredTree(conn, leaf.tenant)
        check_extends(tree, head)
        path = inclusion_proof(tree, index, head.tree_size)
    if not verify_inclusion(leaf.hash, index, head.tree_size, path, head.root):
        raise Corrupt(
            f"leaf {index} of {leaf.tenant} does not lead to the published root",
            hint="see what differs: stratalog audit verify",
        )
    return InclusionProof(
        leaf.tenant,
        str(leaf.trajectory_id),
        leaf.sequence_number,
        leaf.event_hash.hex(),
        index,
        [piece.hex() for piece in path],
        head,
    )


def newest_leaf(conn: Connection, trajectory_id: uuid.UUID) -> tuple[int, Leaf]:
    """The last leaf of a trajectory and its number; raises `NotFound` where nothing of it was sealed."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("audit")["leaves_of"], {"trajectory_id": trajectory_id}).fetchall()
    if not rows:
        raise NotFound(f"nothing of trajectory {trajectory_id} is sealed", hint=SEAL)
    tenant, index, sequence_number, event_hash = rows[-1]
    return index, Leaf(tenant, trajectory_id, sequence_number, bytes(event_hash))
