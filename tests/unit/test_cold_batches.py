"""Many events at once give the very columns that one after the other give, and many rows the very bodies."""

from __future__ import annotations

from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from fix_json import odd_bodies
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cold import stored
from stratalog.cold.columns import Place, body_of, row_of
from stratalog.cold.rebuild import bodies_of
from stratalog.cold.rows import batch_of, rows_of
from stratalog.cold.spread import NewEvent, spread
from stratalog.cold.stored import stored_in, stored_of
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX, SEGMENT
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.envelope import Envelope, Header, hash_event, hash_header
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import uuid7_at
from stratalog.testing import workload

PLACE = Place(20_000, "atlas-4", "atlas-4")
ID = uuid7_at(1_735_689_600_000_000, bytes(10))


def event_of(
    number: int, kind: str, body: bytes, *, version: int = ev.SCHEMA_VERSION, erased: bool = False
) -> NewEvent:
    start = {column.name: None for column in SEGMENT} | {"segment_last_sequence": 9, "segment_secret": b"s" * 32}
    return NewEvent(
        PLACE,
        "acme",
        ID.bytes,
        number,
        1,
        1_735_689_600_000_001,
        version,
        2,
        b"d" * 32,
        erased,
        kind,
        b"" if erased else body,
        start if number == 0 else None,
    )


def by_rows(events: list[NewEvent]) -> pa.RecordBatch:
    rows = []
    for event in events:
        header = Header(
            event.tenant,
            ID,
            event.sequence_number,
            event.epoch,
            event.created_at,
            event.kind,
            event.schema_version,
            bytes(32),
            event.body_digest,
        )
        rows.append(row_of(Envelope(0, 0, header, event.body, b"h" * 32, event.erased), event.turn, event.place))
        if event.start is not None:
            for column in SEGMENT:
                rows[-1][INDEX[column.name]] = event.start[column.name]
    return batch_of(rows)


def check(events: list[NewEvent]) -> None:
    batch = spread(events)
    assert batch.equals(by_rows(events))
    assert bodies_of(batch) == [event.body for event in events]
    rows = list(rows_of(batch))
    assert [body_of(row) for row in rows] == [event.body for event in events]
    one_by_one = [stored_of(row) for row in rows]
    assert stored_in(batch) == one_by_one
    with mock.patch.object(stored, "SMALL_ROWS", 0):
        assert stored_in(batch) == one_by_one


_events = st.lists(
    st.tuples(odd_bodies(), st.sampled_from([1, 1, 1, 1, 2]), st.sampled_from([False, False, False, True])),
    min_size=1,
    max_size=8,
)


@given(_events)
def test_any_json_is_spread_and_rebuilt_as_row_by_row(cases: list[tuple[tuple[str, bytes], int, bool]]) -> None:
    check(
        [
            event_of(number, kind, body, version=version, erased=erased)
            for number, ((kind, body), version, erased) in enumerate(cases)
        ]
    )


@given(st.lists(st.tuples(st.sampled_from([*sorted(ev.KINDS), "New"]), st.binary(max_size=40)), min_size=1, max_size=5))
def test_any_bytes_are_spread_and_rebuilt_as_row_by_row(cases: list[tuple[str, bytes]]) -> None:
    check([event_of(number, kind, body) for number, (kind, body) in enumerate(cases)])


def test_a_workload_is_spread_and_rebuilt_as_row_by_row() -> None:
    bodies = [event.body for trajectory in workload(3, 20) for event in trajectory.events]
    check([event_of(number, kind_of(body), encode_body(body)) for number, body in enumerate(bodies)])


def test_every_default_that_is_spelled_out_stays_spelled_out() -> None:
    spelled = [b'{"tool_call_id":"c","status":"ok","inferred":false}', b'{"tool_call_id":"c","inferred":true}']
    check([event_of(number, "ToolResult", body) for number, body in enumerate(spelled)])


@pytest.mark.parametrize(
    ("column", "value"),
    [("rest", "["), ("rest", "null"), ("rest", '{"output":1}'), ("rest", '{"new":[1]}'), ("schema_version", 9)],
)
def test_a_damaged_row_is_damaged_either_way(column: str, value: object) -> None:
    batch = by_rows([event_of(0, "ToolResult", b'{"tool_call_id":"c","output":"o"}')])
    row = next(rows_of(batch))
    row[INDEX[column]] = value
    [rebuilt] = bodies_of(batch_of([row]))
    try:
        assert rebuilt == body_of(row)
    except Corrupt as error:
        assert isinstance(rebuilt, Corrupt) and rebuilt.message == error.message


@given(st.text(st.characters(codec="ascii"), max_size=9), st.text(max_size=9), st.integers(0, 2**64 - 1))
def test_the_hash_of_values_is_that_of_the_header(tenant: str, kind: str, number: int) -> None:
    values = (tenant, ID, number, number, number % 2**63, kind, 1, b"p" * 32, b"d" * 32)
    try:
        kind.encode()
    except UnicodeEncodeError:
        return
    assert hash_event(tenant, ID.bytes, *values[2:]) == hash_header(Header(*values).encode())


@pytest.mark.parametrize(
    "change", [{"tenant": "é"}, {"epoch": -1}, {"previous_hash": b""}, {"schema_version": 1 << 16}]
)
def test_values_that_no_header_holds_are_refused(change: dict[str, object]) -> None:
    header = Header("acme", ID, 1, 1, 1, "ToolResult", 1, b"p" * 32, b"d" * 32)
    values = msgspec.structs.asdict(header) | {"trajectory_id": ID.bytes} | change
    with pytest.raises(Corrupt, match="no header holds"):
        hash_event(*values.values())  # type: ignore[arg-type]
