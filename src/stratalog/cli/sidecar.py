"""`stratalog sidecar`: replicate the hot logs of a home into Postgres."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import Output, counted
from .usage import Interrupted

if TYPE_CHECKING:
    from stratalog.warm.sidecar import Sidecar

WATCH_S = 0.2


def sidecar(*, once: Annotated[bool, Parameter(negative="")] = False, common: Common = DEFAULT) -> int:
    """Replicate the hot logs of this home into Postgres, as a process of its own. Follows until stopped.

    Example: `stratalog sidecar --once`

    Parameters
    ----------
    once
        Replicate what is there, then end.
    """
    require("psycopg", "warm")
    from stratalog.warm.sidecar import Sidecar

    installation = common.installation()
    output = common.output
    with installation.server() as server:
        worker = Sidecar(installation.home, server, installation.content_store())
        if once:
            with _watched(worker, output):
                result = worker.run_once()
            output.line(
                f"{counted(result['events'], 'event')} of {counted(result['trajectories'], 'trajectory')} and "
                f"{counted(result['blobs'], 'blob')} replicated"
            )
            if result["quarantined"]:
                output.line(f"{counted(result['quarantined'], 'event')} in quarantine: stratalog quarantine list")
            if common.json:
                output.document(result)
            return 0
        interrupted = _follow(worker, output)
        if common.json:
            output.document(worker.status(ended=True))
        return Interrupted.exit_code if interrupted else 0


@contextmanager
def _watched(worker: Sidecar, output: Output) -> Iterator[None]:
    """A progress bar over all logs for as long as the block runs."""
    done = threading.Event()
    with output.progress("replicating") as step:

        def watch() -> None:
            while not done.wait(WATCH_S):
                logs = worker.status().logs
                step(sum(log.lsn for log in logs), sum(max(log.lsn, log.durable_lsn) for log in logs), "events")

        thread = threading.Thread(target=watch, name="stratalog-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _follow(worker: Sidecar, output: Output) -> bool:
    """Run until a signal; whether it was Ctrl-C. SIGTERM is how a service is ended in order."""
    stop = threading.Event()
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    output.note("following; stop with Ctrl-C")
    worker.run(stop)
    return signal.SIGINT in received
