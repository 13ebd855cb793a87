"""A segment counts as whole only if every row is in its place, every body has its digest and the end its hash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fix_cold import START_US, Author

from stratalog.cold.columns import Place, Row, row_of
from stratalog.cold.segments import Found, Problem, Segment, SegmentCheck, mark_start
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX, SEGMENT
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.ids import uuid7_at


def trajectory(number: int, count: int = 6, erased: int = -1) -> list[Row]:
    author = Author(uuid7_at(START_US, number.to_bytes(10, "big")))
    rows = []
    for step in range(count):
        header, body = author.write(ev.ToolResult(tool_call_id=f"c{step}", output=f"out {step}", duration_ms=1.5))
        gone = step == erased
        envelope = Envelope(0, 0, header, b"" if gone else body, author.at.hash, gone)
        rows.append(row_of(envelope, 1, Place(20_089, "m", "m")))
    start: dict[str, Any] = dict.fromkeys(column.name for column in SEGMENT)
    start |= {"segment_last_sequence": count - 1, "segment_previous_hash": bytes(32)}
    mark_start(rows[0], {**start, "segment_last_hash": author.at.hash, "segment_secret": author.secret})
    return rows


def check(rows: list[Row], content: Callable[[str, str], str | None] = lambda tenant, sha256: None) -> list[Found]:
    checked = SegmentCheck(content)
    return [part for row in rows for part in checked.feed(row, "file")] + list(checked.end("file"))


def set_column(name: str, value: object) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        rows[3][INDEX[name]] = value

    return change


def test_whole_segments_are_found() -> None:
    found = check(trajectory(1) + trajectory(2, erased=2))
    assert [(type(part), getattr(part, "events", 0)) for part in found] == [(Segment, 6), (Segment, 6)]


@pytest.mark.parametrize(
    "change",
    [
        set_column("output", "another"),
        set_column("tool_call_id", None),
        set_column("duration_ms", 1.25),
        set_column("status", "error"),
        set_column("inferred", True),
        set_column("rest", '{"exit_code":1}'),
        set_column("body_raw", b"{}"),
        set_column("epoch", 1),
        set_column("created_at", 5),
        set_column("kind", "LateResult"),
        set_column("tenant", "globex"),
        set_column("schema_version", 2),
        set_column("sequence_number", 4),
        set_column("erased", True),
        lambda rows: rows.pop(3),
        lambda rows: rows.pop(),
        lambda rows: rows.pop(0),
        lambda rows: rows.insert(4, rows[3]),
        lambda rows: rows.reverse(),
        lambda rows: rows[0].__setitem__(INDEX["segment_last_hash"], b"x" * 32),
        lambda rows: rows[0].__setitem__(INDEX["segment_previous_hash"], b"x" * 32),
        lambda rows: rows[0].__setitem__(INDEX["segment_secret"], b"x" * 32),
        lambda rows: rows[0].__setitem__(INDEX["segment_secret"], None),
        lambda rows: rows[0].__setitem__(INDEX["segment_last_sequence"], 4),
        lambda rows: rows[0].__setitem__(INDEX["segment_last_hash"], None),
    ],
)
def test_any_change_is_a_problem_of_that_trajectory_alone(change: Callable[[list[Row]], object]) -> None:
    changed = trajectory(2)
    trajectory_id = uuid7_at(START_US, (2).to_bytes(10, "big"))
    change(changed)
    found = check(trajectory(1) + changed + trajectory(3))
    segments = [part for part in found if isinstance(part, Segment)]
    problems = [part for part in found if isinstance(part, Problem)]
    assert len(segments) == 2 and all(part.trajectory_id != trajectory_id for part in segments)
    assert problems and {part.trajectory_id for part in problems} == {trajectory_id}


def test_a_segment_that_refers_to_missing_content_is_not_whole() -> None:
    author = Author(uuid7_at(START_US, bytes(10)))
    ref = BlobRef.of(b"content")
    header, body = author.write(ev.ToolResult(tool_call_id="c", output=Blob(ref)))
    row = row_of(Envelope(0, 0, header, body, author.at.hash), 1, Place(20_089, "m", "m"))
    start: dict[str, Any] = dict.fromkeys(column.name for column in SEGMENT)
    start |= {"segment_last_sequence": 0, "segment_previous_hash": bytes(32), "segment_last_hash": author.at.hash}
    mark_start(row, {**start, "segment_secret": author.secret})
    asked: list[tuple[str, str]] = []

    def content(tenant: str, sha256: str) -> str | None:
        asked.append((tenant, sha256))
        return "it is missing"

    assert [str(part) for part in check([row], content)] == [f"file: trajectory {author.trajectory_id}: it is missing"]
    assert asked == [("acme", ref.sha256)] and [type(part) for part in check([row])] == [Segment]
