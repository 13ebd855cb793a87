"""`stratalog key`: the keys that sign the heads of the audit trees."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
from cyclopts import App

from stratalog.audit.keys import FolderKeys
from stratalog.hot.home import Home

from .options import DEFAULT, Common
from .output import counted, human_us
from .sanitise import sanitise

key_app = App(name="key", help="The keys that sign the heads of the audit trees: list, rotate, export.")

SHORT = 16
"""Digits of a key id that people see."""


def open_keys(home: Home) -> FolderKeys:
    """The keys of a home; raises `MissingExtra`."""
    return FolderKeys(home.path / "keys" / "audit", now_us())


def now_us() -> int:
    """µs since 1970 by this machine's clock."""
    return time.time_ns() // 1000


@key_app.command(name="list")
def list_(*, common: Common = DEFAULT) -> int:
    """List the keys, oldest first; the last one signs.

    Example: `stratalog key list`
    """
    records = open_keys(common.open_home()).records()
    if common.json:
        common.output.document(records)
        return 0
    rows = [
        [record.key_id[:SHORT], human_us(record.created_at), "signs" if record is records[-1] else "retired",
         record.previous[:SHORT] or "itself"]
        for record in records
    ]  # fmt: skip
    common.output.table(["key", "made (UTC)", "state", "endorsed by"], rows)
    common.output.note(f"{counted(len(records), 'key')}; one is made by the first: stratalog audit seal")
    return 0


@key_app.command
def rotate(*, common: Common = DEFAULT) -> int:
    """Put a new key into force: the one before endorses it, its public part is kept, its private part is destroyed.

    Example: `stratalog key rotate`
    """
    record = open_keys(common.open_home()).rotate(now_us())
    if common.json:
        common.output.document(record)
    else:
        before = f", endorsed by {record.previous[:SHORT]}" if record.previous else ""
        common.output.line(f"{record.key_id} signs from now on{before}")
    return 0


@key_app.command
def export(*, output: Path | None = None, common: Common = DEFAULT) -> int:
    """Write the public keys with their endorsements, as JSON; nothing secret is in it.

    Example: `stratalog key export --output keys.json`

    Parameters
    ----------
    output
        The file to write; standard output by default.
    """
    records = open_keys(common.open_home()).records()
    if output is None:
        if common.json:
            common.output.document(records)
        else:
            sys.stdout.write(f"{msgspec.json.format(msgspec.json.encode(records)).decode()}\n")
        return 0
    with output.open("xb") as file:
        file.write(msgspec.json.encode(records))
    common.output.line(f"{counted(len(records), 'key')} written to {sanitise(str(output))}")
    if common.json:
        common.output.document({"keys": len(records), "file": str(output)})
    return 0
