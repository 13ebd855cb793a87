"""`stratalog verify`: is everything in every tier what it was when it was acknowledged?"""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from stratalog.cold.installation import require_cold
from stratalog.schemas.errors import Corrupt, Invalid

from .options import DEFAULT, Common
from .output import Output, counted
from .sanitise import sanitise

PROBLEMS_SHOWN = 20


def verify(
    *,
    read_data: Annotated[
        str, Parameter(help="all, or a percentage of the trajectories and files, such as 5%.")
    ] = "all",
    seed: Annotated[int | None, Parameter(help="Chooses the same sample again.")] = None,
    workers: Annotated[
        int | None, Parameter(help="How many processes read at once; by default the cores, fewer for little data.")
    ] = None,
    common: Common = DEFAULT,
) -> int:
    """Verify every tier from its stored bytes: density, every chain, every body, every blob, and that the tiers agree.

    Example: `stratalog verify --read-data 5%`
    """
    require_cold()
    from stratalog.cold.sample import parse_sample
    from stratalog.cold.verification import verify_all

    if workers is not None and workers < 1:
        raise Invalid(f"{workers} workers cannot do anything", hint="use at least 1")
    with common.output.progress("verifying"):
        report = verify_all(common.installation(), sample=parse_sample(read_data, seed), workers=workers)
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
    if "sample" in report:
        _show_sample(report["sample"], output)
    output.line("verified" if report["ok"] else "DAMAGE FOUND", style="green" if report["ok"] else "bold red")


def _show_sample(sample: dict[str, Any], output: Output) -> None:
    looked, left = sample["looked_at"], sample["left_out"]
    output.line(
        f"looked at {looked['trajectories']:,} trajectories in the warm tier and {counted(looked['files'], 'file')} "
        f"in the cold one; not at {left['trajectories']:,} trajectories and {counted(left['files'], 'file')}"
    )
    output.line(f"the same again: stratalog verify --read-data {sample['share'] * 100:g}% --seed {sample['seed']}")


def _state(problems: list[str]) -> str:
    return counted(len(problems), "problem") if problems else "ok"


def _show_problems(problems: list[str], output: Output) -> None:
    for problem in problems[:PROBLEMS_SHOWN]:
        output.line(f"  {sanitise(problem)}", style="red")
    if len(problems) > PROBLEMS_SHOWN:
        output.line(f"  … and {len(problems) - PROBLEMS_SHOWN:,} more; see them all with --json", style="red")
