"""`stratalog sidecar`: replicate the hot logs of a home into Postgres."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

from cyclopts import Parameter

from stratalog.schemas.extras import require

from .options import DEFAULT, Common


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
            result = worker.run_once()
            output.line(
                f"{result['events']:,} events of {result['trajectories']:,} trajectories and {result['blobs']:,} blobs "
                f"replicated; {result['quarantined']:,} events quarantined"
            )
            if common.json:
                output.document(result)
            return 0
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        output.note("following; stop with Ctrl-C")
        worker.run(stop)
    return 0
