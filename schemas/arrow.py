"""The cold table `events`: one row per event, its columns with type and meaning, in the order of the files.

The names are stable: queries of other people rest on them. `docs/schema.md` is generated from here. What a column means
for the rebuild of an event's exact bytes is in `cold/columns.py`.

Only columns that are filtered on keep statistics (minimum and maximum): statistics of text would copy pieces of it into
footers and table metadata, where they would outlive an erasure.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pyarrow as pa

Group = Literal["place", "body", "exactness", "segment"]

UUID = pa.uuid()
TEXT = pa.string()
INTEGER = pa.int64()
FLOAT = pa.float64()
MOMENT = pa.timestamp("us", "UTC")
HASH = pa.binary(32)
FLAG = pa.bool_()


class Column(msgspec.Struct, frozen=True):
    """One column: `dictionary` for strings of few values, `statistics` for what is filtered on."""

    name: str
    type: Any
    description: str
    group: Group
    nullable: bool = True
    dictionary: bool = False
    statistics: bool = False


def _place(name: str, kind: Any, description: str, *, dictionary: bool = False) -> Column:
    return Column(name, kind, description, "place", False, dictionary, True)


def _body(name: str, kind: Any, description: str, *, dictionary: bool = False, statistics: bool = False) -> Column:
    return Column(name, kind, description, "body", True, dictionary, statistics)


def _segment(name: str, kind: Any, description: str, *, dictionary: bool = False) -> Column:
    return Column(name, kind, description, "segment", True, dictionary, False)


PLACE = (
    _place("trajectory_id", UUID, "UUIDv7 of the trajectory; its timestamp is the start."),
    _place("sequence_number", INTEGER, "Place in the trajectory: dense, from 0."),
    _place("tenant", TEXT, "Who owns the trajectory; a partition.", dictionary=True),
    _place("date", pa.date32(), "UTC day on which the trajectory started; a partition."),
    _place("model", TEXT, "Folder name of the model; a partition.", dictionary=True),
    _place("model_name", TEXT, "The model's full name, as TaskStarted has it; empty where unknown.", dictionary=True),
    _place("kind", TEXT, "Kind of the event, such as ModelReplied.", dictionary=True),
    _place("epoch", INTEGER, "Fencing token under which the event was written."),
    _place("schema_version", pa.int32(), "Version of the body's schema and of the rules of the rebuild."),
    _place("created_at", MOMENT, "When it happened, as the writer or the imported source says."),
    _place("turn", INTEGER, "Turn of the trajectory that the event belongs to; 0 before the first."),
)

BODY = (
    _body("role", TEXT, "Who speaks: system, user, assistant, tool, or as the source says.", dictionary=True),
    _body("text", TEXT, "Text of the event: message, reply, task, summary, result or note."),
    _body("reasoning", TEXT, "The model's reasoning text."),
    _body("tool_call_id", TEXT, "Threads proposal, authorization, intent and result; may repeat in real data."),
    _body("tool", TEXT, "Name of the tool.", dictionary=True, statistics=True),
    _body("arguments", TEXT, "Arguments of the call, as JSON text."),
    _body("decision", TEXT, "What was decided: allow, deny, approved, pin, ….", dictionary=True, statistics=True),
    _body("status", TEXT, "How it ended: ok, error, completed, ….", dictionary=True, statistics=True),
    _body("output", TEXT, "What the tool delivered to the model."),
    _body("duration_ms", FLOAT, "How long the call took, in milliseconds.", statistics=True),
    _body("intent", INTEGER, "Sequence number of the ToolIntent that this event answers.", statistics=True),
    _body("stop_reason", TEXT, "Why the model stopped.", dictionary=True, statistics=True),
    _body("input_tokens", INTEGER, "All input tokens of the reply, cached ones included.", statistics=True),
    _body("output_tokens", INTEGER, "Output tokens of the reply.", statistics=True),
    _body("cache_read_tokens", INTEGER, "Input tokens that were read from the provider's cache.", statistics=True),
    _body("cache_write_tokens", INTEGER, "Input tokens that were written to the provider's cache.", statistics=True),
    _body("cost_usd", FLOAT, "Cost of the reply in US dollars.", statistics=True),
    _body("served_model", TEXT, "The model that answered.", dictionary=True, statistics=True),
    _body("inferred", FLAG, "Whether an importer concluded the event instead of reading it.", statistics=True),
    _body("blob", TEXT, "SHA-256 (hex) of the first content that lies outside; its column is null then."),
)

EXACTNESS = (
    Column("rest", TEXT, "Fields of the body that no column holds, as JSON text.", "exactness"),
    Column("body_raw", pa.binary(), "Exact bytes of the body, only where columns cannot give them.", "exactness"),
    Column("erased", FLAG, "Whether the body was erased.", "exactness", False, False, True),
    Column("body_digest", HASH, "Digest of the erased body, which keeps the chain whole.", "exactness"),
)

SEGMENT = (
    Column("segment_last_sequence", INTEGER, "Last sequence number of the segment.", "segment", statistics=True),
    _segment("segment_previous_hash", HASH, "Hash of the event before the segment; zeros at the start."),
    _segment("segment_last_hash", HASH, "Hash of the segment's last event."),
    _segment("segment_secret", HASH, "The trajectory's secret, with which bodies verify; null once erased."),
    _segment("trajectory_status", TEXT, "Status of the trajectory at the segment's end.", dictionary=True),
    _segment("trajectory_started_at", MOMENT, "Time of the first event."),
    _segment("trajectory_finished_at", MOMENT, "Time of the end; null where no end is known."),
    _segment("trajectory_last_event_at", MOMENT, "Time of the last event."),
    _segment("trajectory_turns", INTEGER, "Turns so far."),
    _segment("trajectory_events", INTEGER, "Events so far."),
    _segment("trajectory_input_tokens", INTEGER, "Input tokens so far."),
    _segment("trajectory_output_tokens", INTEGER, "Output tokens so far."),
    _segment("trajectory_cost_usd", FLOAT, "Cost so far in US dollars."),
    _segment("trajectory_labels", TEXT, "Labels, as JSON text."),
    _segment("trajectory_source", TEXT, "Where an imported trajectory comes from, as JSON text."),
    _segment("trajectory_undated", FLAG, "Whether the source knew no time at all."),
    _segment("trajectory_agent", TEXT, "Name of the agent.", dictionary=True),
)

COLUMNS: tuple[Column, ...] = PLACE + BODY + EXACTNESS + SEGMENT
"""All columns, in the order of the files. The segment columns are set on the first row of each segment only."""

NAMES = tuple(column.name for column in COLUMNS)
INDEX = {name: index for index, name in enumerate(NAMES)}
"""Column name to its place in a row."""

CLEARED = (*(column.name for column in BODY), "rest", "body_raw", "segment_secret")
"""Columns that are null in a row that was erased."""
REDUCED = ("trajectory_labels", "trajectory_source", "trajectory_agent")
"""Columns that say no more in such a row than whether times are known, and which format was imported."""

PARTITION_COLUMNS = ("tenant", "date", "model")


def events_schema(*, described: bool = False) -> pa.Schema:
    """The Arrow schema; `described` puts each column's meaning into its metadata (`doc`).

    Files are written without the descriptions: they would be repeated in every footer.
    """
    return pa.schema(
        [
            pa.field(
                column.name,
                column.type,
                column.nullable,
                {"doc": column.description} if described else None,
            )
            for column in COLUMNS
        ]
    )


EVENTS = events_schema()
