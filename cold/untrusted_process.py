"""The process that answers one question of `untrusted.py`: reads it from stdin, writes the reply to stdout, ends.

It first gives up what it will not need (`_confine`), then opens the views, locks DuckDB, judges the statement, runs it.
A timer interrupts DuckDB; the alarm behind it ends the process where DuckDB does not heed that.
"""

from __future__ import annotations

import re
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import msgspec

from stratalog.schemas.errors import Invalid, StratalogError

from .query import open_views, rows
from .untrusted import LIMIT_HINT, Limits, Question, Reply, too_large, too_long
from .untrusted_statement import check_statement
from .views import duckdb_path, literal

MB = 1_000_000
OVERHEAD_MB = 256
"""Beside DuckDB's own count: stacks of threads, what its allocator keeps, the rows on their way out."""
GRACE_S = 1.0
_REPEAT_S = 0.05


def answer(question: Question) -> Reply:
    """The reply to a question; errors of ours become replies, others end the process."""
    try:
        return Reply(rows=_answer(question))
    except StratalogError as error:
        return _reply(too_large(question.limits) if isinstance(error.__cause__, duckdb.OutOfMemoryException) else error)
    except MemoryError:
        return _reply(too_large(question.limits))


def _reply(error: StratalogError) -> Reply:
    return Reply(error=error.code, message=error.message, hint=error.hint)


def _answer(question: Question) -> list[dict[str, object]]:
    limits = question.limits
    config = locked_config(limits)
    masked, tenant = question.masked, question.tenant
    with open_views(
        question.files, question.storage_options, tenant=tenant, config=config, masked=masked
    ) as connection:
        lock(connection, question.files)
        with _timed(connection, limits):
            check_statement(connection, question.text)
            return _fetch(connection, question.text, limits)


def _fetch(connection: duckdb.DuckDBPyConnection, text: str, limits: Limits) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    size = 0
    for row in rows(connection, text):
        if len(found) == limits.rows_max:
            raise Invalid(f"the query has more than {limits.rows_max} rows", hint="add a LIMIT")
        size += len(msgspec.json.encode(row))
        if size > limits.result_bytes_max:
            raise Invalid(f"the result has more than {limits.result_bytes_max} bytes", hint=LIMIT_HINT)
        found.append(row)
    return found


def locked_config(limits: Limits) -> dict[str, str]:
    """What DuckDB is opened with."""
    return {
        "memory_limit": f"{limits.memory_mb}MB",
        "threads": str(limits.threads),
        "temp_directory": "",
        "python_enable_replacements": "false",
        "allow_persistent_secrets": "false",
        "allow_community_extensions": "false",
        "autoload_known_extensions": "false",
    }


def lock(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Let the connection open these files and no others, for good."""
    # A pattern is compared as it is written, what it finds is compared again.
    names = sorted({path for file in files for path in (duckdb_path(file), file.removeprefix("file://"))})
    connection.execute(f"SET allowed_paths = [{', '.join(map(literal, names))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


@contextmanager
def _timed(connection: duckdb.DuckDBPyConnection, limits: Limits) -> Iterator[None]:
    """Interrupt the connection when the time is over, again and again: between two steps nothing hears it."""
    done, over = threading.Event(), threading.Event()

    def watch() -> None:
        if not done.wait(limits.seconds):
            over.set()
            while not done.wait(_REPEAT_S):
                connection.interrupt()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    signal.setitimer(signal.ITIMER_REAL, limits.seconds + GRACE_S)
    try:
        yield
    except KeyboardInterrupt:
        if over.is_set():
            raise too_long(limits) from None
        raise
    finally:
        done.set()
        watcher.join()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _confine(limits: Limits) -> None:
    """Give up writing files, dumping core, and memory and time beyond the limits."""
    found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    base = int(found[1]) * 1024 if found else 0
    memory = base + (limits.memory_mb + OVERHEAD_MB) * MB
    cpu = int(limits.seconds * (limits.threads + 1)) + 15
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, cpu),
    ):
        resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def main() -> None:
    """Answer the one question."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    _confine(question.limits)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
