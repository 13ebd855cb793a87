"""Copies of one session that differ: cut, grown, changed; in any order, and again."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fix_trajectories import SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.formats import ImportReport, import_files
from stratalog.formats.cursor import Progress
from stratalog.formats.ending import Ending, beginnings
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas.codec import encode_body
from stratalog.schemas.record import TrajectoryRecord, fold

Json = dict[str, Any]
SESSIONS = [path.read_bytes() for path in sorted((SAMPLES / "claude-code").glob("*.jsonl"))]


class Place:
    """A log, and a folder for the files."""

    def __init__(self, folder: Path, home: Home, log: HotLog) -> None:
        self.folder = folder
        self.home = home
        self.log = log

    def load(self, *paths: Path) -> ImportReport:
        return import_files(self.log, paths, tenant="default", import_key=self.home.import_key)

    def write(self, copies: Sequence[bytes]) -> list[Path]:
        paths = [self.folder / str(number) / "s1.jsonl" for number in range(len(copies))]
        for path, raw in zip(paths, copies, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(raw)
        return paths

    def contents(self) -> dict[uuid.UUID, list[bytes]]:
        return {
            head.trajectory_id: [event.hash for event in self.log.read(head.trajectory_id)] for head in self.log.heads()
        }

    def texts(self) -> list[bytes]:
        """Everything that each trajectory says."""
        found = []
        for head in self.log.heads():
            found.append(b"\n".join(encode_body(event.body) for event in self.log.read(head.trajectory_id)))
        return found


@contextmanager
def opened() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        home = Home.open(Path(folder, "home"), create=True)
        with HotLog.open(home, serve=False) as log:
            yield Place(Path(folder), home, log)


@pytest.fixture
def place() -> Iterator[Place]:
    with opened() as found:
        yield found


# --- sessions and their copies -----------------------------------------------------------------------------------


def _record(number: int, kind: str, lane: str, **members: Any) -> Json:
    side = {"isSidechain": True, "agentId": lane} if lane else {"isSidechain": False}
    stamp = f"2026-01-02T03:{number // 60:02d}:{number % 60:02d}.000Z"
    return {"type": kind, "uuid": f"u{number}", "sessionId": "s1", "timestamp": stamp} | side | members


def _user(number: int, lane: str = "") -> Json:
    return _record(number, "user", lane, message={"role": "user", "content": f"said <{number}>"})


def _reply(number: int, reply_id: int, lane: str = "") -> Json:
    message = {"id": f"m{reply_id}", "role": "assistant", "model": "x", "usage": {"output_tokens": number}}
    return _record(number, "assistant", lane, message=message | {"content": [{"type": "text", "text": f"<{number}>"}]})


def _boundary(number: int) -> Json:
    return _record(number, "system", "", subtype="compact_boundary", content=f"<{number}>")


def _summary(number: int) -> Json:
    message = {"role": "user", "content": f"so far <{number}>"}
    return _record(number, "user", "", isCompactSummary=True, message=message)


@st.composite
def sessions(draw: st.DrawFn) -> bytes:
    """A session whose records say their number: replies of several records, two lanes, compactions."""
    made = [_user(0)]
    reply_id = 0
    kinds = ("user", "new reply", "same reply", "sub-agent", "sub-agent's reply", "boundary", "summary")
    for number, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=3, max_size=14)), 1):
        reply_id += kind == "new reply"
        match kind:
            case "user":
                made.append(_user(number))
            case "new reply" | "same reply":
                made.append(_reply(number, reply_id))
            case "sub-agent":
                made.append(_user(number, "a1"))
            case "sub-agent's reply":
                made.append(_reply(number, 1000 + reply_id, "a1"))
            case "boundary":
                made.append(_boundary(number))
            case _:
                made.append(_summary(number))
    return b"".join(json.dumps(record).encode() + b"\n" for record in made)


def _changed(raw: bytes, index: int, longer: int) -> bytes:
    """One record says something else, and the lines after it may lie elsewhere."""
    lines = raw.splitlines(keepends=True)
    index %= len(lines)
    lines[index] = lines[index].replace(b"<", b"<" + b"other " * (1 + longer), 1)
    return b"".join(lines)


@st.composite
def copies(draw: st.DrawFn, bases: st.SearchStrategy[bytes]) -> list[bytes]:
    """A session and copies of it and of each other: cut at any byte or line, grown, changed anywhere, with blanks."""
    base = draw(bases)
    found = [base]
    for _ in range(draw(st.integers(1, 5))):
        raw = draw(st.sampled_from(found))
        lines = raw.splitlines(keepends=True)
        match draw(st.sampled_from(("bytes", "lines", "changed", "grown", "blank"))):
            case "bytes":
                found.append(raw[: draw(st.integers(1, len(raw)))])
            case "lines":
                found.append(b"".join(lines[: draw(st.integers(1, len(lines)))]))
            case "changed":
                found.append(_changed(raw, draw(st.integers(0, 30)), draw(st.integers(0, 40))))
            case "grown":
                found.append(raw + base[len(raw) :][: draw(st.integers(1, len(base)))] + draw(_growth))
            case _:
                found.append(raw + b"\n" * draw(st.integers(1, 400)))
    return found


_growth = st.sampled_from(
    [b"", *(json.dumps(record).encode() + b"\n" for record in (_user(50), _reply(51, 3), _reply(52, 1003, "a1")))]
)


def check(found: list[bytes], orders: Sequence[Sequence[int]]) -> None:
    """Import the copies one by one in the first order, then all of them in each order."""
    with opened() as place:
        paths = place.write(found)
        for number in orders[0]:
            place.load(paths[number])
        before = place.contents()
        for order in orders:
            assert place.load(*(paths[number] for number in order)).appended == 0
        assert place.contents() == before
        for head in place.log.heads():
            events = list(place.log.read(head.trajectory_id))
            assert [event.header.previous_hash for event in events[1:]] == [event.hash for event in events[:-1]]
            assert [event.header.sequence_number for event in events] == list(range(len(events)))
            assert fold(TrajectoryRecord(), events).unknown_events == 0
        said = place.texts()
        for raw in found:
            for spoken in _said(raw):
                assert any(all(mark in text for mark in spoken) for text in said)


def _said(raw: bytes) -> list[list[bytes]]:
    """The marks of each lane's whole records: some trajectory has to have all of them."""
    lanes: dict[str, list[bytes]] = {}
    for line in raw.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "uuid" in record and b"<" in line:
            lanes.setdefault(record.get("agentId", ""), []).append(line[line.index(b"<") : line.index(b">") + 1])
    return list(lanes.values())


