#!/usr/bin/env python3
"""Checks an evidence bundle of stratalog: python3 checker.py BUNDLE.zip [--trust KEY_ID] [--json]

This file needs Python 3.11 and the package `cryptography`, nothing else, and imports nothing of stratalog: it was
written from docs/format.md and docs/audit.md, so that whoever doubts stratalog can read one file instead. Nothing in
the bundle is executed or unpacked. Exit code 0: everything fits. 1: it does not, or the file is no bundle.

What fits together proves that the events are those that the owner of the key had sealed when the head was signed. That
the key is the right one is for you to know: compare the id of the first key with one that you got on another way, or
name it with --trust; every later key is endorsed by the one before.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import sys
import uuid
import zipfile
import zlib
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

VERSION = 1
BYTES_MAX = 8 << 30
"""A bundle that unpacks to more is not read."""
DECISIONS = {"Authorized": "policies", "ApprovalRequested": "approvals", "ApprovalResolved": "approvals"}
UNREADABLE = (
    KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RuntimeError, EOFError, OSError,
    struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""What reading foreign bytes raises; each becomes a problem."""


class Wrong(Exception):
    """Something in the bundle is not as it must be."""


def need(condition: object, what: str) -> None:
    """Raise `Wrong` unless the condition holds."""
    if not condition:
        raise Wrong(what)


# --- bytes -----------------------------------------------------------------------------------------------------------


def sha256(*pieces: bytes) -> bytes:
    """SHA-256 of the pieces, one after the other."""
    return hashlib.sha256(b"".join(pieces)).digest()


def raw(text: str, size: int) -> bytes:
    """Bytes from lower-case hexadecimal, of exactly this size."""
    data = bytes.fromhex(text)
    need(len(data) == size and data.hex() == text, f"{text[:80]!r} is not {size} bytes in hexadecimal")
    return data


def u64(number: int) -> bytes:
    """An unsigned integer, 8 bytes."""
    return number.to_bytes(8, "big")


def i64(number: int) -> bytes:
    """A signed integer, 8 bytes."""
    return number.to_bytes(8, "big", signed=True)


def short(text: str) -> bytes:
    """A text of up to 255 bytes after its length."""
    data = text.encode("ascii")
    return bytes([len(data)]) + data


# --- events (docs/format.md) -----------------------------------------------------------------------------------------


def parse_header(data: bytes) -> dict[str, Any]:
    """The fields of a header, version 1, and the hash of its event."""
    need(len(data) > 110 and data[0] == 1 and data[1] == 0, "a header is not of version 1")
    tenant, kind = data[108], data[109]
    need(len(data) == 110 + tenant + kind, "a header does not have the length that it says")
    return {
        "trajectory_id": str(uuid.UUID(bytes=data[4:20])),
        "sequence_number": int.from_bytes(data[20:28], "big"),
        "created_at": int.from_bytes(data[36:44], "big", signed=True),
        "previous_hash": data[44:76],
        "body_digest": data[76:108],
        "tenant": data[110 : 110 + tenant].decode("ascii"),
        "kind": data[110 + tenant :].decode(),
        "hash": sha256(b"stratalog.event.v1\0", data),
    }


def digest_of(secret: bytes, sequence_number: int, body: bytes) -> bytes:
    """The digest of a body under the trajectory's secret."""
    key = hmac.digest(secret, u64(sequence_number), "sha256")
    return hmac.digest(key, body, "sha256")


# --- the tree (RFC 9162, 2.1) ----------------------------------------------------------------------------------------


def leaf_hash(tenant: str, trajectory_id: str, sequence_number: int, event_hash: bytes) -> bytes:
    """The hash of a leaf: domain, tenant, trajectory, sequence number, hash of the event."""
    domain = b"stratalog.audit.leaf.v1\0"
    id_ = uuid.UUID(trajectory_id).bytes
    return sha256(b"\0", domain, short(tenant), id_, u64(sequence_number), event_hash)


