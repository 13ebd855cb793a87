"""`stratalog backup`: everything of a home in one folder, back again, and a rehearsal of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from stratalog.cold.installation import require_cold
from stratalog.schemas.errors import Corrupt, HomeMissing

from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise
from .verifying import show_verification

if TYPE_CHECKING:
    from stratalog.warm.erasure_ledger import Entry

backup_app = App(name="backup", help="Backups of one machine: create, restore, drill.")
Flag = Annotated[bool, Parameter(negative="")]


@backup_app.command
def create(folder: Path, /, *, with_keys: Flag = False, common: Common = DEFAULT) -> int:
    """Copy everything that is durable now into a new folder below FOLDER.

    Example: `stratalog backup create /backups`

    Parameters
    ----------
    with_keys
        Also the keys: whoever has them can sign, and make the secrets of imports.
    """
    require_cold()
    from stratalog.cold.backup import create_backup, read_manifest

    with _told(common.output, "backing up") as step:
        made = create_backup(common.installation(), folder, with_keys=with_keys, step=step)
    manifest = read_manifest(made)
    rows = {table.name: table.rows for table in manifest.tables}
    common.output.line(
        f"{sanitise(str(made))}: {counted(rows['trajectory_events'] + rows['trajectory_events_stray'], 'event')} in "
        f"Postgres, {counted(len(manifest.files), 'file')}, {human_bytes(manifest.bytes)}"
    )
    if not with_keys:
        common.output.note("the keys are not in it; keep keys/ elsewhere, or give --with-keys")
    if common.json:
        common.output.document({"path": str(made), "bytes": manifest.bytes, "rows": rows, "with_keys": with_keys})
    return 0


@backup_app.command
def restore(backup: Path, to: Path, /, *, ledger: Path | None = None, common: Common = DEFAULT) -> int:
    """Make a new home TO from a backup, with an embedded Postgres and all tiers in its folder.

    What was erased since is erased in it, too: as the home that --home names tells, and a ledger that you give.

    Example: `stratalog backup restore /backups/20260131T020000Z ~/restored`

    Parameters
    ----------
    ledger
        A ledger of erasures: audit/erasures.json of the home, or of the storage of its cold tier.
    """
    require_cold()
    from stratalog.cold.restore import restore_backup

    with _told(common.output, "restoring") as step:
        manifest = restore_backup(backup, to, erased=_erased(common, ledger), step=step)
    common.output.line(f"{sanitise(str(to))}: a home as {sanitise(manifest.home_id)} was at {manifest.created_at}")
    common.output.note("its settings are in stratalog.toml.restored; what is replicated from here gets new log ids")
    if common.json:
        common.output.document({"home": str(to), "created_at": manifest.created_at, "with_keys": manifest.with_keys})
    return 0


@backup_app.command
def drill(backup: Path, /, *, ledger: Path | None = None, common: Common = DEFAULT) -> int:
    """Restore a backup into a temporary folder, verify all of it, and remove it again. Exit code 20 for damage.

    Example: `stratalog backup drill /backups/20260131T020000Z`

    Parameters
    ----------
    ledger
        A ledger of erasures to replay, beside that of the home that --home names.
    """
    require_cold()
    from stratalog.cold.restore import drill as rehearse

    with _told(common.output, "rehearsing") as step:
        report = rehearse(backup, erased=_erased(common, ledger), step=step)
    if common.json:
        common.output.document(report)
    else:
        show_verification(report, common.output)
        for problem in report["tables"]["problems"]:
            common.output.line(f"  {sanitise(problem)}", style="red")
    return 0 if report["ok"] else Corrupt.exit_code


def _erased(common: Common, ledger: Path | None) -> list[Entry]:
    """What is known to be erased: by the home that the options name, where there is one, and by a file."""
    from stratalog.cold.erasure_file import known_ledger, merged, read_ledger

    known = [read_ledger(ledger)] if ledger is not None else []
    with suppress(HomeMissing):
        known.append(known_ledger(common.installation()))
    return merged(known)


@contextmanager
def _told(output: Output, title: str) -> Iterator[Callable[[str], None]]:
    """Progress by the name of what is being done."""
    with output.progress(title) as step:
        done = 0

        def tell(what: str) -> None:
            nonlocal done
            step(done, None, what)
            done += 1

        yield tell
