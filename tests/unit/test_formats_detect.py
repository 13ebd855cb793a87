"""Which format a file has is told by what it contains; everything else is refused with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fix_trajectories import COLLECTED, sample_files

from stratalog.formats import detect
from stratalog.schemas.errors import Invalid

FORMATS = ("claude-code", "swe-agent", "atif")


def refused(path: Path) -> str:
    with pytest.raises(Invalid) as caught:
        detect(path)
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("path", sample_files(), ids=lambda path: path.name)
def test_the_name_of_a_file_does_not_matter(tmp_path: Path, path: Path) -> None:
    expected = next(part for part in path.parts if part in FORMATS)
    renamed = tmp_path / "notes.txt"
    renamed.write_bytes(b"\xef\xbb\xbf\n" + path.read_bytes())
    assert detect(renamed).name == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b" \n\t\n", "nothing but blank space"),
        (b"\x00" * 100, "nothing but blank space"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"SQLite format 3\x00", "SQLite"),
        (os.urandom(2000), "binary"),
        (b"# Notes\n\nnothing here", "neither a JSON object nor lines of them"),
        (b'{"a": 1, "b": [', 'a JSON object with the keys "a", "b"'),
        (b'[{"role": "user"}]', 'a JSON array of objects with the keys "role"'),
        (b'{"timestamp": "x", "type": "session_meta", "payload": {}}\n', "a Codex CLI rollout"),
        (b'{"responses_create_params": {}, "response": {}}\n', "NeMo Gym rollouts"),
        (
            b'{"type": "user", "uuid": "1", "sessionId": "2", "message": {"role": "user", "parts": []}}',
            'of type "user"',
        ),
    ],
)
def test_other_files_are_refused_by_what_they_are(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(content)
    assert reason in refused(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "missing") == "no such file"
    assert "folder" in refused(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refused(pipe) == "not a regular file"
    assert "cannot be read" in refused(Path("a\x00b"))


def test_a_damaged_beginning_does_not_hide_a_session(tmp_path: Path) -> None:
    record = {"type": "user", "uuid": "1", "sessionId": "2", "message": {"role": "user", "content": "x"}}
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"\x00\x00\x00\n{half\n" + json.dumps(record).encode())
    assert detect(path).name == "claude-code"


def test_a_first_line_longer_than_the_head_is_recognised_by_its_keys(tmp_path: Path) -> None:
    record = {"type": "user", "uuid": "1", "sessionId": "2", "isSidechain": False}
    path = tmp_path / "session.jsonl"
    path.write_text(json.dumps(record | {"message": {"role": "user", "content": "x" * 3_000_000}}) + "\n")
    assert detect(path).name == "claude-code"
    run = {"steps": [{"step_id": 1, "source": "user", "message": "x" * 3_000_000}], "schema_version": "ATIF-v1.6"}
    path.write_text(json.dumps(run))
    assert detect(path).name == "atif"


def test_a_named_format_is_taken_at_its_word(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text('{"a": 1}')
    assert detect(path, "atif").name == "atif"
    with pytest.raises(Invalid, match="is not a format"):
        detect(path, "nonsense")


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collected trajectories are not here")
def test_every_collected_file_is_of_its_folders_format_or_refused() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(COLLECTED.rglob("*")):
        if not path.is_file() or path.name.endswith(".meta.json"):
            continue
        folder = path.relative_to(COLLECTED).parts[0]
        try:
            found.setdefault(folder, set()).add(detect(path).name)
        except Invalid as error:
            found.setdefault(folder, set())
            assert error.message == "empty file" or folder not in FORMATS or "NeMo Gym" in error.message
    assert {folder: names for folder, names in found.items() if names} == {name: {name} for name in FORMATS}
