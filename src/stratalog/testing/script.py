"""The events of one trajectory while they are written: numbers, times, context, tokens."""

from __future__ import annotations

import random
import uuid

from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.envelope import SECRET_BYTES
from stratalog.schemas.events import Body, Budget
from stratalog.schemas.ids import uuid7_at

from .context import Context
from .phrases import Phrases
from .profile import Profile
from .trajectory import GeneratedEvent, GeneratedTrajectory

SECOND_US = 1_000_000


class Script:
    """Collects events; its clock moves on with each and stops at `end_us`."""

    def __init__(self, source: random.Random, profile: Profile, tenant: str, start_us: int, end_us: int) -> None:
        self.phrases = Phrases(source)
        self.profile = profile
        self.tenant = tenant
        self.trajectory_id: uuid.UUID = uuid7_at(start_us, source.randbytes(10))
        self.secret = source.randbytes(SECRET_BYTES)
        self.now = start_us
        self.end_us = end_us
        self.events: list[GeneratedEvent] = []
        self.context = Context()
        self.turn = 0
        self.tokens_left = 2_000_000
        self.cost_usd = 0.0

    @property
    def next_number(self) -> int:
        """The sequence number of the next event."""
        return len(self.events)

    def add(self, body: Body, after_s: float = 0.002, blobs: tuple[tuple[BlobRef, bytes], ...] = ()) -> int:
        """Append an event; returns its sequence number."""
        number = len(self.events)
        passed = int(after_s * SECOND_US * (0.5 + self.phrases.draw()))
        self.now = min(self.now + passed, self.end_us)
        self.events.append(GeneratedEvent(body, self.now, blobs))
        return number

    def budget(self) -> Budget:
        """What is left."""
        return Budget(tokens=max(self.tokens_left, 0), cost_usd=round(25.0 - self.cost_usd, 6))

    def trajectory(self) -> GeneratedTrajectory:
        """The trajectory as far as it is written."""
        return GeneratedTrajectory(self.trajectory_id, self.tenant, self.secret, self.events)
