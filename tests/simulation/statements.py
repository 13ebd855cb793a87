"""What the product's statements do, in Python: one function for each, by its name in `schemas/sql/queries/`.

Each is a line-by-line reading of its SQL; the real statements have tests of their own against real servers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from stratalog.schemas import ids
from stratalog.schemas.envelope import GENESIS_HASH
from stratalog.schemas.statements import statements

from .postgres import Handler, Transaction

HANDLERS: dict[bytes, Handler] = {}
Parameters = dict[str, Any]
Rows = list[tuple[Any, ...]]
_EPOCH = dt.date(1970, 1, 1)
_NO_TIME = dt.datetime.max.replace(tzinfo=dt.UTC)


def statement(subject: str) -> Callable[[Handler], Handler]:
    """Register a function as the statement of its name."""

    def register(handler: Handler) -> Handler:
        HANDLERS[statements(subject)[handler.__name__]] = handler
        return handler

    return register


# --- ledger ----------------------------------------------------------------------------------------------------------


@statement("ledger")
def lock_leases(tx: Transaction, given: Parameters) -> Rows:
    locked = [(id_,) for id_ in sorted(given["ids"]) if tx.get("lease", id_) is not None]
    for (id_,) in locked:
        tx.lock("lease", id_, share=True)
    return locked


@statement("ledger")
def read_seals(tx: Transaction, given: Parameters) -> Rows:
    return [(id_, *seal) for id_ in given["ids"] for seal in tx.get("seals", id_) or ()]


@statement("ledger")
def insert_missing_heads(tx: Transaction, given: Parameters) -> int:
    made = 0
    for id_, tenant, log_id in zip(given["ids"], given["tenants"], given["logs"], strict=True):
        if tx.get("head", id_) is None:
            tx.lock("head", id_)
            row = {"tenant": tenant, "secret": None, "log": log_id, "sequence": -1, "hash": given["genesis"]}
            row |= {"stray": False, "summary": b"", "through": -1, "through_hash": None, "model": ""}
            tx.put("head", id_, row | {"finished": None, "last": None, "imported": False})
            made += 1
    return made


@statement("ledger")
def lock_heads(tx: Transaction, given: Parameters) -> Rows:
    names = ("tenant", "secret", "log", "sequence", "hash", "stray", "summary", "through", "through_hash")
    rows = []
    for id_ in sorted(given["ids"]):
        if tx.get("head", id_) is not None:
            tx.lock("head", id_)
            row = tx.get("head", id_)
            rows.append((id_, *(row[name] for name in names)))
    return rows


@statement("ledger")
def remove_empty_heads(tx: Transaction, given: Parameters) -> int:
    for id_ in given["ids"]:
        row = tx.get("head", id_)
        if row is not None and row["sequence"] < 0:
            tx.put("head", id_, None)
    return 0


@statement("ledger")
def read_erased(tx: Transaction, given: Parameters) -> Rows:
    return []  # nobody erases anything here


@statement("ledger")
def insert_links(tx: Transaction, given: Parameters) -> int:
    return 0  # nothing here reads them


@statement("ledger")
def insert_subjects(tx: Transaction, given: Parameters) -> int:
    return 0  # nothing here reads them


@statement("ledger")
def read_stored_hashes(tx: Transaction, given: Parameters) -> Rows:
    rows = []
    for place in zip(given["ids"], given["sequences"], strict=True):
        event = tx.get("event", place)
        rows.append((*place, None if event is None else event["hashes"]))
    return rows


@statement("ledger")
def read_refused(tx: Transaction, given: Parameters) -> Rows:
    return [
        (row["reason"], row["header"])
        for id_, sequence in zip(given["ids"], given["sequences"], strict=True)
        for _, row in tx.quarantined(id_)
        if row["sequence_number"] == sequence and row["admitted_at"] is None
    ]


@statement("ledger")
def missing_partitions(tx: Transaction, given: Parameters) -> Rows:
    return [(tx.postgres.world.clock.now().date(), 0, [])]


@statement("ledger")
def insert_events(tx: Transaction, given: Parameters) -> int:
    names = list(given)
    written = 0
    for values in zip(*given.values(), strict=True):
        row = dict(zip(names, values, strict=True))
        place = row["ids"], row["sequences"]
        if tx.get("event", place) is None:
            tx.put("event", place, row)
            written += 1
    return written


@statement("ledger")
def update_heads(tx: Transaction, given: Parameters) -> int:
    written = 0
    renamed = {"tenants": "tenant", "secrets": "secret", "logs": "log", "sequences": "sequence", "hashes": "hash"}
    renamed |= {"strays": "stray", "summaries": "summary", "models": "model"}
    names = list(given)
    for values in zip(*given.values(), strict=True):
        row = {renamed.get(name, name): value for name, value in zip(names, values, strict=True)}
        old = tx.get("head", row["ids"])
        if old is not None:
            tx.lock("head", row["ids"])
            tx.put("head", row["ids"], {**old, **row})
            written += 1
    return written


# --- erasure: nobody asks for one here ------------------------------------------------------------------------------


@statement("erasure")
def pending_of_log(tx: Transaction, given: Parameters) -> Rows:
    return []


@statement("erasure")
def add_related(tx: Transaction, given: Parameters) -> int:
    return 0


# --- ingest ----------------------------------------------------------------------------------------------------------


@statement("ingest")
def move_cursor(tx: Transaction, given: Parameters) -> int:
    log_id, predecessor = given["log_id"], given["predecessor"]
    stands = tx.get("cursor", log_id)
    if stands is None and predecessor != 0:
        return 0
    tx.lock("cursor", log_id)
    if stands is not None and stands[0] != predecessor:
        return 0
    tx.put("cursor", log_id, (given["lsn"], given["hash"], given["opening"]))
    return 1


@statement("ingest")
def read_cursor(tx: Transaction, given: Parameters) -> Rows:
    row = tx.get("cursor", given["log_id"])
    return [] if row is None else [row]


@statement("ingest")
def inherit_cursor(tx: Transaction, given: Parameters) -> int:
    start = given["lsn"], given["hash"]
    previous = tx.get("cursor", given["previous"])
    if previous is None or not (previous[0] > start[0] or previous[:2] == start):
        return 0
    if tx.get("cursor", given["log_id"]) is None:
        tx.lock("cursor", given["log_id"])
        tx.put("cursor", given["log_id"], (*start, b""))
        tx.after_commit.append(lambda: tx.postgres.world.oracle.inherited(given["log_id"], start[0]))
    return 1


@statement("ingest")
def quarantine_events(tx: Transaction, given: Parameters) -> int:
    columns = ("lsns", "ids", "sequences", "tenants", "reasons", "details", "headers", "bodies", "erased", "secrets")
    names = ("lsn", "trajectory_id", "sequence_number", "tenant", "reason", "detail", "header", "body", "erased")
    written = 0
    for values in sorted(zip(*(given[column] for column in columns), strict=True)):
        row = dict(zip((*names, "secret"), values, strict=True))
        number = tx.postgres.quarantine_at.get((given["log_id"], row["lsn"]))
        if number is None:
            number = tx.postgres.last_quarantine_id = tx.postgres.last_quarantine_id + 1
            tx.put("quarantine", number, {**row, "log_id": given["log_id"], "admitted_at": None})
        else:
            old = tx.get("quarantine", number)
            if old["header"] != row["header"]:
                continue
            tx.put("quarantine", number, {**old, "reason": row["reason"], "detail": row["detail"]})
        written += 1
    return written


# --- quarantine ------------------------------------------------------------------------------------------------------


@statement("quarantine")
def open_trajectories(tx: Transaction, given: Parameters) -> Rows:
    after = given["after"]
    found = {row["trajectory_id"] for _, row in tx.rows("quarantine") if row["admitted_at"] is None}
    return [(id_,) for id_ in sorted(found) if after is None or id_ > after][: given["limit"]]


@statement("quarantine")
def open_events(tx: Transaction, given: Parameters) -> Rows:
    after = (given["after_id"], given["after_sequence"], given["after_quarantine"])
    rows = []
    for id_ in sorted(given["ids"]):
        for number, row in tx.quarantined(id_):
            wanted = row["admitted_at"] is None and (given["all"] or row["reason"] == "gap")
            if wanted and (after[0] is None or (id_, row["sequence_number"], number) > after):
                names = ("log_id", "lsn", "header", "body", "erased", "secret", "reason")
                rows.append((number, *(row[name] for name in names)))
    return rows[: given["limit"]]


@statement("quarantine")
def mark_admitted(tx: Transaction, given: Parameters) -> int:
    for number in given["ids"]:
        tx.put("quarantine", number, {**tx.get("quarantine", number), "admitted_at": tx.postgres.world.clock.now()})
    return len(given["ids"])


@statement("quarantine")
def change_reasons(tx: Transaction, given: Parameters) -> int:
    for number, reason, detail in zip(given["ids"], given["reasons"], given["details"], strict=True):
        tx.put("quarantine", number, {**tx.get("quarantine", number), "reason": reason, "detail": detail})
    return len(given["ids"])


@statement("quarantine")
def open_lsns(tx: Transaction, given: Parameters) -> Rows:
    found = (row for _, row in tx.rows("quarantine") if row["admitted_at"] is None and row["lsn"] > given["after"])
    return [(lsn,) for lsn in sorted(row["lsn"] for row in found if row["log_id"] == given["log_id"])]


@statement("quarantine")
def first_open(tx: Transaction, given: Parameters) -> Rows:
    for _, row in tx.quarantined(given["trajectory_id"]):
        if row["admitted_at"] is None:
            return [tuple(row[name] for name in ("log_id", "lsn", "header", "body", "erased", "secret"))]
    return []


@statement("sweep")
def begin_putting(tx: Transaction, given: Parameters) -> Rows:
    return [(None,)]  # nobody erases content here


@statement("sweep")
def end_putting(tx: Transaction, given: Parameters) -> Rows:
    return [(None,)]


@statement("sweep")
def note_put(tx: Transaction, given: Parameters) -> int:
    return 0


@statement("sweep")
def spare(tx: Transaction, given: Parameters) -> int:
    return 0  # nobody sweeps here, so nothing is condemned


@statement("rewrites")
def open_rewrites(tx: Transaction, given: Parameters) -> Rows:
    return []  # nobody rewrites anything here


# --- consolidation ---------------------------------------------------------------------------------------------------


@statement("consolidate")
def lock(tx: Transaction, given: Parameters) -> Rows:
    free = not tx.postgres.advisory_held()
    if free:
        tx.connection.holds_advisory = True
    return [(free,)]


@statement("consolidate")
def unlock(tx: Transaction, given: Parameters) -> Rows:
    held, tx.connection.holds_advisory = tx.connection.holds_advisory, False
    return [(held,)]


@statement("consolidate")
def still_locked(tx: Transaction, given: Parameters) -> Rows:
    return [(tx.connection.holds_advisory,)]


@statement("consolidate")
def unlimited(tx: Transaction, given: Parameters) -> Rows:
    return []


@statement("consolidate")
def open_runs(tx: Transaction, given: Parameters) -> Rows:
    runs = sorted((row["started"], id_, row["cutoff"]) for id_, row in tx.rows("run") if row["state"] == "planned")
    return [(id_, cutoff) for _, id_, cutoff in runs]


@statement("consolidate")
def insert_run(tx: Transaction, given: Parameters) -> int:
    row = {"state": "planned", "cutoff": given["cutoff"], "started": tx.postgres.world.clock.now()}
    tx.put("run", given["run_id"], row)
    return 1


def _qualifying(tx: Transaction, given: Parameters) -> Rows:
    found = []
    for id_, row in tx.rows("head"):
        ended = (row["finished"] or _NO_TIME) < given["cutoff"]
        idle = row["imported"] and row["last"] < given["idle_cutoff"]
        if row["sequence"] > row["through"] and (ended or idle):
            waiting = sum(entry["admitted_at"] is None for _, entry in tx.quarantined(id_))
            found.append((id_, waiting))
    return sorted(found)


@statement("consolidate")
def quarantined(tx: Transaction, given: Parameters) -> Rows:
    return [(id_, waiting) for id_, waiting in _qualifying(tx, given) if waiting]


@statement("consolidate")
def insert_items(tx: Transaction, given: Parameters) -> int:
    planned = {row["id"] for _, row in tx.rows("item") if tx.get("run", row["run_id"])["state"] == "planned"}
    made = 0
    for id_, waiting in _qualifying(tx, given):
        if waiting or id_ in planned:
            continue
        head = tx.get("head", id_)
        item = {"run_id": given["run_id"], "id": id_, "tenant": head["tenant"], "model": head["model"]}
        item |= {"date": ids.from_us(ids.uuid7_time_us(id_)).date(), "summary": head["summary"]}
        item |= {"first": head["through"] + 1, "last": head["sequence"], "last_hash": head["hash"]}
        key = id_, item["first"]
        assert tx.get("item", key) is None, "the primary key of consolidation_items"
        tx.put("item", key, item | {"previous_hash": head["through_hash"] or GENESIS_HASH})
        made += 1
    return made


def _items(tx: Transaction, run_id: Any) -> list[dict[str, Any]]:
    return sorted((row for _, row in tx.rows("item") if row["run_id"] == run_id), key=lambda row: row["id"].bytes)


@statement("consolidate")
def groups(tx: Transaction, given: Parameters) -> Rows:
    found = {(row["tenant"], row["date"], row["model"]) for row in _items(tx, given["run_id"])}
    return [(tenant, date.isoformat(), (date - _EPOCH).days, model) for tenant, date, model in sorted(found)]


@statement("consolidate")
def items(tx: Transaction, given: Parameters) -> Rows:
    rows = []
    for row in _items(tx, given["run_id"]):
        inside = row["tenant"] == given["tenant"] and (row["date"] - _EPOCH).days == given["date"]
        if inside and row["model"] in given["models"] and (given["after"] is None or row["id"] > given["after"]):
            names = ("id", "model", "first", "last", "previous_hash", "last_hash", "summary")
            rows.append((*(row[name] for name in names), tx.get("head", row["id"])["secret"]))
    return rows[: given["limit"]]


@statement("consolidate")
def drop_items(tx: Transaction, given: Parameters) -> int:
    for key, row in list(tx.rows("item")):
        if row["run_id"] == given["run_id"] and row["id"] in given["ids"]:
            tx.put("item", key, None)
    return 0


@statement("consolidate")
def totals(tx: Transaction, given: Parameters) -> Rows:
    found = _items(tx, given["run_id"])
    return [(len(found), sum(row["last"] - row["first"] + 1 for row in found))]


@statement("consolidate")
def mark_trajectories(tx: Transaction, given: Parameters) -> int:
    for row in _items(tx, given["run_id"]):
        tx.lock("head", row["id"])
        head = tx.get("head", row["id"])
        if head["through"] < row["last"]:
            tx.put("head", row["id"], {**head, "through": row["last"], "through_hash": row["last_hash"]})
    return 0


@statement("consolidate")
def mark_run(tx: Transaction, given: Parameters) -> int:
    row = tx.get("run", given["run_id"])
    if row["state"] == "planned":
        tx.put("run", given["run_id"], {**row, "state": "marked"})
    return 1
