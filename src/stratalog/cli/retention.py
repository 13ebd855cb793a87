"""`stratalog retention`: how long what is kept. Without a policy nothing is deleted."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from cyclopts import App

from stratalog.schemas.extras import require

from .hold import user
from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise

if TYPE_CHECKING:
    from stratalog.warm.retention_plan import Line, Plan

retention_app = App(name="retention", help="How long what is kept: load policies, plan, apply.")
NOTHING_LOADED = "no policy is in force, nothing is ever deleted"
PLANNED_ONLY = "the clocks cold and bulky are counted only, this version deletes nothing there"


@retention_app.command
def load(file: Path | None = None, /, *, by: str | None = None, common: Common = DEFAULT) -> int:
    """Put the policies of a TOML file into force, all or none. Nothing is deleted by that.

    Example: `stratalog retention load`

    Parameters
    ----------
    file
        The file; retention.toml in the home by default.
    by
        Who does it; the user of this process by default.
    """
    require("psycopg", "warm")
    from stratalog.warm import retention

    installation = common.installation()
    policies = retention.read_policies(installation.home.path / retention.FILE_NAME if file is None else file)
    with installation.connection() as conn:
        version, new = retention.load(conn, policies, by=by or user())
    output = common.output
    state = "is in force now" if new else "was in force already"
    output.line(f"version {version.version} with {_policies(len(policies.policies))} {state}")
    if any(policy.cold_us is not None or policy.bulky_us is not None for policy in policies.policies):
        output.note(PLANNED_ONLY)
    if common.json:
        output.document({"version": version.version, "new": new, "policies": list(policies.policies)})
    return 0


@retention_app.command
def plan(*, common: Common = DEFAULT) -> int:
    """Show what the policies would delete, why, and what comes next. Changes nothing.

    Example: `stratalog retention plan`
    """
    require("psycopg", "warm")
    from stratalog.warm.retention_plan import plan as make_plan

    installation = common.installation()
    with installation.connection() as conn:
        found = make_plan(conn)
    state = _file_state(common, found)
    if common.json:
        common.output.document({**msgspec.to_builtins(found), "file": state})
        return 0
    _show_plan(found, common.output)
    if state == "differs":
        common.output.note("retention.toml in the home is not what is in force; see: stratalog retention load")
    return 0


@retention_app.command
def apply(*, common: Common = DEFAULT) -> int:
    """Delete from Postgres what the policies say, as far as it is in the cold tier and nothing holds it.

    Example: `stratalog retention apply`
    """
    require("psycopg", "warm")
    from stratalog.warm.retention_apply import apply as apply_policies

    with common.installation().connection() as conn:
        done = apply_policies(conn)
    output = common.output
    totals = {"trajectories": done.trajectories, "events": done.events, "bytes": done.bytes}
    if common.json:
        output.document({**msgspec.to_builtins(done), **totals})
        return 0
    output.line(
        f"{counted(done.events, 'event')} of {counted(done.trajectories, 'trajectory')} have left Postgres, "
        f"{human_bytes(done.bytes)}; {counted(len(done.partitions), 'partition')} dropped"
        if done.trajectories or done.partitions
        else "nothing to delete"
        if done.version is not None
        else NOTHING_LOADED
    )
    cancelled = [share for share in done.shares if share.outcome != "done"]
    output.table(
        ["cancelled because", "tenant", "policy", "trajectories"],
        [[share.outcome, share.tenant, share.policy, share.trajectories] for share in cancelled],
    )
    _show_lines("kept although due", [line for line in done.kept if line.keeps], output)
    return 0


def _show_plan(plan: Plan, output: Output) -> None:
    if not plan.policies:
        output.line(NOTHING_LOADED)
        return
    output.line(f"version {plan.version}, {_policies(plan.policies)}, as of {plan.as_of:%Y-%m-%d %H:%M} UTC")
    _show_lines("would be deleted", [line for line in plan.due if line.goes], output)
    _show_lines("kept although due", [line for line in plan.due if line.keeps], output)
    others = [line for line in plan.due if not line.goes and not line.keeps]
    _show_lines(f"due, but {PLANNED_ONLY}", others, output)
    if not plan.due:
        output.line("nothing is due")
    output.table(
        ["tier", "tenant", "policy", "next (UTC)", "in 7 days", "in 30 days", "later"],
        [
            [
                one.tier,
                one.tenant,
                one.policy,
                f"{one.next_at:%Y-%m-%d %H:%M}",
                one.within_7_days,
                one.within_30_days,
                one.trajectories - one.within_30_days,
            ]
            for one in plan.upcoming
        ],
        title="what comes next",
    )
    if plan.partitions:
        names = ", ".join(sanitise(partition.name) for partition in plan.partitions)
        output.note(f"dropped whole: {names}")


def _show_lines(title: str, lines: list[Line], output: Output) -> None:
    output.table(
        ["tier", "tenant", "policy", "older than", "trajectories", "events", "bytes", "why kept"],
        [
            [
                line.tier,
                line.tenant,
                f"{line.policy} (version {line.version})",
                _duration(line.after_us),
                line.trajectories,
                line.events,
                "" if line.bytes is None else human_bytes(line.bytes),
                f"held by {', '.join(line.matters)}" if line.matters else line.keeps,
            ]
            for line in lines
        ],
        title=title,
    )


def _file_state(common: Common, plan: Plan) -> str:
    """Whether the file in the home is what is in force: `none`, `same`, `differs`."""
    from stratalog.warm.retention import FILE_NAME

    path = common.open_home().path / FILE_NAME
    if not path.exists():
        return "none"
    return "same" if hashlib.sha256(path.read_bytes()).hexdigest() == plan.sha256 else "differs"


def _duration(microseconds: int) -> str:
    """A clock as people write it."""
    for unit, seconds in (("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60)):
        count, rest = divmod(microseconds, seconds * 1_000_000)
        if count and not rest:
            return f"{count}{unit}"
    return f"{microseconds / 1_000_000:g}s"


def _policies(count: int) -> str:
    return f"{count:,} {'policy' if count == 1 else 'policies'}"
