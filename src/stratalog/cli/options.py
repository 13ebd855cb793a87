"""The options that every command has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stratalog.cold.installation import Installation
from stratalog.hot.home import Home

from .output import Output


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Options of every command."""

    home: Annotated[Path, Parameter(env_var="STRATALOG_HOME", help="The home folder.")] = Path(".stratalog")
    """Everything of one installation."""
    json: Annotated[bool, Parameter(negative="", help="Print one JSON document on stdout.")] = False
    dsn: Annotated[str | None, Parameter(help="A Postgres of your own, instead of the embedded one.")] = None

    @property
    def output(self) -> Output:
        """Where the command writes."""
        return Output(json_mode=self.json)

    def open_home(self, *, create: bool = False) -> Home:
        """The home, with the flags over its settings."""
        return Home.open(self.home, create=create, flags={"warm.dsn": self.dsn})

    def installation(self, *, create: bool = False) -> Installation:
        """The home with its tiers."""
        return Installation(self.open_home(create=create))


DEFAULT = Common()
