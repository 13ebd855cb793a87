"""Retention policies: read from TOML, kept in a table version by version; the newest version is in force.

Guarantee: a file is loaded whole or not at all, and what was ever in force stays readable. Nothing is deleted by
loading, and without a policy nothing is ever deleted: `plan` and `apply` see only what the table says.

    [[policy]]
    name = "failed-runs"        # the first policy that fits a trajectory decides, alone
    tenant = ["acme"]           # each of these may be left out: then any fits
    model = "atlas-4"
    status = ["failed", "cancelled"]
    labels = { team = "research" }
    warm = "7d"                 # rows leave Postgres this long after the end; left out: never
    cold = "104w"               # the events leave the lake, too
    bulky = "30d"               # content that events refer to goes, the events stay
    undated = "import"          # imports without any time: the clocks run from when they came here; left out: never
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from stratalog.schemas import ids
from stratalog.schemas.errors import Invalid, NotFound
from stratalog.schemas.settings import duration_us
from stratalog.schemas.statements import statements
from stratalog.schemas.status import ENDED

from .database import Connection, answering, check_idle

FILE_NAME = "retention.toml"
FILE_BYTES_MAX = 1 << 20
POLICIES_MAX = 1000
STATUSES = ("pending", "running", "waiting_approval", "escalated", "imported", *sorted(ENDED))
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HINT = "nothing was changed; see docs/retention.md for what a policy may say"
HOT_RULE = (
    "each hot log forgets by itself what Postgres has committed and compared by hash, "
    "but for what a live trajectory needs to go on"
)
"""Why there is no clock for the hot tier."""

Names = str | list[str]


class Policy(msgspec.Struct, frozen=True):
    """What it fits, and its clocks in µs after the end. `None` fits anything, and keeps for ever."""

    name: str
    tenants: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    statuses: tuple[str, ...] | None = None
    labels: dict[str, str] = {}
    warm_us: int | None = None
    cold_us: int | None = None
    bulky_us: int | None = None
    undated: str = "keep"
    """Whether the clocks of undated imports never run (`keep`), or from when they came here (`import`)."""


class Policies(msgspec.Struct, frozen=True):
    """The content of a file: its exact text and the policies in their order."""

    text: str
    policies: tuple[Policy, ...]

    @property
    def sha256(self) -> bytes:
        """Of the text; tells whether a version is this file."""
        return hashlib.sha256(self.text.encode()).digest()


class Version(msgspec.Struct, frozen=True):
    """A version that was loaded."""

    version: int
    sha256: bytes
    loaded_by: str
    loaded_at: dt.datetime


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    tenant: Names | None = None
    model: Names | None = None
    status: Names | None = None
    labels: dict[str, str] = {}
    warm: str | None = None
    cold: str | None = None
    bulky: str | None = None
    hot: str | None = None
    undated: Literal["keep", "import"] = "keep"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: list[_Entry] = []


def read_policies(path: Path) -> Policies:
    """Read a file; raises `NotFound` where there is none, `Invalid` with what is wrong in it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="write the policies into it, see docs/retention.md") from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise Invalid(f"{path} has more than {FILE_BYTES_MAX:,} bytes", hint=_HINT)
    try:
        return parse_policies(data.decode())
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not UTF-8: {error.reason} at byte {error.start}", hint=_HINT) from error
    except Invalid as error:
        raise Invalid(f"{path}: {error.message}", hint=error.hint) from error


