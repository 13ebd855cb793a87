"""Histories for tests of the warm tier: trajectories written event by event, and logs that hold them in memory."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Sequence

import psycopg
import pytest

from stratalog.hot.source import LogEvent
from stratalog.schemas import ids
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.chain import START, Link, next_header
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.envelope import Envelope, Header, hash_header
from stratalog.schemas.errors import NotFound
from stratalog.schemas.events import EventBody, MessageReceived, Model, Part, Source, TaskFinished, TaskStarted
from stratalog.warm.check import verify_warm
from stratalog.warm.database import Connection, connect
from stratalog.warm.ingest import Ingested, ingest, read_cursor
from stratalog.warm.migrate import migrate

T0 = 1_790_000_000_000_000
"""µs; a day in September 2026."""


def message(text: str = "hello") -> MessageReceived:
    """A body."""
    return MessageReceived(role="user", parts=(Part(text=text),))


def started(*, imported: bool = False, model: str = "m-1") -> TaskStarted:
    """The first body of a trajectory."""
    return TaskStarted(task="t", model=Model(name=model), source=Source(format="test") if imported else None)


class Story:
    """A trajectory as its writer sees it. `fork` makes a writer that goes on from here on its own."""

    def __init__(
        self,
        *,
        trajectory_id: uuid.UUID | None = None,
        tenant: str = "default",
        secret: bytes | None = None,
        at_us: int = T0,
    ) -> None:
        self.trajectory_id = trajectory_id or ids.uuid7_at(at_us, secrets.token_bytes(10))
        self.tenant = tenant
        self.secret = secret or secrets.token_bytes(32)
        self.events: list[Envelope] = []
        self.at_us = at_us

    @property
    def head(self) -> Link:
        """The last event."""
        return Link(self.events[-1].header.sequence_number, self.events[-1].hash) if self.events else START

    def write(self, body: EventBody, *, epoch: int = 0, raw: bytes | None = None) -> Envelope:
        """Add an event; `raw` are its bytes where they are not those of `body`."""
        data = encode_body(body) if raw is None else raw
        encoded, _ = next_header(
            self.head,
            tenant=self.tenant,
            trajectory_id=self.trajectory_id,
            epoch=epoch,
            created_at=self.at_us + 1000 * len(self.events),
            kind=kind_of(body),
            schema_version=1,
            secret=self.secret,
            body=data,
        )
        event = Envelope(0, 0, Header.decode(encoded), data, hash_header(encoded))
        self.events.append(event)
        return event

    def tell(self, count: int, *, imported: bool = False, finish: bool = False, text: str = "hello") -> Story:
        """Add `count` events, the first a TaskStarted, and the end if asked."""
        for _ in range(count):
            self.write(message(text) if self.events else started(imported=imported))
        if finish:
            self.write(TaskFinished(status="completed"))
        return self

    def fork(self) -> Story:
        """The same history so far, to go on differently."""
        other = Story(trajectory_id=self.trajectory_id, tenant=self.tenant, secret=self.secret, at_us=self.at_us + 1)
        other.events = list(self.events)
        return other


class MemoryLog:
    """A hot log in memory; its `read` is that of `LogSource`."""

    def __init__(self, log_id: uuid.UUID | None = None) -> None:
        self.log_id = log_id or ids.new_log_id()
        self.events: list[LogEvent] = []
        self._last: dict[uuid.UUID, Envelope] = {}

    def append(
        self, story: Story, events: Sequence[Envelope], blobs: tuple[tuple[BlobRef, bytes], ...] = ()
    ) -> list[LogEvent]:
        """Put events of a story behind the last one; a segment start carries the secret."""
        added = []
        for event in events:
            before = self._last.get(story.trajectory_id)
            goes_on = before is not None and before.hash == event.header.previous_hash
            envelope = Envelope(
                len(self.events) + 1,
                before.lsn if before is not None and goes_on else 0,
                event.header,
                event.body,
                event.hash,
                event.erased,
                None if goes_on else story.secret,
            )
            self._last[story.trajectory_id] = envelope
            added.append(LogEvent(envelope, blobs))
            self.events.append(added[-1])
        return added

    def read(self, after_lsn: int, events_max: int, bytes_max: int) -> list[LogEvent]:
        found: list[LogEvent] = []
        size = 0
        for event in self.events[after_lsn : after_lsn + events_max]:
            size += len(event.envelope.body) + sum(len(content) for _, content in event.blobs)
            if found and size > bytes_max:
                break
            found.append(event)
        return found


class MemoryContents:
    """Content-addressed storage in memory; `broken` makes it fail."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[str, str], bytes] = {}
        self.broken: Exception | None = None

    def put(self, tenant: str, ref: BlobRef, content: bytes) -> None:
        if self.broken is not None:
            raise self.broken
        self.pieces[tenant, ref.sha256] = content

    def get(self, tenant: str, sha256: str) -> bytes:
        if (tenant, sha256) not in self.pieces:
            raise NotFound(f"no content {sha256}")
        return self.pieces[tenant, sha256]

    def has(self, tenant: str, sha256: str) -> bool:
        return (tenant, sha256) in self.pieces

    def digests(self, tenant: str) -> Iterator[str]:
        return (sha256 for owner, sha256 in self.pieces if owner == tenant)

    def tenants(self) -> Iterator[str]:
        return iter({tenant for tenant, _ in self.pieces})


def copy(conn: Connection, log: MemoryLog, batch: int = 100) -> Ingested:
    """Ingest what the log has after its cursor."""
    cursor = read_cursor(conn, log.log_id)
    after = cursor.lsn if cursor else 0
    done = None
    while events := log.read(after, batch, 1 << 30):
        done = ingest(conn, log.log_id, events)
        after = done.cursor.lsn
    assert done is not None
    return done


def row(conn: Connection, statement: str, *values: object) -> tuple[object, ...]:
    """The only row of a query."""
    with conn.transaction():
        found = conn.execute(statement.encode(), values).fetchone()
    assert found is not None
    return found


def assert_sound(conn: Connection) -> None:
    """The warm tier verifies from its stored bytes."""
    found = verify_warm(conn)
    assert found.problems == []


@pytest.fixture
def warm_dsn(database: str) -> str:
    """The DSN of a fresh, migrated database."""
    with psycopg.connect(database) as conn:
        migrate(conn)
    return database


@pytest.fixture
def warm(warm_dsn: str) -> Iterator[Connection]:
    """A connection to a fresh, migrated database."""
    conn = connect(warm_dsn)
    yield conn
    conn.close()


@pytest.fixture
def contents() -> MemoryContents:
    """An empty content store."""
    return MemoryContents()
