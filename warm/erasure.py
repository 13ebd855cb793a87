"""Erasure in the warm tier: what was asked for becomes unreadable, in one transaction with its place in the ledger.

    request ─▶ items (asked) ─▶ held, or: ledger + bodies, projections, secret, labels gone (unreadable) ─▶ bytes gone

Guarantee: when `proceed` returns, nothing of what it reports as erased can be read in Postgres or through the views,
and what arrives of it later, from a log that was away for a week, an import or a backup, is stored without its body.
What a legal hold covers, or what something held descends from, is not touched and reported; the request stays open and
the next run looks again. What descends from it (forks, sub-agents) is included, also when it comes later.

A crash leaves each trajectory as it was or erased; `proceed` goes on. The bytes in files go in later steps
(`erasure_bytes`, and those of the other tiers), which walk over the ledger.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from stratalog.schemas import ids
from stratalog.schemas.blobs import digests
from stratalog.schemas.errors import Conflict, Invalid, NotFound
from stratalog.schemas.statements import statements

from . import erasure_ledger, hold
from .database import Connection, answering, check_idle
from .deletion import lock_out_holds
from .places import PLACES

TRAJECTORIES_PER_STEP = 20
"""Few, so that ingest never waits long for a head."""
TRAJECTORIES_MAX = 100_000
"""The most that one request may name."""


class Subject(msgspec.Struct, frozen=True):
    """A person as a keyed hash, with the id of the key."""

    tenant: str
    digest: bytes
    key_id: bytes


class Selection(msgspec.Struct, frozen=True):
    """What to erase: exactly one of a set, a subject, or a condition over the columns of `trajectories`.

    `tenant` is that of trajectories of the set which are not known here (yet).
    """

    trajectories: tuple[uuid.UUID, ...] = ()
    subject: Subject | None = None
    where: str | None = None
    tenant: str | None = None


class Held(msgspec.Struct, frozen=True):
    """A trajectory that was not erased, and the matters that keep it."""

    trajectory_id: uuid.UUID
    tenant: str
    matters: tuple[str, ...]


class Proceeded(msgspec.Struct, frozen=True):
    """What a run made unreadable: trajectories and events; and what holds kept."""

    trajectories: tuple[uuid.UUID, ...] = ()
    events: int = 0
    held: tuple[Held, ...] = ()

    def __add__(self, other: Proceeded) -> Proceeded:
        return Proceeded(self.trajectories + other.trajectories, self.events + other.events, self.held + other.held)


def request(conn: Connection, selection: Selection, *, by: str, reason: str) -> int:
    """Note what is to be erased, with all that descends from it; returns the number of the request. Nothing is erased
    before `proceed`.

    Raises `Invalid` for a selection that is none or names too much, `NotFound` where it names nothing, or ids that are
    not known here without a tenant to go with them.
    """
    check_idle(conn)
    for name, text in (("name of who asks", by), ("reason", reason)):
        hold.check_text(name, text)
    kind, found = _select(conn, selection)
    if not found and kind != "subject":
        raise NotFound("the selection names no trajectory", hint="look with: stratalog trajectory list")
    if len(found) > TRAJECTORIES_MAX:
        raise Invalid(f"the selection names more than {TRAJECTORIES_MAX:,} trajectories", hint="erase them in parts")
    subject = selection.subject
    tenant, digest = (subject.tenant, subject.digest) if subject else (selection.tenant, None)
    values: dict[str, Any] = {"kind": kind, "tenant": tenant, "subject": digest, "by": by, "reason": reason}
    sql = statements("erasure")
    with answering(), conn.transaction():
        row = conn.execute(sql["insert_erasure"], values).fetchone()
        assert row is not None
        (erasure_id,) = row
        items = {"erasure_id": erasure_id, "ids": sorted(set(found)), "tenant": selection.tenant}
        conn.execute(sql["insert_items"], items)
    number: int = erasure_id
    return number


def proceed(conn: Connection, erasure_id: int | None = None) -> Proceeded:
    """Make unreadable what a request, or all of them, name and no hold keeps; also what came to be covered since.

    Raises `Conflict` while a partition with such rows is being dropped.
    """
    check_idle(conn)
    total = Proceeded()
    while True:
        total = msgspec.structs.replace(total, held=())
        with answering(), conn.transaction():
            rows = conn.execute(statements("erasure")["open_requests"], {"erasure_id": erasure_id}).fetchall()
        for (number,) in rows:
            total += _proceed(conn, number)
        # What was erased may be the parent of something that is not named by anybody yet.
        if not add_related(conn):
            return total


def add_related(conn: Connection) -> int:
    """Note what requests cover that came to be known after them; returns how many trajectories."""
    with answering(), conn.transaction():
        return conn.execute(statements("erasure")["add_related"]).rowcount


def _proceed(conn: Connection, erasure_id: int) -> Proceeded:
    done = Proceeded()
    after: uuid.UUID | None = None
    while True:
        values = {"erasure_id": erasure_id, "after": after, "limit": TRAJECTORIES_PER_STEP}
        with answering(), conn.transaction():
            rows = conn.execute(statements("erasure")["next_items"], values).fetchall()
        if not rows:
            return done
        after = rows[-1][0]
        done += _erase(conn, erasure_id, [id_ for (id_,) in rows])


def _erase(conn: Connection, erasure_id: int, wanted: Sequence[uuid.UUID]) -> Proceeded:
    """Erase or keep these, in one transaction; nothing is reported unless it commits."""
    sql = statements("erasure")
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        conn.execute(sql["lock_ledger"])
        lock_out_holds(conn)
        conn.execute(statements("deletions")["lock_heads"], {"ids": sorted(wanted)})
        # A statement of its own, after the locks: it sees what was committed before they were had.
        judged = conn.execute(sql["judge"], {"erasure_id": erasure_id, "ids": list(wanted)}).fetchall()
        held = [Held(id_, tenant, tuple(matters)) for id_, tenant, matters, _ in judged if matters]
        free = [id_ for id_, _, matters, _ in judged if not matters]
        _refuse_dropping([id_ for id_, _, matters, dropping in judged if dropping and not matters])
        if held:
            columns = {"ids": [one.trajectory_id for one in held], "matters": ["\n".join(one.matters) for one in held]}
            conn.execute(sql["keep_items"], {"erasure_id": erasure_id, **columns})
        events = 0
        if free:
            conn.execute(sql["insert_erased"], {"erasure_id": erasure_id, "ids": free})
            events = clear(conn, erasure_id, free)
            conn.execute(sql["finish_items"], {"erasure_id": erasure_id, "ids": free})
    return Proceeded(tuple(free), events, tuple(held))


def clear(conn: Connection, erasure_id: int, erased: Sequence[uuid.UUID]) -> int:
    """Take away all that can be read of these, within the caller's transaction; returns how many events changed."""
    bodies = (found for place in PLACES for found in place.references(conn, erased))
    content = {(tenant, digest) for tenant, body in bodies for digest in digests(body)}
    note_content(conn, erasure_id, content)
    changed = {place.name: place.clear(conn, erased) for place in PLACES}
    return changed["events"]


