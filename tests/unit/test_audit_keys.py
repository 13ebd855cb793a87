"""Signing keys: private, rotated without losing what is old, and whole after a crash at any step."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from stratalog.audit import keys as module
from stratalog.audit.heads import SignedHead, check_head, decode_head, sign_head
from stratalog.audit.keys import FolderKeys, KeyRecord, check_records, check_signature
from stratalog.schemas.errors import Corrupt, Invalid, MissingExtra, NotFound

pytestmark = pytest.mark.required_in_ci
ROOT = bytes(range(32))


def keys_in(folder: Path) -> FolderKeys:
    return FolderKeys(folder / "keys" / "audit", 1_000_000)


def test_the_first_key_is_made_on_first_use_and_stays(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    assert keys.records() == []
    record = keys.current()
    assert keys_in(tmp_path).current() == record and keys.records() == [record]
    assert check_signature(record, b"message", keys.sign(record.key_id, b"message"))
    assert not check_signature(record, b"another", keys.sign(record.key_id, b"message"))


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    record = keys.current()
    folder = tmp_path / "keys" / "audit"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    (folder / f"{record.key_id}.private").chmod(0o640)
    with pytest.raises(Invalid, match="read by others"):
        keys.sign(record.key_id, b"message")


def test_a_rotation_keeps_old_public_keys_and_destroys_the_old_private_one(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    first = keys.current()
    old = keys.sign(first.key_id, b"message")
    second, third = keys.rotate(2_000_000), keys.rotate(3_000_000)
    assert keys.records() == [first, second, third]
    assert keys.current() == third and third.previous == second.key_id and second.previous == first.key_id
    assert check_signature(first, b"message", old)
    assert check_signature(third, b"message", keys.sign(third.key_id, b"message"))
    with pytest.raises(NotFound):
        keys.sign(first.key_id, b"message")
    assert [path.stem for path in (tmp_path / "keys" / "audit").glob("*.private")] == [third.key_id]


def test_a_chain_of_keys_that_was_changed_is_refused(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    keys.current()
    keys.rotate(2)
    first, second = keys.records()
    check_records([first, second])
    flipped = f"{int(second.endorsement[0], 16) ^ 1:x}{second.endorsement[1:]}"
    for wrong in (
        [second],
        [first, msgspec.structs.replace(second, endorsement=flipped)],
        [first, msgspec.structs.replace(second, created_at=3)],
        [first, msgspec.structs.replace(second, public_key=first.public_key)],
        [first, msgspec.structs.replace(second, endorsement="zz")],
        [msgspec.structs.replace(first, key_id=second.key_id), second],
        [first, first],
    ):
        with pytest.raises(Corrupt):
            check_records(wrong)


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("step", range(3))
def test_a_rotation_that_is_killed_leaves_the_old_key_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    keys = keys_in(tmp_path)
    first = keys.current()
    calls = iter(range(10))

    def dying(path: Path, content: bytes, **options: object) -> None:
        if next(calls) == step:
            raise Killed
        real(path, content, **options)  # type: ignore[arg-type]

    real = module.write_durably
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_durably", dying)
        with pytest.raises(Killed):
            keys.rotate(2)
    assert keys.records() == [first] and keys.sign(first.key_id, b"x")
    second = keys.rotate(3)
    assert keys.records() == [first, second]
    assert [path.stem for path in (tmp_path / "keys" / "audit").glob("*.private")] == [second.key_id]


def test_files_that_are_missing_or_damaged_say_so(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    record = keys.current()
    folder = tmp_path / "keys" / "audit"
    private = folder / f"{record.key_id}.private"
    secret = private.read_bytes()
    private.write_bytes(secret[:-1])
    with pytest.raises(Corrupt, match="32 bytes"):
        keys.sign(record.key_id, b"x")
    private.write_bytes(os.urandom(32))
    with pytest.raises(Corrupt, match="another key"):
        keys.sign(record.key_id, b"x")
    private.unlink()
    with pytest.raises(NotFound, match="nothing can be signed"):
        keys.sign(record.key_id, b"x")
    (folder / f"{record.key_id}.json").write_bytes(b"{")
    with pytest.raises(Corrupt, match="damaged"):
        keys.records()
    (folder / "current").write_bytes(b"../../x")
    with pytest.raises(Corrupt, match="does not name a key"):
        keys.current()


def test_what_is_not_installed_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra) as missing:
        keys_in(tmp_path)
    assert "stratalog[audit]" in missing.value.hint


def test_a_rotation_between_choosing_a_key_and_signing_makes_no_false_head(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)

    class Rotated(FolderKeys):
        def current(self) -> KeyRecord:
            record = super().current()
            keys.rotate(2)
            return record

    with pytest.raises(NotFound, match="nothing can be signed"):
        sign_head(Rotated(tmp_path / "keys" / "audit", 1), "acme", 7, ROOT, 1)


def test_a_head_is_signed_whole(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    head = sign_head(keys, "acme", 7, ROOT, 1_700_000_000_000_000)
    known = {record.key_id: record for record in keys.records()}
    check_head(head, known)
    assert decode_head(head.encode()) == head
    for change in ({"tenant": "other"}, {"tree_size": 8}, {"root_hash": "00" * 32}, {"timestamp": 1}):
        with pytest.raises(Corrupt, match="signature"):
            check_head(msgspec.structs.replace(head, **change), known)
    with pytest.raises(Corrupt, match="does not know"):
        check_head(head, {})
    keys.rotate(2)
    check_head(head, {record.key_id: record for record in keys.records()})


@pytest.mark.parametrize(
    "change",
    [
        {"tree_size": 0},
        {"tree_size": 1 << 64},
        {"root_hash": "00"},
        {"key_id": "zz"},
        {"signature": ""},
        {"tenant": "../x"},
        {"timestamp": 1 << 70},
    ],
)
def test_what_is_no_head_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    head = sign_head(keys_in(tmp_path), "acme", 7, ROOT, 1)
    broken = {**msgspec.to_builtins(head), **change}
    with pytest.raises(Corrupt):
        decode_head(msgspec.json.encode(broken))
    assert isinstance(decode_head(msgspec.json.encode(msgspec.to_builtins(head))), SignedHead)
