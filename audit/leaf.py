"""A leaf of a tenant's tree: the head of one trajectory, as it was sealed.

    leaf input = "stratalog.audit.leaf.v1" ‖ 0x00 ‖ length of tenant (u8) ‖ tenant ‖ trajectory id (16)
                 ‖ sequence number (u64) ‖ event hash (32)

The hash of an event covers everything before it in its trajectory, so one leaf covers all events up to its own. The
domain keeps the bytes from being mistaken for anything else that is hashed here; the tenant keeps a leaf of one
tenant's tree from standing in another's. Where a leaf lies in the tree is proven by the tree.
"""

from __future__ import annotations

import uuid

import msgspec

from .tree import hash_leaf

_DOMAIN = b"stratalog.audit.leaf.v1\0"


class Leaf(msgspec.Struct, frozen=True):
    """The event `sequence_number` of a trajectory has this hash (32 bytes)."""

    tenant: str
    trajectory_id: uuid.UUID
    sequence_number: int
    event_hash: bytes

    def encode(self) -> bytes:
        """The leaf input, before the tree's own prefix."""
        tenant = self.tenant.encode("ascii")
        return b"".join(
            (
                _DOMAIN,
                bytes([len(tenant)]),
                tenant,
                self.trajectory_id.bytes,
                self.sequence_number.to_bytes(8, "big"),
                self.event_hash,
            )
        )

    @property
    def hash(self) -> bytes:
        """The leaf hash."""
        return hash_leaf(self.encode())
