"""Jobs that keep an installation in order: each a few steps over functions of the tiers, and a schedule.

A step returns its metadata; what survives a crash is what its function guarantees, so every job may simply run again.
"""

# No postponed annotations here: Dagster reads those of ops to know config and resources.

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg
import msgspec

from .failures import failing, retries
from .place import RESOURCE, Place

Work = Callable[[Place, Callable[[str], None]], Mapping[str, Any]]
"""Does the step; the function that it is given warns in the log of the run."""


class Step(msgspec.Struct, frozen=True):
    """One step of a job; those of one `pool` never run at the same time."""

    name: str
    description: str
    work: Work
    pool: str | None = None


class Upkeep(msgspec.Struct, frozen=True):
    """A job and when it runs (UTC)."""

    job: dg.JobDefinition
    cron: str

    def schedule(self, *, running: bool) -> dg.ScheduleDefinition:
        """Its schedule; `running` says whether it starts switched on."""
        return dg.ScheduleDefinition(
            name=f"{self.job.name}_schedule",
            job=self.job,
            cron_schedule=self.cron,
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
            description=self.job.description,
        )


def make_upkeep(name: str, cron: str, description: str, steps: Sequence[Step]) -> Upkeep:
    """A job of steps that follow each other; a step that fails ends it."""
    ops = [_op_of(step, first=index == 0) for index, step in enumerate(steps)]

    @dg.job(name=name, description=description, executor_def=dg.in_process_executor)
    def job() -> None:
        done = ops[0]()
        for op in ops[1:]:
            done = op(start=done)

    return Upkeep(job, cron)


def _op_of(step: Step, *, first: bool) -> dg.OpDefinition:
    @dg.op(
        name=step.name,
        description=step.description,
        required_resource_keys={RESOURCE},
        retry_policy=retries,
        ins={} if first else {"start": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=step.pool,
    )
    def op(context: dg.OpExecutionContext) -> None:
        place: Place = getattr(context.resources, RESOURCE)
        with failing():
            found = step.work(place, context.log.warning)
        # Dagster takes what JSON knows.
        context.add_output_metadata(msgspec.json.decode(msgspec.json.encode(found)))

    made: dg.OpDefinition = op
    return made
