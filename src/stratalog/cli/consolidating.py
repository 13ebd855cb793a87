"""`stratalog consolidate`: finished trajectories into the cold tier."""

from __future__ import annotations

from typing import Any

from .options import DEFAULT, Common
from .output import counted, human_bytes
from .sanitise import sanitise

EXIT_PARTIAL = 3
PROBLEMS_SHOWN = 20


def consolidate(*, older_than: str | None = None, common: Common = DEFAULT) -> int:
    """Move finished trajectories into the cold tier: written, read back, committed, marked. Repeating it is harmless.

    Example: `stratalog consolidate --older-than 7d`

    Parameters
    ----------
    older_than
        How long ago a trajectory must have ended, such as 12h or 7d; the setting cold.older_than by default.
    """
    installation = common.installation()
    output = common.output
    with installation.tiers() as tiers, output.progress("consolidating"):
        done = tiers.consolidate(older_than)
    output.line(
        f"{counted(done.events, 'event')} of {counted(done.trajectories, 'trajectory')} "
        f"in {counted(done.files, 'file')}, {human_bytes(done.bytes)}"
        if done.trajectories
        else "nothing to consolidate"
    )
    for problem in done.problems[:PROBLEMS_SHOWN]:
        output.note(sanitise(problem))
    hidden = len(done.problems) - PROBLEMS_SHOWN
    if hidden > 0:
        output.note(f"… and {hidden:,} more; see them all with --json")
    document: dict[str, Any] = {
        "trajectories": done.trajectories,
        "events": done.events,
        "files": done.files,
        "bytes": done.bytes,
    }
    if done.problems:
        document["problems"] = list(done.problems)
    if common.json:
        output.document(document)
    return EXIT_PARTIAL if done.problems else 0
