"""`stratalog bench`: measure what this machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from stratalog.hot.device import DeviceReport, measure
from stratalog.schemas.errors import Invalid

from .options import DEFAULT, Common
from .output import Output
from .sanitise import sanitise

bench_app = App(name="bench", help="Measure what this machine can do.")


@bench_app.command
def device(
    *,
    folder: Path | None = None,
    rate: Annotated[float, Parameter(validator=Number(gt=0))] = 2000,
    syncs_per_second: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    record_bytes: Annotated[int, Parameter(validator=Number(gte=1, lte=1 << 20))] = 1024,
    seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=60))] = 0.5,
    common: Common = DEFAULT,
) -> int:
    """Measure the ways to make a record durable on this device, and recommend settings of the hot log.

    Example: `stratalog bench device --rate 2000`

    Parameters
    ----------
    folder
        Where to measure: any folder of the device. By default the home, or the folder that it will be made in.
    rate
        Events per second that the settings are for, from all trajectories together.
    syncs_per_second
        How many syncs the device allows, where that is limited (the IOPS of a network volume).
    record_bytes
        The size of an event.
    seconds
        How long to repeat each of about 15 calls.
    """
    where = folder or _nearest(common.home)
    if not where.is_dir():
        raise Invalid(f"{where} is not a folder", hint="name one on the device to measure: --folder DIR")
    with common.output.progress("measuring the device"):
        report = measure(
            where.absolute(), record_bytes=record_bytes, rate=rate, syncs_max=syncs_per_second, seconds=seconds
        )
    if common.json:
        common.output.document(report)
    else:
        _show(report, common.output)
    return 0


def _nearest(home: Path) -> Path:
    """The home, or the first folder above it that exists."""
    path = home.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _show(report: DeviceReport, output: Output) -> None:
    output.line(f"{sanitise(report.folder)}, records of {report.record_bytes:,} bytes, times in µs")
    output.line()
    output.table(
        ["interface", "p50", "p99", "before an effect", "samples"],
        [[row.name, row.p50_us, row.p99_us, row.safe, row.samples] for row in report.interfaces],
        title="Ways to persist (Table 2)",
    )
    output.line()
    output.table(
        ["stage", "p50", "p99", "samples"],
        [[row.name, row.p50_us, row.p99_us, row.samples] for row in report.stages],
        title="Stages of group commit (Table 4), a group of one",
    )
    output.line()
    output.table(
        ["events", "per event", "write p50", "write p99", "sync p50", "sync p99", "samples"],
        [
            [
                row.events,
                row.effective_us,
                row.write_p50_us,
                row.write_p99_us,
                row.sync_p50_us,
                row.sync_p99_us,
                row.samples,
            ]
            for row in report.groups
        ],
        title="One writev and one fdatasync for a group (Eq 3 without a window)",
    )
    output.line()
    found = report.recommendation
    output.line(f"recommended for {report.rate:,.0f} events/s:", style="bold")
    for (name, value), reason in zip(
        (("hot.group_events_max", found.group_events_max), ("hot.group_window_us", found.group_window_us)),
        found.reasons,
        strict=True,
    ):
        output.line(f"  {name} = {value}")
        output.line(f"    {reason}")
    for warning in found.warnings:
        output.line(f"warning: {warning}", style="bold red")
