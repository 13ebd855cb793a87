"""Reading events: never past the durable watermark, never silently shorter, and not disturbed by a prune meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stratalog.schemas.envelope import Envelope, decode_record
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.protocols import Store

from . import keys
from .watermark import Watermark


class Events:
    """The events of one log; `pruned` gives the LSN up to which they are gone."""

    def __init__(self, store: Store, durable: Watermark, pruned: Callable[[], int]) -> None:
        self._store = store
        self._durable = durable
        self._pruned = pruned

    def get(self, lsn: int) -> Envelope | None:
        """The durable event at an LSN; `None` beyond the watermark and where it was pruned."""
        if not self._pruned() < lsn <= self._durable.value:
            return None
        value = self._store.get("events", keys.lsn_key(lsn))
        if value is not None:
            return decode_record(lsn, value)
        if lsn <= self._pruned():
            return None
        raise Corrupt(f"the event at LSN {lsn} is missing")

    def scan(self, from_lsn: int, to_lsn: int) -> Iterator[Envelope]:
        """Durable events in order, both LSNs included, without what is pruned meanwhile; raises `Corrupt` at a hole."""
        stop = min(self._durable.value, to_lsn)
        expected = max(from_lsn, self._pruned() + 1)
        if expected > stop:
            return
        for key, value in self._store.scan("events", keys.lsn_key(expected), keys.lsn_key(stop + 1)):
            lsn = keys.lsn_of(key)
            if lsn != expected and lsn > self._pruned() + 1:
                raise Corrupt(f"the event at LSN {expected} is missing, the next one is {lsn}")
            yield decode_record(lsn, value)
            expected = lsn + 1
        if max(expected, self._pruned() + 1) <= stop:
            raise Corrupt(f"the event at LSN {expected} is missing, and the log should reach LSN {stop}")

    def of_trajectory(
        self, lsn: int, from_sequence: int, durable: int, staged: Mapping[bytes, bytes]
    ) -> Iterator[Envelope]:
        """The durable events of the trajectory whose head is at `lsn`, in order: the back-pointers are walked, then the
        events read forwards. `staged` holds events that may not be in the store yet, but lead to what is.
        """
        for found in reversed(self._walk(lsn, from_sequence, durable, staged)):
            envelope = self.get(found)
            if envelope is not None:
                yield envelope

    def _walk(self, lsn: int, from_sequence: int, durable: int, staged: Mapping[bytes, bytes]) -> list[int]:
        lsns: list[int] = []
        while lsn > self._pruned():
            key = keys.lsn_key(lsn)
            value = staged.get(key) or self._store.get("events", key)
            if value is None:
                if lsn <= self._pruned():
                    break
                raise Corrupt(f"the event at LSN {lsn} is missing")
            envelope = decode_record(lsn, value)
            if envelope.header.sequence_number < from_sequence:
                break
            if lsn <= durable:
                lsns.append(lsn)
            lsn = envelope.previous_lsn
        return lsns
