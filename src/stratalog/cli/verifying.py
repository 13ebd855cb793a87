"""`stratalog verify`: is everything in every tier what it was when it was acknowledged?"""

from __future__ import annotations

from typing import Any

from stratalog.schemas.errors import Corrupt

from .options import DEFAULT, Common
from .output import Output
from .sanitise import sanitise

PROBLEMS_SHOWN = 20


def verify(*, common: Common = DEFAULT) -> int:
    """Verify every tier from its stored bytes: density, every chain, every body, every blob, and that the tiers agree.

    Example: `stratalog verify`
    """
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
    for name, tier in report["tiers"].items():
        state = "ok" if not tier["problems"] else f"{len(tier['problems'])} problems"
        output.line(f"{name:<5} {tier['events']:>10,} events  {tier['trajectories']:>8,} trajectories  {state}")
        _show_problems(tier["problems"], output)
    blobs = report["blobs"]
    state = "ok" if not blobs["problems"] else f"{len(blobs['problems'])} problems"
    output.line(f"blobs {blobs['checked']:>10,} checked  {state}")
    _show_problems(blobs["problems"], output)
    output.line("verified" if report["ok"] else "DAMAGE FOUND", style="green" if report["ok"] else "bold red")


def _show_problems(problems: list[str], output: Output) -> None:
    for problem in problems[:PROBLEMS_SHOWN]:
        output.line(f"  {sanitise(problem)}", style="red")
    if len(problems) > PROBLEMS_SHOWN:
        output.line(f"  … and {len(problems) - PROBLEMS_SHOWN:,} more; see them all with --json", style="red")
