"""The exact bodies of many rows at once: what `columns.body_of` gives for each, made kind by kind and column by column.

Each kind has a form: a struct with the fields of its body, in their order, which the columns of all its rows fill
without a loop over rows. What `rest` holds takes the place of a column's value, as in `columns`. A row whose `rest` has
more than the form knows is left to `body_of`; so there is one set of rules, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.schemas.arrow import NAMES
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.events import SCHEMA_VERSION

from .columns import FIELDS, JSON, PARTS, UNREADABLE, Field, body_of
from .rows import column, rows_of, values_of

_encode = msgspec.json.Encoder().encode
_MADE: dict[int, Callable[[Any], Any]] = {id(JSON): msgspec.Raw, id(PARTS): lambda text: [{"text": text}]}
"""How a column's value is given to the form, where it is not the value itself."""


class Form(msgspec.Struct, frozen=True):
    """The struct that is encoded as a kind's body: its fields by position, absent ones `UNSET`."""

    fields: tuple[Field, ...]
    make: Callable[..., msgspec.Struct]
    decode: Callable[[str], msgspec.Struct]
    getters: tuple[Callable[[Any], Any], ...]


def _form_of(kind: str, fields: tuple[Field, ...]) -> Form:
    names = [f"f{index}" for index in range(len(fields))]
    renamed = {name: field.name for name, field in zip(names, fields, strict=True)}
    made = msgspec.defstruct(
        kind,
        [(name, msgspec.Raw, msgspec.UNSET) for name in names],
        rename=renamed,
        forbid_unknown_fields=True,
    )
    decode: Callable[[str], msgspec.Struct] = msgspec.json.Decoder(made).decode
    return Form(fields, made, decode, tuple(map(attrgetter, names)))


_FORMS = {kind: _form_of(kind, fields) for kind, fields in FIELDS.items()}


def bodies_of(batch: pa.RecordBatch) -> list[bytes | Corrupt]:
    """The body of each row (empty where erased), or why there is none."""
    bodies: list[bytes | Corrupt] = [b""] * batch.num_rows
    raw, erased = column(batch, "body_raw"), column(batch, "erased")
    wanted = np.ones(batch.num_rows, dtype=bool)
    if raw.null_count < len(raw):
        kept = np.nonzero(pc.is_valid(raw).to_numpy(zero_copy_only=False))[0]
        for index, body in zip(kept.tolist(), raw.take(pa.array(kept)).to_pylist(), strict=True):
            bodies[index] = body
        wanted[kept] = False
    for index in np.nonzero(erased.fill_null(False).to_numpy(zero_copy_only=False))[0].tolist():
        bodies[index] = b""
        wanted[index] = False
    versions = column(batch, "schema_version").fill_null(-1).to_numpy()
    codes = column(batch, "kind").dictionary_encode()
    numbers = codes.indices.fill_null(-1).to_numpy()
    kinds = codes.dictionary.to_pylist()
    for number in np.unique(numbers[wanted]).tolist():
        kind = kinds[number] if number >= 0 else ""
        places = np.nonzero((numbers == number) & wanted)[0]
        form = _FORMS.get(kind)
        if form is not None and (versions[places] == SCHEMA_VERSION).all():
            _fill(bodies, batch, places, form)
        else:
            for index in places.tolist():
                bodies[index] = _alone(batch, index)
    return bodies


def _fill(bodies: list[bytes | Corrupt], batch: pa.RecordBatch, places: np.ndarray[Any, Any], form: Form) -> None:
    """Set the bodies of the rows of one kind."""
    indices = pa.array(places)
    rests, apart = _rests(column(batch, "rest").take(indices), form)
    values: list[Sequence[Any]] = []
    for field, get in zip(form.fields, form.getters, strict=True):
        over = list(map(get, rests))
        if field.shape is None:
            values.append(over)
            continue
        given = _given(column(batch, NAMES[field.column]).take(indices), field)
        if over.count(msgspec.UNSET) == len(over):
            values.append(given)
        else:
            values.append([b if a is msgspec.UNSET else a for a, b in zip(over, given, strict=True)])
    made = map(_encode, map(form.make, *values)) if values else iter([b"{}"] * len(places))
    order = places.tolist()
    for index, body in zip(order, made, strict=True):
        bodies[index] = body
    for position in apart:
        bodies[order[position]] = _alone(batch, order[position])


def _rests(array: pa.Array, form: Form) -> tuple[list[msgspec.Struct], list[int]]:
    """What `rest` holds of each row, and the rows that need the slow way."""
    none = form.make()
    if array.null_count == len(array):
        return [none] * len(array), []
    rests, apart = [], []
    decode = form.decode
    for position, text in enumerate(values_of(array)):
        if text is None:
            rests.append(none)
            continue
        try:
            rests.append(decode(text))
        except UNREADABLE:
            rests.append(none)
            apart.append(position)
    return rests, apart


def _given(array: pa.Array, field: Field) -> Sequence[Any]:
    """A column's values for the form; what stands for an absent field is unset."""
    if array.null_count == len(array):
        return [msgspec.UNSET] * len(array)
    values = values_of(array)
    make, absent = _MADE.get(id(field.shape)), field.absent
    if make is not None:
        return [msgspec.UNSET if value is None else make(value) for value in values]
    if absent is None and array.null_count == 0:
        return values
    return [msgspec.UNSET if value is None or value == absent else value for value in values]


def _alone(batch: pa.RecordBatch, index: int) -> bytes | Corrupt:
    try:
        return body_of(next(rows_of(batch.slice(index, 1))))
    except Corrupt as error:
        return error
