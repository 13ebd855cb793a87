"""Identifiers: UUIDv7 for trajectories (their timestamp is the start), random for logs, names that are safe in paths.

An imported trajectory gets its id from its start time and a hash of what the source says of itself, so the same source
meets the same trajectory wherever and whenever it is imported.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
import uuid

import uuid_utils

from .errors import Invalid

TENANT_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
DEFAULT_TENANT = "default"

_SLUG_DROPPED = re.compile(r"[^a-z0-9._-]+")
_SLUG_LENGTH_MAX = 48
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def new_trajectory_id() -> uuid.UUID:
    """A UUIDv7 for a trajectory that starts now."""
    return uuid.UUID(int=uuid_utils.uuid7().int)


def new_log_id() -> uuid.UUID:
    """A random id for one hot log."""
    return uuid.uuid4()


def uuid7_at(started_at_us: int, entropy: bytes) -> uuid.UUID:
    """A UUIDv7 (RFC 9562, section 5.7) with the given start, µs since 1970, and 10 bytes of entropy."""
    milliseconds = min(max(started_at_us, 0) // 1000, (1 << 48) - 1)
    value = (milliseconds << 80) | int.from_bytes(entropy[:10], "big")
    value &= ~(0xF << 76) & ~(0x3 << 62)
    return uuid.UUID(int=value | (0x7 << 76) | (0x2 << 62))


def uuid7_time_us(trajectory_id: uuid.UUID) -> int:
    """The start that a UUIDv7 carries, in µs since 1970 (a whole number of milliseconds)."""
    return (trajectory_id.int >> 80) * 1000


def imported_trajectory_id(
    started_at_us: int, tenant: str, format_name: str, run_id: str, agent_id: str, first_record: bytes
) -> uuid.UUID:
    """The id that an imported trajectory has everywhere; `first_record` is the digest of its first record."""
    digest = hashlib.sha256(b"stratalog.import.v1\0")
    for field in (
        tenant.encode(),
        format_name.encode(),
        run_id.encode("utf-8", "surrogatepass"),
        agent_id.encode("utf-8", "surrogatepass"),
        first_record,
    ):
        digest.update(len(field).to_bytes(8, "big") + field)
    return uuid7_at(started_at_us, digest.digest())


def imported_secret(import_key: bytes, trajectory_id: uuid.UUID) -> bytes:
    """The 32-byte secret of an imported trajectory, from the tenant's import key (32 bytes)."""
    return hmac.digest(import_key, b"stratalog.import-secret.v1\0" + trajectory_id.bytes, "sha256")


def check_tenant(tenant: str) -> str:
    """Return `tenant`, or raise `Invalid`: tenant names become folders and must not be able to leave theirs."""
    if TENANT_PATTERN.fullmatch(tenant) is None:
        raise Invalid(
            f"{tenant!r} is not a tenant name",
            hint="use 1 to 63 of a-z, 0-9, _ and -, starting with a letter or a digit",
        )
    return tenant


def model_slug(model: str) -> str:
    """A folder name for a model: readable, and different for different models; `unknown` for the empty name."""
    if not model:
        return "unknown"
    readable = _SLUG_DROPPED.sub("-", model.lower()).strip("-.")[:_SLUG_LENGTH_MAX].rstrip("-.")
    if readable == model and readable != "unknown":
        return readable
    suffix = hashlib.sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{readable or 'model'}-{suffix}"


def to_us(moment: dt.datetime) -> int:
    """µs since 1970 of an aware datetime."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(microseconds: int) -> dt.datetime:
    """The UTC datetime of µs since 1970; clamped to what a datetime can hold."""
    try:
        return _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        return dt.datetime.max.replace(tzinfo=dt.UTC) if microseconds > 0 else _EPOCH
