"""Evidence bundles: a good one verifies by one file alone, whatever is changed in one shows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fix_audit import Audit

from stratalog.audit.checker import check_bundle
from stratalog.audit.installation import bundle_all, prove_one
from stratalog.audit.keys import FolderKeys
from stratalog.audit.leaf import Leaf
from stratalog.audit.tree import verify_inclusion
from stratalog.schemas import events as ev
from stratalog.schemas.errors import Corrupt, Invalid, NotFound

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
ATTACK = "<script>alert(1)</script><img src=http://x/y onerror=z>\u202e\x1b[2J'\"&"
Files = dict[str, bytes]


def risky(audit: Audit, number: int = 7) -> uuid.UUID:
    """A trajectory with approvals, policies and hostile text."""
    author = audit.bench.author(number)
    audit.bench.append(
        author,
        [
            ev.TaskStarted(task=ATTACK, model=ev.Model(name="atlas-4")),
            ev.Authorized(tool_call_id="c", decision="hold", tool="wire", policy_version="p-12", reason=ATTACK),
            ev.ApprovalRequested(tool_call_id="c", tool="wire", reason="large"),
            ev.ApprovalResolved(tool_call_id="c", decision="approved", tool="wire", approver=f"mira {ATTACK}"),
            ev.ToolIntent(tool_call_id="c", tool="wire", effect="irreversible"),
            ev.ToolResult(tool_call_id="c", tool="wire", intent=4, status="timeout"),
            ev.IntentSettled(tool_call_id="c", intent=4, method="probe", outcome="happened"),
            ("Authorized", b'{"tool_call_id":"nan","decision":"allow","cost":NaN,"a":1,"a":2}'),
        ],
    )
    return author.trajectory_id


@pytest.fixture
def sealed(audit: Audit) -> Audit:
    """Trajectories of two tenants in several heads under two keys, one with content."""
    for number in range(4):
        audit.bench.task(number, blob=b"bulky" * 1000 if number == 1 else None)
        audit.seal()
    audit.keys.rotate(audit.clock_us)
    risky(audit)
    audit.bench.task(9, tenant="other")
    audit.seal()
    return audit


def bundle(audit: Audit, output: Path, *numbers: int) -> dict[str, Any]:
    ids = [audit.bench.author(number).trajectory_id for number in numbers]
    ids += [next(id_ for id_, author in audit.bench.authors.items() if author.tenant == "other")]
    return bundle_all(audit.installation, audit.keys, audit.clock_us, output, ids)


def read(path: Path) -> Files:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, files: Files, keys: FolderKeys | None = None) -> Path:
    """The archive, with a manifest that fits its files, signed by `keys`: nothing is shown by the outer seal alone."""
    if keys is not None:
        manifest = json.loads(files["manifest.json"])
        inner = {name: data for name, data in files.items() if not name.startswith("manifest.")}
        manifest["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in inner.items()}
        text = json.dumps(manifest).encode()
        message = b"stratalog.audit.bundle.v1\0" + hashlib.sha256(text).digest()
        key_id = keys.current().key_id
        seal = json.dumps({"key_id": key_id, "signature": keys.sign(key_id, message).hex()}).encode()
        files = {**inner, "manifest.json": text, "manifest.sig": seal}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_a_good_bundle_verifies_by_the_single_file_alone(sealed: Audit, tmp_path: Path) -> None:
    output = tmp_path / "bundle.zip"
    checked = bundle(sealed, output, 1, 7)
    assert checked["ok"] and checked["problems"] == [] and checked["decisions"] == 10
    assert [found["events"] for found in checked["trajectories"]] == [19, 8, 18]
    assert checked["first_key"] == sealed.keys.records()[0].key_id
    (tmp_path / "alone").mkdir()
    checker = tmp_path / "alone" / "checker.py"
    checker.write_bytes(read(output)["checker.py"])
    for extra, code in (([], 0), (["--trust", checked["first_key"]], 0), (["--trust", "0" * 64], 1)):
        command = [sys.executable, "-I", "-c", PROGRAM, str(checker), str(output), *extra]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    assert output.stat().st_mode & 0o077 == 0
    assert list(tmp_path.glob(".bundle*")) == []


# Runs the checker where stratalog cannot be imported.
PROGRAM = """
import runpy, sys
sys.modules["stratalog"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_checker_imports_only_python_and_cryptography() -> None:
    import stratalog.audit.checker as checker

    text = Path(checker.__file__).read_text()
    imported = set(re.findall(r"^(?:from|import) ([a-z0-9_]+)", text, re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) == {"cryptography"}


def test_the_same_bundle_written_again_by_the_test_verifies(sealed: Audit, tmp_path: Path) -> None:
    """The control of the tests below: rewriting alone shows nothing."""
    bundle(sealed, tmp_path / "bundle.zip", 1, 7)
    files = read(tmp_path / "bundle.zip")
    assert check_bundle(str(write(tmp_path / "again.zip", files)))["ok"]
    assert check_bundle(str(write(tmp_path / "signed.zip", files, sealed.keys)))["ok"]


def _event(files: Files, change: Callable[[dict[str, Any]], None], number: int = 2) -> None:
    name = next(name for name in files if name.endswith("events.jsonl"))
    lines = files[name].splitlines()
    number %= len(lines)
    record = json.loads(lines[number])
    change(record)
    files[name] = b"\n".join([*lines[:number], json.dumps(record).encode(), *lines[number + 1 :]]) + b"\n"


def _flip_bytes(text: str, at: int) -> str:
    data = bytearray(base64.b64decode(text))
    data[at] ^= 1
    return base64.b64encode(bytes(data)).decode()


def _flip_hex(text: str) -> str:
    return f"{int(text[0], 16) ^ 1:x}{text[1:]}"


def _json(files: Files, name: str, change: Callable[[Any], None]) -> None:
    name = next(found for found in files if found.endswith(name))
    value = json.loads(files[name])
    change(value)
    files[name] = json.dumps(value).encode()


def _set(*path: Any) -> Callable[[Any], None]:
    """Flip the hexadecimal text, or add 1 to the number, at a path."""

    def change(value: Any) -> None:
        *folders, last = path
        for step in folders:
            value = value[step]
        value[last] = _flip_hex(value[last]) if isinstance(value[last], str) else value[last] + 1

    return change


def _move(record: dict[str, Any], field: str, at: int) -> None:
    record[field] = _flip_bytes(record[field], at)


TAMPERINGS: dict[str, tuple[Callable[[Files], None], str]] = {
    "a body": (lambda f: _event(f, lambda r: _move(r, "body", 3)), "does not fit its digest"),
    "the last body": (lambda f: _event(f, lambda r: _move(r, "body", 3), -1), "does not fit its digest"),
    "header: version": (lambda f: _event(f, lambda r: _move(r, "header", 0)), "not of version 1"),
    "header: schema version": (lambda f: _event(f, lambda r: _move(r, "header", 3)), "does not extend the chain"),
    "header: trajectory": (lambda f: _event(f, lambda r: _move(r, "header", 19)), "belongs to another trajectory"),
    "header: sequence": (lambda f: _event(f, lambda r: _move(r, "header", 27)), "does not follow the one before"),
    "header: epoch": (lambda f: _event(f, lambda r: _move(r, "header", 35)), "does not extend the chain"),
    "header: time": (lambda f: _event(f, lambda r: _move(r, "header", 43)), "does not extend the chain"),
    "header: previous hash": (lambda f: _event(f, lambda r: _move(r, "header", 44)), "does not extend the chain"),
    "header: digest": (lambda f: _event(f, lambda r: _move(r, "header", 76)), "does not fit its digest"),
    "header: tenant": (lambda f: _event(f, lambda r: _move(r, "header", 110)), "belongs to another trajectory"),
    "header: kind": (lambda f: _event(f, lambda r: _move(r, "header", 115)), "does not extend the chain"),
    "the last header's time": (lambda f: _event(f, lambda r: _move(r, "header", 43), -1), "not about the last event"),
    "an event called erased": (lambda f: _event(f, lambda r: r.update(erased=True)), "is erased and has a body"),
    "a body that is not base64": (lambda f: _event(f, lambda r: r.update(body="*")), "not readable"),
    "the secret": (lambda f: _json(f, "trajectory.json", _set("secret")), "does not fit its digest"),
    "proof: path": (lambda f: _json(f, "proof.json", _set("path", 0)), "does not lead to the root"),
    "proof: index": (lambda f: _json(f, "proof.json", _set("leaf_index")), "does not lead to the root"),
    "proof: event": (lambda f: _json(f, "proof.json", _set("event_hash")), "not about the last event"),
    "proof: sequence": (lambda f: _json(f, "proof.json", _set("sequence_number")), "not about the last event"),
    "proof: head": (lambda f: _json(f, "proof.json", _set("head", "tree_size")), "not among the signed heads"),
    "head: size": (lambda f: _json(f, "heads.json", _set("acme", "heads", 1, "tree_size")), "is wrong"),
    "head: root": (lambda f: _json(f, "heads.json", _set("acme", "heads", 1, "root_hash")), "is wrong"),
    "head: time": (lambda f: _json(f, "heads.json", _set("acme", "heads", 1, "timestamp")), "is wrong"),
    "head: key": (lambda f: _json(f, "heads.json", _set("acme", "heads", 1, "key_id")), "not in the bundle"),
    "head: signature": (lambda f: _json(f, "heads.json", _set("acme", "heads", 1, "signature")), "is wrong"),
    "head: consistency": (lambda f: _json(f, "heads.json", _set("acme", "consistency", 1, 0)), "not the beginning"),
    "key: public": (lambda f: _json(f, "keys.json", _set(1, "public_key")), "does not fit it"),
    "key: endorsement": (lambda f: _json(f, "keys.json", _set(1, "endorsement")), "is wrong"),
    "key: time": (lambda f: _json(f, "keys.json", _set(1, "created_at")), "is wrong"),
    "a key left out": (lambda f: _json(f, "keys.json", lambda keys: keys.pop(0)), "does not follow"),
    "decisions": (lambda f: _json(f, "decisions.json", _set(0, "sequence_number")), "not what the events say"),
    "an event left out": (
        lambda f: f.update({n: d.split(b"\n", 1)[1] for n, d in f.items() if n.endswith("events.jsonl")}),
        "does not follow",
    ),
    "the tail left out": (
        lambda f: f.update({n: d[: d[:-1].rindex(b"\n") + 1] for n, d in f.items() if n.endswith("events.jsonl")}),
        "not about the last event",
    ),
    "content": (
        lambda f: f.update({n: b"x" + d[1:] for n, d in f.items() if n.startswith("content/")}),
        "not the content that its name says",
    ),
}


def test_whatever_is_changed_shows_though_the_manifest_fits(sealed: Audit, tmp_path: Path) -> None:
    bundle(sealed, tmp_path / "bundle.zip", 1, 7)
    good = read(tmp_path / "bundle.zip")
    for name, (tamper, expected) in TAMPERINGS.items():
        files = dict(good)
        tamper(files)
        assert files != good, name
        checked = check_bundle(str(write(tmp_path / "bad.zip", files, sealed.keys)))
        assert not checked["ok"] and any(expected in found for found in checked["problems"]), (name, checked)


def test_whatever_byte_is_flipped_shows_by_the_manifest(sealed: Audit, tmp_path: Path) -> None:
    bundle(sealed, tmp_path / "bundle.zip", 1, 7)
    good = read(tmp_path / "bundle.zip")
    for name, data in good.items():
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        assert not check_bundle(str(write(tmp_path / "bad.zip", {**good, name: bytes(flipped)})))["ok"], name
    assert not check_bundle(str(write(tmp_path / "bad.zip", {**good, "more.txt": b""})))["ok"]
    del good["report.html"]
    assert not check_bundle(str(write(tmp_path / "bad.zip", good)))["ok"]


def test_what_is_no_bundle_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    for content in (b"", b"PK\x03\x04 nonsense", b"{}"):
        path.write_bytes(content)
        assert not check_bundle(str(path))["ok"]
    for manifest in (
        b"{}",
        b"[]",
        b"nonsense",
        b'{"version":1,"files":3}',
        b'{"version":2,"files":{}}',
        b"[" * 100_000,
    ):
        assert not check_bundle(str(write(path, {"manifest.json": manifest, "manifest.sig": b"{}"})))["ok"]
    assert not check_bundle(str(tmp_path / "missing.zip"))["ok"]


TAGS = set(re.findall("[a-z0-9]+", "html head meta title style body h1 h2 p code table tr th td details summary"))


class Seen(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_report_opens_offline_and_foreign_text_is_text(sealed: Audit, tmp_path: Path) -> None:
    bundle(sealed, tmp_path / "bundle.zip", 1, 7)
    text = read(tmp_path / "bundle.zip")["report.html"].decode()
    seen = Seen(text)
    assert seen.tags <= TAGS
    assert seen.attributes <= {"lang", "charset", "http-equiv", "content", "class"}
    assert "\u202e" not in text and "\x1b" not in text and "url(" not in text and "@import" not in text
    for shown in ("&lt;script&gt;alert(1)", "\\u202e", "\\u001b[2J", "p-12", "mira", "happened, settled by probe"):
        assert shown in text
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text


def test_a_trajectory_that_left_warm_is_bundled_from_the_cold_tier(sealed: Audit, tmp_path: Path) -> None:
    author = sealed.bench.author(1)
    sealed.bench.run()
    sealed.bench.append(author, [ev.Annotation(name="late")])
    sealed.seal()
    sealed.bench.run()
    before = bundle_all(sealed.installation, sealed.keys, 1, tmp_path / "warm.zip", [author.trajectory_id])
    sealed.bench.execute("DELETE FROM trajectory_events WHERE sequence_number < 19")
    after = bundle_all(sealed.installation, sealed.keys, 1, tmp_path / "mixed.zip", [author.trajectory_id])
    sealed.bench.execute("DELETE FROM trajectory_events")
    cold = bundle_all(sealed.installation, sealed.keys, 1, tmp_path / "cold.zip", [author.trajectory_id])
    assert before["trajectories"] == after["trajectories"] == cold["trajectories"] != []
    name = f"trajectories/{author.trajectory_id}/events.jsonl"
    assert read(tmp_path / "warm.zip")[name] == read(tmp_path / "mixed.zip")[name] == read(tmp_path / "cold.zip")[name]


def test_events_after_the_newest_leaf_are_not_in_it(
    sealed: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    first, second = sealed.bench.author(0), sealed.bench.author(1)
    events = [author.at.sequence_number + 1 for author in (first, second)]
    for author in (first, second):
        sealed.bench.append(author, [ev.Annotation(name=f"late {number}") for number in range(300)])
    ids = [first.trajectory_id, second.trajectory_id]
    checked = bundle_all(sealed.installation, sealed.keys, 1, tmp_path / "b.zip", ids)
    assert [found["events"] for found in checked["trajectories"]] == events
    assert ignored == []


def test_what_is_not_sealed_or_not_what_was_sealed_is_not_bundled(sealed: Audit, tmp_path: Path) -> None:
    unsealed = sealed.bench.task(20).trajectory_id
    with pytest.raises(NotFound, match="is sealed"):
        bundle_all(sealed.installation, sealed.keys, 1, tmp_path / "b.zip", [unsealed])
    first = sealed.bench.author(0).trajectory_id
    sealed.bench.execute("UPDATE trajectory_events SET body = body || ' ' WHERE trajectory_id = %s", first)
    with pytest.raises(Corrupt, match="does not fit its digest"):
        bundle_all(sealed.installation, sealed.keys, 1, tmp_path / "b.zip", [first])
    (tmp_path / "there.zip").write_bytes(b"mine")
    with pytest.raises(Invalid, match="exists already"):
        bundle(sealed, tmp_path / "there.zip", 1)
    assert [path.name for path in tmp_path.glob("*.zip")] == ["there.zip"]


def test_erased_events_and_content_that_is_gone(sealed: Audit, tmp_path: Path) -> None:
    erased = sealed.bench.author(1).trajectory_id
    sealed.bench.execute("UPDATE trajectory_events SET body = '', erased = true WHERE trajectory_id = %s", erased)
    sealed.bench.execute("UPDATE trajectories SET secret = NULL WHERE trajectory_id = %s", erased)
    checked = bundle_all(sealed.installation, sealed.keys, 1, tmp_path / "erased.zip", [erased])
    assert checked["ok"] and checked["decisions"] == 3
    assert not [name for name in read(tmp_path / "erased.zip") if name.startswith("content/")]


def test_a_proof_leads_to_the_published_head(sealed: Audit) -> None:
    for number in (0, 3, 7):
        author = sealed.bench.author(number)
        proof = prove_one(sealed.installation, author.trajectory_id)
        assert proof.head == sealed.heads()[-1] and proof.event_hash == author.at.hash.hex()
        leaf = Leaf("acme", author.trajectory_id, author.at.sequence_number, author.at.hash)
        path = [bytes.fromhex(piece) for piece in proof.path]
        assert verify_inclusion(leaf.hash, proof.leaf_index, proof.head.tree_size, path, proof.head.root)
    with pytest.raises(NotFound, match="is sealed"):
        prove_one(sealed.installation, uuid.uuid4())
