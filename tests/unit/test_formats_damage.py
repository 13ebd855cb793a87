"""Hostile and broken files: no reader ever raises, the same bytes give the same items, and nothing is dropped."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fix_trajectories import ROOT, SAMPLES, sample_files
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.formats import READERS, detect
from stratalog.formats.claude_code import ClaudeCode
from stratalog.formats.fitting import fitted
from stratalog.formats.source import Begin, Cut, Item, Problem
from stratalog.schemas import events as ev
from stratalog.schemas.blobs import offload, references
from stratalog.schemas.codec import decode_body, encode_body, kind_of
from stratalog.schemas.settings import HotSettings

FILES = sample_files()
LIMITS = HotSettings()


def line(number: int, content: Any = "hello", **members: Any) -> bytes:
    message = {"role": "user", "content": content}
    record = {"type": "user", "uuid": f"u{number}", "sessionId": "s", "isSidechain": False, "message": message}
    return json.dumps(record | members).encode()


def read(path: Path, raw: bytes) -> list[Item]:
    path.write_bytes(raw)
    return [item for item in ClaudeCode().read(path) if not isinstance(item, Cut)]


def problems(items: list[Item]) -> list[tuple[int | None, str]]:
    return [(item.line, item.reason) for item in items if isinstance(item, Problem)]


def opaque(items: list[Item]) -> list[bytes]:
    """The bytes of the opaque records."""
    found = []
    for item in items:
        if not isinstance(item, Problem | Cut) and isinstance(item.body, ev.Opaque):
            text, encoded = item.body.raw_text, item.body.raw_base64
            found.append(base64.b64decode(str(encoded)) if text is None else str(text).encode())
    return found


def texts(items: list[Item]) -> list[str]:
    return [
        str(item.body.parts[0].text)
        for item in items
        if not isinstance(item, Problem | Cut) and isinstance(item.body, ev.MessageReceived)
    ]


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"type":"user","uu\xff\xfe":1}',
        b'{"type":"user","x":"\\ud800"}',
        b'{"type":"user","x":"\\udc00 low first"}',
        b'{"type":"user","x":NaN}',
        b'{"type":"user","x":-Infinity}',
        b'{"type":"user","x":"raw \x00 NUL"}',
        b'{"type":"user","deep":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"type":"user","deep":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
        b'{"type":"user",',
        b"\x00\x00\x00\x00",
        b'"massive error"',
        b"42",
        b"[1]",
        b"plain words",
        b"}{",
    ],
)
def test_a_damaged_line_is_reported_and_kept_and_costs_no_other(tmp_path: Path, damaged: bytes) -> None:
    items = read(tmp_path / "s.jsonl", line(0) + b"\n" + damaged + b"\n" + line(1, "after") + b"\n")
    assert {number for number, _ in problems(items)} == {2}
    assert b"".join(opaque(items)) == damaged
    assert texts(items) == ["hello", "after"]


def test_marks_and_line_ends_are_no_damage(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbf" + line(0) + b"\r\n\r\n  \n" + line(1) + b"\r\n" + line(2)
    items = read(tmp_path / "s.jsonl", raw)
    assert (problems(items), len(texts(items))) == ([], 3)


def test_records_on_one_line_are_told_apart(tmp_path: Path) -> None:
    assert texts(read(tmp_path / "s.jsonl", line(0, "a") + line(1, "b") + b"\n")) == ["a", "b"]
    items = read(tmp_path / "s.jsonl", line(0, "whole")[:40] + line(0, "whole") + b"\n")
    assert (texts(items), opaque(items), len(problems(items))) == (["whole"], [line(0, "whole")[:40]], 1)


def test_a_cut_last_line_says_so(tmp_path: Path) -> None:
    items = read(tmp_path / "s.jsonl", line(0) + b"\n" + line(1)[:-9])
    assert problems(items)[0][0] == 2
    assert "cut off" in problems(items)[0][1]
    assert opaque(items) == [line(1)[:-9].strip()]


def test_numbers_of_any_size_survive(tmp_path: Path) -> None:
    items = read(tmp_path / "s.jsonl", line(0, seed=2**64, tiny=10**400))
    written = b"".join(encode_body(item.body) for item in items if not isinstance(item, Problem | Cut))
    assert str(2**64).encode() in written
    assert str(10**400).encode() in written


def test_json_that_looks_like_a_reference_is_not_taken_for_one(tmp_path: Path) -> None:
    blob = {"$blob": {"sha256": "0" * 64, "bytes": 1, "media_type": "text/plain", "preview": ""}}
    raw = json.dumps(blob, separators=(",", ":"))
    items = read(tmp_path / "s.jsonl", line(0, [{"type": "odd", "value": blob}], extra=json.loads(raw)))
    for item in items:
        if not isinstance(item, Problem | Cut):
            assert list(references(encode_body(item.body))) == []


def test_json_of_many_short_values_fits_as_a_string() -> None:
    values = ev.raw_json([[number] for number in range(400_000)])
    for body in (
        ev.ToolResult(tool_call_id="a", data=values),
        ev.MessageReceived(role="user", parts=tuple(ev.Part(text=str(number)) for number in range(200_000))),
        ev.TaskStarted(specification=values, tool_schemas={str(number): "1" for number in range(200_000)}),
    ):
        smaller, encoded = fitted(body, "test")
        assert len(offload(encoded, LIMITS.inline_bytes_max)[0]) <= LIMITS.event_bytes_max
        assert not isinstance(decode_body(kind_of(smaller), encoded), ev.Unknown)


MEMORY = """
import re, sys
from pathlib import Path
from stratalog.formats.claude_code import ClaudeCode
from stratalog.schemas.codec import encode_body
def peak_kb():  # not ru_maxrss: that of a child begins with what its parent had
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak_kb()
size = sum(len(encode_body(item.body)) for item in ClaudeCode().read(Path(sys.argv[1])))
print(size, (peak_kb() - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is there on Linux only")
def test_a_line_of_50_mb_takes_a_few_times_its_size(tmp_path: Path) -> None:
    path, size = tmp_path / "s.jsonl", 50_000_000
    with path.open("wb") as stream:
        for number in range(3):
            stream.write(line(number, "x" * size) + b"\n")
    run = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True)
    written, peak = map(int, run.stdout.split())
    assert written > 3 * size
    assert peak < 9 * size, f"{peak / size:.1f} times the line"


# --- mutations of valid files ------------------------------------------------------------------------------------


class Broken:
    """A broken file; its repr is short, whatever it holds."""

    def __init__(self, name: str, raw: bytes) -> None:
        self.name = name
        self.raw = raw

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.raw)} bytes>"


