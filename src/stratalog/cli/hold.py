"""`stratalog hold`: legal holds, which win over every policy."""

from __future__ import annotations

import getpass
import uuid
from typing import TYPE_CHECKING

import msgspec
from cyclopts import App

from stratalog.cold.installation import Installation, require_cold
from stratalog.schemas.errors import Corrupt, Invalid, Locked, Unavailable
from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import Output, counted
from .sanitise import sanitise

if TYPE_CHECKING:
    from stratalog.cold.held_objects import Locks

hold_app = App(name="hold", help="Legal holds: add, list, release, and the locks of a bucket for them.")


@hold_app.command
def add(
    matter: str,
    /,
    *,
    reason: str,
    tenant: str | None = None,
    trajectory: list[uuid.UUID] | None = None,
    where: str | None = None,
    by: str | None = None,
    common: Common = DEFAULT,
) -> int:
    """Hold what one matter needs: nothing of it is deleted until the hold is released, whatever the policies say.

    Example: `stratalog hold add case-17 --tenant acme --reason "letter of 3 May"`

    Parameters
    ----------
    matter
        What it is for; a matter may have several holds.
    reason
        Why, for the record.
    tenant
        Everything of this tenant, also what it will write.
    trajectory
        This trajectory; repeat it for a set.
    where
        The trajectories that a condition in SQL names now, over the columns of the table trajectories.
    by
        Who places it; the user of this process by default.
    """
    require("psycopg", "warm")
    from stratalog.warm import hold

    scope = hold.Scope(tenant, tuple(trajectory or ()), where)
    installation = common.installation()
    with installation.connection() as conn:
        placed = hold.place(conn, matter, scope, by=by or user(), reason=reason)
        locks = _apply_locks(installation, common.output)
    if common.json:
        common.output.document({**msgspec.to_builtins(placed), "locks": msgspec.to_builtins(locks)})
        return 0
    output = common.output
    output.line(
        f"hold {placed.hold_id} of matter {sanitise(matter)} covers {counted(placed.trajectories, 'trajectory')}"
        + (f", {placed.descendants:,} of them because they descend from what it names" if placed.descendants else "")
    )
    if placed.ancestors:
        output.line(f"{counted(placed.ancestors, 'trajectory')} more kept, which these descend from")
    if placed.unknown:
        output.line(f"{counted(placed.unknown, 'trajectory')} of it not known here (yet)")
    for number, what in (
        (placed.cancelled, "planned, will not happen"),
        (placed.started, "under way, keeps what is held"),
        (placed.done, "done before: these events are in the cold tier alone"),
        (placed.content_done, "of bulky content done before: the events are there, their content is not"),
        (placed.lost, "in the cold tier done, or too far to be stopped: these events are in no tier"),
    ):
        if number:
            output.line(f"{counted(number, 'deletion')} {what}", style="yellow")
    _show_locks(locks, output)
    return 0


@hold_app.command(name="list")
def list_(*, all: bool = False, common: Common = DEFAULT) -> int:
    """List the holds that are in force.

    Example: `stratalog hold list --all`

    Parameters
    ----------
    all
        Also those that were released.
    """
    require("psycopg", "warm")
    from stratalog.warm import hold

    with common.installation().connection() as conn:
        holds = hold.entries(conn, everything=all)
    if common.json:
        common.output.document(holds)
        return 0
    rows = [
        [
            one.hold_id,
            one.matter,
            one.tenant if one.kind == "tenant" else one.selection or one.kind,
            one.trajectories,
            one.descendants,
            f"{one.placed_at:%Y-%m-%d %H:%M}",
            one.placed_by,
            one.reason,
            "" if one.released_at is None else f"{one.released_at:%Y-%m-%d %H:%M} {one.released_by}",
        ]
        for one in holds
    ]
    columns = ["hold", "matter", "scope", "trajectories", "descendants", "since (UTC)", "by", "reason", "released"]
    common.output.table(columns if all else columns[:-1], rows if all else [row[:-1] for row in rows])
    common.output.note(counted(len(holds), "hold"))
    return 0


@hold_app.command
def release(
    matter: str, /, *, reason: str, hold: int | None = None, by: str | None = None, common: Common = DEFAULT
) -> int:
    """Release the holds of a matter. They stay in the history; other matters go on holding.

    Example: `stratalog hold release case-17 --reason settled`

    Parameters
    ----------
    reason
        Why, for the record.
    hold
        Only the hold with this number.
    by
        Who releases it; the user of this process by default.
    """
    require("psycopg", "warm")
    from stratalog.warm.hold import release as release_holds

    installation = common.installation()
    with installation.connection() as conn:
        released = release_holds(conn, matter, by=by or user(), reason=reason, hold_id=hold)
        locks = _apply_locks(installation, common.output)
    common.output.line(f"{counted(len(released), 'hold')} of matter {sanitise(matter)} released")
    _show_locks(locks, common.output)
    if common.json:
        common.output.document({"matter": matter, "released": released, "locks": msgspec.to_builtins(locks)})
    return 0


@hold_app.command
def apply(*, common: Common = DEFAULT) -> int:
    """Lock the objects that held trajectories need, where the bucket has Object Lock; release what no hold needs.

    `hold add` and `hold release` do this, too; what is written later is locked by the next run.

    Example: `stratalog hold apply`
    """
    require_cold()
    from stratalog.cold.held_objects import apply_locks

    with common.installation().tiers() as tiers:
        locks = apply_locks(tiers)
    if common.json:
        common.output.document(locks)
        return 0
    if not locks.places:
        common.output.line("no bucket with Object Lock is used, nothing to do")
    _show_locks(locks, common.output)
    return 0


def _apply_locks(installation: Installation, output: Output) -> Locks | None:
    """Bring the locks into line, where there may be any; the hold itself does not depend on them."""
    settings = installation.settings.cold
    if not any(url.startswith("s3://") for url in (settings.url, settings.cas_url)):
        return None
    require_cold()
    from stratalog.cold.held_objects import apply_locks

    try:
        with installation.tiers() as tiers:
            return apply_locks(tiers)
    except (Locked, Unavailable, Corrupt) as error:
        output.note(f"objects are not locked yet: {error.message}; later: stratalog hold apply")
        return None


def _show_locks(locks: Locks | None, output: Output) -> None:
    if locks is not None and locks.places:
        counts = f"{locks.released:,} released, {locks.kept:,} as before"
        output.line(f"{counted(locks.locked, 'object')} locked in the store, {counts}")


def user() -> str:
    """Who runs this process; raises `Invalid` where the system does not know."""
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise Invalid("the system does not know who runs this", hint="say it with: --by NAME") from error