@st.composite
def imports(draw: st.DrawFn, bases: st.SearchStrategy[bytes]) -> tuple[list[bytes], list[list[int]]]:
    found = draw(copies(bases))
    return found, [draw(st.permutations(range(len(found)))) for _ in range(3)]


@settings(max_examples=150, deadline=None)
@given(imports(sessions()))
def test_copies_of_a_session_in_any_order_are_imported_once(drawn: tuple[list[bytes], list[list[int]]]) -> None:
    check(*drawn)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(range(len(SESSIONS))), st.lists(st.integers(300, 999), min_size=1, max_size=5))
def test_cut_copies_of_the_samples_are_imported_once(session: int, permille: list[int]) -> None:
    raw = SESSIONS[session]
    with opened() as place:
        paths = place.write([*(raw[: len(raw) * end // 1000] for end in permille), raw])
        place.load(*paths)
        before = place.contents()
        assert place.load(*reversed(paths)).appended == 0
        assert place.contents() == before


def _lines(*records: Json) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


BASE = [_user(0), _reply(1, 1), _reply(2, 1), _user(3), _reply(4, 2), _reply(5, 2), _user(6)]


def test_a_copy_that_was_cut_elsewhere_does_not_split_the_grown_one(place: Place) -> None:
    cut, grown = _lines(*BASE[:2]), _lines(*BASE)
    other = _changed(_lines(*BASE[:5]), 3, 0)
    paths = place.write([cut, grown, other])
    assert [place.load(path).appended > 0 for path in paths] == [True, True, True]
    assert len(place.log.heads()) == 2
    assert [place.load(path).appended for path in paths] == [0, 0, 0]


def test_what_is_there_does_not_grow_an_older_copy_too(place: Place) -> None:
    cut, grown = _lines(*BASE[:2]), _lines(*BASE)
    older = b"\n" + _lines(*BASE[:4])  # the same records elsewhere: this file was never cut there
    paths = place.write([cut, grown, older])
    for path in paths:
        place.load(path)
    before = place.contents()
    assert len(before) == 2
    assert [place.load(path).appended for path in paths] == [0, 0, 0]
    assert place.contents() == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_complete_copies_become_as_many_trajectories_in_any_order(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=1, max_size=6))
    texts = [["start", *one] for one in drawn]
    longest = [one for one in texts if not any(other[: len(one)] == one and other != one for other in texts)]
    with opened() as place:
        copies = [_lines(_reply(0, 0), *(_user(n) | {"cwd": word} for n, word in enumerate(one, 1))) for one in texts]
        for path in data.draw(st.permutations(place.write(copies))):
            place.load(path)
        assert len(place.log.heads()) == len({tuple(one) for one in longest})


def test_a_run_that_is_in_a_file_twice_grows_once(place: Place) -> None:
    def document(*said: str) -> str:
        steps: list[Json] = [{"step_id": n, "source": "user", "message": text} for n, text in enumerate(said, 1)]
        steps.insert(1, {"step_id": 9, "source": "agent", "message": "yes"})
        agent = {"name": "a", "version": "1"}
        return json.dumps({"schema_version": "ATIF-v1.7", "session_id": "s1", "agent": agent, "steps": steps}) + "\n"

    path = place.folder / "runs.jsonl"
    path.write_text(document("a", "b"))
    place.load(path)
    path.write_text(document("a", "b", "c") + document("a", "b", "c", "d") + document("a", "x") + document("a", "y"))
    assert place.load(path).problems == []
    assert len(place.log.heads()) == 3
    assert place.load(path).appended == 0


# --- the stored cursor -------------------------------------------------------------------------------------------


def test_a_cursor_without_digests_still_says_where_the_file_ended(tmp_path: Path) -> None:
    old = msgspec.msgpack.decode(msgspec.msgpack.encode((3, bytes(32), (5, 7))), type=Progress)
    assert old.endings == (Ending(5), Ending(7))
    assert msgspec.msgpack.decode(old.encoded(), type=Progress).endings == old.endings
    assert Progress(3, bytes(32)).encoded() == msgspec.msgpack.encode((3, bytes(32), ()))
    path = tmp_path / "file"
    path.write_bytes(b"123456")
    assert [ending.fits(beginnings(path, (5, 7))) for ending in old.endings] == [True, False]
    assert not Ending(5, b"another").fits(beginnings(path, (5,)))
    assert Ending(5, beginnings(path, (5,))[5]).fits(beginnings(path, (5, 6)))
