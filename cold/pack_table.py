"""What Postgres knows of packs: where each piece lies, what is dead in them, and which packs are on their way out.

It makes finding a piece fast, and says which pieces nothing refers to; the packs themselves say what is in them, so all
of it but that can be made again from them (`pack_check.reindex`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg

from stratalog.schemas.errors import Locked, Unavailable
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .object_lock import set_legal_hold
from .pack_format import Piece
from .pack_writer import Made
from .storage import Storage

LOCK_WAIT_S = 600
"""How long others may make or rewrite a pack before whoever waits gives up."""
BATCH = 5_000

_SQL = statements("packs")


class Known(msgspec.Struct, frozen=True):
    """Where a row says that a piece lies, and whether nothing refers to it."""

    pack: str
    dead: bool


class PackRow(msgspec.Struct, frozen=True):
    """A pack: the length of its file, all content in it, and how much of that is needed."""

    tenant: str
    name: str
    bytes: int
    raw_bytes: int
    replaced: bool
    live_bytes: int
    live_pieces: int
    pieces: int
    """All of which a row says that they are in it."""


class PackTable:
    """The rows, over a connection of its own that is made when it is first needed; safe for several threads."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._conn: Connection | None = None
        self._guard = threading.RLock()
        self._depth = 0

    def close(self) -> None:
        """Close the connection, which also releases the lock."""
        with self._guard:
            if self._conn is not None:
                self._conn.close()
                self._conn = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else makes, rewrites or deletes packs, or erases content, meanwhile; may be nested.

        Raises `Locked` where others take too long.
        """
        with self._guard:
            if not self._depth:
                self._lock()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._unlock()

    def find(self, tenant: str, digest: bytes) -> tuple[str, int] | None:
        """Name and length of the pack that a piece lies in, or `None`."""
        rows = self._rows("find", {"tenant": tenant, "sha256": digest})
        return (bytes(rows[0][0]).hex(), rows[0][1]) if rows else None

    def dropped(self, tenant: str, digest: bytes) -> str:
        """By which policy a piece was dropped, and when, for people; '' if none has done that."""
        rows = self._rows("dropped", {"tenant": tenant, "sha256": digest})
        return f"policy {rows[0][0]} (version {rows[0][1]}) on {rows[0][2]:%Y-%m-%d}" if rows else ""

    def known(self, tenant: str, digests: Sequence[bytes]) -> dict[bytes, Known]:
        """What is known of those of some pieces that lie in packs."""
        found = {}
        for start in range(0, len(digests), BATCH):
            values = {"tenant": tenant, "sha256s": list(digests[start : start + BATCH])}
            for digest, pack, dead in self._rows("known", values):
                found[bytes(digest)] = Known(bytes(pack).hex(), dead)
        return found

    def live(self) -> Iterator[tuple[str, bytes, int]]:
        """Tenant, digest and length of every piece in a pack that is not dead."""
        for tenant, digest, length in self._rows("live"):
            yield tenant, bytes(digest), length

    def packs(self) -> list[PackRow]:
        """Every pack, also those that are on their way out, by tenant and name."""
        return [PackRow(tenant, bytes(name).hex(), *rest) for tenant, name, *rest in self._rows("packs")]

    def pieces(self, tenant: str, name: str) -> dict[bytes, tuple[int, int, bool]]:
        """Start, length and deadness of what the rows say lies in a pack."""
        rows = self._rows("pieces", {"tenant": tenant, "name": bytes.fromhex(name)})
        return {bytes(digest): (start, length, dead) for digest, start, length, dead in rows}

    def record(self, tenant: str, made: Made, *, revived: bool = True) -> None:
        """A pack is there and whole: its pieces lie in it now."""
        with self._transaction() as conn:
            self._place(conn, "place", tenant, made, revived=revived)

    def adopt(self, tenant: str, made: Made) -> int:
        """Note a pack that no row knew; returns how many of its pieces no row knew either."""
        with self._transaction() as conn:
            return self._place(conn, "place_unknown", tenant, made)

    def replace(self, tenant: str, old: str, made: Made | None) -> None:
        """In one step: what `made` has lies there, and the pack `old` is on its way out."""
        with self._transaction() as conn:
            if made is not None:
                self._place(conn, "place", tenant, made, revived=False)
            conn.execute(_SQL["replace"], {"tenant": tenant, "name": bytes.fromhex(old)})

    def kill(self, conn: Connection, pieces: Sequence[tuple[str, bytes]]) -> int:
        """Nothing refers to these pieces any more; part of the caller's transaction. Returns how many were in packs."""
        values = {"tenants": [tenant for tenant, _ in pieces], "digests": [digest for _, digest in pieces]}
        return conn.execute(_SQL["kill"], values).rowcount

    def revive(self, tenant: str, digests: Iterable[bytes]) -> None:
        """These pieces are needed again."""
        self._change("revive", {"tenant": tenant, "sha256s": sorted(digests)})

    def forget_pieces(self, tenant: str, digests: Iterable[bytes]) -> None:
        """These pieces are in no pack any more."""
        self._change("forget_pieces", {"tenant": tenant, "sha256s": sorted(digests)})

    def forget_pack(self, tenant: str, name: str) -> None:
        """The file of a replaced pack is gone."""
        self._change("forget_pack", {"tenant": tenant, "name": bytes.fromhex(name)})

    def looked_through(self, paths: Sequence[str]) -> set[str]:
        """Those of some data files whose content was looked through."""
        return {path for (path,) in self._rows("looked_through", {"paths": list(paths)})}

    def note_files(self, paths: Sequence[str]) -> None:
        """The content of these data files was looked through."""
        self._change("note_files", {"paths": list(paths)})

    def forget_files(self, there: Sequence[str]) -> None:
        """Forget all data files but those that are `there`."""
        self._change("forget_files", {"paths": list(there)})

    def lock_like(self, storage: Storage, old: str, new: str) -> None:
        """Where we have set a legal hold on the object `old`, set one on `new`, too, which replaces it."""
        if self._rows("object_locked", {"path": old}):
            self._change("note_lock", {"path": new})
            set_legal_hold(storage, new, on=True)

    def unlock(self, storage: Storage, path: str) -> None:
        """Take away the legal hold that we have set on an object, if so: it is about to be deleted."""
        if self._rows("object_locked", {"path": path}):
            set_legal_hold(storage, path, on=False)
            self._change("forget_lock", {"path": path})

    def _place(self, conn: Connection, statement: str, tenant: str, made: Made, **more: Any) -> int:
        name = bytes.fromhex(made.name)
        index = made.index
        values = {"tenant": tenant, "name": name, "bytes": made.bytes, "raw_bytes": index.raw_bytes}
        conn.execute(_SQL["insert_pack"], {**values, "pieces": len(index)})
        placed = 0
        pieces: list[Piece] = list(index.pieces())
        for start in range(0, len(pieces), BATCH):
            batch = pieces[start : start + BATCH]
            columns = {
                "sha256s": [piece.digest for piece in batch],
                "starts": [piece.offset for piece in batch],
                "lengths": [piece.length for piece in batch],
            }
            placed += conn.execute(_SQL[statement], {"tenant": tenant, "name": name, **columns, **more}).rowcount
        return placed

    def _rows(self, statement: str, values: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._transaction() as conn:
            return conn.execute(_SQL[statement], values).fetchall()

    def _change(self, statement: str, values: dict[str, Any]) -> None:
        with self._transaction() as conn:
            conn.execute(_SQL[statement], values)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._guard, answering():
            if self._conn is None or self._conn.closed:
                # Whoever holds the lock has lost it with the connection: the next statement must not pretend otherwise.
                if self._depth:
                    raise psycopg.OperationalError("the connection that held the lock on packs was lost")
                self._conn = self._connect()
            with self._conn.transaction():
                self._conn.execute(_SQL["unlimited"])
                yield self._conn

    def _lock(self) -> None:
        try:
            with self._transaction() as conn:
                conn.execute(_SQL["patience"], {"milliseconds": LOCK_WAIT_S * 1000})
                conn.execute(_SQL["lock"])
        except Unavailable as error:
            if isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise Locked("packs are being written", hint="wait for it to end, then run it again") from error
            raise

    def _unlock(self) -> None:
        if self._conn is None or self._conn.closed:
            return
        try:
            with self._transaction() as conn:
                conn.execute(_SQL["unlock"])
        except BaseException:
            # Closing the session releases it.
            self.close()
            raise
