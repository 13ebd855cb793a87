"""ADBC reads the events of the warm tier into Arrow, a batch at a time, and does nothing with them."""

from __future__ import annotations

import json
import sys
import time

from adbc_driver_postgresql import dbapi


def main() -> None:
    """Measure."""
    dsn, query = json.loads(sys.argv[1])
    with dbapi.connect(dsn) as connection, connection.cursor() as cursor:
        started = time.perf_counter()
        cursor.execute(query)
        rows = size = 0
        for batch in cursor.fetch_record_batch():
            rows += batch.num_rows
            size += batch.nbytes
        seconds = time.perf_counter() - started
    print(json.dumps({"events": rows, "arrow_bytes": size, "seconds": seconds}))


if __name__ == "__main__":
    main()
