"""`stratalog erase`: content goes everywhere, its proof stays, and each tier signs for it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from stratalog.schemas.errors import Corrupt, Invalid
from stratalog.schemas.extras import require

from .hold import user
from .keys import open_keys
from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise
from .subject import subject_of

if TYPE_CHECKING:
    from stratalog.audit.erasure import Erased
    from stratalog.warm.erasure import Proceeded, Selection
    from stratalog.warm.erasure_ledger import Request

EXIT_OPEN = 3
"""Something is still open: held, or in a log or a tier that could not be reached."""

erase_app = App(
    name="erase",
    help="""Erase trajectories with all that descends from them: unreadable at once, then their bytes go everywhere.

    What a legal hold covers stays, and is reported; the exit code is 3 while anything is open.

    Example: `stratalog erase --trajectory 01990000-0000-7000-8000-000000000000 --reason "request 17"`
    """,
)


@erase_app.default
def erase(
    *,
    trajectory: list[uuid.UUID] | None = None,
    subject: str | None = None,
    where: str | None = None,
    tenant: str | None = None,
    reason: str = "",
    by: str | None = None,
    unreadable_only: bool = False,
    common: Common = DEFAULT,
) -> int:
    """Erase trajectories with all that descends from them: unreadable at once, then their bytes go from every tier.

    What a legal hold covers stays, and is reported; the exit code is 3 while anything is open.

    Example: `stratalog erase --trajectory 01990000-0000-7000-8000-000000000000 --reason "request 17"`

    Parameters
    ----------
    trajectory
        This one; repeat it for several.
    subject
        All that are about this person, of the tenant; see `stratalog subject add`.
    where
        Those that a condition in SQL names now, over the columns of the table trajectories. It is not kept.
    tenant
        Whose subject it is; of trajectories that are not known here (yet), whose they are.
    reason
        Why, for the record.
    by
        Who asks; the user of this process by default.
    unreadable_only
        Leave the bytes to a later `stratalog erase finish`.
    """
    _require()
    from stratalog.warm.erasure import Selection

    if not reason.strip():
        raise Invalid("an erasure needs a reason, for the record", hint='add: --reason "request 17"')
    installation = common.installation()
    about = None
    if subject is not None:
        about = subject_of(installation.home, tenant or installation.settings.tenant, subject)
    selection = Selection(tuple(trajectory or ()), about, where, None if about else tenant)
    return _run(common, selection, by or user(), reason, bytes_too=not unreadable_only)


@erase_app.command
def finish(*, common: Common = DEFAULT) -> int:
    """Go on with every request that is open: released holds, bytes that were left, logs that have come back.

    Example: `stratalog erase finish`
    """
    _require()
    return _run(common, None, "", "", bytes_too=True)


@erase_app.command(name="list")
def list_(*, common: Common = DEFAULT) -> int:
    """List the requests, oldest first, with what each still waits for.

    Example: `stratalog erase list`
    """
    _require()
    from stratalog.audit.erasure import open_tiers
    from stratalog.warm import erasure_ledger

    with common.installation().connection() as conn:
        requests = erasure_ledger.requests(conn)
    if common.json:
        common.output.document(requests)
        return 0
    common.output.table(
        ["erasure", "what", "asked (UTC)", "by", "trajectories", "unreadable", "held", "waits for", "reason"],
        [
            [one.erasure_id, one.kind, f"{one.requested_at:%Y-%m-%d %H:%M}", sanitise(one.requested_by),
             one.trajectories, one.unreadable, one.held, ", ".join(open_tiers(one)) or "nothing", sanitise(one.reason)]
            for one in requests
        ],
    )  # fmt: skip
    return 0


@erase_app.command
def show(erasure: int, /, *, common: Common = DEFAULT) -> int:
    """Show one request: its trajectories, the logs that are behind, and what each receipt says.

    Example: `stratalog erase show 1`
    """
    _require()
    from stratalog.audit import receipts
    from stratalog.warm import erasure_ledger

    installation = common.installation()
    with installation.connection() as conn:
        request = erasure_ledger.requests(conn, erasure)[0]
        items = erasure_ledger.items(conn, erasure)
        behind = erasure_ledger.logs_behind(conn, request.place)
        given = receipts.receipts_of(conn, erasure)
    documents = [receipts.check(receipt, open_keys(installation.home).records()) for receipt in given]
    output = common.output
    if common.json:
        output.document({"request": request, "trajectories": items, "logs_behind": behind, "receipts": documents})
        return 0
    output.table(
        ["trajectory", "tenant", "state", "gone from Postgres", "gone from cold"],
        [
            [str(item.trajectory_id), item.tenant, _state(item.state, item.matters), _at(item.warm_gone_at),
             _at(item.cold_gone_at)]
            for item in items
        ],
    )  # fmt: skip
    for log in behind:
        output.line(f"log {log.log_id} is behind; it was last heard of at {_at(log.seen_at)}", style="yellow")
    for document in documents:
        ids = len(document.trajectories)
        output.line(f"{document.tier}: receipt for {counted(ids, 'trajectory')}, {_at(document.made_at)} UTC")
        for text in document.looked_at:
            output.line(f"  looked at: {sanitise(text)}")
        for text in document.outside_reach:
            output.line(f"  out of reach: {sanitise(text)}")
    return 0


@erase_app.command(name="receipts")
def receipts_(erasure: int, /, *, output: Path | None = None, common: Common = DEFAULT) -> int:
    """Print the signed receipts of a request with the public keys, as JSON for somebody else, or write them to a file.

    Example: `stratalog erase receipts 1 --output receipts.json`

    Parameters
    ----------
    output
        The file to write; it must not exist.
    """
    _require()
    from stratalog.audit import receipts
    from stratalog.warm import erasure_ledger

    installation = common.installation()
    with installation.connection() as conn:
        erasure_ledger.requests(conn, erasure)
        given = receipts.receipts_of(conn, erasure)
    records = open_keys(installation.home).records()
    for receipt in given:
        receipts.check(receipt, records)
    import msgspec

    document = {"receipts": [receipt.exported() for receipt in given], "keys": msgspec.to_builtins(records)}
    if output is None:
        common.output.document(document)
        return 0
    try:
        with output.open("x", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    except FileExistsError as error:
        raise Invalid(f"{output} exists", hint="name a file that is not there yet") from error
    common.output.line(f"{counted(len(given), 'receipt')} in {sanitise(str(output))}")
    return 0


@erase_app.command
def verify(
    *,
    needle: list[str] | None = None,
    needle_file: Path | None = None,
    common: Common = DEFAULT,
) -> int:
    """Look for residue of everything that was erased: each event in each tier, then the bytes of all files of the home.

    Exit code 20 if there is any. Give it texts that must not be there; they are not kept.

    Example: `stratalog erase verify --needle bob@example.org`

    Parameters
    ----------
    needle
        A text that must be nowhere; repeat it for several. Others may see it in the list of processes.
    needle_file
        A file with such texts, one a line.
    """
    _require()
    from stratalog.cold.residue import look_for_residue

    needles = [text.encode() for text in needle or ()]
    if needle_file is not None:
        needles += [line for line in needle_file.read_bytes().splitlines() if line.strip()]
    with common.output.progress("looking for residue") as step:
        report = look_for_residue(common.installation(), needles, step=lambda what: step(0, None, what))
    output = common.output
    if common.json:
        output.document(report)
    else:
        output.line(
            f"{counted(report.trajectories, 'erased trajectory')}: looked at {report.events:,} events in "
            f"{counted(report.logs, 'hot log')}, Postgres and {counted(report.files, 'Parquet file')}; "
            f"{human_bytes(report.bytes)} of files searched for {counted(len(needles), 'text')}"
        )
        for problem in report.problems:
            output.line(f"  {sanitise(problem)}", style="red")
        for text in report.not_looked_at:
            output.note(f"not looked at: {sanitise(text)}")
        if not report.problems:
            output.line("nothing was found", style="green")
    return Corrupt.exit_code if report.problems else 0


@erase_app.command
def abandon_log(log: uuid.UUID, /, *, reason: str, common: Common = DEFAULT) -> int:
    """Stop waiting for a hot log whose disk was destroyed; receipts will say so, with the reason.

    Example: `stratalog erase abandon-log 0f8fad5b-d9cb-469f-a165-70867728950e --reason "disk shredded, ticket 9"`

    Parameters
    ----------
    reason
        Why it cannot come back.
    """
    _require()
    from stratalog.warm import erasure_ledger

    with common.installation().connection() as conn:
        erasure_ledger.abandon(conn, log, reason)
    common.output.line(f"nobody waits for log {log} any more; give the receipts with: stratalog erase finish")
    return 0


def _require() -> None:
    require("psycopg", "warm")
    require("pyarrow", "cold")
    require("cryptography", "audit")


def _run(common: Common, selection: Selection | None, by: str, reason: str, *, bytes_too: bool) -> int:
    from stratalog.audit.erasure import erase as run

    installation, output = common.installation(), common.output
    keys = open_keys(installation.home)

    def told(done: Proceeded) -> None:
        if not common.json:
            many = counted(len(done.trajectories), "trajectory")
            output.line(f"{many} with {counted(done.events, 'event')} cannot be read any more")

    with output.progress("erasing") as step:
        erased = run(
            installation, keys, selection, by=by, reason=reason, bytes_too=bytes_too,
            step=lambda what: step(0, None, what), on_unreadable=told,
        )  # fmt: skip
    if common.json:
        output.document(_document(erased))
    else:
        _show(erased, output, bytes_too=bytes_too)
    return 0 if erased.finished else EXIT_OPEN


def _show(erased: Erased, output: Output, *, bytes_too: bool) -> None:
    from stratalog.audit.erasure import open_tiers

    for held in erased.proceeded.held:
        matters = ", ".join(sanitise(matter) for matter in held.matters)
        output.line(f"{held.trajectory_id} stays: held by {matters}", style="yellow")
    if erased.gone is not None:
        gone = erased.gone
        logs = sum(log.events for log in gone.logs)
        wal = f" and {counted(gone.warm.wal_files, 'file')} of its write-ahead log" if gone.warm.wal_files else ""
        output.line(
            f"bytes gone: {counted(logs, 'event')} from {counted(len(gone.logs), 'hot log')}; "
            f"{counted(len(gone.warm.tables), 'table')} of Postgres written anew{wal}; "
            f"{counted(gone.cold.files_rewritten if gone.cold else 0, 'Parquet file')} written anew; "
            f"{counted(gone.content.deleted, 'piece')} of content"
        )
        if gone.content.needed:
            output.note(f"{counted(gone.content.needed, 'piece')} of content stay: others refer to them, too")
        for problem in gone.problems:
            output.line(f"  open: {sanitise(problem)}", style="yellow")
    for receipt in erased.receipts:
        output.line(f"receipt of the {receipt.tier} tier, signed with {receipt.key_id[:16]}")
    for log in erased.behind:
        output.line(f"log {log.log_id} is behind: its sidecar erases there as soon as it runs", style="yellow")
    for request in erased.requests:
        output.line(_summary(request, open_tiers(request)))
    if not bytes_too:
        output.note("the bytes go with: stratalog erase finish")


def _summary(request: Request, waits: tuple[str, ...]) -> str:
    state = f"waits for {', '.join(waits)}" if waits else "has all its receipts"
    held = f", {request.held} held" if request.held else ""
    return f"erasure {request.erasure_id}: {request.unreadable} of {request.trajectories} unreadable{held}; {state}"


def _document(erased: Erased) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = {
        "finished": erased.finished,
        "unreadable": [str(id_) for id_ in erased.proceeded.trajectories],
        "events": erased.proceeded.events,
        "held": msgspec.to_builtins(erased.proceeded.held),
        "gone": msgspec.to_builtins(erased.gone),
        "receipts": [receipt.tier for receipt in erased.receipts],
        "requests": msgspec.to_builtins(erased.requests),
        "logs_behind": msgspec.to_builtins(erased.behind),
    }
    return found


def _state(state: str, matters: tuple[str, ...]) -> str:
    return f"held by {', '.join(map(sanitise, matters))}" if matters else state


def _at(at: Any) -> str:
    return "not yet" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
