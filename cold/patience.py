"""Asking an object store again: what may pass by itself is tried anew, with growing pauses and a bound on all of it.

Only here; the clients below are told to try once. An answer that does not come in time, a refused connection, a 503 and
a reply that breaks off are such; what is missing or not allowed is not. Whoever gives up raises `Unavailable`: nothing
was lost, and the same call may succeed later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import stamina

from stratalog.schemas.errors import Unavailable

from .storage import translated

ATTEMPTS_MAX = 8
SECONDS_MAX = 120.0
"""No attempt begins later than this after the first one."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0

Answer = TypeVar("Answer")


def patiently(action: str, where: str, call: Callable[[], Answer]) -> Answer:
    """What `call` returns, tried again where it may help; the errors are ours. It must be harmless to repeat."""
    for attempt in stamina.retry_context(
        on=Unavailable,
        attempts=ATTEMPTS_MAX,
        timeout=SECONDS_MAX,
        wait_initial=PAUSE_S_MIN,
        wait_max=PAUSE_S_MAX,
        wait_jitter=PAUSE_S_MIN,
    ):
        with attempt, translated(action, where):
            return call()
    raise Unavailable(f"{action} {where}: no attempt was made")
