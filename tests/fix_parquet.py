"""Small Parquet files of the cold table, made by the real row rules, in the real layout."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stratalog.cold.columns import Place, Row, row_of
from stratalog.cold.lake import Lake
from stratalog.cold.rows import batch_of
from stratalog.cold.segments import mark_start
from stratalog.schemas.arrow import SEGMENT
from stratalog.schemas.chain import START, next_header
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.events import Body
from stratalog.schemas.ids import model_slug, to_us, uuid7_at

DAY = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
SECRET = bytes(range(32))


class Trail:
    """The rows of one trajectory; `add` returns the sequence number."""

    def __init__(
        self, number: int, *, tenant: str = "acme", model: str = "claude/x", start: dt.datetime = DAY, **summary: Any
    ) -> None:
        self.id: uuid.UUID = uuid7_at(to_us(start), number.to_bytes(10, "big"))
        self.tenant, self.model, self.start = tenant, model, start
        self.rows: list[Row] = []
        self.summary = summary
        self._at = START

    def add(self, body: Body, turn: int = 1, *, erased: bool = False) -> int:
        """Append an event."""
        encoded = encode_body(body)
        header, self._at = next_header(
            self._at,
            tenant=self.tenant,
            trajectory_id=self.id,
            epoch=0,
            created_at=to_us(self.start) + len(self.rows),
            kind=kind_of(body),
            schema_version=1,
            secret=SECRET,
            body=encoded,
        )
        envelope = Envelope(0, 0, Header.decode(header), b"" if erased else encoded, self._at.hash, erased=erased)
        days = (self.start.date() - dt.date(1970, 1, 1)).days
        self.rows.append(row_of(envelope, turn, Place(days, model_slug(self.model), self.model)))
        return self._at.sequence_number

    def segment(self, first: int = 0, **summary: Any) -> None:
        """Make the rows from `first` a segment whose start says `summary`."""
        values: dict[str, Any] = {column.name: None for column in SEGMENT}
        values |= {
            "segment_last_sequence": self._at.sequence_number,
            "segment_previous_hash": bytes(32),
            "segment_last_hash": self._at.hash,
            "segment_secret": SECRET,
            "trajectory_status": "completed",
            "trajectory_started_at": to_us(self.start),
            "trajectory_events": len(self.rows),
            "trajectory_labels": "{}",
            "trajectory_undated": False,
        }
        mark_start(self.rows[first], values | {f"trajectory_{name}": value for name, value in summary.items()})


def write_files(lake: Lake, *trails: Trail) -> list[str]:
    """Publish one file per trajectory; returns the URLs, sorted."""
    urls = []
    for trail in trails:
        trail.segment(**trail.summary)
        local: Path = lake.scratch() / "rows"
        batch = batch_of(trail.rows)
        with pq.ParquetWriter(local, batch.schema, compression="zstd", store_schema=False) as writer:
            writer.write_batch(batch)
        folder = lake.folder_of(trail.tenant, trail.start.date(), trail.model)
        urls.append(lake.publish(local, f"{folder}/{trail.id}.parquet"))
    return sorted(urls)
