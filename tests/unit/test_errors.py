"""Errors: one tree, stable codes, and a hint that says how to go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog.schemas import errors
from stratalog.schemas.errors import MissingExtra, StratalogError
from stratalog.schemas.extras import require

CODES = {
    "StratalogError": ("error", 1),
    "Retryable": ("retryable", 1),
    "Unavailable": ("unavailable", 12),
    "Locked": ("locked", 11),
    "DiskBudgetExceeded": ("disk_budget_exceeded", 1),
    "Conflict": ("conflict", 1),
    "Fenced": ("fenced", 22),
    "Erased": ("erased", 1),
    "CursorMismatch": ("cursor_mismatch", 1),
    "NotFound": ("not_found", 1),
    "HomeMissing": ("home_missing", 10),
    "SnapshotErased": ("snapshot_erased", 1),
    "Corrupt": ("corrupt", 20),
    "OpenRefused": ("open_refused", 21),
    "InDoubt": ("in_doubt", 1),
    "Invalid": ("invalid", 1),
    "MigrationNeeded": ("migration_needed", 13),
    "MissingExtra": ("missing_extra", 1),
}
"""Programs compare these; a code may be added, never changed."""


def tree(root: type[StratalogError] = StratalogError) -> Iterator[type[StratalogError]]:
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_codes_and_exit_codes_are_stable() -> None:
    found = {error.__name__: (error.code, error.exit_code) for error in tree()}
    assert {name: found.get(name) for name in CODES} == CODES


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [error.code for error in tree()]
    assert len(set(codes)) == len(codes)
    assert all("code" in vars(error) for error in tree())


def test_the_module_draws_the_whole_tree() -> None:
    assert errors.__doc__ is not None
    assert all(error.__name__ in errors.__doc__ for error in tree())


@pytest.mark.parametrize("error", list(tree()), ids=lambda error: error.__name__)
def test_hints(error: type[StratalogError]) -> None:
    if error is MissingExtra:
        raised: StratalogError = MissingExtra("duckdb", "cold")
        assert raised.hint == "install it with: pip install 'stratalog[cold]'"
        return
    assert error("what happened").hint == error.default_hint
    raised = error("what happened", hint="do this")
    assert (str(raised), raised.message, raised.hint) == ("what happened", "what happened", "do this")


def test_errors_with_an_exit_code_of_their_own_say_what_to_do() -> None:
    assert all(error.default_hint for error in tree() if error.exit_code != 1)


def test_a_missing_extra_names_its_pip_command() -> None:
    with pytest.raises(MissingExtra) as raised:
        require("no_such_module.part", "cold")
    assert "pip install 'stratalog[cold]'" in raised.value.hint
    assert require("json.decoder", "cold").JSONDecoder
