"""What a peer is asked for, on its command line, and what it answers: one line of JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from harness.driven import Driven

WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class Request:
    """Durable steps of `appenders` trajectories for `seconds`; see `hot_log/peers.py`."""

    folder: str
    dsn: str
    appenders: int
    seconds: float
    intent: str
    result: str
    record_bytes: list[int]


def read_request() -> Request:
    """The request on the command line."""
    return Request(**json.loads(sys.argv[1]))


def answer(driven: Driven, **more: Any) -> None:
    """Print the result."""
    print(json.dumps({**driven.result(), **more}), flush=True)
