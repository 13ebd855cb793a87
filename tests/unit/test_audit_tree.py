"""The Merkle tree of RFC 9162: equal to its recursive definition, and no proof shows what is not so."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.audit.tree import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    hash_leaf,
    hash_node,
    inclusion_proof,
    verify_consistency,
    verify_inclusion,
)
from stratalog.schemas.errors import Invalid

# The inputs and roots that the implementations of Certificate Transparency test themselves with.
INPUTS = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [hash_leaf(data) for data in INPUTS]


def naive(data: list[bytes]) -> bytes:
    """MTH as RFC 9162 defines it."""
    if not data:
        return hashlib.sha256().digest()
    if len(data) == 1:
        return hashlib.sha256(b"\x00" + data[0]).digest()
    k = 1
    while k * 2 < len(data):
        k *= 2
    return hashlib.sha256(b"\x01" + naive(data[:k]) + naive(data[k:])).digest()


def naive_path(index: int, data: list[bytes]) -> list[bytes]:
    """PATH as RFC 9162 defines it."""
    if len(data) <= 1:
        return []
    k = 1
    while k * 2 < len(data):
        k *= 2
    if index < k:
        return [*naive_path(index, data[:k]), naive(data[k:])]
    return [*naive_path(index - k, data[k:]), naive(data[:k])]


def naive_subproof(old: int, data: list[bytes], whole: bool) -> list[bytes]:
    """SUBPROOF as RFC 9162 defines it."""
    if old == len(data):
        return [] if whole else [naive(data)]
    k = 1
    while k * 2 < len(data):
        k *= 2
    if old <= k:
        return [*naive_subproof(old, data[:k], whole), naive(data[k:])]
    return [*naive_subproof(old - k, data[k:], False), naive(data[:k])]


class ListNodes:
    """Nodes computed from all leaf hashes."""

    def __init__(self, leaves: list[bytes]) -> None:
        self.leaves = leaves

    def node(self, level: int, index: int) -> bytes:
        if level == 0:
            return self.leaves[index]
        return hash_node(self.node(level - 1, 2 * index), self.node(level - 1, 2 * index + 1))


def grown(leaves: list[bytes]) -> Frontier:
    frontier = Frontier()
    for leaf in leaves:
        list(frontier.append(leaf))
    return frontier


def data_of(count: int) -> list[bytes]:
    return [b"leaf %d" % number for number in range(count)]


def nodes_of(data: list[bytes]) -> ListNodes:
    return ListNodes([hash_leaf(entry) for entry in data])


@pytest.mark.parametrize("size", range(1, 9))
def test_known_roots(size: int) -> None:
    assert grown(LEAVES[:size]).root().hex() == ROOTS[size - 1] == naive(INPUTS[:size]).hex()


def test_the_empty_tree() -> None:
    assert Frontier().root() == EMPTY_ROOT == naive([])
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_known_inclusion_proofs() -> None:
    expected = [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ]
    assert [piece.hex() for piece in inclusion_proof(ListNodes(LEAVES), 0, 8)] == expected
    assert inclusion_proof(ListNodes(LEAVES), 0, 1) == []


def test_known_consistency_proofs() -> None:
    expected = [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ]
    assert [piece.hex() for piece in consistency_proof(ListNodes(LEAVES), 1, 8)] == expected
    assert consistency_proof(ListNodes(LEAVES), 4, 4) == []


@given(st.integers(0, 200))
def test_a_root_is_the_one_of_the_definition(size: int) -> None:
    data = data_of(size)
    frontier = grown([hash_leaf(entry) for entry in data])
    assert frontier.root() == naive(data)
    assert Frontier.load(nodes_of(data), size).root() == naive(data)


@given(st.integers(1, 120))
def test_complete_subtrees_are_those_of_the_definition(size: int) -> None:
    data = data_of(size)
    frontier, found = Frontier(), {}
    for entry in data:
        found |= {(node.level, node.index): node.hash for node in frontier.append(hash_leaf(entry))}
    assert found == {
        (level, index): naive(data[index << level : (index + 1) << level])
        for level in range(size.bit_length())
        for index in range(size >> level)
    }


@given(st.data())
def test_an_inclusion_proof_is_the_one_of_the_definition_and_verifies(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 130))
    index = data.draw(st.integers(0, size - 1))
    entries = data_of(size)
    proof = inclusion_proof(nodes_of(entries), index, size)
    assert proof == naive_path(index, entries)
    assert verify_inclusion(hash_leaf(entries[index]), index, size, proof, naive(entries))


@given(st.data())
def test_a_consistency_proof_is_the_one_of_the_definition_and_verifies(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 130))
    old = data.draw(st.integers(1, size))
    entries = data_of(size)
    proof = consistency_proof(nodes_of(entries), old, size)
    assert proof == naive_subproof(old, entries, True)
    assert verify_consistency(old, size, naive(entries[:old]), naive(entries), proof)


@given(st.data())
def test_no_other_inclusion_verifies(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 60))
    index = data.draw(st.integers(0, size - 1))
    entries = data_of(size)
    proof, root, leaf = naive_path(index, entries), naive(entries), hash_leaf(entries[index])
    other = data.draw(st.integers(0, size - 1).filter(lambda number: number != index))
    assert not verify_inclusion(leaf, other, size, proof, root)
    assert not verify_inclusion(hash_leaf(entries[other]), index, size, proof, root)
    assert not verify_inclusion(leaf, index, size, proof, bytes(32))
    assert not verify_inclusion(leaf, index, size, proof[:-1], root)
    assert not verify_inclusion(leaf, index, size, [*proof, proof[-1]], root)
    at = data.draw(st.integers(0, len(proof) - 1))
    flipped = [*proof[:at], bytes([proof[at][0] ^ 1]) + proof[at][1:], *proof[at + 1 :]]
    assert not verify_inclusion(leaf, index, size, flipped, root)
    assert not verify_inclusion(leaf, size, size, proof, root)
    assert not verify_inclusion(leaf, index, size, [piece[:31] for piece in proof], root)


@given(st.data())
def test_no_consistency_with_another_beginning_verifies(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 60))
    old = data.draw(st.integers(1, size - 1))
    changed = data.draw(st.integers(0, old - 1))
    entries = data_of(size)
    rewritten = [*entries[:changed], b"another", *entries[changed + 1 :]]
    root = naive(rewritten)
    for proof in (consistency_proof(nodes_of(rewritten), old, size), consistency_proof(nodes_of(entries), old, size)):
        assert not verify_consistency(old, size, naive(entries[:old]), root, proof)
    assert not verify_consistency(old, size, naive(entries[:old]), naive(entries), [])


def test_a_leaf_is_no_node() -> None:
    left, right = LEAVES[:2]
    assert hash_leaf(left + right) != hash_node(left, right)


def test_what_does_not_exist_is_refused() -> None:
    nodes = ListNodes(LEAVES)
    for index, size in ((0, 0), (8, 8), (-1, 8)):
        with pytest.raises(Invalid):
            inclusion_proof(nodes, index, size)
    for old, size in ((0, 8), (9, 8)):
        with pytest.raises(Invalid):
            consistency_proof(nodes, old, size)
    with pytest.raises(Invalid):
        Frontier(3, [LEAVES[0]])
    assert not verify_consistency(0, 8, EMPTY_ROOT, naive(INPUTS), [])
    assert not verify_consistency(8, 8, naive(INPUTS), bytes(32), [])
