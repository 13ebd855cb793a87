"""Does parts of a verification in processes of their own, or, for one worker, in this one; the results are the same.

Processes, because threads do not help here: most events are small, and hashing gives the interpreter lock up only for
what is larger than 2 KB. They are started anew (`spawn`), never forked: what a parent has open does not survive a fork.
Results come in the order of the parts, whatever finishes first. A worker that dies ends the whole with `Unavailable`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from types import TracebackType
from typing import TypeVar

from stratalog.hot.home import Home
from stratalog.schemas.errors import Unavailable
from stratalog.warm import database
from stratalog.warm.database import Connection

from .installation import Installation

Part = TypeVar("Part")
Result = TypeVar("Result")
EVENTS_PER_WORKER = 50_000
"""With less than that for each, starting a process takes longer than it saves."""


class Worker:
    """What a part is done with; cheap to make."""

    def __init__(self, home: Home, dsn: str) -> None:
        self.installation = Installation(home)
        self._dsn = dsn

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to the warm tier."""
        with closing(database.connect(self._dsn)) as conn:
            yield conn


_here: list[Worker] = []
"""In a worker's process: its worker."""


class Workers:
    """So many workers, until the end of the block. `function` must be one of a module, parts and results be small."""

    def __init__(self, home: Home, dsn: str, count: int) -> None:
        self.count = count
        self._worker = Worker(home, dsn)
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(home, dsn))

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Worker, Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The result of each part, in their order; what one raises is raised here. They are begun at once."""
        if self._pool is None:
            return (function(self._worker, part) for part in parts)
        futures = [self._pool.submit(_work, function, part) for part in parts]
        return (_result_of(future.result) for future in futures)


def default_count(events: int) -> int:
    """As many workers as there are cores, fewer where there is little to read."""
    return max(1, min(len(os.sched_getaffinity(0)), events // EVENTS_PER_WORKER))


def _begin(home: Home, dsn: str) -> None:
    _here.append(Worker(home, dsn))


def _work(function: Callable[[Worker, Part], Result], part: Part) -> Result:
    return function(_here[0], part)


def _result_of(get: Callable[[], Result]) -> Result:
    try:
        return get()
    except BrokenProcessPool as error:
        raise Unavailable(
            "a process of the verification was ended from outside, perhaps for its memory",
            hint="run it again with fewer at once: stratalog verify --workers 1",
        ) from error
