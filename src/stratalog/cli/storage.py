"""`stratalog storage`: how much lies where, what it costs, how it grows; and what frees bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App

from stratalog.cold.installation import require_cold
from stratalog.schemas.errors import Invalid
from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise

if TYPE_CHECKING:
    from stratalog.cold.prices import Prices
    from stratalog.cold.usage import InPacks, Usage

DAYS_MAX = 366
PROBLEMS_SHOWN = 20
EXIT_PARTIAL = 3
TIERS = ("hot", "warm", "cold", "content")
storage_app = App(name="storage", help="How much lies in which tier, what it costs, how it grows; and freeing bytes.")


@storage_app.default
def show(*, days: int = 7, plot: Path | None = None, common: Common = DEFAULT) -> int:
    """Show bytes, files and events per tier, tenant and kind of event, the cost a month, growth and a forecast.

    Example: `stratalog storage --plot storage.png`

    Parameters
    ----------
    days
        How many of the last days growth is taken from, today included.
    plot
        Also draw it, into a PNG file.
    """
    if not 1 <= days <= DAYS_MAX:
        raise Invalid(f"--days {days} is not between 1 and {DAYS_MAX}", hint="7 is a good start")
    require_cold()
    if plot is not None:
        require("matplotlib", "pipelines")
    from stratalog.cold.prices import read_prices
    from stratalog.cold.usage import measure

    installation = common.installation()
    prices = read_prices(installation.home.path)
    usage = measure(installation, days=days)
    if plot is not None:
        from .storage_plot import draw

        draw(usage, prices, plot)
    if common.json:
        common.output.document(_document(usage, prices))
        return 0
    _show_tiers(usage, prices, common.output)
    _show_packs(usage.packs, common.output)
    _show_tenants(usage, prices, common.output)
    _show_kinds(usage, common.output)
    _show_growth(usage, prices, common.output)
    if plot is not None:
        common.output.note(f"drawn into {sanitise(str(plot))}")
    return 0


@storage_app.command
def expire(*, older_than: str = "7d", dry_run: bool = False, common: Common = DEFAULT) -> int:
    """Forget old snapshots of the cold table and delete the bytes that only they needed; also what crashes have left.

    Example: `stratalog storage expire --older-than 30d --dry-run`

    Parameters
    ----------
    older_than
        How long ago a snapshot must have been replaced; at least 1h.
    dry_run
        Only say what would go.
    """
    require_cold()
    from stratalog.cold.expiry import expire as expire_snapshots

    with common.installation().tiers() as tiers:
        done = expire_snapshots(tiers, older_than, dry_run=dry_run)
    if common.json:
        common.output.document({**msgspec.to_builtins(done), "dry_run": dry_run})
        return 0
    files = done.metadata_files + done.data_files
    common.output.line(
        f"{counted(len(done.snapshots), 'snapshot')} {'would expire' if dry_run else 'expired'}, "
        f"{human_bytes(done.bytes)} in {counted(files, 'file')} {'would be' if dry_run else 'were'} deleted"
    )
    for path in done.unknown:
        common.output.note(f"left alone: {sanitise(path)}, which no snapshot names and which may not be ours")
    return 0


@storage_app.command
def sweep(*, grace: str = "24h", dead_share: float = 0.3, dry_run: bool = False, common: Common = DEFAULT) -> int:
    """Delete content that no event refers to: one sweep condemns it, one after the grace looks again and deletes it.

    Example: `stratalog storage sweep`

    Parameters
    ----------
    grace
        How long content must have been condemned; longer than any sidecar takes for a batch, at least 1h.
    dead_share
        Packs of which more than this share is not needed any more are written again without it.
    dry_run
        Only count.
    """
    require_cold()
    if not 0 <= dead_share <= 1:
        raise Invalid(f"--dead-share {dead_share} is not between 0 and 1", hint="0.3 is a good start")
    from stratalog.cold.sweep import sweep as sweep_content

    with common.installation().tiers() as tiers:
        done = sweep_content(tiers, tiers.store, grace, dry_run=dry_run, dead_share_max=dead_share)
    if common.json:
        common.output.document({**msgspec.to_builtins(done), "dry_run": dry_run})
        return EXIT_PARTIAL if done.problems else 0
    common.output.line(
        f"{counted(done.deleted, 'piece')} of content {'would be' if dry_run else 'were'} deleted "
        f"({human_bytes(done.bytes)}), {done.condemned:,} {'would be ' if dry_run else ''}condemned, "
        f"{done.waiting:,} wait for the grace of {sanitise(grace)}, {done.spared:,} spared, {done.needed:,} needed"
    )
    if done.packs:
        common.output.line(f"{counted(done.packs, 'pack')} written again")
    return _problems(done.problems, common.output)


@storage_app.command
def pack(*, dry_run: bool = False, common: Common = DEFAULT) -> int:
    """Move content of consolidated trajectories into packs, which are several times smaller.

    Example: `stratalog storage pack`

    Parameters
    ----------
    dry_run
        Only count.
    """
    require_cold()
    from stratalog.cold.packs import pack as pack_content

    with common.installation().tiers() as tiers, common.output.progress("packing"):
        done = pack_content(tiers, dry_run=dry_run)
    if common.json:
        common.output.document({**msgspec.to_builtins(done), "dry_run": dry_run})
        return EXIT_PARTIAL if done.problems else 0
    would = "would be" if dry_run else "were"
    into = "" if dry_run else f" in {counted(done.packs, 'pack')}, {human_bytes(done.bytes)}"
    common.output.line(f"{counted(done.pieces, 'piece')} ({human_bytes(done.raw_bytes)}) {would} packed{into}")
    if done.deleted or done.waiting:
        common.output.line(f"{counted(done.deleted, 'loose file')} deleted, {done.waiting:,} left for the next time")
    return _problems(done.problems, common.output)


@storage_app.command
def reindex(*, common: Common = DEFAULT) -> int:
    """Make the index of packed content in Postgres again from the packs: what is missing or wrong there.

    Example: `stratalog storage reindex`
    """
    require_cold()
    from stratalog.cold.pack_check import reindex as make_index

    with common.installation().tiers() as tiers, common.output.progress("reading packs"):
        done = make_index(tiers.store)
    if common.json:
        common.output.document(msgspec.to_builtins(done))
        return EXIT_PARTIAL if done.problems else 0
    common.output.line(
        f"{counted(done.packs, 'pack')} read, {done.made:,} pieces added to the index, {done.removed:,} removed from it"
    )
    return _problems(done.problems, common.output)


@storage_app.command
def owner(*, take_over: bool = False, common: Common = DEFAULT) -> int:
    """Show to which database the lake and the content store belong; one that is another's is refused by all that write.

    Example: `stratalog storage owner`

    Parameters
    ----------
    take_over
        Make both belong to this database: only where no other uses them any more, or its content will be swept.
    """
    require_cold()
    from stratalog.cold import owner as owners

    with common.installation().tiers() as tiers:
        if take_over:
            owners.take_over(tiers)
        found = owners.places(tiers)
    if common.json:
        common.output.document({"places": msgspec.to_builtins(found), "taken_over": take_over})
        return 0
    rows: list[list[object]] = []
    for place in found:
        database, since = (place.owner.database_id, place.owner.since) if place.owner else ("nobody yet", "")
        rows.append([place.url, f"{database} (this one)" if place.ours else database, since])
    common.output.table(["storage", "belongs to database", "since"], rows)
    return 0


def _problems(problems: tuple[str, ...], output: Output) -> int:
    """Say what is wrong; the exit code."""
    for problem in problems[:PROBLEMS_SHOWN]:
        output.note(sanitise(problem))
    if len(problems) > PROBLEMS_SHOWN:
        output.note(f"… and {len(problems) - PROBLEMS_SHOWN:,} more; see them all with --json")
    return EXIT_PARTIAL if problems else 0


def _document(usage: Usage, prices: Prices | None) -> dict[str, Any]:
    tiers = {
        tier: {
            "bytes": usage.bytes_of(tier),
            "events": (events := usage.events_of(tier)),
            "bytes_per_event": usage.bytes_of(tier) / events if events else None,
            "cost_per_month": prices.cost(tier, usage.bytes_of(tier)) if prices else None,
        }
        for tier in TIERS
    }
    costs = [tier["cost_per_month"] for tier in tiers.values() if tier["cost_per_month"] is not None]
    return {
        "tiers": tiers,
        "bytes": sum(usage.bytes_of(tier) for tier in TIERS),
        "cost_per_month": sum(costs) if costs else None,
        "currency": prices.currency if prices else None,
        **msgspec.to_builtins(usage, str_keys=True),
    }


def _show_tiers(usage: Usage, prices: Prices | None, output: Output) -> None:
    rows: list[list[object]] = []
    for part in usage.parts:
        rows.append([part.tier, part.part, human_bytes(part.bytes), _number(part.files), _number(part.events), "", ""])
    for tier in TIERS:
        size, events = usage.bytes_of(tier), usage.events_of(tier)
        each = human_bytes(size / events) if events else ""
        rows.append([tier, "all", human_bytes(size), "", _number(events), each, _cost(prices, tier, size)])
    rows.sort(key=lambda row: (TIERS.index(str(row[0])), row[1] == "all"))
    output.table(["tier", "part", "bytes", "files", "events", "an event", "a month"], rows)
    if prices is None:
        output.note("no cost is shown: prices.toml is not in the home (docs/storage.md)")


def _show_packs(packs: InPacks, output: Output) -> None:
    if packs.packs:
        output.line(
            f"{counted(packs.pieces, 'piece')} of content in {counted(packs.packs, 'pack')}: "
            f"{human_bytes(packs.raw_bytes)} in {human_bytes(packs.bytes)}, "
            f"{human_bytes(packs.raw_bytes - packs.needed_bytes)} of it not needed any more"
        )


def _show_tenants(usage: Usage, prices: Prices | None, output: Output) -> None:
    rows = []
    for of in usage.tenants:
        costs = [
            cost
            for tier, size in (("warm", of.warm_bytes), ("cold", of.cold_bytes), ("content", of.content_bytes))
            if prices and (cost := prices.cost(tier, size)) is not None
        ]
        month = f"{sum(costs):.2f} {sanitise(prices.currency)}" if prices and costs else ""
        sizes = (of.warm_bytes, of.cold_bytes, of.content_bytes)
        rows.append([of.tenant, *map(human_bytes, sizes), _number(of.warm_events), _number(of.cold_events), month])
    output.table(["tenant", "warm", "cold", "content", "warm events", "cold events", "a month"], rows)


def _show_kinds(usage: Usage, output: Output) -> None:
    rows = [
        [of.kind, _number(of.warm_events), human_bytes(of.warm_bytes), _number(of.cold_events)] for of in usage.kinds
    ]
    output.table(["kind", "warm events", "warm", "cold events"], rows)


def _show_growth(usage: Usage, prices: Prices | None, output: Output) -> None:
    days = [[str(day.day), *map(human_bytes, (day.warm, day.cold, day.content))] for day in usage.days]
    output.table(["day", "warm", "cold", "content"], days)
    rows = []
    for grown in usage.growth:
        ahead = [f"{human_bytes(size)} {_cost(prices, grown.tier, size)}".strip() for size in grown.forecast.values()]
        rows.append([grown.tier, human_bytes(grown.bytes_per_day), *ahead])
    horizons = list(usage.growth[0].forecast) if usage.growth else []
    output.table(["tier", "a day", *(f"in {horizon} days" for horizon in horizons)], rows)


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _cost(prices: Prices | None, tier: str, size: float) -> str:
    cost = None if prices is None else prices.cost(tier, size)
    return "" if prices is None or cost is None else f"{cost:.2f} {sanitise(prices.currency)}"
