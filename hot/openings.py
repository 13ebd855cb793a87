"""Which opening of a log wrote an event: it tells a log from an older copy of it that has grown on its own.

An LSN and the hash of the event there do not: an import gives the same events the same hashes everywhere, so a copy
into which the same source was imported again, after something else of the same length, has the same event at the same
LSN. Each opening therefore draws a random id, and commits it with the first events that it writes; what was replicated
is known to Postgres by LSN, hash and opening. A crash loses an id only together with those events.
"""

from __future__ import annotations

import bisect
import threading
import uuid
from collections.abc import Sequence

from stratalog.schemas.errors import CursorMismatch
from stratalog.schemas.protocols import Put, Store

from . import keys
from .keys import Cursor

Opening = tuple[int, bytes]
"""Where the log ended when it was opened, and a random id: events after that LSN were written in this opening."""


def opening_at(openings: Sequence[Opening], lsn: int) -> bytes:
    """The id of the opening, of those given in order, that wrote the event at an LSN; empty where none of them did."""
    index = bisect.bisect_left(openings, (lsn, b"")) - 1
    return openings[index][1] if index >= 0 else b""


class Openings:
    """The openings of one log, the present one last."""

    def __init__(self, store: Store, end_lsn: int) -> None:
        self._store = store
        self._lock = threading.Lock()
        found = store.scan("meta", keys.OPENING_PREFIX, keys.prefix_end(keys.OPENING_PREFIX))
        self._known: list[Opening] = [(keys.lsn_of(key[len(keys.OPENING_PREFIX) :]), value) for key, value in found]
        self._known.append((end_lsn, uuid.uuid4().bytes))
        self._saved = False

    def puts(self, last_lsn: int) -> list[Put]:
        """What a group that ends at an LSN must commit: the present opening, with the first events that it writes."""
        start_lsn, opening = self._known[-1]
        if self._saved or last_lsn <= start_lsn:
            return []
        self._saved = True
        return [Put("meta", keys.OPENING_PREFIX + keys.lsn_key(start_lsn), opening)]

    def at(self, lsn: int) -> bytes:
        """The id of the opening that wrote the event at an LSN; empty where that was not recorded."""
        return opening_at(self._known, lsn)

    def since(self, lsn: int) -> list[Opening]:
        """The openings that wrote the event at an LSN and those after it."""
        known = self._known
        return known[max(0, bisect.bisect_left(known, (lsn, b"")) - 1) :]

    def check(self, cursor: Cursor) -> None:
        """Raise `CursorMismatch` where another opening has written the event at the cursor."""
        if cursor.opening and cursor.opening != self.at(cursor.lsn):
            raise CursorMismatch(
                f"the event at LSN {cursor.lsn} is the one that was replicated, those before it are not"
            )

    def forget(self, lsn: int) -> None:
        """Forget those that wrote nothing at or after an LSN."""
        with self._lock:
            kept = self.since(lsn)
            forgotten = len(kept) < len(self._known)
            self._known = kept
        if forgotten:
            stop = keys.OPENING_PREFIX + keys.lsn_key(kept[0][0])
            self._store.delete_range("meta", keys.OPENING_PREFIX, stop)