def note_content(conn: Connection, erasure_id: int, content: set[tuple[str, bytes]]) -> None:
    """Note pieces of content (tenant, SHA-256) that erased bodies referred to, within the caller's transaction."""
    if content:
        tenants, found = (list(values) for values in zip(*sorted(content), strict=True))
        values = {"erasure_id": erasure_id, "tenants": tenants, "digests": found}
        conn.execute(statements("erasure")["note_content"], values)


def _refuse_dropping(dropping: Sequence[uuid.UUID]) -> None:
    if dropping:
        raise Conflict(
            f"the partition of trajectory {dropping[0]} is being dropped, so its rows cannot be reached",
            hint="finish it with: stratalog retention apply; then run it again",
        )


def _select(conn: Connection, selection: Selection) -> tuple[str, list[uuid.UUID]]:
    given = {
        "trajectories": bool(selection.trajectories),
        "subject": selection.subject is not None,
        "selection": selection.where is not None,
    }
    kinds = [kind for kind, there in given.items() if there]
    if len(kinds) != 1:
        raise Invalid("an erasure needs one of trajectories, a subject or a condition", hint="ask for them one by one")
    if selection.tenant is not None:
        ids.check_tenant(selection.tenant)
    if selection.where is not None:
        return kinds[0], hold.select(conn, selection.where)
    if selection.subject is not None:
        return kinds[0], about(conn, selection.subject)
    named = list(selection.trajectories)
    with answering(), conn.transaction():
        unknown = conn.execute(statements("erasure")["unknown"], {"ids": named}).fetchall()
    if unknown and selection.tenant is None:
        raise NotFound(
            f"trajectory {unknown[0][0]} is not known here" + (f", and {len(unknown) - 1} more" if unknown[1:] else ""),
            hint="name its tenant, too, if it may still arrive: --tenant NAME",
        )
    return kinds[0], named


