"""`stratalog verify`: is everything in every tier what it was when it was acknowledged?"""

from __future__ import annotations

from typing import Any

from stratalog.cold.installation import require_cold
from stratalog.schemas.errors import Corrupt

from .options import DEFAULT, Common
from .output import Output, counted
from .sanitise import sanitise

PROBLEMS_SHOWN = 20


def verify(*, common: Common = DEFAULT) -> int:
    """Verify every tier from its stored bytes: density, every chain, every body, every blob, and that the tiers agree.

    Example: `stratalog verify`
    """
    require_cold()
    from stratalog.cold.verification import verify_all

    with common.output.progress("verifying"):
        report = verify_all(common.installation())
    if common.json:
        common.output.document(report)
    else:
        show_verification(report, common.output)
    return 0 if report["ok"] else Corrupt.exit_code


def show_verification(report: dict[str, Any], output: Output) -> None:
    """The result, for people."""
    tiers, blobs = report["tiers"], report["blobs"]
    rows: list[list[object]] = [
        [name, tier["events"], tier["trajectories"], _state(tier["problems"])] for name, tier in tiers.items()
    ]
    rows.append(["blobs", blobs["checked"], None, _state(blobs["problems"])])
    output.table(["checked", "events", "trajectories", "result"], rows)
    for part in (*tiers.values(), blobs):
        _show_problems(part["problems"], output)
    output.line("verified" if report["ok"] else "DAMAGE FOUND", style="green" if report["ok"] else "bold red")


def _state(problems: list[str]) -> str:
    return counted(len(problems), "problem") if problems else "ok"


def _show_problems(problems: list[str], output: Output) -> None:
    for problem in problems[:PROBLEMS_SHOWN]:
        output.line(f"  {sanitise(problem)}", style="red")
    if len(problems) > PROBLEMS_SHOWN:
        output.line(f"  … and {len(problems) - PROBLEMS_SHOWN:,} more; see them all with --json", style="red")