@st.composite
def mutated(draw: st.DrawFn) -> Broken:
    """A sample, broken in up to four places."""
    path = draw(st.sampled_from(FILES))
    raw = bytearray(path.read_bytes())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        until = at + draw(st.integers(1, 2000))
        match draw(st.sampled_from(["flip", "cut", "drop", "double", "insert"])):
            case "flip":
                raw[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del raw[at:]
            case "drop":
                del raw[at:until]
            case "double":
                raw[at:at] = raw[at:until]
            case "insert":
                raw[at:at] = draw(
                    st.sampled_from([b"\n", b"\x00", b"\xff", b'"', b"{", b"]", b"NaN", b"\\ud800", b'"$blob"'])
                )
    return Broken(path.name, bytes(raw))


@settings(max_examples=150, deadline=None)
@given(mutated(), st.sampled_from(sorted(READERS)))
def test_no_reader_ever_raises_and_the_same_bytes_give_the_same_items(
    tmp_path_factory: pytest.TempPathFactory, file: Broken, name: str
) -> None:
    path = tmp_path_factory.mktemp("mutated") / file.name
    path.write_bytes(file.raw)
    items = list(READERS[name].read(path))
    assert items == list(READERS[name].read(path))
    begun: set[str] = set()
    for item in items:
        if isinstance(item, Cut):
            continue
        if isinstance(item, Begin):
            assert item.key not in begun
            begun.add(item.key)
        elif not isinstance(item, Problem | Cut):
            assert item.key in begun
        if not isinstance(item, Problem | Cut):
            body, encoded = fitted(item.body, name)
            assert not isinstance(decode_body(kind_of(body), encoded), ev.Unknown)
            assert list(references(encoded)) == []


@settings(max_examples=100, deadline=None)
@given(mutated())
def test_every_line_that_cannot_be_read_is_reported_and_kept_whole(
    tmp_path_factory: pytest.TempPathFactory, file: Broken
) -> None:
    path = tmp_path_factory.mktemp("mutated") / "session.jsonl"
    items = read(path, file.raw)
    kept = b"".join(b"".join(opaque(items)).split())
    damaged = {number for number, _ in problems(items)}
    for number, raw in enumerate(file.raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        raw = raw.strip(b" \t\r\n")
        if number in damaged and b'"type"' not in raw:
            assert b"".join(raw.split()) in kept
        if not raw:
            assert number not in damaged


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.sampled_from(sorted(READERS)))
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("bytes") / "file"
    path.write_bytes(raw)
    for item in READERS[name].read(path):
        if not isinstance(item, Problem | Cut):
            assert encode_body(item.body)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_samples_are_read_without_a_problem(path: Path) -> None:
    items = list(detect(path).read(path))
    assert problems(items) == []
    assert opaque(items) == []


def test_the_samples_are_what_the_script_writes(tmp_path: Path) -> None:
    script = ROOT / "examples" / "make_trajectories.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, capture_output=True)
    committed = {path.relative_to(SAMPLES): path.read_bytes() for path in SAMPLES.rglob("*") if path.is_file()}
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert committed == written
    assert sum(map(len, committed.values())) < 400_000
