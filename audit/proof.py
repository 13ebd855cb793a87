"""The proof that a trajectory's newest sealed event is in its tenant's tree, against a published signed head."""

from __future__ import annotations

import itertools
import uuid

import msgspec

from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .heads import SignedHead
from .leaf import Leaf
from .publication import Publication
from .sealing import check_extends
from .stored_tree import StoredTree
from .tree import consistency_proof, inclusion_proof, verify_inclusion

_SEAL = "seal it first: stratalog audit seal"


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


class HeadChain(msgspec.Struct, frozen=True):
    """Heads of one tenant by size, and between each two of them the proof that the first is the second's beginning."""

    heads: list[SignedHead]
    consistency: list[list[str]]


def newest_leaf(conn: Connection, trajectory_id: uuid.UUID) -> tuple[int, Leaf]:
    """The number of a trajectory's last leaf, and the leaf; raises `NotFound` where nothing of it was sealed."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("audit")["leaves_of"], {"trajectory_id": trajectory_id}).fetchall()
    if not rows:
        raise NotFound(f"nothing of trajectory {trajectory_id} is sealed", hint=_SEAL)
    tenant, index, sequence_number, event_hash = rows[-1]
    return index, Leaf(tenant, trajectory_id, sequence_number, bytes(event_hash))


def published_heads(publication: Publication) -> list[SignedHead]:
    """All heads of both places by size, each size and root once. Raises `Corrupt`."""
    stored = [publication.store.read(entry) for entry in publication.store.list()]
    unique = {(head.tree_size, head.root_hash): head for head in [*stored, *publication.file.read()]}
    return [unique[key] for key in sorted(unique)]


def prove(conn: Connection, head: SignedHead | None, index: int, leaf: Leaf) -> InclusionProof:
    """Prove a leaf against a head; raises `NotFound` where the head does not cover it, `Corrupt` where nothing fits."""
    if head is None or head.tree_size <= index:
        raise NotFound(f"no published head covers event {leaf.sequence_number} of {leaf.trajectory_id}", hint=_SEAL)
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


def chain_heads(conn: Connection, heads: list[SignedHead]) -> HeadChain:
    """Prove that each of one tenant's heads, sorted by size, is the beginning of the next. Raises `Corrupt`."""
    proofs = []
    with answering(), conn.transaction():
        tree = StoredTree(conn, heads[0].tenant)
        for head in heads:
            check_extends(tree, head)
        for old, new in itertools.pairwise(heads):
            proof = consistency_proof(tree, old.tree_size, new.tree_size)
            proofs.append([piece.hex() for piece in proof])
    return HeadChain(heads, proofs)
