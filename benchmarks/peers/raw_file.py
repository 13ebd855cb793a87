"""A thread for each trajectory writes its record to the end of one file and syncs it: no group commit."""

from __future__ import annotations

import os
from pathlib import Path

from harness.driven import Driven
from request import WARM_UP_S, answer, read_request


def main() -> None:
    """Measure."""
    request = read_request()
    records = [os.urandom(size) for size in request.record_bytes]
    with (Path(request.folder) / "raw").open("ab", buffering=0) as file:

        def step() -> None:
            for record in records:
                file.write(record)
                os.fdatasync(file.fileno())

        Driven().drive_threads([step] * request.appenders, WARM_UP_S)
        driven = Driven()
        driven.drive_threads([step] * request.appenders, request.seconds)
    answer(driven)


if __name__ == "__main__":
    main()
