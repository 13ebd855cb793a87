"""`stratalog audit`: seal, verify, prove, and hand evidence to somebody else."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cyclopts import App

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.extras import require

from .keys import now_us, open_keys
from .options import DEFAULT, Common
from .output import Output, counted, human_us
from .sanitise import sanitise

if TYPE_CHECKING:
    from stratalog.audit.installation import AuditReport

audit_app = App(name="audit", help="Evidence: seal, verify and prove the histories; what auditors ask.")

PROBLEMS_SHOWN = 20


@audit_app.command
def seal(*, tenant: str | None = None, common: Common = DEFAULT) -> int:
    """Add the heads that have moved to the tenants' trees, and publish signed heads of these; meant to run hourly.

    Example: `stratalog audit seal`

    Parameters
    ----------
    tenant
        Only this tenant.
    """
    _require()
    from stratalog.audit.installation import seal_all

    installation = common.installation()
    done = seal_all(installation, open_keys(installation.home), now_us(), tenant)
    if common.json:
        common.output.document(done)
        return 0
    common.output.table(
        ["tenant", "new leaves", "leaves", "root", "sealed (UTC)", "key"],
        [
            [one.tenant, one.leaves, one.head.tree_size, one.head.root_hash[:16], human_us(one.head.timestamp),
             one.head.key_id[:16]]
            for one in done
        ],
    )  # fmt: skip
    published = sum(one.published for one in done)
    common.output.note(
        f"{counted(published, 'head')} published" if published else "nothing has moved since the last head"
    )
    return 0


@audit_app.command
def verify(*, tenant: str | None = None, common: Common = DEFAULT) -> int:
    """Verify the signed heads, the trees, and that every leaf names an event that is there with its hash.

    Example: `stratalog audit verify`

    Parameters
    ----------
    tenant
        Only this tenant.
    """
    _require()
    from stratalog.audit.installation import as_document, verify_all

    installation = common.installation()
    with common.output.progress("verifying"):
        report = verify_all(installation, open_keys(installation.home), tenant)
    if common.json:
        common.output.document(as_document(report))
    else:
        _show(report, common.output)
    return 0 if report.ok else Corrupt.exit_code


@audit_app.command
def prove(trajectory_id: uuid.UUID, /, *, common: Common = DEFAULT) -> int:
    """Print the proof that the newest sealed event of a trajectory is in the tree of a published head, as JSON.

    Example: `stratalog audit prove 0198c1a2-0000-7000-8000-000000000000`
    """
    _require()
    from stratalog.audit.proof import newest_leaf
    from stratalog.audit.proof import prove as prove_leaf
    from stratalog.audit.publication import open_publication

    installation = common.installation()
    with installation.connection() as conn:
        index, leaf = newest_leaf(conn, trajectory_id)
        with open_publication(installation, leaf.tenant) as publication:
            proof = prove_leaf(conn, publication, leaf, index)
    common.output.document(proof)
    return 0


def _show(report: AuditReport, output: Output) -> None:
    rows = [
        [
            found.tenant,
            counted(len(found.problems) + found.problems_left_out, "problem") if found.problems else "ok",
            found.leaves,
            found.heads_in_file,
            found.heads_in_storage,
            human_us(found.newest_head_at),
            found.unsealed,
        ]
        for found in report.tenants
    ]
    columns = ["tenant", "result", "leaves", "heads in file", "in storage", "newest head (UTC)", "not sealed yet"]
    output.table(columns, rows)
    for owner, problems in [("warm", report.warm_problems), *((f.tenant, f.problems) for f in report.tenants)]:
        for problem in problems[:PROBLEMS_SHOWN]:
            output.line(f"  {sanitise(owner)}: {sanitise(problem)}", style="red")
        if len(problems) > PROBLEMS_SHOWN:
            output.line(f"  … and {len(problems) - PROBLEMS_SHOWN:,} more; see them with --json", style="red")
    output.line("verified" if report.ok else "DAMAGE FOUND", style="green" if report.ok else "bold red")


def _require() -> None:
    require("psycopg", "warm")
    require("fsspec", "cold")
    require("cryptography", "audit")
