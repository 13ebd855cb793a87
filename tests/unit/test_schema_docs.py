"""docs/schema.md is what the schema says."""

from __future__ import annotations

from pathlib import Path

from stratalog.cold.schema_docs import schema_page
from stratalog.schemas.arrow import COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == schema_page(), "python -m stratalog.cold.schema_docs > docs/schema.md"


def test_every_column_is_described() -> None:
    page = schema_page()
    for column in COLUMNS:
        assert f"`{column.name}`" in page and column.description.endswith(".")
