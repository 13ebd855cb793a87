"""Bulky content in the hot log: small ones with their event, large ones in pieces before it, orphans removed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.hot.contents import CHUNK_BYTES, MARKER_PREFIX, Contents
from stratalog.hot.keys import Chunked
from stratalog.hot.sim import SimDisk, SimStore
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.protocols import Put, Store

SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5]


@pytest.fixture
def store() -> SimStore:
    return SimStore(SimDisk())


def content_of(size: int, salt: int = 0) -> tuple[BlobRef, bytes]:
    content = (bytes([salt]) + bytes(range(256)) * (size // 256 + 1))[:size]
    return BlobRef.of(content), content


def count(store: Store, space: str) -> int:
    return len(list(store.scan(space, b"")))


def markers(store: Store) -> int:
    return len(list(store.scan("meta", MARKER_PREFIX, MARKER_PREFIX + b"\xff" * 17)))


@pytest.mark.parametrize("size", SIZES)
def test_content_is_read_as_it_was_given(store: SimStore, size: int) -> None:
    contents = Contents(store)
    ref, content = content_of(size)
    placed = contents.place([(ref, content)])
    assert isinstance(placed[0][1], Chunked) == (size > CHUNK_BYTES)
    store.commit(contents.puts(5, placed))
    assert contents.get(5, ref.sha256) == content
    assert max(len(value) for space in ("blobs", "chunks") for _, value in store.scan(space, b"")) <= CHUNK_BYTES


def test_content_of_another_event_is_not_found(store: SimStore) -> None:
    contents = Contents(store)
    ref, content = content_of(10)
    store.commit(contents.puts(5, [(ref, content)]))
    for lsn, sha256 in [(4, ref.sha256), (6, ref.sha256), (5, "0" * 64), (5, "no digest"), (0, ref.sha256), (-1, "")]:
        with pytest.raises(NotFound):
            contents.get(lsn, sha256)


@pytest.mark.parametrize("size", [10, CHUNK_BYTES + 1])
def test_content_that_differs_from_its_digest_is_never_served(store: SimStore, size: int) -> None:
    contents = Contents(store)
    ref, content = content_of(size)
    store.commit(contents.puts(5, contents.place([(ref, content)])))
    space = "blobs" if size <= CHUNK_BYTES else "chunks"
    key, value = next(iter(store.scan(space, b"")))
    store.commit([Put(space, key, value[:-1] + bytes([value[-1] ^ 1]))])
    with pytest.raises(Corrupt):
        contents.get(5, ref.sha256)
    store.delete_range(space, key, key + b"\0")
    with pytest.raises((Corrupt, NotFound)):
        contents.get(5, ref.sha256)


def test_pieces_whose_event_never_came_are_removed_at_open(store: SimStore) -> None:
    contents = Contents(store)
    ref, content = content_of(CHUNK_BYTES + 1)
    kept = contents.place([(ref, content)])
    store.commit(contents.puts(5, kept))
    contents.place([content_of(CHUNK_BYTES + 2)])
    assert count(store, "chunks") == 4
    assert Contents(store).forget_orphans() == 1
    assert count(store, "chunks") == 2
    assert contents.get(5, ref.sha256) == content
    assert Contents(store).forget_orphans() == 0


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_crash_between_two_pieces_leaves_nothing_behind(after: int) -> None:
    written = 0

    def fault(step: str) -> None:
        nonlocal written
        written += step == "write"
        if written == after + 1:
            raise KeyboardInterrupt

    disk = SimDisk(fault)
    with pytest.raises(KeyboardInterrupt):
        Contents(SimStore(disk)).place([content_of(5 * CHUNK_BYTES)])
    disk.crash()
    disk.fault = lambda step: None
    store = SimStore(disk)
    assert Contents(store).forget_orphans() == 1
    assert count(store, "chunks") == markers(store) == 0


def test_content_of_a_refused_event_is_removed_at_once(store: SimStore) -> None:
    contents = Contents(store)
    contents.abandon(contents.place([content_of(CHUNK_BYTES + 1), content_of(5)]))
    assert count(store, "chunks") == markers(store) == 0


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.sampled_from([3, 200, CHUNK_BYTES + 1]), min_size=1, max_size=6),
    cut=st.tuples(st.integers(1, 8), st.integers(1, 8)),
)
def test_forgetting_takes_the_content_of_exactly_these_events(sizes: list[int], cut: tuple[int, int]) -> None:
    store = SimStore(SimDisk())
    contents = Contents(store)
    refs = []
    for lsn, size in enumerate(sizes, 1):
        ref, content = content_of(size, lsn)
        store.commit(contents.puts(lsn, contents.place([(ref, content)])))
        refs.append((lsn, ref))
    first, stop = min(cut), max(cut)
    contents.forget(first, stop)
    for lsn, ref in refs:
        if first <= lsn < stop:
            with pytest.raises(NotFound):
                contents.get(lsn, ref.sha256)
        else:
            assert len(contents.get(lsn, ref.sha256)) == ref.size
    contents.forget(1, 100)
    assert [count(store, space) for space in ("blobs", "chunks", "meta")] == [0, 0, 0]
