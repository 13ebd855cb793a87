"""Every error that stratalog raises, grouped by what the caller does about it.

    StratalogError
    ├── Retryable        try again later, nothing was lost
    │   ├── Unavailable          a server or an owner process did not answer
    │   ├── Locked               another process owns the log
    │   └── DiskBudgetExceeded   free some disk first
    ├── Conflict         somebody else was there first
    │   ├── Fenced               this holder was replaced by a newer one
    │   ├── Erased               its content was erased, so nothing can be added to it
    │   └── CursorMismatch       the log is not the one that was replicated
    ├── NotFound         no such home, log, trajectory or blob
    │   ├── HomeMissing
    │   └── SnapshotErased       files of this snapshot were erased: read the current one
    ├── Corrupt          stored bytes are not what they were
    │   └── OpenRefused          damage below the durable watermark
    ├── InDoubt          it may or may not have happened: reopen and look
    ├── Invalid          the input is wrong, nothing was done
    │   └── MigrationNeeded
    └── MissingExtra     an optional dependency is not installed

Each class has a stable `code` (shown in JSON) and an `exit_code` (of the command line); each instance a `hint` that
names what to do, where possible as a command.
"""

from __future__ import annotations


class StratalogError(Exception):
    """Base of all errors: a message, and a hint that says how to go on."""

    code = "error"
    exit_code = 1
    default_hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint


class Retryable(StratalogError):
    """Nothing was lost; the same call may succeed later."""

    code = "retryable"


class Unavailable(Retryable):
    """A server (Postgres, object store, the owner of a log) did not answer."""

    code = "unavailable"
    exit_code = 12
    default_hint = "check the server and its DSN with: stratalog doctor"


class Locked(Retryable):
    """Another process owns this log or this home."""

    code = "locked"
    exit_code = 11
    default_hint = "wait for the other process, or see who it is with: stratalog status"


class DiskBudgetExceeded(Retryable):
    """The disk is so full that the next append might not become durable; nothing was written."""

    code = "disk_budget_exceeded"
    default_hint = "free disk space, or lower disk_free_min in stratalog.toml"


class Conflict(StratalogError):
    """The state of the world is not the one that this call assumed."""

    code = "conflict"


class Fenced(Conflict):
    """A newer holder has taken over; this one must stop."""

    code = "fenced"
    exit_code = 22
    default_hint = "the trajectory has moved to another worker; this worker must not act for it"


class Erased(Conflict):
    """The trajectory was erased: its secret is destroyed, and no event with a body can be added to it."""

    code = "erased"
    default_hint = "see what was erased, when and why: stratalog erase list"


class CursorMismatch(Conflict):
    """The log does not contain the position that was replicated from it."""

    code = "cursor_mismatch"
    default_hint = (
        "was this home restored from an older copy? Then give its logs new ids: stratalog doctor --renew-logs"
    )


class NotFound(StratalogError):
    """The named thing does not exist."""

    code = "not_found"


class HomeMissing(NotFound):
    """There is no stratalog home at this path."""

    code = "home_missing"
    exit_code = 10
    default_hint = "create one by importing something: stratalog import FILE --home DIR"


class SnapshotErased(NotFound):
    """Files of the snapshot that is being read were erased, which does not wait for readers."""

    code = "snapshot_erased"
    default_hint = "ask again: the current snapshot has everything else"


class Corrupt(StratalogError):
    """Stored bytes fail their check: never served as if they were right."""

    code = "corrupt"
    exit_code = 20
    default_hint = "find the extent with: stratalog verify"


class OpenRefused(Corrupt):
    """The log is damaged below its durable watermark, so acknowledged events are gone."""

    code = "open_refused"
    exit_code = 21
    default_hint = "restore the log from a backup, or go on without the lost events: stratalog doctor --accept-loss"


class InDoubt(StratalogError):
    """The write failed in a way that leaves open whether it happened."""

    code = "in_doubt"
    default_hint = "reopen the log: it tells which events are there"


class Invalid(StratalogError):
    """The input is wrong; nothing was done."""

    code = "invalid"


class MigrationNeeded(Invalid):
    """The database schema is older or newer than this version needs."""

    code = "migration_needed"
    exit_code = 13
    default_hint = "bring the schema up to date with: stratalog doctor --migrate"


class MissingExtra(StratalogError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"{module} is not installed",
            hint=f"install it with: pip install 'stratalog[{extra}]'",
        )
