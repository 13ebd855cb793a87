"""A warm tier filled by the real ingest, and a lake, a catalog and a content store beside it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stratalog.cold.cas import FsContentStore
from stratalog.cold.catalog import Catalog
from stratalog.cold.consolidate import Consolidated, Consolidation, consolidate
from stratalog.cold.lake import Lake
from stratalog.cold.pack_table import PackTable
from stratalog.hot.source import LogEvent
from stratalog.schemas import events as ev
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.chain import START, Link, next_header
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.ids import uuid7_at
from stratalog.schemas.settings import ColdSettings
from stratalog.warm.database import Connection, connect
from stratalog.warm.ingest import ingest
from stratalog.warm.migrate import migrate

START_US = 1_735_689_600_000_000
"""2025-01-01, UTC."""


@dataclass
class Author:
    """Writes one trajectory's events, linked and hashed."""

    trajectory_id: uuid.UUID
    tenant: str = "acme"
    secret: bytes = b"s" * 32
    at: Link = START
    clock_us: int = START_US

    def write(self, body: ev.EventBody | bytes, kind: str = "") -> tuple[Header, bytes]:
        """The next event: its header and its body's bytes."""
        data = body if isinstance(body, bytes) else encode_body(body)
        name = kind if isinstance(body, bytes) else kind_of(body)
        self.clock_us += 1_000_003
        encoded, self.at = next_header(
            self.at,
            tenant=self.tenant,
            trajectory_id=self.trajectory_id,
            epoch=0,
            created_at=self.clock_us,
            kind=name,
            schema_version=ev.SCHEMA_VERSION,
            secret=self.secret,
            body=data,
        )
        return Header.decode(encoded), data


@dataclass
class ColdBench:
    """Everything around a consolidation, with one hot log that feeds the warm tier."""

    dsn: str
    lake: Lake
    catalog: Catalog
    store: FsContentStore
    settings: ColdSettings = field(default_factory=lambda: ColdSettings(row_group_rows=64, file_bytes_max=200_000))
    log_id: uuid.UUID = field(default_factory=uuid.uuid4)
    lsn: int = 0
    authors: dict[uuid.UUID, Author] = field(default_factory=dict)
    places: dict[uuid.UUID, int] = field(default_factory=dict)

    def connect(self) -> Connection:
        """A connection to the warm tier."""
        return connect(self.dsn)

    def append(self, author: Author, bodies: Sequence[ev.EventBody | tuple[str, bytes]]) -> None:
        """Replicate further events of one trajectory."""
        events = []
        for body in bodies:
            header, data = author.write(body[1], body[0]) if isinstance(body, tuple) else author.write(body)
            self.lsn += 1
            previous = self.places.get(author.trajectory_id, 0)
            self.places[author.trajectory_id] = self.lsn
            secret = None if previous else author.secret
            digest = author.at.hash
            events.append(LogEvent(Envelope(self.lsn, previous, header, data, digest, False, secret)))
        with self.connect() as conn:
            conn.rollback()
            for start in range(0, len(events), 500):
                ingest(conn, self.log_id, events[start : start + 500])

    def author(self, number: int, tenant: str = "acme", day: int = 0) -> Author:
        """The author of trajectory `number`, which starts on the given day after 2025-01-01."""
        start = START_US + day * 86_400_000_000
        trajectory_id = uuid7_at(start, number.to_bytes(10, "big"))
        return self.authors.setdefault(trajectory_id, Author(trajectory_id, tenant, clock_us=start))

    def task(
        self, number: int, turns: int = 3, *, tenant: str = "acme", day: int = 0, model: str = "atlas-4",
        finished: bool = True, imported: bool = False, blob: bytes | None = None,
    ) -> Author:  # fmt: skip
        """Replicate a whole trajectory."""
        author = self.author(number, tenant, day)
        source = ev.Source(format="claude-code", run_id=str(number)) if imported else None
        bodies: list[ev.EventBody] = [
            ev.TaskStarted(task=f"task {number}", model=ev.Model(name=model), agent="tester", source=source),
            ev.MessageReceived(role="user", parts=(ev.Part(text=f"please do {number}"),)),
        ]
        for turn in range(turns):
            bodies += _turn(number, turn)
        if blob is not None:
            ref = BlobRef.of(blob, "text/plain")
            self.store.put(tenant, ref, blob)
            bodies.append(ev.ToolResult(tool_call_id="bulky", output=Blob(ref)))
        if finished:
            bodies.append(ev.TaskFinished(status="completed", result="done"))
        self.append(author, bodies)
        return author

    def run(self, older_than: str = "0d") -> Consolidated:
        """Consolidate everything that qualifies."""
        return consolidate(self.connect, self.lake, self.catalog, self.store, self.settings, older_than)

    def steps(self) -> Consolidation:
        """The single steps; enter it."""
        return Consolidation(self.connect, self.lake, self.catalog, self.store, self.settings)

    def marks(self) -> dict[uuid.UUID, tuple[int, bytes | None]]:
        """What the warm tier says of the trajectories: consolidated through, and the hash there."""
        with self.connect() as conn:
            return {
                row[0]: (row[1], row[2])
                for row in conn.execute(
                    "SELECT trajectory_id, consolidated_through, consolidated_hash FROM trajectories"
                )
            }

    def execute(self, statement: str, *values: object) -> None:
        """Change the warm tier by hand."""
        with self.connect() as conn:
            conn.execute(statement.encode(), values)


def _turn(number: int, turn: int) -> list[ev.EventBody]:
    call = f"call-{number}-{turn}"
    arguments = ev.raw_json({"path": f"src/{turn}.py", "n": turn})
    return [
        ev.ContextBuilt(appended=((1, 0),), message_count=turn + 1),
        ev.ModelReplied(
            text=f"turn {turn}: I will look",
            tool_calls=(ev.ToolCall(tool_call_id=call, tool="read", arguments=arguments),),
            stop_reason="tool_use", input_tokens=100 + turn, output_tokens=7, cost_usd=0.25,
        ),
        ev.Authorized(tool_call_id=call, decision="allow", tool="read"),
        ev.ToolIntent(tool_call_id=call, tool="read", arguments=arguments),
        ev.ToolResult(tool_call_id=call, tool="read", output=f"line of {turn}\n" * 20, duration_ms=12.5, intent=turn),
    ]  # fmt: skip


@pytest.fixture
def cold_bench(database: str, tmp_path: Path) -> Iterator[ColdBench]:
    """A fresh warm tier and an empty cold one."""
    with connect(database, check=False) as conn:
        conn.rollback()
        migrate(conn)
    with Lake(f"file://{tmp_path}/cold") as lake, Catalog(database, lake) as catalog:
        store = FsContentStore(f"file://{tmp_path}/cas", table=PackTable(lambda: connect(database)))
        yield ColdBench(database, lake, catalog, store)
        store.close()
