"""The Merkle tree of RFC 9162 (section 2.1): roots, inclusion proofs, consistency proofs, and their verification.

    MTH([])  = SHA-256()
    MTH([d]) = SHA-256(0x00 ‖ d)
    MTH(D)   = SHA-256(0x01 ‖ MTH(D[0:k]) ‖ MTH(D[k:n])), k the greatest power of two below n

A node (level, index) is the root of the 2^level leaves from index * 2^level on, all of which exist. Such a node never
changes while the tree grows, so it may be stored; every root and every proof is made of O(log n) of them. Nothing here
does I/O: nodes come from a `Nodes`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from stratalog.schemas.errors import Invalid

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256().digest()
"""The root of a tree without leaves."""

_LEAF, _NODE = b"\x00", b"\x01"


class Nodes(Protocol):
    """Where complete subtrees come from."""

    def node(self, level: int, index: int) -> bytes:
        """The hash of a complete subtree; level 0 are the leaf hashes."""


class Node(msgspec.Struct, frozen=True):
    """A complete subtree and its hash."""

    level: int
    index: int
    hash: bytes


def hash_leaf(data: bytes) -> bytes:
    """The hash of a leaf, 32 bytes."""
    return hashlib.sha256(_LEAF + data).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node, 32 bytes."""
    return hashlib.sha256(_NODE + left + right).digest()


class Frontier:
    """The complete subtrees at the right edge of a growing tree: all that is needed to append and to know the root."""

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """`hashes` belong to the bits of `size` that are set, the greatest first."""
        if size < 0 or len(hashes) != size.bit_count():
            raise Invalid(f"a tree of {size} leaves does not have {len(hashes)} complete subtrees at its edge")
        self.size = size
        self._hashes = list(hashes)

    @classmethod
    def load(cls, nodes: Nodes, size: int) -> Frontier:
        """The frontier of the first `size` leaves."""
        return cls(size, [nodes.node(level, index) for level, index in edge(size)])

    def append(self, leaf: bytes) -> Iterator[Node]:
        """Append the hash of a leaf; gives every subtree that became complete, from the leaf up.

        The iterator must be read to its end before the next leaf.
        """
        level, index, top = 0, self.size, leaf
        yield Node(level, index, top)
        while index & 1:
            top = hash_node(self._hashes.pop(), top)
            level, index = level + 1, index >> 1
            yield Node(level, index, top)
        self._hashes.append(top)
        self.size += 1

    def root(self) -> bytes:
        """The root of the tree as it is now."""
        if not self._hashes:
            return EMPTY_ROOT
        root = self._hashes[-1]
        for left in reversed(self._hashes[:-1]):
            root = hash_node(left, root)
        return root


def edge(size: int) -> Iterator[tuple[int, int]]:
    """(level, index) of the complete subtrees that make up a tree of `size` leaves, from the left."""
    done = 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            yield level, done >> level
            done += 1 << level


def inclusion_proof(nodes: Nodes, index: int, size: int) -> list[bytes]:
    """The hashes that lead from leaf `index` to the root of the first `size` leaves (RFC 9162, 2.1.3.1)."""
    if not 0 <= index < size:
        raise Invalid(f"a tree of {size} leaves has no leaf {index}")
    proof = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            proof.append(_subtree(nodes, middle, end))
            end = middle
        else:
            proof.append(_subtree(nodes, start, middle))
            start = middle
    proof.reverse()
    return proof


def consistency_proof(nodes: Nodes, old_size: int, size: int) -> list[bytes]:
    """The hashes that show that the first `old_size` leaves are still those of the greater tree (RFC 9162, 2.1.4.1)."""
    if not 0 < old_size <= size:
        raise Invalid(f"there is no consistency proof from {old_size} to {size} leaves")
    proof = []
    start, end = 0, size
    while old_size < end:
        middle = start + _split(end - start)
        if old_size <= middle:
            proof.append(_subtree(nodes, middle, end))
            end = middle
        else:
            proof.append(_subtree(nodes, start, middle))
            start = middle
    if start > 0:
        proof.append(_subtree(nodes, start, end))
    proof.reverse()
    return proof


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether `proof` shows that the leaf with this hash is number `index` of the tree (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or any(len(piece) != HASH_BYTES for piece in proof):
        return False
    node, last, found = index, size - 1, leaf
    for piece in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = hash_node(piece, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = hash_node(found, piece)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def verify_consistency(old_size: int, size: int, old_root: bytes, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that the tree with `old_root` is the beginning of the one with `root` (2.1.4.2)."""
    if not 0 < old_size <= size or any(len(piece) != HASH_BYTES for piece in proof):
        return False
    if old_size == size:
        return not proof and old_root == root
    pieces = list(proof)
    if old_size & (old_size - 1) == 0:
        pieces.insert(0, old_root)
    if not pieces:
        return False
    node, last = old_size - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old_found = found = pieces[0]
    for piece in pieces[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old_found, found = hash_node(piece, old_found), hash_node(piece, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = hash_node(found, piece)
        node, last = node >> 1, last >> 1
    return last == 0 and old_found == old_root and found == root


def _split(count: int) -> int:
    """The greatest power of two below `count`, which is at least 2."""
    return 1 << ((count - 1).bit_length() - 1)


def _subtree(nodes: Nodes, start: int, end: int) -> bytes:
    """The root over the leaves from `start` to `end`; `start` is where a subtree of this size begins."""
    frontier = [nodes.node(level, (start >> level) + index) for level, index in edge(end - start)]
    root = frontier[-1]
    for left in reversed(frontier[:-1]):
        root = hash_node(left, root)
    return root
