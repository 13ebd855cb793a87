"""An evidence bundle: trajectories with everything that is needed to verify them elsewhere, in one zip archive.

    manifest.json, manifest.sig         every file with its SHA-256; signed with the current key
    keys.json                           the public keys, each endorsed by the one before
    heads.json                          per tenant the signed heads, and proofs that each is the beginning of the next
    trajectories/<id>/trajectory.json   tenant, id, secret; of an erased one who asked for it, when and why
    trajectories/<id>/events.jsonl      header and body of every event, exact bytes in base64
    trajectories/<id>/proof.json        the inclusion proof of the last event
    content/<sha256>                    what events refer to
    decisions.json                      approvals and policy versions, as the events say
    report.html, README.txt, checker.py

A bundle is checked by the very checker that is in it before it gets its name, so one that does not verify is never
handed out; a crash leaves a file with another name. It holds the secrets: keep it like the trajectories themselves.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
import uuid
import zipfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from stratalog.cold.history import ColdFiles
from stratalog.hot.files import sync_folder
from stratalog.schemas.blobs import references
from stratalog.schemas.errors import Corrupt, Invalid, NotFound
from stratalog.schemas.protocols import ContentStore
from stratalog.warm.database import Connection

from .checker import VERSION, check_bundle, decision_of, parse_header
from .gone import erasure_of
from .history import events_up_to, secret_of
from .keys import KeyProvider
from .leaf import Leaf
from .proof import HeadChain, InclusionProof
from .report import Report, Shown

_DOMAIN = b"stratalog.audit.bundle.v1\0"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Zip archives date their files; these are dated by the manifest alone."""
_README = """This is an evidence bundle of stratalog. To check it, with Python 3.11 or newer and nothing else:

    python3 -m pip install cryptography
    python3 checker.py BUNDLE.zip

Take checker.py from the source of stratalog if you do not trust the copy in here (audit/checker.py; it is one file),
and compare the id of the first key with the one that you were given on another way. report.html opens in a browser
without a network. The bundle holds the secrets that its digests are keyed with: keep it confidential.
"""


class Sources(msgspec.Struct, frozen=True):
    """Where the events and their content come from."""

    conn: Connection
    cold: ColdFiles
    store: ContentStore


class Proven(msgspec.Struct, frozen=True):
    """A trajectory that goes into a bundle: its leaf and the proof of it."""

    leaf: Leaf
    proof: InclusionProof


class BundleWriter:
    """An archive that is being written; keeps the digest of every file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.files: dict[str, str] = {}

    def add(self, name: str, data: bytes) -> None:
        """Add a file; one of this name is added once."""
        if name not in self.files:
            self.files[name] = hashlib.sha256(data).hexdigest()
            self.add_unlisted(name, data)

    def add_json(self, name: str, value: Any) -> None:
        """Add a value as JSON in ASCII."""
        self.add(name, json.dumps(value, indent=1).encode())

    def add_unlisted(self, name: str, data: bytes) -> None:
        """Add a file that the manifest does not list."""
        info = zipfile.ZipInfo(name, _EPOCH)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o600 << 16
        self._archive.writestr(info, data)


def write_bundle(
    output: Path,
    sources: Sources,
    keys: KeyProvider,
    proven: Sequence[Proven],
    chains: dict[str, HeadChain],
    now_us: int,
) -> dict[str, Any]:
    """Write a bundle to `output`, which must not exist; returns what the checker says of it.

    Raises `Corrupt` where the events are not those that were sealed, `Invalid` where the file exists.
    """
    if output.exists():
        raise Invalid(f"{output} exists already", hint="choose another name with --output")
    descriptor, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.absolute().parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            with zipfile.ZipFile(file, "w") as archive:
                _fill(BundleWriter(archive), sources, keys, proven, chains, now_us)
            file.flush()
            os.fsync(file.fileno())
        checked = check_bundle(str(draft))
        if not checked["ok"]:
            raise Corrupt(f"the bundle does not verify: {checked['problems'][0]}", hint="stratalog audit verify")
        try:
            os.link(draft, output)
        except FileExistsError:
            raise Invalid(f"{output} exists already", hint="choose another name with --output") from None
        sync_folder(draft.parent)
    finally:
        draft.unlink(missing_ok=True)
    return checked


def _fill(
    writer: BundleWriter,
    sources: Sources,
    keys: KeyProvider,
    proven: Sequence[Proven],
    chains: dict[str, HeadChain],
    now_us: int,
) -> None:
    records = keys.records()
    report = Report(now_us, records[0].key_id)
    decisions: list[dict[str, Any]] = []
    missing: set[str] = set()
    for one in sorted(proven, key=lambda one: one.proof.trajectory_id):
        shown, decided = _add_trajectory(writer, sources, one, missing)
        report.add(shown, decided)
        decisions += decided
    writer.add_json("keys.json", msgspec.to_builtins(records))
    writer.add_json("heads.json", msgspec.to_builtins(chains))
    writer.add_json("decisions.json", decisions)
    writer.add("report.html", report.html(sorted(missing)).encode())
    writer.add("README.txt", _README.encode())
    writer.add("checker.py", (files("stratalog.audit") / "checker.py").read_bytes())
    manifest = {
        "version": VERSION,
        "product": "stratalog",
        "created_at": now_us,
        "missing_content": sorted(missing),
        "files": writer.files,
    }
    data = json.dumps(manifest, indent=1).encode()
    signature = keys.sign(records[-1].key_id, _DOMAIN + hashlib.sha256(data).digest())
    writer.add_unlisted("manifest.json", data)
    seal = {"key_id": records[-1].key_id, "signature": signature.hex()}
    writer.add_unlisted("manifest.sig", json.dumps(seal).encode())


def _add_trajectory(
    writer: BundleWriter, sources: Sources, one: Proven, missing: set[str]
) -> tuple[Shown, list[dict[str, Any]]]:
    folder = f"trajectories/{one.proof.trajectory_id}"
    secret = secret_of(sources.conn, uuid.UUID(one.proof.trajectory_id))
    shown, decisions = Shown(one.proof), []
    lines = bytearray()
    for envelope in events_up_to(sources.conn, sources.cold, one.leaf):
        encoded = envelope.header.encode()
        secret = secret or envelope.secret
        record = {
            "header": base64.b64encode(encoded).decode(),
            "body": base64.b64encode(envelope.body).decode(),
            "erased": envelope.erased,
        }
        lines += json.dumps(record).encode() + b"\n"
        decision = decision_of(parse_header(encoded), envelope.body)
        decisions += [] if decision is None else [decision]
        shown.add(envelope)
        for ref in references(envelope.body):
            _add_content(writer, sources.store, one.leaf.tenant, ref.sha256, missing)
    shown.erasure = erasure_of(sources.conn, one.leaf.trajectory_id)
    about = {
        "tenant": one.leaf.tenant,
        "trajectory_id": one.proof.trajectory_id,
        "secret": None if secret is None else secret.hex(),
        "erased": msgspec.to_builtins(shown.erasure),
    }
    writer.add_json(f"{folder}/trajectory.json", about)
    writer.add(f"{folder}/events.jsonl", bytes(lines))
    writer.add_json(f"{folder}/proof.json", msgspec.to_builtins(one.proof))
    return shown, decisions


def _add_content(writer: BundleWriter, store: ContentStore, tenant: str, sha256: str, missing: set[str]) -> None:
    name = f"content/{sha256}"
    if name in writer.files:
        return
    try:
        writer.add(name, store.get(tenant, sha256))
    except NotFound:
        # Retention and erasure remove content that the events still name; the report lists it.
        missing.add(sha256)