def about(conn: Connection, subject: Subject) -> list[uuid.UUID]:
    """The trajectories that are about a subject; raises `Conflict` where another key was used."""
    check_subject_key(conn, subject.key_id)
    values = {"tenant": ids.check_tenant(subject.tenant), "subject": subject.digest}
    with answering(), conn.transaction():
        return [id_ for (id_,) in conn.execute(statements("erasure")["of_subject"], values)]


def add_subject(conn: Connection, subject: Subject, about: Sequence[uuid.UUID]) -> int:
    """Note that trajectories of the subject's tenant are about it; returns how many did not say so before.

    Those that are erased, of another tenant or not known here are left out.
    """
    check_subject_key(conn, subject.key_id)
    values = {"tenant": ids.check_tenant(subject.tenant), "subject": subject.digest, "ids": list(about)}
    with answering(), conn.transaction():
        conn.execute(statements("erasure")["use_subject_key"], {"key_id": subject.key_id})
        return conn.execute(statements("erasure")["add_subjects"], values).rowcount


def check_subject_key(conn: Connection, key_id: bytes) -> None:
    """Raise `Conflict` where hashes here were made with another key: a subject would not be found."""
    with answering(), conn.transaction():
        known = [bytes(found) for (found,) in conn.execute(statements("erasure")["subject_keys"])]
    if known and key_id not in known:
        raise Conflict(
            "subjects were noted here with another key than this home has, so none would be found",
            hint="copy keys/subject.key from the home that noted them; all homes of one database need the same",
        )


def replay(conn: Connection, entries: Sequence[erasure_ledger.Entry]) -> int:
    """Erase what another ledger says and this one does not: after a restore; returns how many trajectories.

    A hold that stands in the restored database does not keep them: they were erased after it had been released.
    """
    check_idle(conn)
    known = erasure_ledger.among(conn, [entry.trajectory_id for entry in entries])
    new = [entry for entry in entries if entry.trajectory_id not in known]
    sql = statements("erasure")
    for first in range(0, len(new), TRAJECTORIES_PER_STEP):
        part = new[first : first + TRAJECTORIES_PER_STEP]
        wanted = [entry.trajectory_id for entry in part]
        request_ = {"kind": "ledger", "tenant": None, "subject": None, "by": part[0].requested_by}
        with answering(), conn.transaction():
            conn.execute(statements("retention")["read_committed"])
            conn.execute(statements("retention")["unlimited"])
            conn.execute(sql["lock_ledger"])
            conn.execute(statements("deletions")["lock_heads"], {"ids": sorted(wanted)})
            row = conn.execute(sql["insert_erasure"], {**request_, "reason": part[0].reason}).fetchone()
            assert row is not None
            (erasure_id,) = row
            tenants = [entry.tenant for entry in part]
            conn.execute(sql["insert_ledger_items"], {"erasure_id": erasure_id, "ids": wanted, "tenants": tenants})
            conn.execute(sql["insert_erased"], {"erasure_id": erasure_id, "ids": wanted})
            clear(conn, erasure_id, wanted)
            conn.execute(sql["finish_items"], {"erasure_id": erasure_id, "ids": wanted})
    return len(new)
