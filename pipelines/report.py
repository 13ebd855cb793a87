"""What the Dagster UI shows of the files of a run: counts, a table by tenant and model, a plot."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
import msgspec

from stratalog.cold.catalog import RunFile

TABLE_ROWS_MAX = 200
BARS_MAX = 20


class Share(msgspec.Struct):
    """What one tenant's model has in these files."""

    days: set[str]
    files: int = 0
    events: int = 0
    bytes: int = 0


Shares = dict[tuple[str, str], Share]


def describe(files: Iterable[RunFile]) -> dict[str, Any]:
    """Metadata of a materialization that made these files."""
    shares = shares_of(files)
    total = Share(set().union(*(share.days for share in shares.values())))
    for share in shares.values():
        total.files += share.files
        total.events += share.events
        total.bytes += share.bytes
    metadata: dict[str, Any] = {
        "dagster/row_count": total.events,
        "files": total.files,
        "bytes": total.bytes,
        "bytes_per_event": round(total.bytes / total.events, 1) if total.events else 0.0,
        "start_days": len(total.days),
    }
    if shares:
        metadata["by_tenant_and_model"] = table(shares)
        metadata["plot"] = dg.MetadataValue.md(f"![events and bytes](data:image/png;base64,{plot(shares)})")
    return metadata


def shares_of(files: Iterable[RunFile]) -> Shares:
    """The files by tenant and model (its slug), the largest first."""
    shares: Shares = {}
    for file in files:
        folder = dict(part.split("=", 1) for part in file.url.split("/") if "=" in part)
        share = shares.setdefault((folder["tenant"], folder["model"]), Share(set()))
        share.days.add(folder["date"])
        share.files += 1
        share.events += file.rows
        share.bytes += file.bytes
    return dict(sorted(shares.items(), key=lambda entry: (-entry[1].events, entry[0])))


def table(shares: Shares) -> dg.TableMetadataValue:
    """A table of the largest shares, at most 200 rows."""
    rows = list(shares.items())[:TABLE_ROWS_MAX]
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "tenant": tenant,
                    "model": model,
                    "days": len(share.days),
                    "files": share.files,
                    "events": share.events,
                    "bytes": share.bytes,
                }
            )
            for (tenant, model), share in rows
        ]
    )


def plot(shares: Mapping[tuple[str, str], Share]) -> str:
    """A PNG in base64: events and bytes of the largest tenants and models, at most 20 of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    top = list(shares.items())[:BARS_MAX]
    labels = [f"{tenant} / {model}" for (tenant, model), _ in top]
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(top)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(labels, [share.events for _, share in top], color="#3b6ea5")
    left.set_xlabel("events")
    left.invert_yaxis()
    right.barh(labels, [share.bytes / 1e6 for _, share in top], color="#b5651d")
    right.set_xlabel("MB of Parquet")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.locator_params(axis="x", nbins=4)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=80)
    return base64.b64encode(image.getvalue()).decode("ascii")
