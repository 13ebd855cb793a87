"""The Dagster instance of a home: its folder `HOME/dagster`, its settings, and runs that a killed process has left.

The settings come from the packaged dagster.yaml (the one at the root of the repository) and are copied once; whoever
changes the copy keeps the changes.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import dagster as dg

from stratalog.hot.files import write_durably
from stratalog.hot.home import Home
from stratalog.schemas.errors import Invalid

SETTINGS_FILE = "dagster.yaml"
IN_PROCESS = "stratalog/in_process"
"""The tag of runs that `run_consolidation` executes in its own process."""

UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def prepare(home: Home) -> Path:
    """The folder for DAGSTER_HOME, with its settings; made if needed."""
    folder = home.folder("dagster")
    if not (folder / SETTINGS_FILE).exists():
        packaged = resources.files("stratalog.pipelines").joinpath(SETTINGS_FILE).read_bytes()
        write_durably(folder / SETTINGS_FILE, packaged, exclusive=True)
    return folder


def open_instance(home: Home) -> dg.DagsterInstance:
    """The instance of this home; close it with `dispose` or by a `with` block. Raises `Invalid` for bad settings."""
    folder = prepare(home)
    try:
        return dg.DagsterInstance.from_config(str(folder))
    except dg.DagsterInvalidConfigError as error:
        raise Invalid(
            f"{folder / SETTINGS_FILE}: {error}", hint="correct it, or delete it to get the default back"
        ) from error


def fail_dead_runs(instance: dg.DagsterInstance) -> int:
    """Fail what an earlier process has left in progress; returns how many.

    Only runs that were executed in the process that began them, and only while the caller holds the home's lock for
    these: so none of them can be alive.
    """
    left = instance.get_runs(filters=dg.RunsFilter(statuses=UNFINISHED, tags={IN_PROCESS: "true"}))
    for run in left:
        instance.report_run_failed(run, "the process of this run was killed; the next run goes on from where it was")
    return len(left)
