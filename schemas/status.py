"""The status of a trajectory, by one rule for the record and the summary.

pending (nothing yet), running, waiting_approval, escalated, completed, failed, cancelled; and `imported` for an import
whose source states no end: it is not running anywhere, and how it ended nobody knows.
"""

from __future__ import annotations

from collections.abc import Collection

ENDED = frozenset({"completed", "failed", "cancelled"})


def open_status(*, escalations: Collection[str], approvals: Collection[str], imported: bool) -> str:
    """The status of a trajectory that has begun and not ended."""
    if escalations:
        return "escalated"
    if approvals:
        return "waiting_approval"
    return "imported" if imported else "running"
