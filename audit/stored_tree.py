"""A tenant's tree in Postgres: appending the heads that have moved, and the nodes that roots and proofs are made of.

Leaves are rows, and so are the roots of every 256, 65,536, … of them (0.4 % more rows). A node of any other level is
folded from at most 128 of these, so appending and proving read O(log n) rows and never the whole tree. The caller owns
the transaction; leaves, nodes and the tree's new size and root become visible together or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection

from .leaf import Leaf
from .tree import EMPTY_ROOT, Frontier, Node, hash_node

LEVELS_PER_STORED = 8
"""Every so many levels the complete subtrees are stored."""
BATCH_LEAVES = 2_000


class StoredTree:
    """The tree of one tenant, as the connection's transaction sees it."""

    def __init__(self, conn: Connection, tenant: str) -> None:
        """Raises `Corrupt` where the number of leaves is not the one that the tree was left with."""
        self._conn = conn
        self._sql = statements("audit")
        self.tenant = tenant
        row = conn.execute(self._sql["tree"], {"tenant": tenant}).fetchone()
        self.size, self.root = (0, EMPTY_ROOT) if row is None else (int(row[0]), bytes(row[1]))
        last = conn.execute(self._sql["last_leaf"], {"tenant": tenant}).fetchone()
        if last is None or last[0] + 1 != self.size:
            raise Corrupt(
                f"the tree of {tenant} has {self.size} leaves, the last one that is stored is "
                f"{'missing' if last is None else last[0]}",
                hint="see what else differs: stratalog audit verify",
            )

    def append_moved(self) -> int:
        """Append a leaf for every trajectory whose head has moved since its last one; how many there were.

        Raises `Corrupt` where the stored nodes do not give the root that the tree was left with.
        """
        self._conn.execute(self._sql["unlimited"])
        with self._conn.cursor("stratalog_moved", binary=True) as cursor:
            cursor.execute(self._sql["moved"], {"tenant": self.tenant})
            rows = iter(lambda: cursor.fetchmany(BATCH_LEAVES), [])
            return self.append(Leaf(self.tenant, row[0], row[1], bytes(row[2])) for batch in rows for row in batch)

    def append(self, leaves: Iterable[Leaf]) -> int:
        """Append leaves; how many there were. Raises `Corrupt` as `append_moved` does."""
        frontier = Frontier.load(self, self.size)
        if frontier.root() != self.root:
            raise Corrupt(
                f"the leaves of {self.tenant} do not give the root that its tree was left with",
                hint="see what differs: stratalog audit verify",
            )
        before, coming = self.size, iter(leaves)
        while batch := list(itertools.islice(coming, BATCH_LEAVES)):
            self._insert(frontier, batch)
        if frontier.size > before:
            self.size, self.root = frontier.size, frontier.root()
            values = {"tenant": self.tenant, "size": self.size, "root": self.root}
            self._conn.execute(self._sql["move_tree"], values)
        return frontier.size - before

    def _insert(self, frontier: Frontier, batch: list[Leaf]) -> None:
        first = frontier.size
        complete: list[Node] = []
        for leaf in batch:
            complete += [node for node in frontier.append(leaf.hash) if is_stored(node.level)]
        ids, sequences = [leaf.trajectory_id for leaf in batch], [leaf.sequence_number for leaf in batch]
        hashes = [leaf.event_hash for leaf in batch]
        values = {"tenant": self.tenant, "first": first, "ids": ids, "sequences": sequences, "hashes": hashes}
        self._conn.execute(self._sql["insert_leaves"], values)
        if complete:
            levels, indexes = [node.level for node in complete], [node.index for node in complete]
            nodes = {"levels": levels, "indexes": indexes, "hashes": [node.hash for node in complete]}
            self._conn.execute(self._sql["insert_nodes"], {"tenant": self.tenant, **nodes})

    def node(self, level: int, index: int) -> bytes:
        """The hash of a complete subtree; raises `Corrupt` where a row is missing."""
        stored = level - level % LEVELS_PER_STORED
        width = 1 << (level - stored)
        first = index * width
        values = {"tenant": self.tenant, "level": stored, "first": first, "end": first + width}
        if stored:
            rows = self._conn.execute(self._sql["node_range"], values).fetchall()
            found = {int(number): bytes(digest) for number, digest in rows}
        else:
            rows = self._conn.execute(self._sql["leaf_range"], values).fetchall()
            found = {int(row[0]): Leaf(self.tenant, row[1], row[2], bytes(row[3])).hash for row in rows}
        missing = [number for number in range(first, first + width) if number not in found]
        if missing:
            what = f"node {missing[0]} of level {stored}" if stored else f"leaf {missing[0]}"
            raise Corrupt(f"{what} of {self.tenant} is missing", hint="see what differs: stratalog audit verify")
        return _fold([found[number] for number in range(first, first + width)])

    def leaves(self, first: int, end: int) -> list[Leaf]:
        """Leaves by number, `end` excluded; raises `Corrupt` where one is missing."""
        values = {"tenant": self.tenant, "first": first, "end": end}
        rows = self._conn.execute(self._sql["leaf_range"], values).fetchall()
        if [row[0] for row in rows] != list(range(first, end)):
            raise Corrupt(f"leaves of {self.tenant} are missing", hint="see what differs: stratalog audit verify")
        return [Leaf(self.tenant, row[1], row[2], bytes(row[3])) for row in rows]


def is_stored(level: int) -> bool:
    """Whether the complete subtrees of this level are rows of their own."""
    return level > 0 and level % LEVELS_PER_STORED == 0


def tenants(conn: Connection) -> list[str]:
    """Everybody who has trajectories or a tree, by name."""
    return [row[0] for row in conn.execute(statements("audit")["tenants"])]


def _fold(hashes: Iterable[bytes]) -> bytes:
    """The root over a power of two of hashes."""
    level = list(hashes)
    while len(level) > 1:
        level = [hash_node(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]
