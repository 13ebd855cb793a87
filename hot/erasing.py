"""Erasures that somebody asked for over the socket: they take longer than a reply may, so each is asked for again.

The first to ask starts a thread, and whoever asks with the same trajectories, be it after an interruption, waits for
that. A result that nobody fetches is forgotten after some others.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence

from stratalog.schemas.errors import InDoubt, StratalogError

from .committer import again
from .erasure import ErasedHere

KEPT_MAX = 16


class _Job:
    """One erasure in a thread of its own."""

    def __init__(self, erase: Callable[[], ErasedHere]) -> None:
        self.done = threading.Event()
        self.result = ErasedHere()
        self.error: StratalogError | None = None
        self._erase = erase
        threading.Thread(target=self._run, name="stratalog-erase", daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._erase()
        except StratalogError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits must hear of it
            self.error = InDoubt(f"erasing: {error}", hint="erase again")
        finally:
            self.done.set()


class Erasing:
    """The erasures of one log; `erase` does one."""

    def __init__(self, erase: Callable[[Sequence[uuid.UUID]], ErasedHere]) -> None:
        self._erase = erase
        self._mutex = threading.Lock()
        self._jobs: OrderedDict[frozenset[uuid.UUID], _Job] = OrderedDict()

    def ask(self, trajectory_ids: Sequence[uuid.UUID], wait_s: float) -> ErasedHere | None:
        """What was removed, `None` where it is still going on after `wait_s`; raises what ended it."""
        wanted = frozenset(trajectory_ids)
        with self._mutex:
            job = self._jobs.get(wanted)
            if job is None:
                job = self._jobs[wanted] = _Job(lambda: self._erase(sorted(wanted)))
                self._forget()
        if not job.done.wait(wait_s):
            return None
        with self._mutex:
            if self._jobs.get(wanted) is job:
                del self._jobs[wanted]
        if job.error is not None:
            raise again(job.error)
        return job.result

    def _forget(self) -> None:
        finished = [wanted for wanted, job in self._jobs.items() if job.done.is_set()]
        for wanted in finished[: max(0, len(finished) - KEPT_MAX)]:
            del self._jobs[wanted]
