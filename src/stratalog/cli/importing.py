"""`stratalog import`: trajectory files into the hot log."""

from __future__ import annotations

import contextlib
from pathlib import Path

from stratalog.cold.installation import Installation
from stratalog.formats.importing import ImportReport
from stratalog.formats.importing import import_files as import_into
from stratalog.hot.files import FileLock
from stratalog.hot.log import HotLog
from stratalog.schemas import ids
from stratalog.schemas.errors import Locked, Unavailable
from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import Output, counted
from .sanitise import sanitise
from .usage import Usage

EXIT_PARTIAL = 3
PROBLEMS_SHOWN = 20


def import_files(*files: Path, format: str = "auto", tenant: str | None = None, common: Common = DEFAULT) -> int:
    """Import trajectories: every event is appended durably to the hot log. Importing again adds only what is new.

    Example: `stratalog import ~/.claude/projects --tenant research`

    Parameters
    ----------
    files
        Files, or folders with files, of Claude Code sessions, SWE-agent trajectories or ATIF documents.
    format
        auto (by content), claude-code, swe-agent or atif.
    tenant
        Whose trajectories these are; the setting `tenant` by default.
    """
    if not files:
        raise Usage("there is nothing to import", hint="name a file or a folder: stratalog import PATH")
    installation = common.installation(create=True)
    output = common.output
    whose = installation.settings.tenant if tenant is None else tenant
    report = run_import(installation, list(files), format, whose, output)
    show_report(report, output)
    if common.json:
        output.document(report.to_json())
    return EXIT_PARTIAL if report.partial else 0


def run_import(
    installation: Installation, files: list[Path], format_name: str, tenant: str, output: Output
) -> ImportReport:
    """Import under the home's import lock: imports of one home follow each other, in one log of their own."""
    home = installation.home
    ids.check_tenant(tenant)
    lock = FileLock(home.run / "import.lock")
    try:
        lock.acquire()
    except Locked:
        output.note("another import into this home is running; waiting for it to end")
        lock.acquire(wait=True)
    try:
        share_import_key(installation, tenant, output)
        with HotLog.open(home, role="import") as log, output.progress("importing") as step:
            follow_ledger(installation, log)

            def progress(path: Path, done: int, total: int) -> None:
                step(done, total, path.name)

            return import_into(
                log, files, tenant=tenant, format=format_name, import_key=home.import_key, progress=progress
            )
    finally:
        lock.release()


def share_import_key(installation: Installation, tenant: str, output: Output) -> None:
    """Use the import key that a shared Postgres has for this tenant, or give it ours: the same source then becomes the
    same trajectory whichever home imports it. An embedded Postgres is shared with nobody.
    """
    home = installation.home
    if installation.embedded:
        return
    from stratalog.warm import queries

    known = home.has_import_key(tenant)
    try:
        with installation.connection() as conn:
            key = queries.import_key(conn, tenant) or queries.publish_import_key(conn, tenant, home.import_key(tenant))
    except Unavailable as error:
        if not known:
            raise
        output.note(f"Postgres was not asked for the import key of {tenant}: {sanitise(error.message)}")
        return
    if key != home.import_key(tenant):
        home.adopt_import_key(tenant, key)


def follow_ledger(installation: Installation, log: HotLog) -> None:
    """Before anything is imported, the log learns what was erased: what comes back of it is refused.

    An embedded Postgres is not started for that: what it has erased is also in a file of the home. What a shared one
    knows and cannot be asked for now is erased by the sidecar, when it gets there.
    """
    path = installation.home.path / "audit" / "erasures.json"
    if installation.embedded and not path.exists():
        return
    require("psycopg", "warm")
    from stratalog.cold.erasure_file import read_ledger
    from stratalog.warm import erasure_ledger

    erased = {entry.trajectory_id for entry in read_ledger(path)} if path.exists() else set()
    if not installation.embedded:
        with contextlib.suppress(Unavailable), installation.connection() as conn:
            erased.update(entry.trajectory_id for entry in erasure_ledger.entries(conn))
    new = erased - log.erased().keys()
    if new:
        log.erase_blocking(sorted(new))


def show_summary(report: ImportReport, output: Output) -> None:
    """What was imported, in a line."""
    output.line(
        f"{counted(report.trajectories, 'trajectory')} with {counted(report.events, 'event')} "
        f"in {counted(report.files, 'file')}: {report.appended:,} new, {report.opaque_events:,} kept as opaque records"
    )


def show_report(report: ImportReport, output: Output) -> None:
    """What was imported, for people; problems go to stderr."""
    show_summary(report, output)
    for problem in report.problems[:PROBLEMS_SHOWN]:
        place = f"{problem.file}:{problem.line}" if problem.line is not None else problem.file
        output.note(sanitise(f"{place}: {problem.reason}"))
    hidden = len(report.problems) - PROBLEMS_SHOWN
    if hidden > 0:
        output.note(f"… and {counted(hidden, 'more problem')}; see them all with --json")
