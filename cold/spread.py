"""Many events to the columns of one batch: what `columns.row_of` gives for each, made kind by kind.

Each kind has a form: a struct of its fields, typed as their columns are. A body that the form reads, and that the form
writes again byte for byte, is spread over the columns by its attributes; that is nearly every body that we have
encoded ourselves. Every other one is left to `row_of`; so there is one set of rules, and a test compares the two.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from stratalog.schemas.arrow import BODY, EVENTS, EXACTNESS, INDEX, NAMES, SEGMENT
from stratalog.schemas.blobs import MARKER, references
from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.events import SCHEMA_VERSION

from .columns import (
    FIELDS,
    FLAG,
    FLOAT,
    INTEGER,
    INTEGER_MAX,
    JSON,
    PARTS,
    SPEAKER,
    UNREADABLE,
    Field,
    Place,
    row_of,
)
from .rows import array_of

_encode = msgspec.json.Encoder().encode


class NewEvent(msgspec.Struct, frozen=True):
    """An event on its way into a file; `start` are the segment columns of the first one of a segment."""

    place: Place
    tenant: str
    trajectory: bytes
    sequence_number: int
    epoch: int
    created_at: int
    schema_version: int
    turn: int
    body_digest: bytes
    erased: bool
    kind: str
    body: bytes
    start: dict[str, Any] | None = None


class _TextPart(msgspec.Struct, forbid_unknown_fields=True):
    text: str


_TYPES: dict[int, Any] = {
    id(INTEGER): Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)],
    id(FLOAT): float,
    id(FLAG): bool,
    id(JSON): msgspec.Raw,
    id(PARTS): Annotated[list[_TextPart], msgspec.Meta(min_length=1, max_length=1)],
    id(None): msgspec.Raw,
}
_READ: dict[int, Callable[[Any], Any]] = {
    id(JSON): lambda raw: str(raw, "utf-8"),
    id(PARTS): lambda parts: parts[0].text,
}
"""How an attribute of the form becomes the column's value, where it is not the value itself."""


class _Form(msgspec.Struct, frozen=True):
    decode: Callable[[bytes], Any]
    columns: tuple[tuple[Field, Callable[[Any], Any]], ...]
    """The fields that have a column, with what reads them from the form."""
    rest: Callable[..., Any]
    others: tuple[Callable[[Any], Any], ...]
    """What reads the fields of `rest`, which have no column, from the form."""


def _form_of(kind: str, fields: tuple[Field, ...]) -> _Form:
    names = {f"f{index}": field for index, field in enumerate(fields)}
    made = msgspec.defstruct(
        kind,
        [(name, _TYPES.get(id(field.shape), str), msgspec.UNSET) for name, field in names.items()],
        rename={name: field.name for name, field in names.items()},
        forbid_unknown_fields=True,
    )
    others = {name: field.name for name, field in names.items() if field.shape is None}
    rest = msgspec.defstruct(f"Rest{kind}", [(name, msgspec.Raw, msgspec.UNSET) for name in others], rename=others)
    return _Form(
        msgspec.json.Decoder(made).decode,
        tuple((field, attrgetter(name)) for name, field in names.items() if field.shape is not None),
        rest,
        tuple(map(attrgetter, others)),
    )


_FORMS = {kind: _form_of(kind, fields) for kind, fields in FIELDS.items()}
_SPREAD = tuple(column.name for column in (*BODY, *EXACTNESS) if column.name != "erased")
"""What a body decides; the other columns are the event's place and the start of a segment."""


