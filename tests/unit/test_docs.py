"""The documents are true: their code runs, their commands parse, their links lead somewhere, their tables are whole."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cyclopts import CycloptsError

from stratalog.cli.app import app, run
from stratalog.hot import HotLog
from stratalog.hot.home import load_settings
from stratalog.schemas import errors
from stratalog.schemas.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
EXECUTED = ["README.md", "docs/embed.md"]
OPERATE = ROOT / "docs" / "operate.md"
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(stratalog [^`]+)`")
_SHELL = re.compile(r"^\$ (stratalog .+)$|^(stratalog .+)$", re.MULTILINE)
# Placeholders of commands that the documents talk about.
_NO_COMMAND = re.compile(r"^stratalog (COMMAND\b|…)")


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(path: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks in these languages, with the line of their first line of code."""
    text = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        if found[1] in languages:
            yield text.count("\n", 0, found.start(2)) + 1, found[2]


def _rows(path: Path, first_column: str) -> list[list[str]]:
    """The cells of the table whose header starts with `first_column`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def _anchors(path: Path) -> set[str]:
    """The anchors that the headings of a document have on GitHub."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", EXECUTED)
def test_every_python_block_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = list(_blocks(ROOT / name, "python"))
    assert blocks, f"{name} has no Python block"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRATALOG_HOME", raising=False)
    namespace: dict[str, Any] = {"__name__": "document"}
    for line, code in blocks:
        # The empty lines before make a traceback name the line of the document.
        exec(compile("\n" * (line - 1) + code, str(ROOT / name), "exec"), namespace)
    assert (tmp_path / ".stratalog" / "home.json").exists()


def _commands() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        inline = [match[1] for match in _INLINE.finditer(_FENCE.sub("", text).replace("\n", " "))]
        shell = [match[1] or match[2] for _, code in _blocks(path, "sh", "console") for match in _SHELL.finditer(code)]
        found += [(_relative(path), " ".join(command.split())) for command in inline + shell]
    return sorted({entry for entry in found if not _NO_COMMAND.match(entry[1])})


@pytest.mark.parametrize(("document", "command"), _commands())
def test_every_command_parses(document: str, command: str) -> None:
    words = shlex.split(command.split(" > ")[0], comments=True)[1:]
    if words and words[-1] == "show" and "trajectory" in words:
        words.append("0198c1a2-0000-7000-8000-000000000000")  # named without its argument in a sentence
    app.parse_args(words, exit_on_error=False, print_error=False)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(CycloptsError, match=r"(?i)unknown"):
        app.parse_args(["consolidate", "--no-such-option"], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("path", DOCUMENTS, ids=_relative)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


def _settings(values: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in values.__struct_fields__:
        value = getattr(values, name)
        if isinstance(value, msgspec.Struct):
            yield from _settings(value, f"{name}.")
        else:
            yield f"{prefix}{name}", value


def test_the_table_of_settings_is_complete_and_right() -> None:
    expected = []
    for name, default in _settings(Settings()):
        shown = "`{}`" if default == {} else str(default) or "empty"
        variable = f"`STRATALOG_{name.upper().replace('.', '__')}`"
        expected.append([f"`{name}`", shown, variable[:-1] + "__…`" if isinstance(default, dict) else variable])
    rows = _rows(OPERATE, "setting")
    assert [row[:3] for row in rows] == expected
    assert all(row[3] for row in rows)


@pytest.mark.parametrize("row", _rows(OPERATE, "setting"), ids=lambda row: row[0])
def test_the_variable_of_a_setting_sets_it(row: list[str], tmp_path: Path) -> None:
    name, variable = row[0].strip("`"), row[2].strip("`")
    value = "" if row[1] == "empty" else row[1]
    if variable.endswith("…"):
        name, variable, value = f"{name}.key", variable.replace("…", "KEY"), "secret"
    _, origins = load_settings(tmp_path / "none", {variable: value}, {})
    assert origins == {name: "environment"}


def test_variables_of_one_table_add_up(tmp_path: Path) -> None:
    prefix = "STRATALOG_COLD__STORAGE_OPTIONS__"
    settings, _ = load_settings(tmp_path / "none", {f"{prefix}KEY": "a", f"{prefix}SECRET": "b"}, {})
    assert settings.cold.storage_options == {"key": "a", "secret": "b"}


def test_examples_of_the_settings_file_are_accepted(tmp_path: Path) -> None:
    blocks = list(_blocks(OPERATE, "toml"))
    assert len(blocks) > 1
    for _, code in blocks:
        file = tmp_path / "stratalog.toml"
        file.write_text(code)
        load_settings(file, {}, {})
        assert tomllib.loads(code)


def _error_classes() -> list[type[errors.StratalogError]]:
    return [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.StratalogError)
    ]


def test_every_error_is_explained() -> None:
    explained = {row[0].strip("`"): row[1].strip("`") for row in _rows(ROOT / "docs" / "embed.md", "class")}
    grouping = {errors.StratalogError, errors.Retryable}
    assert explained == {error.__name__: error.code for error in _error_classes() if error not in grouping}
    assert {error.code for error in _error_classes() if error not in grouping} <= _anchors(TROUBLESHOOTING)


def test_every_exit_code_is_explained() -> None:
    codes = {0, 2, 3, 130} | {error.exit_code for error in _error_classes()}
    assert {int(row[0]) for row in _rows(OPERATE, "code")} == codes
    assert {int(row[0]) for row in _rows(TROUBLESHOOTING, "exit code")} == codes - {0}


def test_the_fields_of_status_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psycopg")
    with HotLog.open(tmp_path / "home") as log:
        log.start_blocking(tenant="default", task="x")
    assert run(["status", "--home", str(tmp_path / "home"), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    for row in _rows(OPERATE, "field"):
        path, *more = re.findall(r"`([^`]+)`", row[0])
        section, _, name = path.rpartition(".")
        if section == "logs[]" and name != "error":
            assert {name, *more} <= status["logs"][0].keys()
        elif section == "disk":
            assert {name, *(other.partition(".")[2] for other in more)} <= status["disk"].keys()
        else:
            assert re.match(r"\w+", path)[0] in status  # type: ignore[index]


@pytest.mark.parametrize("path", DOCUMENTS, ids=_relative)
def test_no_document_names_a_path_of_a_developers_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(/home/\w+|/root/|/Users/|/wo" r"rk/|/tmp/\w|/var/tmp/)", text)
