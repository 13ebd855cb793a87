"""`stratalog audit`: seal, verify, prove, and hand evidence to somebody else."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.extras import require

from .audit_questions import approvals, effects, policies, settlements
from .keys import now_us, open_keys
from .options import DEFAULT, Common
from .output import Output, counted, human_us
from .sanitise import sanitise
from .usage import Usage

if TYPE_CHECKING:
    from stratalog.audit.installation import AuditReport
    from stratalog.audit.verification import TenantAudit

audit_app = App(name="audit", help="Evidence: seal, verify and prove the histories; what auditors ask.")

for _question in (approvals, policies, effects, settlements):
    audit_app.command(_question)

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
def recover(*, tenant: str | None = None, common: Common = DEFAULT) -> int:
    """Put back leaves that a restored database lacks, from the copies in the storage; they must give the signed root.

    Example: `stratalog audit recover`

    Parameters
    ----------
    tenant
        Only this tenant.
    """
    _require()
    from stratalog.audit.installation import recover_all

    installation = common.installation()
    done = recover_all(installation, open_keys(installation.home), tenant)
    if common.json:
        common.output.document(done)
    else:
        common.output.table(["tenant", "leaves put back"], [[name, count] for name, count in done.items()])
    return 0


@audit_app.command
def prove(trajectory_id: uuid.UUID, /, *, common: Common = DEFAULT) -> int:
    """Print the proof that the newest sealed event of a trajectory is in the tree of a published head, as JSON.

    Example: `stratalog audit prove 0198c1a2-0000-7000-8000-000000000000`
    """
    _require()
    from stratalog.audit.installation import prove_one

    common.output.document(prove_one(common.installation(), trajectory_id))
    return 0


@audit_app.command
def bundle(*trajectory_ids: uuid.UUID, output: Path, common: Common = DEFAULT) -> int:
    """Write trajectories with their proofs, heads, keys, content and a report into one archive for somebody else.

    Example: `stratalog audit bundle 0198c1a2-0000-7000-8000-000000000000 --output bundle.zip`

    Parameters
    ----------
    output
        The archive to write. It holds the trajectories' secrets.
    """
    _require()
    from stratalog.audit.installation import bundle_all

    if not trajectory_ids:
        raise Usage("there is no trajectory", hint="name at least one; list them: stratalog trajectory list")
    installation = common.installation()
    with common.output.progress("bundling"):
        checked = bundle_all(installation, open_keys(installation.home), now_us(), output, list(trajectory_ids))
    if common.json:
        common.output.document({"file": str(output), **checked})
    else:
        _show_bundle(checked, common.output)
        common.output.line(f"written to {sanitise(str(output))}, confidential: it holds the secrets")
    return 0


@audit_app.command
def check(file: Path, /, *, trust: str = "", common: Common = DEFAULT) -> int:
    """Check an evidence bundle with this version's own checker; needs no home, and runs nothing that is in the bundle.

    Example: `stratalog audit check bundle.zip`

    Parameters
    ----------
    trust
        The id that the first key must have; `key list` of those who made the bundle shows it.
    """
    require("cryptography", "audit")
    from stratalog.audit.checker import check_bundle

    if not file.is_file():
        raise NotFound(f"there is no file {file}")
    checked = check_bundle(str(file), trust)
    if common.json:
        common.output.document(checked)
    else:
        _show_bundle(checked, common.output)
    return 0 if checked["ok"] else Corrupt.exit_code


def _show_bundle(checked: dict[str, Any], output: Output) -> None:
    columns = ["trajectory", "events", "leaf", "of", "sealed (UTC)", "tenant"]
    names = ["trajectory_id", "events", "leaf_index", "tree_size", "sealed_at", "tenant"]
    rows = [[found[name] for name in names] for found in checked["trajectories"]]
    output.table(columns, [[*row[:4], human_us(row[4]), row[5]] for row in rows])
    for problem in checked["problems"]:
        output.line(f"  {sanitise(problem)}", style="red")
    output.line(f"first key {sanitise(checked['first_key'] or 'unknown')}: compare it with the one that you were given")
    good = checked["ok"]
    output.line("verified" if good else "THE BUNDLE DOES NOT VERIFY", style="green" if good else "bold red")


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
    for found in report.tenants:
        _show_gone(found, output)
    output.line("verified" if report.ok else "DAMAGE FOUND", style="green" if report.ok else "bold red")


def _show_gone(found: TenantAudit, output: Output) -> None:
    """What has gone on purpose: who, when and why."""
    tenant = sanitise(found.tenant)
    if found.deleted:
        output.line(f"  {tenant}: retention has deleted the events of {found.deleted:,} leaves in every tier")
    for (policy, version, by), count in Counter((d.policy, d.version, d.loaded_by) for d in found.deletions).items():
        output.line(
            f"    {count:,} by policy {sanitise(policy)} of version {version}, put into force by {sanitise(by)}"
        )
    if found.erased:
        output.line(f"  {tenant}: {counted(found.erased, 'trajectory')} erased, their events stay without bodies")
    for erasure in found.erasures[:PROBLEMS_SHOWN]:
        said = f"asked for by {sanitise(erasure.requested_by)}: {sanitise(erasure.reason)}"
        output.line(f"    {erasure.trajectory_id}, {human_us(erasure.at)} UTC, {said}")
    if found.erased > PROBLEMS_SHOWN:
        output.line(f"    … and {found.erased - PROBLEMS_SHOWN:,} more; see them with --json")


def _require() -> None:
    require("psycopg", "warm")
    require("fsspec", "cold")
    require("cryptography", "audit")
