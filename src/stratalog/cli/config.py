"""`stratalog config`: the settings in force, and where each comes from."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from .options import DEFAULT, Common

COVERED = "***"
_CREDENTIAL = re.compile("secret|token|password|key", re.IGNORECASE)
_DSN_PASSWORD = re.compile(r"(\bpassword\s*=\s*|://[^/@:]*:)('(?:[^'\\]|\\.)*'|[^\s@&]+)", re.IGNORECASE)

config_app = App(name="config", help="Show the settings.")


@config_app.command
def show(*, origin: Annotated[bool, Parameter(negative="")] = False, common: Common = DEFAULT) -> int:
    """Show every setting in force; with --origin also where it comes from.

    Example: `stratalog config show --origin`

    Parameters
    ----------
    origin
        Say for each setting whether a flag, the environment, stratalog.toml or the default gave it.
    """
    home = common.open_home()
    rows = [
        (name, without_secrets(name, value), home.origins.get(name, "default"))
        for name, value in _flat(msgspec.to_builtins(home.settings))
    ]
    if common.json:
        values = {name: {"value": value, "origin": came} if origin else value for name, value, came in rows}
        common.output.document(values)
        return 0
    columns = ["setting", "value", "origin"] if origin else ["setting", "value"]
    common.output.table(
        columns,
        [[name, value if isinstance(value, dict) else str(value), came][: len(columns)] for name, value, came in rows],
    )
    return 0


def without_secrets(name: str, value: Any) -> Any:
    """A setting that may be shown: passwords in a DSN and credentials of a store are covered."""
    if isinstance(value, dict):
        return {key: COVERED if _CREDENTIAL.search(key) else entry for key, entry in value.items()}
    if name.endswith("dsn"):
        return _DSN_PASSWORD.sub(rf"\1{COVERED}", value)
    return value


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        if prefix == "" and isinstance(value, dict):
            flat += _flat(value, f"{name}.")
        else:
            flat.append((f"{prefix}{name}", value))
    return flat
