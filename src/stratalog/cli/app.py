"""The commands, and what happens to their errors: a message, a hint, an exit code; never a traceback.

Exit codes: 0 ok, 1 error, 2 usage, 3 partial, 10 home missing, 11 locked, 12 Postgres unreachable, 13 migration needed,
20 verify found damage, 21 open refused, 22 fenced, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from stratalog import __version__
from stratalog.schemas.errors import StratalogError

from .audit import audit_app
from .backup import backup_app
from .bench import bench_app
from .compacting import compact
from .config import config_app
from .consolidating import consolidate
from .dagster import dagster
from .demo import demo
from .doctor import doctor
from .erase import erase_app
from .hold import hold_app
from .importing import import_files
from .keys import key_app
from .output import Output
from .quarantine import quarantine_app
from .querying import sql
from .retention import retention_app
from .sidecar import sidecar
from .status import status
from .storage import storage_app
from .subject import subject_app
from .trajectories import trajectory_app
from .usage import Interrupted, Usage
from .verifying import verify

app = App(
    name="stratalog",
    help="A durable trajectory log for AI agents, tiered from RocksDB through Postgres to Parquet.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)
app.command(demo)
app.command(import_files, name="import")
app.command(sidecar)
app.command(consolidate)
app.command(compact)
app.command(sql)
app.command(status)
app.command(trajectory_app)
app.command(verify)
app.command(quarantine_app)
app.command(backup_app)
app.command(audit_app)
app.command(key_app)
app.command(retention_app)
app.command(hold_app)
app.command(erase_app)
app.command(subject_app)
app.command(storage_app)
app.command(doctor)
app.command(config_app)
app.command(bench_app)
app.command(dagster)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    output = Output(json_mode="--json" in arguments)
    try:
        result = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()  # here, where a reader that has gone is understood
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        output.error(Usage(" ".join(str(error).split()), hint=_help_of(error)))
        return Usage.exit_code
    except StratalogError as error:
        output.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        output.error(Interrupted("interrupted"))
        return Interrupted.exit_code
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("STRATALOG_DEBUG"):
            raise
        output.error(unexpected(error))
        return 1


def _help_of(error: CycloptsError) -> str:
    chain = " ".join(name for name in error.command_chain or () if not name.startswith("-"))
    return f"see: {' '.join(['stratalog', *chain.split()])} --help"


def unexpected(error: Exception) -> StratalogError:
    """An error that nobody translated, as one that a person can act on."""
    if isinstance(error, OSError):
        return StratalogError(
            f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), hint="check the disk and permissions"
        )
    return StratalogError(
        f"{type(error).__name__}: {error}", hint="this is a bug; run again with STRATALOG_DEBUG=1 to see where"
    )


def main() -> None:
    """The entry point of the `stratalog` program."""
    sys.exit(run(sys.argv[1:]))