def is_included(leaf: bytes, index: int, size: int, path: list[bytes], root: bytes) -> bool:
    """Whether the path leads from leaf `index` of a tree of `size` leaves to its root."""
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for piece in path:
        if last == 0:
            return False
        if node % 2 == 1 or node == last:
            found = sha256(b"\1", piece, found)
            while node % 2 == 0 and node != 0:
                node, last = node // 2, last // 2
        else:
            found = sha256(b"\1", found, piece)
        node, last = node // 2, last // 2
    return last == 0 and found == root


def is_consistent(old_size: int, size: int, old_root: bytes, root: bytes, proof: list[bytes]) -> bool:
    """Whether the tree of `old_size` leaves is the beginning of the one of `size` leaves."""
    if not 0 < old_size <= size:
        return False
    if old_size == size:
        return not proof and old_root == root
    pieces = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not pieces:
        return False
    node, last = old_size - 1, size - 1
    while node % 2 == 1:
        node, last = node // 2, last // 2
    old_found = found = pieces[0]
    for piece in pieces[1:]:
        if last == 0:
            return False
        if node % 2 == 1 or node == last:
            old_found, found = sha256(b"\1", piece, old_found), sha256(b"\1", piece, found)
            while node % 2 == 0 and node != 0:
                node, last = node // 2, last // 2
        else:
            found = sha256(b"\1", found, piece)
        node, last = node // 2, last // 2
    return last == 0 and old_found == old_root and found == root


# --- keys and heads (docs/audit.md) ----------------------------------------------------------------------------------


def check_signature(public_key: bytes, signature: bytes, message: bytes, what: str) -> None:
    """Raise `Wrong` unless the signature is this key's over the message."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        raise Wrong(f"the signature of {what} is wrong") from None


def check_keys(records: list[dict[str, Any]]) -> dict[str, bytes]:
    """The public keys by id; each but the first is endorsed by the one before."""
    need(records, "there is no key")
    keys: dict[str, bytes] = {}
    before = ""
    for record in records:
        public, key_id = raw(record["public_key"], 32), record["key_id"]
        need(sha256(b"stratalog.audit.key.v1\0", public).hex() == key_id, "the id of a key does not fit it")
        need(record["previous"] == before, f"the key {key_id} does not follow the one before")
        if before:
            message = b"stratalog.audit.rotation.v1\0" + raw(before, 32) + public + i64(record["created_at"])
            check_signature(keys[before], raw(record["endorsement"], 64), message, f"the key {key_id}")
        keys[key_id], before = public, key_id
    return keys


def check_head(head: dict[str, Any], keys: dict[str, bytes]) -> None:
    """Raise `Wrong` unless the head is signed with one of the keys."""
    what = f"the head of {head['tenant']} with {head['tree_size']} leaves"
    need(head["key_id"] in keys, f"{what} is signed with a key that is not in the bundle")
    message = b"".join(
        (
            b"stratalog.audit.head.v1\0",
            short(head["tenant"]),
            u64(head["tree_size"]),
            raw(head["root_hash"], 32),
            i64(head["timestamp"]),
            raw(head["key_id"], 32),
        )
    )
    check_signature(keys[head["key_id"]], raw(head["signature"], 64), message, what)


def check_heads(tenant: str, chain: dict[str, Any], keys: dict[str, bytes]) -> None:
    """Raise `Wrong` unless all heads of a tenant are signed and each is the beginning of the next."""
    heads, proofs = chain["heads"], chain["consistency"]
    need(heads and len(proofs) == len(heads) - 1, f"the heads of {tenant} and their proofs do not fit in number")
    for head in heads:
        need(head["tenant"] == tenant, f"a head of {head['tenant']} lies among those of {tenant}")
        check_head(head, keys)
    for old, new, proof in zip(heads, heads[1:], proofs, strict=False):
        sizes = old["tree_size"], new["tree_size"]
        roots = raw(old["root_hash"], 32), raw(new["root_hash"], 32)
        pieces = [raw(piece, 32) for piece in proof]
        fits = is_consistent(*sizes, *roots, pieces)
        need(fits, f"the head of {tenant} with {sizes[0]} leaves is not the beginning of the one with {sizes[1]}")


# --- the bundle ------------------------------------------------------------------------------------------------------


class Bundle:
    """An opened bundle; every read is checked against the manifest, which is signed."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        names = archive.namelist()
        need(len(set(names)) == len(names), "the archive holds two files of one name")
        entries = archive.infolist()
        need(sum(entry.file_size for entry in entries) <= BYTES_MAX, "the archive is too large")
        methods = {entry.compress_type for entry in entries}
        need(methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}, "the archive is compressed in another way")
        self.manifest_bytes = archive.read("manifest.json")
        self.manifest = json.loads(self.manifest_bytes)
        need(self.manifest["version"] == VERSION, "the bundle is of another version than this checker")
        self.files: dict[str, str] = self.manifest["files"]
        listed = {*self.files, "manifest.json", "manifest.sig"}
        need(set(names) == listed, f"the manifest does not fit the archive: {sorted(set(names) ^ listed)[:5]}")

    def read(self, name: str) -> bytes:
        """The content of a file; raises `Wrong` where it is not what the manifest says."""
        data = self.archive.read(name)
        need(sha256(data).hex() == self.files[name], f"{name} is not the file that the manifest names")
        return data

    def json(self, name: str) -> Any:
        """The value of a JSON file."""
        return json.loads(self.read(name))

    def check_signature(self, keys: dict[str, bytes]) -> None:
        """Raise `Wrong` unless the manifest is signed with one of the keys."""
        seal = json.loads(self.archive.read("manifest.sig"))
        need(seal["key_id"] in keys, "the manifest is signed with a key that is not in the bundle")
        message = b"stratalog.audit.bundle.v1\0" + sha256(self.manifest_bytes)
        check_signature(keys[seal["key_id"]], raw(seal["signature"], 64), message, "the manifest")