def parse_policies(text: str) -> Policies:
    """The policies of a TOML text; raises `Invalid` with what is wrong in it."""
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise Invalid(str(error), hint=_HINT) from error
    if len(file.policy) > POLICIES_MAX:
        raise Invalid(f"there are more than {POLICIES_MAX:,} policies", hint=_HINT)
    policies = tuple(_policy(entry) for entry in file.policy)
    names = [policy.name for policy in policies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Invalid(f"two policies are named {twice[0]}", hint=_HINT)
    return Policies(text, policies)


def _policy(entry: _Entry) -> Policy:
    if not _NAME.fullmatch(entry.name):
        raise Invalid(f"{entry.name!r} is no name for a policy: write a-z, 0-9, _ and -, at most 63", hint=_HINT)
    where = f"policy {entry.name}"
    tenants, models, statuses = (_names(names, where) for names in (entry.tenant, entry.model, entry.status))
    for tenant in tenants or ():
        ids.check_tenant(tenant)
    unknown = sorted(set(statuses or ()) - set(STATUSES))
    if unknown:
        raise Invalid(f"{where}: there is no status {unknown[0]!r}", hint=f"write one of {', '.join(STATUSES)}")
    if any("\0" in text for text in (*(models or ()), *entry.labels, *entry.labels.values())):
        raise Invalid(f"{where}: there is a NUL in a text", hint=_HINT)
    if entry.hot is not None:
        raise Invalid(f"{where}: hot has no clock: {HOT_RULE}", hint="leave it out; see docs/retention.md")
    warm_us, cold_us, bulky_us = (_clock(text, where) for text in (entry.warm, entry.cold, entry.bulky))
    if warm_us is not None and cold_us is not None and cold_us < warm_us:
        raise Invalid(f"{where}: cold is shorter than warm, which lies above it", hint=_HINT)
    clocks = (warm_us, cold_us, bulky_us)
    return Policy(entry.name, tenants, models, statuses, entry.labels, *clocks, undated=entry.undated)


def _names(names: Names | None, where: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    found = (names,) if isinstance(names, str) else tuple(names)
    if not found:
        raise Invalid(f"{where}: an empty list fits nothing", hint="leave it out, so that anything fits")
    return found


def _clock(text: str | None, where: str) -> int | None:
    try:
        return None if text is None else duration_us(text)
    except ValueError as error:
        raise Invalid(f"{where}: {error}", hint="write a duration such as 12h, 30d or 52w") from error


def load(conn: Connection, file: Policies, *, by: str) -> tuple[Version, bool]:
    """Put a file into force; returns the version in force and whether it is new. The same text changes nothing."""
    check_idle(conn)
    sql = statements("retention")
    with answering(), conn.transaction():
        conn.execute(sql["read_committed"])
        conn.execute(sql["lock_loading"])
        before = newest(conn)
        if before is not None and before.sha256 == file.sha256:
            return before, False
        version = 1 if before is None else before.version + 1
        values = {"version": version, "sha256": file.sha256, "text": file.text, "by": by}
        conn.execute(sql["insert_version"], values)
        for place, policy in enumerate(file.policies):
            conn.execute(sql["insert_policy"], _row(version, place, policy))
        loaded = newest(conn)
    assert loaded is not None
    return loaded, True


def policies_in_force(conn: Connection) -> list[Policy]:
    """The policies of the newest version, in their order."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("retention")["policies"]).fetchall()
    return [
        Policy(name, _tuple(tenants), _tuple(models), _tuple(statuses), labels, *rest)
        for name, tenants, models, statuses, labels, *rest in rows
    ]


def newest(conn: Connection) -> Version | None:
    """The version in force, `None` before the first; within the transaction that is open, if one is."""
    row = conn.execute(statements("retention")["version_in_force"]).fetchone()
    return None if row is None else Version(row[0], bytes(row[1]), *row[2:])


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _row(version: int, place: int, policy: Policy) -> dict[str, object]:
    lists = {name: getattr(policy, name) for name in ("tenants", "models", "statuses")}
    return {
        "version": version,
        "place": place,
        "name": policy.name,
        **{name: None if found is None else list(found) for name, found in lists.items()},
        "labels": msgspec.json.encode(policy.labels).decode(),
        "warm_us": policy.warm_us,
        "cold_us": policy.cold_us,
        "bulky_us": policy.bulky_us,
        "undated": policy.undated,
    }
