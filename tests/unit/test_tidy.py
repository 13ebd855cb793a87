"""Rules of the code that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("schemas", "hot", "warm", "cold", "audit", "formats", "pipelines")
SOURCES = sorted(
    path for tier in (*TIERS, "src/stratalog/cli", "src/stratalog/testing") for path in (ROOT / tier).rglob("*.py")
)
LINES_MAX = 400
FUNCTION_LINES_MAX = 70
SILENT_ITERATORS = {"keys", "values", "items"}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 80


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_noun_of_readable_size(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LINES_MAX
    tree = ast.parse(text)
    assert path.name == "__main__.py" or ast.get_docstring(tree) or not text.strip(), "no module docstring"
    long = [node.name for node in functions(tree) if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX]
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text())
    silent = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not silent


def test_the_tiers_are_imported_by_their_full_name() -> None:
    bare = re.compile(rf"^\s*(from|import) ({'|'.join(TIERS)})(\.|\s|$)", re.MULTILINE)
    assert [
        str(path) for path in ROOT.rglob("*.py") if ".venv" not in str(path) and bare.search(path.read_text())
    ] == []


def test_rocksdb_is_never_read_by_iterators_that_hide_corruption() -> None:
    for path in (ROOT / "hot").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in SILENT_ITERATORS:
                assert "_db" not in ast.unparse(node.value), f"{path}:{node.lineno}"
                assert "_families[" not in ast.unparse(node.value), f"{path}:{node.lineno}"


def test_the_project_names_no_registry_and_no_path_of_a_developer() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if files == [""]:
        pytest.skip("not a git checkout")
    hostile = re.compile(rb"(pypi\.org|pythonhosted|/ho" rb"me/[a-z]+/|/wo" rb"rk/main)")
    found = [
        name
        for name in files
        if name != "tests/unit/test_tidy.py"
        and name.endswith((".py", ".md", ".txt", ".toml", ".sql", "Makefile"))
        and hostile.search((ROOT / name).read_bytes())
    ]
    assert found == []
