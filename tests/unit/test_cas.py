"""Content-addressed storage in a local folder: what comes back, what never does, and what a crash may leave."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.cold import folder as folder_module
from stratalog.cold.cas import FsContentStore
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, DiskBudgetExceeded, Invalid, NotFound
from stratalog.schemas.protocols import ContentStore

CONTENT = b"bulky output"
REF = BlobRef.of(CONTENT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cas"


@pytest.fixture
def store(root: Path) -> Iterator[FsContentStore]:
    opened = FsContentStore(f"file://{root}")
    yield opened
    opened.close()


def place(root: Path, tenant: str = "acme") -> Path:
    return root / tenant / REF.sha256[:2] / REF.sha256


def test_content_comes_back_from_its_tenant_alone(store: FsContentStore, root: Path) -> None:
    contract: ContentStore = store
    contract.put("acme", REF, CONTENT)
    assert contract.get("acme", REF.sha256) == CONTENT
    assert place(root).read_bytes() == CONTENT
    assert contract.has("acme", REF.sha256) and not contract.has("globex", REF.sha256)
    with pytest.raises(NotFound):
        contract.get("globex", REF.sha256)
    assert list(contract.tenants()) == ["acme"] and list(contract.digests("acme")) == [REF.sha256]
    assert list(contract.digests("globex")) == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=8))
def test_all_that_was_put_is_listed_once(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    store = FsContentStore(str(tmp_path_factory.mktemp("cas")))
    for content in contents:
        store.put("t", BlobRef.of(content), content)
    assert list(store.digests("t")) == sorted({hashlib.sha256(content).hexdigest() for content in contents})
    assert all(store.get("t", BlobRef.of(content).sha256) == content for content in contents)


def test_content_that_is_not_what_its_name_says_is_not_stored(store: FsContentStore) -> None:
    for ref, content in ((REF, b"other output"), (BlobRef(REF.sha256, 3), CONTENT)):
        with pytest.raises(Corrupt):
            store.put("acme", ref, content)
    assert not store.has("acme", REF.sha256)


@pytest.mark.parametrize("torn", [b"", CONTENT[:4], CONTENT.upper()], ids=["empty", "short", "same length"])
def test_a_damaged_file_is_never_served_and_is_replaced(store: FsContentStore, root: Path, torn: bytes) -> None:
    place(root).parent.mkdir(parents=True)
    place(root).write_bytes(torn)
    with pytest.raises(Corrupt):
        store.get("acme", REF.sha256)
    store.put("acme", REF, CONTENT)
    assert store.get("acme", REF.sha256) == CONTENT


def test_putting_again_does_not_write_again_but_shows_that_it_is_used(store: FsContentStore, root: Path) -> None:
    store.put("acme", REF, CONTENT)
    before = place(root).stat()
    os.utime(place(root), (0, 0))
    store.put("acme", REF, CONTENT)
    after = place(root).stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size) and after.st_mtime > 0


@pytest.mark.parametrize("tenant", ["../x", "", "A", "a/b", "a\0", ".", "x" * 64])
def test_a_tenant_cannot_leave_its_folder(store: FsContentStore, root: Path, tenant: str) -> None:
    for act in (
        lambda: store.put(tenant, REF, CONTENT),
        lambda: store.get(tenant, REF.sha256),
        lambda: list(store.digests(tenant)),
    ):
        with pytest.raises(Invalid):
            act()
    assert not root.exists()


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_what_is_no_digest_is_refused(store: FsContentStore, digest: str) -> None:
    with pytest.raises(Invalid):
        store.get("acme", digest)
    with pytest.raises(Invalid):
        store.put("acme", BlobRef(digest, len(CONTENT)), CONTENT)


def test_foreign_files_and_links_are_passed_over(store: FsContentStore, root: Path, tmp_path: Path) -> None:
    store.put("acme", REF, CONTENT)
    (root / "acme" / "zz").mkdir()
    (root / "acme" / "zz" / ("0" * 64)).touch()
    (place(root).parent / "README").touch()
    (root / "Not A Tenant").mkdir()
    (root / "file").touch()
    (root / "linked").symlink_to(tmp_path)
    assert list(store.tenants()) == ["acme"] and list(store.digests("acme")) == [REF.sha256]


def test_a_link_in_the_way_does_not_lead_out(store: FsContentStore, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root.mkdir(parents=True)
    (root / "acme").symlink_to(outside)
    with pytest.raises(Invalid, match="leads out"):
        store.put("acme", REF, CONTENT)
    assert list(outside.iterdir()) == []


def test_many_may_put_the_same_content_at_once(root: Path) -> None:
    stores = [FsContentStore(str(root)) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: stores[number % 4].put("acme", REF, CONTENT), range(40)))
    assert stores[0].get("acme", REF.sha256) == CONTENT
    for store in stores:
        store.close()
    assert sorted(path.name for path in root.iterdir()) == ["acme"]


class Order:
    """What is synced and renamed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        fsync, replace = os.fsync, Path.replace

        def recorded_fsync(descriptor: int) -> None:
            self.steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
            fsync(descriptor)

        def recorded_replace(source: Path, target: Path) -> Path:
            self.steps.append(f"rename to {target.name}")
            return replace(source, target)

        monkeypatch.setattr(folder_module.os, "fsync", recorded_fsync)
        monkeypatch.setattr(Path, "replace", recorded_replace)


