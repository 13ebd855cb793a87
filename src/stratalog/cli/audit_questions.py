"""`stratalog audit approvals|policies|effects|settlements`: what auditors ask."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from stratalog.schemas.extras import require
from stratalog.schemas.ids import check_tenant

from .options import DEFAULT, Common
from .output import counted, human_us

Tenant = Annotated[str | None, Parameter(help="Only this tenant.")]
Trajectory = Annotated[uuid.UUID | None, Parameter(help="Only this trajectory.")]
Limit = Annotated[int | None, Parameter(help="At most so many.")]
POLICY_COLUMNS = ["policy version", "tool", "decision", "calls", "trajectories", "first (UTC)", "last (UTC)"]


def approvals(
    *, tenant: Tenant = None, trajectory: Trajectory = None, limit: Limit = None, common: Common = DEFAULT
) -> int:
    """Who approved what, when, and what still waits for an answer.

    Example: `stratalog audit approvals --tenant acme`
    """
    found = _ask(common, tenant, trajectory, limit, _questions().approvals)
    columns = ["time (UTC)", "tool", "decision", "approver", "reason", "trajectory", "event"]
    rows = [[_time(one), one.tool, one.decision, one.approver, one.reason, *_where(one)] for one in found]
    return _say(common, found, columns, rows, "approval")


def policies(
    *,
    policy: str | None = None,
    tenant: Tenant = None,
    trajectory: Trajectory = None,
    limit: Limit = None,
    common: Common = DEFAULT,
) -> int:
    """What was decided under which policy version; with --policy every call under one.

    Example: `stratalog audit policies --policy 2026-11`

    Parameters
    ----------
    policy
        Every call that was decided under this version; an empty text is where none was stated.
    """
    questions = _questions()
    ask = partial(questions.authorizations, policy_version=policy)
    if policy is None:
        found = questions.tally(_ask(common, tenant, trajectory, None, ask))[:limit]
        rows = [
            [one.policy_version or "not stated", one.tool, one.decision, one.calls, one.trajectories,
             human_us(one.first_at), human_us(one.last_at)]
            for one in found
        ]  # fmt: skip
        return _say(common, found, POLICY_COLUMNS, rows, "row")
    found = _ask(common, tenant, trajectory, limit, ask)
    columns = ["time (UTC)", "tool", "decision", "reason", "trajectory", "event"]
    rows = [[_time(one), one.tool, one.decision, one.reason, *_where(one)] for one in found]
    return _say(common, found, columns, rows, "call")


def effects(
    *,
    tool: str | None = None,
    reads: Annotated[bool, Parameter(negative="")] = False,
    tenant: Tenant = None,
    trajectory: Trajectory = None,
    limit: Limit = None,
    common: Common = DEFAULT,
) -> int:
    """Every effect that was intended, on any tool or one, and what became of it.

    Example: `stratalog audit effects --tool wire_transfer`

    Parameters
    ----------
    tool
        Only this tool, by its exact name.
    reads
        Also what only reads.
    """
    found = _ask(common, tenant, trajectory, limit, partial(_questions().effects, tool=tool, reads=reads))
    columns = ["time (UTC)", "tool", "effect", "outcome", "policy", "approver", "trajectory", "event"]
    rows = [
        [_time(one), one.tool, one.effect, f"{one.outcome} ({one.settled_by})" if one.settled_by else one.outcome,
         one.policy_version, one.approver, *_where(one)]
        for one in found
    ]  # fmt: skip
    return _say(common, found, columns, rows, "effect")


def settlements(
    *, tenant: Tenant = None, trajectory: Trajectory = None, limit: Limit = None, common: Common = DEFAULT
) -> int:
    """Every action that was in doubt: why, and how it was settled, or that it is still open.

    Example: `stratalog audit settlements`
    """
    found = _ask(common, tenant, trajectory, limit, _questions().settlements)
    columns = [
        "time (UTC)",
        "tool",
        "in doubt",
        "outcome",
        "method",
        "resolver",
        "settled (UTC)",
        "trajectory",
        "event",
    ]
    rows = [
        [_time(one), one.tool, one.doubt, one.outcome, one.method, one.resolver, human_us(one.settled_at), *_where(one)]
        for one in found
    ]
    return _say(common, found, columns, rows, "action")


def _questions() -> Any:
    """The module with the questions, once what it needs is known to be there."""
    require("psycopg", "warm")
    from stratalog.audit import questions

    return questions


def _ask(
    common: Common, tenant: str | None, trajectory: uuid.UUID | None, limit: int | None, question: Callable[..., Any]
) -> list[Any]:
    if tenant is not None:
        check_tenant(tenant)
    asked = _questions().Asked(tenant, trajectory)
    from stratalog.audit.installation import open_answers

    with open_answers(common.installation()) as (conn, cold), closing(question(conn, asked, cold=cold)) as answers:
        return list(itertools.islice(answers, limit))


def _say(common: Common, found: Sequence[Any], columns: Sequence[str], rows: list[list[object]], noun: str) -> int:
    if common.json:
        common.output.document(found)
        return 0
    common.output.table(columns, rows)
    common.output.note(counted(len(found), noun))
    return 0


def _time(one: Any) -> str:
    return human_us(one.place.at)


def _where(one: Any) -> tuple[str, int]:
    return one.place.trajectory_id, one.place.sequence_number
