"""What is wrong with a command line, before anything was done."""

from __future__ import annotations

from stratalog.schemas.errors import Invalid, StratalogError


class Usage(Invalid):
    """The command line itself is wrong."""

    code = "usage"
    exit_code = 2


class Interrupted(StratalogError):
    """Somebody pressed Ctrl-C."""

    code = "interrupted"
    exit_code = 130
    default_hint = "what was acknowledged is safe; run the same command again to go on"