def check_events(bundle: Bundle, folder: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The last event of a trajectory whose chain and bodies are right, and what was decided in it."""
    about = bundle.json(f"{folder}/trajectory.json")
    secret = None if about["secret"] is None else raw(about["secret"], 32)
    last: dict[str, Any] = {"hash": bytes(32), "sequence_number": -1}
    decisions = []
    for line in bundle.read(f"{folder}/events.jsonl").splitlines():
        record = json.loads(line)
        header = parse_header(base64.b64decode(record["header"], validate=True))
        body = base64.b64decode(record["body"], validate=True)
        where = f"event {header['sequence_number']}"
        need(header["sequence_number"] == last["sequence_number"] + 1, f"{where} does not follow the one before")
        need(header["previous_hash"] == last["hash"], f"{where} does not extend the chain")
        of = (about["tenant"], about["trajectory_id"])
        need((header["tenant"], header["trajectory_id"]) == of, f"{where} belongs to another trajectory")
        if record["erased"]:
            need(not body, f"{where} is erased and has a body")
        else:
            need(secret is not None, f"{where} has a body, but the secret is not there")
            digest = digest_of(secret or b"", header["sequence_number"], body)
            need(hmac.compare_digest(digest, header["body_digest"]), f"the body of {where} does not fit its digest")
        decision = decision_of(header, body)
        decisions += [] if decision is None else [decision]
        last = header
    need(last["sequence_number"] >= 0, "there is no event")
    return last, decisions


def decision_of(header: dict[str, Any], body: bytes) -> dict[str, Any] | None:
    """What an event says of policies and approvals, `None` if nothing."""
    if header["kind"] not in DECISIONS:
        return None
    try:
        said = json.loads(body)
    except UNREADABLE:
        said = None
    return {
        "trajectory_id": header["trajectory_id"],
        "sequence_number": header["sequence_number"],
        "created_at": header["created_at"],
        "kind": header["kind"],
        "said": said,
    }


def check_trajectory(bundle: Bundle, folder: str, chains: dict[str, Any]) -> dict[str, Any]:
    """Check one trajectory from its bytes to the signed head; returns what it proves."""
    last, decisions = check_events(bundle, folder)
    proof = bundle.json(f"{folder}/proof.json")
    tenant, head = proof["tenant"], proof["head"]
    proven = (proof["tenant"], proof["trajectory_id"], proof["sequence_number"], raw(proof["event_hash"], 32))
    have = (last["tenant"], last["trajectory_id"], last["sequence_number"], last["hash"])
    need(proven == have, "the proof is not about the last event")
    need(folder == f"trajectories/{last['trajectory_id']}", "it lies in the folder of another trajectory")
    need(head in chains[tenant]["heads"], "the head of the proof is not among the signed heads")
    leaf = leaf_hash(*proven)
    path, root = [raw(piece, 32) for piece in proof["path"]], raw(head["root_hash"], 32)
    need(is_included(leaf, proof["leaf_index"], head["tree_size"], path, root), "the proof does not lead to the root")
    return {
        "trajectory_id": last["trajectory_id"],
        "tenant": tenant,
        "events": last["sequence_number"] + 1,
        "leaf_index": proof["leaf_index"],
        "tree_size": head["tree_size"],
        "sealed_at": head["timestamp"],
        "decisions": decisions,
    }


def check_all(bundle: Bundle, trust: str, report: dict[str, Any]) -> None:
    """Check one thing after the other; raises `Wrong` where the rest cannot be judged."""
    keys = check_keys(bundle.json("keys.json"))
    report["first_key"] = next(iter(keys))
    need(trust in ("", report["first_key"]), f"the first key is not the trusted one, {trust}")
    bundle.check_signature(keys)
    chains = bundle.json("heads.json")
    for tenant, chain in chains.items():
        check_heads(tenant, chain, keys)
    decisions: list[dict[str, Any]] = []
    for folder in sorted({name.rsplit("/", 1)[0] for name in bundle.files if name.startswith("trajectories/")}):
        try:
            found = check_trajectory(bundle, folder, chains)
            decisions += found.pop("decisions")
            report["trajectories"].append(found)
        except (Wrong, *UNREADABLE) as error:
            report["problems"].append(f"{folder}: {describe(error)}")
    need(report["trajectories"], "there is no trajectory that fits")
    # As text, because a body may hold NaN, which equals nothing.
    said = json.dumps(bundle.json("decisions.json"))
    need(said == json.dumps(decisions), "decisions.json is not what the events say")
    report["decisions"] = len(decisions)
    for name in bundle.files:
        data = bundle.read(name)
        if name.startswith("content/") and sha256(data).hex() != name.rsplit("/", 1)[1]:
            report["problems"].append(f"{name} is not the content that its name says")


def check_bundle(path: str, trust: str = "") -> dict[str, Any]:
    """Check a bundle; returns what was found, `ok` and `problems`. Never raises for what is in the file."""
    report: dict[str, Any] = {"ok": False, "first_key": "", "trajectories": [], "decisions": 0, "problems": []}
    try:
        with zipfile.ZipFile(path) as archive:
            check_all(Bundle(archive), trust, report)
    except (Wrong, *UNREADABLE) as error:
        report["problems"].append(describe(error))
    report["ok"] = not report["problems"]
    return report


def describe(error: Exception) -> str:
    """An error in one line without anything that acts on a terminal."""
    text = str(error) if isinstance(error, Wrong) else f"not readable ({type(error).__name__}: {error})"
    return text.encode("ascii", "backslashreplace").decode()[:500].replace("\n", " ").replace("\x1b", "\\x1b")


def main(arguments: list[str]) -> int:
    """The program."""
    trust = ""
    if "--trust" in arguments[:-1]:
        at = arguments.index("--trust")
        trust, arguments = arguments[at + 1], arguments[:at] + arguments[at + 2 :]
    paths = [argument for argument in arguments if not argument.startswith("--")]
    if len(paths) != 1:
        sys.stderr.write(f"{(__doc__ or '').splitlines()[0]}\n")
        return 2
    report = check_bundle(paths[0], trust)
    if "--json" in arguments:
        sys.stdout.write(f"{json.dumps(report)}\n")
        return 0 if report["ok"] else 1
    for found in report["trajectories"]:
        place = f"leaf {found['leaf_index']} of {found['tree_size']}"
        sys.stdout.write(f"ok       {found['trajectory_id']}  {found['events']} events, {place}\n")
    for problem in report["problems"]:
        sys.stdout.write(f"WRONG    {problem}\n")
    sys.stdout.write(f"first key {report['first_key'] or 'unknown'}: compare it with the one that you were given\n")
    sys.stdout.write("the bundle fits together\n" if report["ok"] else "the bundle does NOT fit together\n")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
