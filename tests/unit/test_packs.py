"""Packs of content: what comes back, what damage is named, and that erased content is nowhere."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest
from fix_packs import files_of, pack_all, put_all, report_of_tests
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.cold import pack_writer
from stratalog.cold.cas import FsContentStore, loose_path
from stratalog.cold.pack_file import PackFile, pack_path
from stratalog.cold.pack_format import BLOCK_BYTES, FOOTER, HEADER
from stratalog.cold.pack_writer import Made
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, NotFound, Unavailable

CONTENTS = [b"", b"small", report_of_tests(1), report_of_tests(2), os.urandom(3 * BLOCK_BYTES + 17), b"last"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FsContentStore]:
    opened = FsContentStore(f"file://{tmp_path}/cas")
    yield opened
    opened.close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def opened(store: FsContentStore, made: Made, tenant: str = "acme") -> PackFile:
    return PackFile(store.storage, tenant, made.name, made.bytes)


def place(store: FsContentStore, made: Made) -> Path:
    return Path(store.url.removeprefix("file://")) / pack_path("acme", made.name)


def test_packed_content_comes_back_from_a_store_that_was_told_nothing(store: FsContentStore) -> None:
    made = pack_all(store, CONTENTS)
    assert [path.name for path in files_of(store)] == [f"{made.name}.pack"]
    fresh = FsContentStore(store.url)
    assert [fresh.get("acme", sha256(content)) for content in CONTENTS] == CONTENTS
    assert all(fresh.has("acme", sha256(content)) for content in CONTENTS)
    assert list(fresh.digests("acme")) == sorted(map(sha256, CONTENTS)) and list(fresh.tenants()) == ["acme"]
    for tenant, digest in (("globex", sha256(CONTENTS[1])), ("acme", sha256(b"never"))):
        assert not fresh.has(tenant, digest)
        with pytest.raises(NotFound):
            fresh.get(tenant, digest)
    fresh.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=12), st.integers(1, 400))
def test_any_pieces_in_blocks_of_any_length(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], block_bytes: int
) -> None:
    store = FsContentStore(str(tmp_path_factory.mktemp("cas")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_writer, "BLOCK_BYTES", block_bytes)
        pack = opened(store, pack_all(store, contents))
    problems: list[str] = []
    assert {piece.digest: content for piece, content in pack.scan(problems)} == {
        hashlib.sha256(content).digest(): content for content in contents
    }
    assert problems == [] and max((block.raw for block in pack.index.blocks), default=0) <= block_bytes
    for content in contents:
        piece = pack.index.find(hashlib.sha256(content).digest())
        assert piece is not None and pack.read(piece) == content
        numbers, _ = pack.index.blocks_of(piece.offset, piece.length)
        # What fits into a block lies in one.
        assert len(numbers) <= 1 or piece.length > block_bytes
    store.close()


def test_the_same_pieces_give_the_same_pack(store: FsContentStore, tmp_path: Path) -> None:
    other = FsContentStore(f"file://{tmp_path}/other")
    assert pack_all(store, CONTENTS).name == pack_all(other, CONTENTS).name
    assert place(store, pack_all(store, CONTENTS)).read_bytes() == files_of(other)[0].read_bytes()
    assert sha256(files_of(store)[0].read_bytes()) == files_of(store)[0].stem


def test_a_pack_belongs_to_its_tenant(store: FsContentStore, tmp_path: Path) -> None:
    made = pack_all(store, CONTENTS)
    shutil.copytree(tmp_path / "cas" / "acme", tmp_path / "cas" / "globex")
    with pytest.raises(Corrupt, match="belongs to acme"):
        opened(store, made, "globex")
    assert not FsContentStore(store.url).has("globex", sha256(CONTENTS[1]))
    with pytest.raises(Corrupt, match="belongs to acme"):
        FsContentStore(store.url).get("globex", sha256(CONTENTS[1]))


def test_every_damaged_byte_is_noticed_and_says_what_it_costs(store: FsContentStore) -> None:
    contents = [report_of_tests(number, 40) for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_writer, "BLOCK_BYTES", 4_000)
        made = pack_all(store, contents)
    path = place(store, made)
    whole = path.read_bytes()
    blocks = made.index.blocks
    assert len(blocks) == 3
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        hit = [number for number, block in enumerate(blocks) if block.offset <= at < block.offset + block.stored]
        if not hit:
            with pytest.raises(Corrupt):
                opened(store, made)
            continue
        problems: list[str] = []
        pack = opened(store, made)
        (lost,) = {sha256(content) for content in contents} - {piece.digest.hex() for piece, _ in pack.scan(problems)}
        assert any(f"block {hit[0]} is damaged" in problem for problem in problems)
        assert any(lost in problem for problem in problems)
    for length in range(0, len(whole), 11):
        path.write_bytes(whole[:length])
        with pytest.raises(Corrupt):
            PackFile(store.storage, "acme", made.name, length)


def test_a_name_that_is_not_the_digest_of_the_file_is_noticed(store: FsContentStore) -> None:
    made = pack_all(store, CONTENTS)
    path = place(store, made)
    path.rename(path.with_name(f"{'0' * 64}.pack"))
    problems: list[str] = []
    assert len(list(PackFile(store.storage, "acme", "0" * 64, made.bytes).scan(problems))) == len(CONTENTS)
    assert len(problems) == 1 and "its name" in problems[0]


def test_a_block_that_says_to_be_huge_is_never_unpacked(store: FsContentStore) -> None:
    made = pack_all(store, [b"x" * 1000])
    path = place(store, made)
    whole = bytearray(path.read_bytes())
    offset, length, _, magic = FOOTER.unpack(whole[-FOOTER.size :])
    index = whole[offset : offset + length]
    at = 1 + len("acme") + 4 + 8 + 4
    index[at : at + 4] = (1 << 31).to_bytes(4, "big")
    whole[offset:] = index + FOOTER.pack(offset, length, google_crc32c.value(bytes(index)), magic)
    path.write_bytes(whole)
    with pytest.raises(Corrupt, match="blocks"):
        opened(store, made)


def test_a_later_version_says_so(store: FsContentStore) -> None:
    made = pack_all(store, [b"x"])
    path = place(store, made)
    whole = bytearray(path.read_bytes())
    whole[8:10] = (7).to_bytes(2, "big")
    path.write_bytes(whole)
    with pytest.raises(Corrupt, match="version 7") as caught:
        opened(store, made)
    assert "upgrade" in caught.value.hint and HEADER.size == 16


def test_a_damaged_loose_piece_does_not_hide_the_one_in_a_pack(store: FsContentStore, tmp_path: Path) -> None:
    pack_all(store, CONTENTS)
    path = tmp_path / "cas" / loose_path("acme", sha256(CONTENTS[2]))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"torn")
    assert store.get("acme", sha256(CONTENTS[2])) == CONTENTS[2]
    with pytest.raises(NotFound):
        store.get_loose("acme", sha256(CONTENTS[1]))


def test_a_reader_follows_content_from_loose_to_a_pack_and_to_the_next(store: FsContentStore) -> None:
    put_all(store, CONTENTS)
    reader = FsContentStore(store.url)
    assert reader.get("acme", sha256(CONTENTS[2])) == CONTENTS[2]
    pack_all(store, CONTENTS)
    assert reader.get("acme", sha256(CONTENTS[2])) == CONTENTS[2]
    store.erase_content("acme", [sha256(CONTENTS[1])])
    assert reader.get("acme", sha256(CONTENTS[2])) == CONTENTS[2]
    with pytest.raises(NotFound):
        FsContentStore(store.url).get("acme", sha256(CONTENTS[1]))


def bytes_of(store: FsContentStore) -> bytes:
    """All that lies there, packs unpacked."""
    found = b""
    for path in files_of(store):
        found += path.read_bytes()
        if path.suffix == ".pack":
            pack = PackFile(store.storage, path.parent.parent.name, path.stem, path.stat().st_size)
            found += b"".join(content for _, content in pack.scan([]))
    return found


CANARY = b"canary-7f3a9c0e51d2 " * 40


def test_erased_content_is_nowhere_and_all_else_is(store: FsContentStore) -> None:
    others = [report_of_tests(number, 60) for number in range(4)]
    pack_all(store, [*others[:2], CANARY])
    put_all(store, [CANARY, others[2]])
    pack_all(store, [CANARY, others[3]])
    pack_all(store, [CANARY])
    put_all(store, [CANARY], "globex")
    assert CANARY in bytes_of(store)
    done = store.erase_content("acme", [sha256(CANARY), sha256(b"never there")])
    assert (done.loose, done.packed, done.packs, done.problems) == (0, 3, 3, ())
    store.erase_content("globex", [sha256(CANARY)])
    assert CANARY not in bytes_of(store) and not FsContentStore(store.url).has("acme", sha256(CANARY))
    assert [FsContentStore(store.url).get("acme", sha256(other)) for other in others] == others
    assert store.erase_content("acme", [sha256(CANARY)]).packs == 0
    # The control: deleting the loose file alone leaves it in the pack.
    put_all(store, [CANARY])
    pack_all(store, [CANARY, others[0]])
    assert store.delete_unused("acme", sha256(CANARY), 1e12) and CANARY in bytes_of(store)


def test_erasing_from_a_damaged_pack_removes_it_and_says_what_was_lost(store: FsContentStore) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_writer, "BLOCK_BYTES", 1_000)
        others = [report_of_tests(number, 30) for number in range(2)]
        made = pack_all(store, [CANARY, *others])
    path = place(store, made)
    whole = bytearray(path.read_bytes())
    last = made.index.blocks[-1]
    whole[last.offset] ^= 1
    path.write_bytes(whole)
    done = store.erase_content("acme", [sha256(CANARY)])
    assert any(sha256(others[1]) in problem for problem in done.problems)
    assert not path.exists() and CANARY not in bytes_of(store)
    assert store.get("acme", sha256(others[0])) == others[0] and not store.has("acme", sha256(others[1]))


def test_erasing_refuses_where_a_pack_cannot_tell_what_is_in_it(store: FsContentStore) -> None:
    made = pack_all(store, [CANARY])
    path = place(store, made)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(Corrupt, match=made.name):
        FsContentStore(store.url).erase_content("acme", [sha256(CANARY)])


def test_what_is_still_there_after_it_was_erased_is_not_called_gone(
    store: FsContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_all(store, [CANARY, b"other"])
    monkeypatch.setattr(store.storage, "purge", lambda path: 0)
    with pytest.raises(Unavailable, match="still there"):
        store.erase_content("acme", [sha256(CANARY)])
    put_all(store, [CANARY])
    with pytest.raises(Unavailable, match="still there"):
        store.erase_content("acme", [sha256(CANARY)])


def test_putting_what_a_pack_has_writes_it_all_the_same(store: FsContentStore) -> None:
    # That pack may be about to be written again without it.
    pack_all(store, [b"again"])
    store.put("acme", BlobRef.of(b"again"), b"again")
    assert store.get_loose("acme", sha256(b"again")) == b"again"


def test_packs_are_smaller_than_one_frame_for_each_piece(store: FsContentStore) -> None:
    contents = [report_of_tests(number, 450) for number in range(40)]
    made = pack_all(store, contents)
    raw = sum(map(len, contents))
    single = sum(pack_all(store, [content]).bytes for content in contents)
    print(f"raw {raw:,}, one frame each {raw / single:.1f} times smaller, packed {raw / made.bytes:.1f} times")
    assert made.bytes < single < raw / 3