def test_file_is_synced_before_its_name_and_every_folder_above_it(
    store: FsContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order(monkeypatch)
    store.put("acme", REF, CONTENT)
    rename = order.steps.index(f"rename to {REF.sha256}")
    assert order.steps[rename + 1 :] == [f"sync {REF.sha256[:2]}"]
    assert order.steps[rename - 1].startswith("sync ") and order.steps[rename - 1] != f"sync {REF.sha256[:2]}"
    # From the top: the folder in which `deep` was made, then those of `cas`, the tenant and the first digits.
    assert order.steps[1 : rename - 1] == ["sync deep", "sync cas", "sync acme"]
    order.steps.clear()
    store.put("acme", REF, CONTENT)
    assert order.steps == [f"sync {REF.sha256}", f"sync {REF.sha256[:2]}"]


def test_content_that_another_process_left_unsynced_is_made_durable(
    store: FsContentStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(root).parent.mkdir(parents=True)
    place(root).write_bytes(CONTENT)
    order = Order(monkeypatch)
    store.put("acme", REF, CONTENT)
    assert {f"sync {name}" for name in (REF.sha256, REF.sha256[:2], "acme", "cas")} <= set(order.steps)


def test_a_full_disk_is_reported_and_leaves_nothing(
    store: FsContentStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("acme", BlobRef.of(b"first"), b"first")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module.os, "fsync", full)
    with pytest.raises(DiskBudgetExceeded):
        store.put("acme", REF, CONTENT)
    monkeypatch.undo()
    assert not store.has("acme", REF.sha256)
    scratch = next(path for path in root.iterdir() if path.name.startswith(".partial-"))
    assert list(scratch.iterdir()) == []


KILLED = """
import os, sys
from pathlib import Path
from stratalog.cold.cas import FsContentStore
from stratalog.schemas.blobs import BlobRef

content = sys.argv[2].encode()
if sys.argv[3] == "killed":
    Path.replace = lambda source, target: os.kill(os.getpid(), 9)
FsContentStore(sys.argv[1]).put("acme", BlobRef.of(content), content)
"""


@pytest.mark.parametrize("fate", ["killed", "finished"])
def test_a_killed_writer_leaves_no_content_and_its_rest_is_cleaned(
    store: FsContentStore, root: Path, fate: str
) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, str(root), CONTENT.decode(), fate], check=False)
    assert run.returncode == (-9 if fate == "killed" else 0)
    assert store.has("acme", REF.sha256) == (fate == "finished")
    store.put("globex", REF, CONTENT)  # a live writer with a scratch folder of its own
    assert store.clean_partial() == 1
    assert store.clean_partial() == 0
    store.put("acme", REF, CONTENT)
    assert store.get("acme", REF.sha256) == CONTENT
