"""`stratalog compact`: small files of the cold tier into large ones."""

from __future__ import annotations

import msgspec

from stratalog.cold.installation import require_cold
from stratalog.schemas.errors import Invalid
from stratalog.schemas.settings import duration_us

from .options import DEFAULT, Common
from .output import counted, human_bytes
from .sanitise import sanitise

EXIT_PARTIAL = 3
PROBLEMS_SHOWN = 20
MIN_FILES = 4


def compact(
    *,
    min_files: int = MIN_FILES,
    target_bytes: int | None = None,
    wait: str = "1m",
    dry_run: bool = False,
    common: Common = DEFAULT,
) -> int:
    """Merge small files of the cold tier, folder by folder. No event changes, and whoever reads goes on reading.

    Example: `stratalog compact --dry-run`

    Parameters
    ----------
    min_files
        The fewest small files of a folder (tenant, day, model) that are merged.
    target_bytes
        How large files are to become; the setting cold.file_bytes_max by default. Small is less than half of it.
    wait
        How long to wait for readers of the old files, up to 1h. Where they stay longer, a later job deletes the files.
    dry_run
        Only say what would be merged.
    """
    require_cold()
    from stratalog.cold.compaction import compact as merge
    from stratalog.cold.pins import PIN_S_MAX

    try:
        wait_s = duration_us(wait) / 1_000_000
    except ValueError as error:
        raise Invalid(str(error), hint="write a duration such as 5m") from error
    if wait_s > PIN_S_MAX:
        raise Invalid(f"--wait {wait} is longer than any reader may pin", hint="give at most 1h")
    output = common.output
    with common.installation().tiers() as tiers, output.progress("compacting"):
        done = merge(tiers, min_files=min_files, target_bytes=target_bytes, wait_s=wait_s, dry_run=dry_run)
    if common.json:
        output.document({**msgspec.to_builtins(done), "dry_run": dry_run})
        return EXIT_PARTIAL if done.problems else 0
    would = "would become" if dry_run else "became"
    output.line(
        f"{counted(done.files, 'file')} ({human_bytes(done.bytes)}) of {counted(done.folders, 'folder')} "
        f"{would} {done.new_files:,}" + ("" if dry_run else f" ({human_bytes(done.new_bytes)})")
        if done.files
        else "nothing to compact"
    )
    if done.waiting_files:
        who = ", ".join(map(sanitise, done.readers)) or "another job"
        output.note(f"{counted(done.waiting_files, 'old file')} left for a later job, because of {who}")
    for problem in done.problems[:PROBLEMS_SHOWN]:
        output.note(sanitise(problem))
    return EXIT_PARTIAL if done.problems else 0
