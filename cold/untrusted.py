"""Questions of people who are not trusted: their SQL sees the views of one snapshot, and can do nothing else.

Four walls, each for itself:

- the statement is one SELECT over the views (`untrusted_statement.py`), so that nothing but them has a name;
- DuckDB may open exactly the files of the snapshot, or of one tenant; its configuration is locked, it loads no
  extension and writes no temporary file;
- it runs in a process of its own (`untrusted_process.py`) with the operating system's limits on memory, CPU time and
  written bytes, without the environment of the caller, and this process kills it when its time is over;
- the answer has at most so many rows and bytes.

The kernel's other doors (sockets, files that the user may read) are closed only by DuckDB: against a hole in DuckDB
itself run the caller in a container. Nothing here survives a crash, and nothing must: each question is one process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from stratalog.schemas.errors import Corrupt, Invalid, MissingExtra, NotFound, StratalogError, Unavailable
from stratalog.schemas.ids import check_tenant

from .storage import LOCAL_SCHEMES, split_url

START_S = 15.0
"""How long the process may take before the question's own time begins: it loads DuckDB, perhaps on a busy machine."""
_TENANT_OF = re.compile(r".*/tenant=([^/]+)/date=[^/]+/model=[^/]+/[^/]+", re.DOTALL)
_KINDS: dict[str, type[StratalogError]] = {kind.code: kind for kind in (Corrupt, Invalid, NotFound, Unavailable)}
LIMIT_HINT = "ask for less: conditions on tenant, date or trajectory_id reach the files"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one question may use."""

    seconds: float = 30.0
    memory_mb: int = 1024
    """Of 1,000,000 bytes, on top of what the program itself needs."""
    threads: int = 2
    rows_max: int = 10_000
    result_bytes_max: int = 32_000_000


DEFAULT_LIMITS = Limits()


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told."""

    text: str
    files: list[str]
    tenant: str | None = None
    masked: list[uuid.UUID] = []
    limits: Limits
    storage_options: dict[str, str]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What it answers: rows, or an error by its code."""

    rows: list[dict[str, Any]] = []
    error: str = ""
    message: str = ""
    hint: str = ""


def ask_untrusted(
    files: Sequence[str],
    text: str,
    *,
    tenant: str | None = None,
    masked: Collection[uuid.UUID] = (),
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The rows of an untrusted query over `files` (the URLs of a snapshot), as `run_sql` gives them.

    With `tenant` only that tenant's files are opened. The trajectories `masked` show no content.

    Raises `Invalid` for what is not allowed or takes more than its limits, and what `run_sql` raises.
    """
    _check_limits(limits)
    if tenant is not None:
        files = files_of_tenant(files, check_tenant(tenant))
    question = Question(
        text=text,
        files=list(files),
        tenant=tenant,
        masked=sorted(masked),
        limits=limits,
        storage_options=dict(storage_options or {}),
    )
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-P", "-m", "stratalog.cold.untrusted_process"],
            input=msgspec.json.encode(question),
            capture_output=True,
            timeout=START_S + limits.seconds,
            env=_environment(files),
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise too_long(limits) from error
    except UnicodeEncodeError as error:
        raise Invalid("the query is not Unicode text", hint=LIMIT_HINT) from error
    if done.returncode != 0:
        raise _died(done, limits)
    return _rows(msgspec.json.decode(done.stdout, type=Reply))


def files_of_tenant(files: Sequence[str], tenant: str) -> list[str]:
    """Those of the files that are the tenant's; raises `Corrupt` for a file whose path does not tell whose it is."""
    found = []
    for file in files:
        owner = _TENANT_OF.fullmatch(file)
        if owner is None:
            raise Corrupt(f"{file} is not in the folder of a tenant", hint="see: stratalog verify")
        if owner[1] == tenant:
            found.append(file)
    return found


def _check_limits(limits: Limits) -> None:
    for name in limits.__struct_fields__:
        if not getattr(limits, name) > 0:
            raise Invalid(f"{name} must be more than 0", hint="give a larger limit")


def _environment(files: Sequence[str]) -> dict[str, str]:
    """What the process needs of our environment: where Python's modules are; for an object store, its credentials."""
    names = {"PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
    remote = any(split_url(file)[0] not in LOCAL_SCHEMES for file in files)
    return {
        name: value
        for name, value in os.environ.items()
        if name in names or (remote and (name == "HOME" or name.startswith(("AWS_", "GOOGLE_", "AZURE_"))))
    }


def _rows(reply: Reply) -> list[dict[str, Any]]:
    if not reply.error:
        return reply.rows
    if reply.error == MissingExtra.code:
        raise MissingExtra(reply.message.split()[0], "cold")
    raise _KINDS.get(reply.error, StratalogError)(reply.message, hint=reply.hint)


def too_long(limits: Limits) -> Invalid:
    """The error of a question that ran out of time."""
    return Invalid(f"the query took more than {limits.seconds:g} s", hint=LIMIT_HINT)


def too_large(limits: Limits) -> Invalid:
    """The error of a question that ran out of memory, or of a process that fell over it."""
    return Invalid(f"the query needs more than {limits.memory_mb} MB, or made DuckDB fail", hint=LIMIT_HINT)


def _died(done: subprocess.CompletedProcess[bytes], limits: Limits) -> StratalogError:
    if -done.returncode in (signal.SIGXCPU, signal.SIGALRM):
        return too_long(limits)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    if done.returncode < 0 or any("memory" in line.lower() or "bad_alloc" in line for line in said):
        return too_large(limits)
    return StratalogError(f"the process of the query ended with {done.returncode}: {''.join(said)[:500]}")
