"""Bodies of every kind for tests: one with all fields filled, and hypothesis strategies made from the declarations."""

from __future__ import annotations

import json
import types
import typing
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from stratalog.schemas.codec import Event, decode_event, kind_of
from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.events import KINDS, Body, EventBody
from stratalog.testing import GeneratedEvent, GeneratedTrajectory, envelopes

TRAJECTORY = uuid.UUID("019bb9e2-7c00-7000-8000-0000000000a1")
SECRET = bytes(range(32))
START_US = 1_768_262_400_000_000


def _filled(annotation: Any, name: str, depth: int = 0) -> Any:
    """A value of the declared type that is not the default."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is msgspec.Raw:
        return msgspec.Raw(b'{"any": ["JSON", 1.50, null]}')
    if origin is typing.Literal:
        return [value for value in arguments if value][-1]
    if origin in (typing.Union, types.UnionType):
        return _filled(arguments[0], name, depth)
    if origin is tuple:
        items = arguments[:1] * 2 if arguments[-1] is Ellipsis else arguments
        return tuple(_filled(item, name, index) for index, item in enumerate(items))
    if origin is dict:
        return {f"{name}-key": _filled(arguments[1], name)}
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return filled(annotation)
    simple = {str: f"{name} é{depth}", int: 7 + depth, float: 0.25, bool: True}
    return simple[annotation]


def filled(struct: type[Any]) -> Any:
    """`struct` with every field set to something else than its default."""
    return struct(**{name: _filled(hint, name) for name, hint in typing.get_type_hints(struct).items()})


def filled_bodies() -> list[Body]:
    """A filled body of every kind."""
    return [filled(struct) for struct in KINDS.values()]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
# Few ids and small numbers, so that events often speak of each other.
_ids = st.sampled_from(["a", "b", "c"])
_small = st.integers(-2, 12)
_ints = _small | st.integers(min_value=-(1 << 70), max_value=1 << 70)
_texts = st.sampled_from(["", "x"]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def _strategy(annotation: Any, name: str) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is msgspec.Raw:
        return json_values.map(lambda value: msgspec.Raw(json.dumps(value).encode()))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if item is type(None) else _strategy(item, name) for item in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(_strategy(arguments[0], name), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(_strategy(item, name) for item in arguments))
    if origin is dict:
        return st.dictionaries(_ids, _strategy(arguments[1], name), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return bodies_of(annotation)
    if annotation is str and name in ("tool_call_id", "escalation_id", "child"):
        return _ids
    simple = {str: _texts, int: _ints, float: st.floats(allow_nan=False, allow_infinity=False), bool: st.booleans()}
    return simple[annotation]


def bodies_of(struct: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a struct, often with its defaults."""
    required = {field.name for field in msgspec.structs.fields(struct) if field.required}
    strategies = {}
    for name, hint in typing.get_type_hints(struct).items():
        strategies[name] = _strategy(hint, name)
    return st.fixed_dictionaries(
        {name: strategies[name] for name in strategies if name in required},
        optional={name: strategies[name] for name in strategies if name not in required},
    ).map(lambda fields: struct(**fields))


bodies: st.SearchStrategy[Body] = st.deferred(lambda: st.one_of([bodies_of(struct) for struct in KINDS.values()]))
"""A body of any kind."""


def chained(events: Sequence[EventBody], *, step_us: int = 1000) -> list[Envelope]:
    """The envelopes of a trajectory with these bodies, one every `step_us` µs."""
    generated = [GeneratedEvent(body, START_US + index * step_us) for index, body in enumerate(events)]  # type: ignore[arg-type]
    return envelopes(GeneratedTrajectory(TRAJECTORY, "acme", SECRET, generated))


def decoded(events: Sequence[EventBody]) -> list[Event]:
    """The same as programs read them."""
    return [decode_event(envelope) for envelope in chained(events)]


def loose(body: EventBody, sequence_number: int, *, epoch: int = 0, created_at: int = START_US) -> Event:
    """An event at any place, without a chain."""
    header = Header("acme", TRAJECTORY, sequence_number, epoch, created_at, kind_of(body), 1, bytes(32), bytes(32))
    return Event(header, body, bytes(32))