class _Cells:
    """Columns that are null except where something is set."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.columns: dict[str, list[Any]] = {}

    def column(self, name: str) -> list[Any]:
        """The values of a column, to be set."""
        found = self.columns.get(name)
        if found is None:
            found = self.columns[name] = [None] * self._rows
        return found

    def put(self, name: str, places: Sequence[int], values: Sequence[Any]) -> None:
        """Set the values of some rows."""
        column = self.column(name)
        for index, value in zip(places, values, strict=True):
            column[index] = value


def spread(events: Sequence[NewEvent]) -> pa.RecordBatch:
    """The batch of these events (at least one), in the order of `schemas.arrow.COLUMNS`."""
    cells = _Cells(len(events))
    by_kind: dict[str, list[int]] = {}
    for index, event in enumerate(events):
        if event.kind in _FORMS and event.schema_version == SCHEMA_VERSION and not event.erased:
            by_kind.setdefault(event.kind, []).append(index)
        else:
            _spread_alone(cells, index, event)
        if event.start is not None:
            for column in SEGMENT:
                cells.column(column.name)[index] = event.start[column.name]
    for kind, places in by_kind.items():
        for index in _spread_kind(cells, kind, places, events):
            _spread_alone(cells, index, events[index])
    cells.columns |= _places(events)
    arrays = [
        array_of(cells.columns[field.name], field.type)
        if field.name in cells.columns
        else array_of([None] * len(events), field.type)
        for field in EVENTS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def _places(events: Sequence[NewEvent]) -> dict[str, list[Any]]:
    return {
        "trajectory_id": [event.trajectory for event in events],
        "sequence_number": [event.sequence_number for event in events],
        "tenant": [event.tenant for event in events],
        "date": [event.place.date for event in events],
        "model": [event.place.model for event in events],
        "model_name": [event.place.model_name for event in events],
        "kind": [event.kind for event in events],
        "epoch": [event.epoch for event in events],
        "schema_version": [event.schema_version for event in events],
        "created_at": [event.created_at for event in events],
        "turn": [event.turn for event in events],
        "erased": [event.erased for event in events],
    }


def _spread_kind(cells: _Cells, kind: str, places: Sequence[int], events: Sequence[NewEvent]) -> list[int]:
    """Spread the events of one kind; returns those that its form does not give back exactly."""
    form = _FORMS[kind]
    good, forms, apart = [], [], []
    decode = form.decode
    for index in places:
        body = events[index].body
        try:
            read = decode(body)
            exact = _encode(read) == body
        except UNREADABLE:
            exact = False
        if exact:
            good.append(index)
            forms.append(read)
        else:
            apart.append(index)
    values = {}
    spelled: set[int] = set()
    for field, get in form.columns:
        try:
            values[NAMES[field.column]] = _column(field, list(map(get, forms)), spelled)
        except UNREADABLE:  # bytes in a JSON slice that are no text
            return list(places)
    values |= {"inferred": values.get("inferred", [False] * len(good))}
    if kind in SPEAKER:
        values |= {"role": [SPEAKER[kind]] * len(good)}
    for name, column in values.items():
        cells.put(name, good, column)
    if form.others:
        cells.put("rest", good, _rests(form, forms))
    for index in good:
        if MARKER in events[index].body:
            cells.column("blob")[index] = next((ref.sha256 for ref in references(events[index].body)), None)
    return [*apart, *(good[position] for position in sorted(spelled))]


def _column(field: Field, given: list[Any], spelled: set[int]) -> list[Any]:
    """A field's values; `spelled` takes the rows that spell out what an absent field would mean."""
    absent, read = field.absent, _READ.get(id(field.shape))
    if given.count(msgspec.UNSET) == len(given):
        return [absent] * len(given)
    if absent is not None:
        spelled.update(position for position, value in enumerate(given) if value == absent)
    if read is not None:
        return [None if value is msgspec.UNSET else read(value) for value in given]
    return [absent if value is msgspec.UNSET else value for value in given]


def _rests(form: _Form, forms: Sequence[Any]) -> list[str | None]:
    rests = map(_encode, map(form.rest, *(map(get, forms) for get in form.others)))
    return [None if rest == b"{}" else rest.decode() for rest in rests]


def _spread_alone(cells: _Cells, index: int, event: NewEvent) -> None:
    header = Header(
        event.tenant,
        uuid.UUID(bytes=event.trajectory),
        event.sequence_number,
        event.epoch,
        event.created_at,
        event.kind,
        event.schema_version,
        b"",
        event.body_digest,
    )
    row = row_of(Envelope(0, 0, header, event.body, b"", event.erased), event.turn, event.place)
    for name in _SPREAD:
        value = row[INDEX[name]]
        if value is not None or name in cells.columns:
            cells.column(name)[index] = value
