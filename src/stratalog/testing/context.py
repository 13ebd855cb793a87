"""The context of a generated trajectory: its messages as references, and the hash of what the model was sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from stratalog.schemas.events import ContextBuilt, MessageReference, RetrievedItem

FULL_EVERY = 64
"""A context is written in full this often; the others build on the one before."""


def message_bytes(role: str, text: str) -> bytes:
    """A message as it enters the hash of the context."""
    content = text.encode()
    return b"%b\0%d\0%b" % (role.encode(), len(content), content)


def context_hash(messages: Iterable[tuple[str, str]]) -> str:
    """SHA-256 (hex) of an assembled context, given as (role, text); retrieved items come last, as role `retrieved`."""
    digest = hashlib.sha256()
    for role, text in messages:
        digest.update(message_bytes(role, text))
    return digest.hexdigest()


class Context:
    """Grows by messages, shrinks by compaction; `built` gives the event that describes it."""

    def __init__(self) -> None:
        self.references: list[MessageReference] = []
        self.bytes = 0
        self._messages: list[bytes] = []
        self._digest = hashlib.sha256()
        self._base: int | None = None
        self._same = 0
        self._count = 0

    def say(self, sequence_number: int, part: int, role: str, text: str) -> None:
        """Append a message."""
        message = message_bytes(role, text)
        self.references.append((sequence_number, part))
        self._messages.append(message)
        self._digest.update(message)
        self.bytes += len(message)

    def compact(self, head: int, tail: int, sequence_number: int, summary: str) -> None:
        """Keep the first `head` and the last `tail` messages, with the summary between them."""
        stop = len(self.references) - tail
        message = message_bytes("summary", summary)
        self.references[head:stop] = [(sequence_number, 0)]
        self._messages[head:stop] = [message]
        self._digest = hashlib.sha256(b"".join(self._messages))
        self.bytes = sum(map(len, self._messages))
        self._same = min(self._same, head)

    def built(self, sequence_number: int, retrieved: tuple[RetrievedItem, ...] = ()) -> ContextBuilt:
        """The ContextBuilt event at this sequence number."""
        full = self._count % FULL_EVERY == 0
        same = 0 if full else self._same
        digest = self._digest.copy()
        for item in retrieved:
            digest.update(message_bytes("retrieved", str(item.text)))
        body = ContextBuilt(
            base=None if full else self._base,
            kept=((0, same),) if same else (),
            appended=tuple(self.references[same:]),
            retrieved=retrieved,
            context_hash=digest.hexdigest(),
            message_count=len(self.references),
        )
        self._base, self._same = sequence_number, len(self.references)
        self._count += 1
        return body
