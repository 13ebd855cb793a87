"""Readers pin the snapshot that they read, so that its files stay until they have finished.

A pin is a row in Postgres and a lock of the session that took it. Guarantee: a file that belonged to the table when a
reader pinned is not deleted by a job that asks `wait_for`, as long as the reader's session is there and its time is not
over. How: the reader pins *before* it looks which snapshot is current; the job commits the snapshot without the file
*before* it asks who has pinned. Whoever pins after that finds the new snapshot, whoever pinned before is waited for.
Nobody's clock is needed for it.

A crash leaves no pin for ever: with the session the lock is gone, at once where the process was killed, after the
server's keepalive where the network is, and in any case the pin ends at `pinned_until`, at most `PIN_S_MAX` after it
was taken. A reader that is still there then may find its files gone (`NotFound`): it has to connect again. Erasure does
not wait for pins.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
import uuid
from collections.abc import Callable, Collection, Iterator

import msgspec
import psycopg

from stratalog.hot.home import Home
from stratalog.schemas.errors import Invalid, Unavailable
from stratalog.schemas.statements import statements
from stratalog.warm import database
from stratalog.warm.database import Connection, answering, check_idle

from .erased_readers import noticing_erasure
from .installation import Installation

PIN_S_MAX = 3600.0
"""The longest time for which a reader may pin, in seconds."""
READER_CHARS_MAX = 200
PAUSE_S = 0.2
_PIN_HINT = "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA stratalog to it, or read without a pin: --no-pin"
_MASK_HINT = "GRANT SELECT ON stratalog.erased_trajectories TO it"
_SQL = statements("pins")


class Pin(msgspec.Struct, frozen=True):
    """One reader that is there; `snapshot_id` is `None` until it knows, or where the table is empty."""

    pin_id: int
    snapshot_id: int | None
    reader: str
    pinned_at: dt.datetime
    pinned_until: dt.datetime


class Snapshot(msgspec.Struct, frozen=True):
    """A state of the cold table: its id (`None` before the first commit) and the URLs of its files.

    `masked` are trajectories that were erased by then and whose bytes these files may have: show nothing of them.
    """

    snapshot_id: int | None
    files: list[str]
    masked: frozenset[uuid.UUID] = frozenset()


def take(conn: Connection, reader: str, seconds: float = PIN_S_MAX) -> int:
    """Pin whatever is current from now on; returns the pin's id. It lasts until `release`, or as long as `conn` does.

    `reader` says who, for people. Raises `Invalid` for more than `PIN_S_MAX`, and where the role may not pin.
    """
    check_idle(conn)
    if not 0 < seconds <= PIN_S_MAX:
        raise Invalid(f"a pin lasts up to {PIN_S_MAX:g} s, not {seconds:g}", hint="connect again when its time is over")
    name = reader.replace("\0", " ").strip()[:READER_CHARS_MAX] or "unnamed"
    try:
        with conn.transaction():
            row = conn.execute(_SQL["take"], {"reader": name, "seconds": seconds}).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise Invalid(f"this role may not pin a snapshot: {error.diag.message_primary}", hint=_PIN_HINT) from error
    except psycopg.Error as error:
        with answering():
            raise error
    assert row is not None
    pin_id: int = row[0]
    return pin_id


def set_snapshot(conn: Connection, pin_id: int, snapshot_id: int | None) -> None:
    """Say which snapshot was found to be current after `take`."""
    with answering(), conn.transaction():
        conn.execute(_SQL["set_snapshot"], {"pin_id": pin_id, "snapshot_id": snapshot_id})


def release(conn: Connection, pin_id: int) -> None:
    """End a pin that this connection took; harmless when it has ended already."""
    with answering(), conn.transaction():
        conn.execute(_SQL["delete"], {"pin_id": pin_id})
    # A session that goes on must not keep the lock; a pin of another session stays locked, and Postgres only warns.
    with answering(), conn.transaction():
        conn.execute(_SQL["unlock"], {"pin_id": pin_id})


def live(conn: Connection) -> list[Pin]:
    """The pins that hold now, the oldest first."""
    with answering(), conn.transaction():
        return [Pin(*row) for row in conn.execute(_SQL["live"]).fetchall()]


def pinned_snapshots(conn: Connection) -> frozenset[int]:
    """The ids of the snapshots that somebody reads; who has just come and names none yet reads the current one."""
    return frozenset(pin.snapshot_id for pin in live(conn) if pin.snapshot_id is not None)


def oldest(conn: Connection) -> Pin | None:
    """The pin that has held for longest, or `None`."""
    return next(iter(live(conn)), None)


def wait_for(
    conn: Connection,
    *,
    seconds_max: float,
    reading: Collection[int] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Pin, ...]:
    """Wait until the readers that are there now have gone, `seconds_max` at most; returns those that have not.

    Call it after the commit that takes files out of the table, and delete them only if it returns nothing. Readers that
    come later, and those that read one of the snapshots `reading` (which have not these files), are not waited for.
    """
    waited_for = {pin.pin_id for pin in live(conn) if pin.snapshot_id is None or pin.snapshot_id not in reading}
    deadline = time.monotonic() + seconds_max
    while waited_for:
        left = tuple(pin for pin in live(conn) if pin.pin_id in waited_for)
        remaining = deadline - time.monotonic()
        if not left or remaining <= 0:
            return left
        sleep(min(PAUSE_S, remaining))
    return ()


@contextlib.contextmanager
def pinned_snapshot(home: Home, reader: str, seconds: float = PIN_S_MAX) -> Iterator[Snapshot]:
    """The current snapshot of the home, pinned until the end of the block; with `seconds` 0 it is not pinned.

    The embedded Postgres of a home runs as long as the pin. Raises what `take` and `Installation.postgres` raise; what
    the block raises because files were erased meanwhile becomes `SnapshotErased`.
    """
    installation = Installation(home)
    if not installation.has_postgres:
        yield Snapshot(None, [])  # nothing has ever been replicated, so nothing can be cold
        return
    with installation.postgres() as dsn:
        if seconds == 0:
            with contextlib.closing(database.connect(dsn)) as conn:
                snapshot = _current(installation, dsn, conn)
            with noticing_erasure(home, snapshot.files):
                yield snapshot
            return
        with contextlib.closing(database.connect(dsn)) as conn:
            pin_id = take(conn, reader, seconds)
            snapshot = _current(installation, dsn, conn)
            set_snapshot(conn, pin_id, snapshot.snapshot_id)
            with noticing_erasure(home, snapshot.files):
                yield snapshot
            with contextlib.suppress(Unavailable):  # the session is gone, and the pin with it
                release(conn, pin_id)


def _current(installation: Installation, dsn: str, conn: Connection) -> Snapshot:
    with installation.lake() as lake, installation.catalog(dsn, lake) as catalog:
        table = catalog.table()
        named = None if table is None else table.current_snapshot()
        # What is committed between the two makes the name too old, and a job wait for nothing; never the other way.
        files = catalog.snapshot_files()
    # The ledger after the files: an erasure that is over by now has taken away what it is not in any more.
    return Snapshot(None if named is None else named.snapshot_id, files, masked(conn))


def masked(conn: Connection) -> frozenset[uuid.UUID]:
    """The trajectories that were erased and whose bytes may still be in the cold tier."""
    try:
        with conn.transaction():
            return frozenset(id_ for (id_,) in conn.execute(_SQL["masked"]))
    except psycopg.errors.InsufficientPrivilege as error:
        raise Invalid(
            f"this role may not see what was erased: {error.diag.message_primary}", hint=_MASK_HINT
        ) from error
    except psycopg.Error as error:
        with answering():
            raise error
