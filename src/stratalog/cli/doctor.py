"""`stratalog doctor`: is everything there that this home needs, and does it answer?"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from stratalog.cold.installation import Installation
from stratalog.hot.amortisation import SYNC_PLAUSIBLE_US
from stratalog.hot.log import HotLog
from stratalog.hot.renewal import renew_log
from stratalog.hot.source import open_reader, open_source
from stratalog.schemas.errors import CursorMismatch, OpenRefused, StratalogError
from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise

SYNC_ROUNDS = 20
EXTRAS = {"warm": "psycopg", "cold": "pyarrow", "pipelines": "dagster", "s3": "s3fs", "audit": "cryptography"}


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


Flag = Annotated[bool, Parameter(negative="")]


def doctor(
    *, migrate: Flag = False, accept_loss: Flag = False, renew_logs: Flag = False, common: Common = DEFAULT
) -> int:
    """Check the home, the disk, the logs, Postgres and the storage; say what to do about what is wrong.

    Example: `stratalog doctor`

    Parameters
    ----------
    migrate
        Bring the Postgres schema up to date first.
    accept_loss
        Go on with what is left of logs that refuse to open; the damaged ones are kept beside the new ones.
    renew_logs
        Give logs that are not the ones that were replicated (a restored home) new ids.
    """
    installation = common.installation()
    if accept_loss:
        _accept_losses(installation, common.output)
    if renew_logs:
        _renew_logs(installation, common.output)
    checks = [_run(name, check) for name, check in _checks(installation, migrate)]
    report = {"ok": all(check.ok for check in checks), "checks": checks}
    if common.json:
        common.output.document(report)
    else:
        for check in checks:
            style = "" if check.ok else "bold red"
            common.output.line(
                f"{'ok' if check.ok else 'FAILED':<7} {check.name:<14} {sanitise(check.detail)}", style=style
            )
    return 0 if report["ok"] else 1


def _accept_losses(installation: Installation, output: Output) -> None:
    for log_id in installation.home.log_ids():
        try:
            open_reader(installation.home, log_id).close()
        except OpenRefused as refused:
            output.note(f"log {log_id}: {sanitise(refused.message)}")
            with HotLog.open(installation.home, log_id=log_id, accept_loss=True, serve=False) as log:
                output.note(f"log {log_id} goes on as {log.log_id}, up to LSN {log.durable_lsn}")


def _renew_logs(installation: Installation, output: Output) -> None:
    require("psycopg", "warm")
    from stratalog.warm.ingest import read_cursor

    home = installation.home
    with installation.connection() as conn:
        for log_id in home.log_ids():
            try:
                open_source(home, log_id, read_cursor(conn, log_id)).close()
            except (CursorMismatch, OpenRefused) as refused:
                output.note(f"log {log_id} goes on as {renew_log(home, log_id)}: {sanitise(refused.message)}")


def _checks(installation: Installation, migrate: bool) -> list[tuple[str, Callable[[], str]]]:
    return [
        ("python", lambda: f"{sys.version.split()[0]} on {sys.platform}"),
        ("extras", _extras),
        ("home", lambda: _home(installation)),
        ("keys", lambda: _keys(installation)),
        ("disk", lambda: _disk(installation)),
        ("sync", lambda: _sync(installation.home.path)),
        ("logs", lambda: _logs(installation)),
        ("postgres", lambda: _postgres(installation, migrate)),
        ("retention", lambda: _retention(installation)),
        ("content store", lambda: _content_store(installation)),
        ("lake", lambda: _lake(installation)),
    ]


def _run(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except StratalogError as error:
        return Check(name, False, f"{error.message}. {error.hint}".rstrip(". "))
    except OSError as error:
        return Check(name, False, str(error))


def _extras() -> str:
    missing = [extra for extra, module in EXTRAS.items() if importlib.util.find_spec(module) is None]
    return f"not installed: {', '.join(missing)}" if missing else "all installed"


def _home(installation: Installation) -> str:
    home = installation.home
    mode = stat.S_IMODE(home.path.stat().st_mode)
    if mode & 0o022:
        raise StratalogError(f"{home.path} can be written by others", hint=f"chmod 700 {home.path}")
    return f"{home.path}, {counted(len(home.logs()), 'hot log')}"


def _keys(installation: Installation) -> str:
    keys = [path for path in (installation.home.path / "keys").rglob("*") if path.is_file()]
    exposed = [path for path in keys if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if exposed:
        raise StratalogError(f"{exposed[0]} can be read by others", hint=f"chmod 600 {exposed[0]}")
    return f"{counted(len(keys), 'key')}, readable by the owner alone"


def _disk(installation: Installation) -> str:
    disk = shutil.disk_usage(installation.home.path)
    share, minimum = disk.free / disk.total, installation.settings.hot.disk_free_min
    if share < minimum:
        raise StratalogError(
            f"{share:.1%} of the disk is free, appends stop below {minimum:.1%}",
            hint="free disk space, or lower hot.disk_free_min",
        )
    return f"{human_bytes(disk.free)} free ({share:.0%})"


def _sync(folder: Path) -> str:
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNC_ROUNDS):
            file.write(b"x" * 1024)
            file.flush()
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - start) * 1e6)
    median = sorted(times)[len(times) // 2]
    doubt = "; implausibly fast, does this disk have a volatile write cache?" if median < SYNC_PLAUSIBLE_US else ""
    return f"fdatasync takes {median:.0f} µs (median of {SYNC_ROUNDS}){doubt}"


def _logs(installation: Installation) -> str:
    lag = count = 0
    for log_id in installation.home.log_ids():
        reader = open_reader(installation.home, log_id)
        try:
            lag += reader.status()["lag_events"]
        finally:
            reader.close()
        count += 1
    return f"{count} opened, {counted(lag, 'event')} not yet replicated"


def _postgres(installation: Installation, migrate: bool) -> str:
    require("psycopg", "warm")
    from stratalog.warm import database
    from stratalog.warm import migrate as migrations

    with installation.postgres(migrate=migrate) as dsn, database.connect(dsn) as conn:
        applied = migrations.status(conn).applied
        kind = "embedded" if installation.embedded else "yours"
        return f"version {conn.info.server_version // 10000} ({kind}), {counted(len(applied), 'migration')} applied"


def _retention(installation: Installation) -> str:
    require("psycopg", "warm")
    from stratalog.warm.retention_plan import growth

    with installation.connection() as conn:
        found = growth(conn)
    grows = (
        f"Postgres has {human_bytes(found.database_bytes)}; over the last week it grew by "
        f"{human_bytes(found.warm_bytes_per_day)} a day, the cold tier by {human_bytes(found.cold_bytes_per_day)}"
    )
    if not found.policies:
        return f"{grows}; no policy is in force, so nothing is ever deleted (docs/retention.md)"
    policies = "1 policy is" if found.policies == 1 else f"{found.policies:,} policies are"
    return f"{grows}; {policies} in force, see: stratalog retention plan"


def _content_store(installation: Installation) -> str:
    store = installation.content_store()
    return f"{store.url}, {counted(len(list(store.tenants())), 'tenant')}"


def _lake(installation: Installation) -> str:
    with installation.lake() as lake:
        files = list(lake.files())
        return f"{lake.url}, {counted(len(files), 'file')}, {human_bytes(sum(file.size for file in files))}"
