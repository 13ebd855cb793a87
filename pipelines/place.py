"""The one resource of the pipelines: where the tiers are. Nothing is opened before a step asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stratalog.cold.installation import Installation, Tiers
from stratalog.hot.home import HOME_VERSION, Home, HomeFile
from stratalog.schemas.errors import Invalid
from stratalog.schemas.settings import Settings

from .failures import failing

RESOURCE = "stratalog"
"""The key of the resource in a code location."""


class Place:
    """A home, the path of one, or settings that name a Postgres and storage outside of any home.

    Raises `Invalid` for settings that leave one of them to a home.
    """

    def __init__(self, where: Home | Settings | str | os.PathLike[str]) -> None:
        self._where = _outside(where) if isinstance(where, Settings) else where

    @contextmanager
    def open(self) -> Iterator[Tiers]:
        """The tiers, for one step; our errors become failures of the step."""
        with failing(), Installation(self._home()).tiers() as tiers:
            yield tiers

    def installation(self, *, with_home: bool = False) -> Installation:
        """The installation, nothing of which is open; `with_home` raises `Invalid` where there is none but settings."""
        home = self._home()
        if with_home and not home.id:
            raise Invalid("this needs a home, not only settings", hint="its keys lie there: give the path of the home")
        return Installation(home)

    def _home(self) -> Home:
        # Read at each step: a home that is made later, or whose settings change, needs no reload.
        return self._where if isinstance(self._where, Home) else Home.open(self._where)


def _outside(settings: Settings) -> Home:
    if not (settings.warm.dsn and settings.cold.url and settings.cold.cas_url):
        raise Invalid(
            "these settings need a home", hint="set warm.dsn, cold.url and cold.cas_url, or give the path of a home"
        )
    return Home(Path.cwd(), HomeFile(home_id="", version=HOME_VERSION), settings, {})
