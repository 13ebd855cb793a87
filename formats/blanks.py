"""Empty JSON slices in bodies, put right.

A `Raw` field that says nothing is left out of the JSON only while it holds the very default object of its struct; any
other empty slice would be written as no value at all, which is not JSON.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


@cache
def _raw_defaults(struct: type[msgspec.Struct]) -> tuple[tuple[str, msgspec.Raw], ...]:
    fields = msgspec.structs.fields(struct)
    return tuple((field.name, field.default) for field in fields if isinstance(field.default, msgspec.Raw))


@cache
def _tuples(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(struct) if isinstance(field.default, tuple))


def without_blanks(struct: S) -> S:
    """The same struct with its empty slices left out, in its parts and calls too."""
    changed: dict[str, Any] = {}
    for name, default in _raw_defaults(type(struct)):
        value = getattr(struct, name)
        if value is not default and not memoryview(value).nbytes:
            changed[name] = default
    for name in _tuples(type(struct)):
        items = getattr(struct, name)
        whole = tuple(without_blanks(item) if isinstance(item, msgspec.Struct) else item for item in items)
        if any(new is not old for new, old in zip(whole, items, strict=True)):
            changed[name] = whole
    return msgspec.structs.replace(struct, **changed) if changed else struct
