"""`stratalog retention`: how long what is kept. Without a policy nothing is deleted."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App

from stratalog.schemas.extras import require

from .hold import user
from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise

if TYPE_CHECKING:
    from stratalog.cold.installation import Installation
    from stratalog.cold.retention import LowerTiers
    from stratalog.warm.deletion import Share
    from stratalog.warm.retention_apply import Applied
    from stratalog.warm.retention_plan import Line, Plan

retention_app = App(name="retention", help="How long what is kept: load policies, plan, apply.")
NOTHING_LOADED = "no policy is in force, nothing is ever deleted"


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
    """Delete what the policies say, from Postgres, then from the lake, then bulky content; what is held stays.

    Nothing leaves Postgres before it is in the lake, and nothing leaves the lake before it has left Postgres.

    Example: `stratalog retention apply`
    """
    require("psycopg", "warm")
    from stratalog.warm.deletion_lower import needed
    from stratalog.warm.retention_apply import apply as apply_policies

    installation = common.installation()
    output = common.output
    with installation.connection() as conn:
        done = apply_policies(conn)
        lower = _apply_lower(installation, done, output) if needed(conn) else None
    if common.json:
        totals = {"trajectories": done.trajectories, "events": done.events, "bytes": done.bytes}
        output.document({**msgspec.to_builtins(done), **totals, **_lower_document(lower)})
        return 0
    output.line(
        f"{counted(done.events, 'event')} of {counted(done.trajectories, 'trajectory')} have left Postgres, "
        f"{human_bytes(done.bytes)}; {counted(len(done.partitions), 'partition')} dropped"
        if done.trajectories or done.partitions
        else "nothing to delete"
        if done.version is not None
        else NOTHING_LOADED
    )
    if lower is not None:
        _show_lower(lower, output)
    shares = {
        "warm": done.shares,
        **({} if lower is None else {"cold": lower.cold.shares, "bulky": lower.bulky.shares}),
    }
    _show_cancelled(shares, output)
    _show_lines("kept although due", [line for line in done.kept if line.keeps], output)
    return 0


def _apply_lower(installation: Installation, done: Applied, output: Output) -> LowerTiers:
    from stratalog.cold.retention import apply_lower

    with installation.tiers() as tiers, output.progress("deleting"):
        return apply_lower(tiers, done.as_of)


def _lower_document(lower: LowerTiers | None) -> dict[str, Any]:
    if lower is None:
        return {}
    return {
        "cold": {
            **msgspec.to_builtins(lower.cold),
            "trajectories": lower.cold.trajectories,
            "events": lower.cold.events,
        },
        "bulky": {**msgspec.to_builtins(lower.bulky), "trajectories": lower.bulky.trajectories},
    }


def _show_lower(lower: LowerTiers, output: Output) -> None:
    cold, bulky = lower.cold, lower.bulky
    if cold.trajectories:
        output.line(
            f"{counted(cold.events, 'event')} of {counted(cold.trajectories, 'trajectory')} have left the lake and are "
            f"in no tier any more; the files are {human_bytes(cold.bytes)} smaller"
        )
    if cold.readers:
        names = ", ".join(sanitise(reader) for reader in cold.readers)
        output.line(f"old files are still being read by {names}: they go with the next run", style="yellow")
    if bulky.pieces:
        output.line(f"{counted(bulky.pieces, 'piece')} of bulky content gone, {human_bytes(bulky.bytes)}")


def _show_cancelled(shares: dict[str, tuple[Share, ...]], output: Output) -> None:
    output.table(
        ["cancelled because", "tier", "tenant", "policy", "trajectories"],
        [
            [share.outcome, tier, share.tenant, share.policy, share.trajectories]
            for tier, found in shares.items()
            for share in found
            if share.outcome != "done"
        ],
    )


def _show_plan(plan: Plan, output: Output) -> None:
    if not plan.policies:
        output.line(NOTHING_LOADED)
        return
    output.line(f"version {plan.version}, {_policies(plan.policies)}, as of {plan.as_of:%Y-%m-%d %H:%M} UTC")
    _show_lines("would be deleted", [line for line in plan.due if line.goes], output)
    _show_lines("kept although due", [line for line in plan.due if line.keeps], output)
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
    output.table(
        ["tenant", "never due because", "trajectories"],
        [[one.tenant, one.why, one.trajectories] for one in plan.never],
        title="what no clock will reach",
    )
    output.note(f"hot: {plan.hot}")
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
                _why(line),
            ]
            for line in lines
        ],
        title=title,
    )


def _why(line: Line) -> str:
    matters = ", ".join(line.matters)
    if line.keeps == "held":
        return f"held by {matters}"
    return f"{line.keeps} ({matters})" if matters else line.keeps


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
