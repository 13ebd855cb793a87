"""The two stories of a `.traj` told as one: `trajectory` has what was executed, `history` what was said.

They overlap and differ in length (history also has system prompt, demonstrations, requeries). A step belongs to the
next assistant message with the same action; the message after that one is the observation as the model got it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stratalog.formats.native import Damaged, Record, decode_record, is_true, string


class Piece(msgspec.Struct, frozen=True):
    """An element of one of the arrays; `record` is `None` where it cannot be read."""

    raw: bytes
    record: Record | None

    @classmethod
    def of(cls, raw: bytes) -> Piece:
        """Decode an element if that is possible."""
        try:
            return cls(raw, decode_record(raw))
        except Damaged:
            return cls(raw, None)

    def text(self, name: str) -> str | None:
        """A string member, if there is one."""
        return string(self.record.get(name)) if self.record else None

    @property
    def demonstration(self) -> bool:
        """Whether this message was shown to the model as an example."""
        return self.record is not None and (
            is_true(self.record.get("is_demo")) or self.text("message_type") == "demonstration"
        )

    @property
    def acts(self) -> bool:
        """Whether this message is the model's own in this run."""
        return self.text("role") == "assistant" and not self.demonstration


class Turn(msgspec.Struct, frozen=True):
    """One action: the step, what the model said, what it got back; at least one of the first two is there."""

    step: Record | None
    said: Record | None
    heard: Record | None


def told(steps: list[Piece], history: list[Piece]) -> Iterator[Turn | Piece]:
    """Turns, and the pieces that belong to none, in order."""
    position = 0
    for step in steps:
        if step.record is None:
            yield step
            continue
        found = _said(step, history, position)
        if found is None:
            yield Turn(step.record, None, None)
            continue
        yield from _untold(history[position:found])
        position = found + 1
        heard = _heard(history, position)
        position += heard is not None
        yield Turn(step.record, history[found].record, heard)
    yield from _untold(history[position:])


def _said(step: Piece, history: list[Piece], position: int) -> int | None:
    action = (step.text("action") or "").strip()
    for index in range(position, len(history)):
        message = history[index]
        if not message.acts:
            continue
        if (message.text("action") or "").strip() == action and (action or _same_words(step, message)):
            return index
    return None


def _same_words(step: Piece, message: Piece) -> bool:
    return message.text("content") in (step.text("response"), step.text("thought"))


def _heard(history: list[Piece], position: int) -> Record | None:
    if position < len(history) and history[position].text("role") in ("user", "tool"):
        return None if history[position].demonstration else history[position].record
    return None


def _untold(history: list[Piece]) -> Iterator[Turn | Piece]:
    """Messages without a step; those of the model are turns all the same where they act."""
    position = 0
    while position < len(history):
        message = history[position]
        position += 1
        if message.record is None or not message.acts:
            yield message
            continue
        heard = _heard(history, position) if (message.text("action") or "").strip() else None
        position += heard is not None
        yield Turn(None, message.record, heard)
