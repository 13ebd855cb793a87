"""Packing: content of consolidated trajectories moves into packs; at every moment it can be read, whatever crashes."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fix_cli import Cli
from fix_cold import ColdBench
from fix_packs import files_of, put_all, report_of_tests
from fix_step_crash import Crash, crashing

from stratalog.cold import pack_rewrite, pack_writer
from stratalog.cold import packs as module
from stratalog.cold import sweep as sweep_module
from stratalog.cold.backup import create_backup
from stratalog.cold.cas import FsContentStore
from stratalog.cold.check import verify_cold
from stratalog.cold.consolidate import Consolidation
from stratalog.cold.folder import Folder
from stratalog.cold.installation import Installation, Tiers
from stratalog.cold.owner import database_id, places
from stratalog.cold.pack_check import check_packs
from stratalog.cold.pack_file import PackFile
from stratalog.cold.pack_shelf import PackShelf
from stratalog.cold.pack_table import PackTable
from stratalog.cold.packs import Packed, pack, table_of
from stratalog.cold.restore import LOCAL, restore_backup
from stratalog.cold.roots import Roots
from stratalog.cold.sweep import sweep
from stratalog.cold.verification import verify_all
from stratalog.hot.home import Home
from stratalog.schemas import events as ev
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.errors import Invalid, Locked

pytestmark = pytest.mark.postgres


def tiers(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def packed(bench: ColdBench, **options: Any) -> Packed:
    return pack(tiers(bench), **options)


def home_of(bench: ColdBench, folder: Path) -> Home:
    """A home whose settings name these tiers."""
    home = Home.open(folder / "home", create=True)
    urls = f'[cold]\nurl = "{bench.lake.url}"\ncas_url = "{bench.store.url}"\n'
    (home.path / "stratalog.toml").write_text(f'[warm]\ndsn = "{bench.dsn}"\n{urls}')
    return home


def loose(bench: ColdBench) -> set[str]:
    return {path.name for path in files_of(bench.store) if path.suffix != ".pack"}


def packs(bench: ColdBench) -> list[str]:
    return [path.stem for path in files_of(bench.store) if path.suffix == ".pack"]


def rows(bench: ColdBench) -> set[tuple[str, str]]:
    return {(tenant, digest.hex()) for tenant, digest, _ in table_of(bench.store).live()}


def readable(bench: ColdBench, digests: list[str], tenant: str = "acme") -> bool:
    """Whether all of it can be read by whoever has nothing but the store, and by whoever has Postgres, too."""
    alone = FsContentStore(bench.store.url)
    told = FsContentStore(bench.store.url, table=PackTable(bench.connect))
    good = all(BlobRef.of(store.get(tenant, sha256)).sha256 == sha256 for store in (alone, told) for sha256 in digests)
    alone.close()
    told.close()
    return good


def fill(bench: ColdBench, pieces: int = 4) -> list[str]:
    """Trajectories with content of two tenants, consolidated, and one that is not; the digests of acme's."""
    contents = [report_of_tests(number, 50) for number in range(pieces)]
    for number, content in enumerate(contents):
        bench.task(number, blob=content)
    bench.task(100, tenant="globex", blob=contents[0])
    bench.run()
    bench.task(101, blob=b"of one that still runs", finished=False)
    return [BlobRef.of(content).sha256 for content in contents]


def test_content_of_consolidated_trajectories_is_packed_by_tenant(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    assert packed(cold_bench, dry_run=True).pieces == 5 and not packs(cold_bench)
    done = packed(cold_bench)
    assert (done.pieces, done.packs, done.deleted, done.waiting, done.problems) == (5, 2, 5, 0, ())
    assert loose(cold_bench) == {BlobRef.of(b"of one that still runs").sha256}
    assert readable(cold_bench, digests) and readable(cold_bench, digests[:1], "globex")
    assert rows(cold_bench) == {("globex", digests[0]), *(("acme", sha256) for sha256 in digests)}
    assert verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).problems == ()
    assert packed(cold_bench) == Packed() and packed(cold_bench, dry_run=True) == Packed()


def test_later_content_makes_further_packs_and_no_piece_is_packed_twice(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    packed(cold_bench)
    cold_bench.task(200, blob=report_of_tests(0, 50))  # as trajectory 0 has it
    cold_bench.task(201, blob=b"new")
    cold_bench.run()
    done = packed(cold_bench)
    assert (done.pieces, done.packs, done.deleted) == (1, 1, 2)
    assert readable(cold_bench, [*digests, BlobRef.of(b"new").sha256]) and len(packs(cold_bench)) == 3


def test_packs_end_where_they_are_large_enough(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    done = packed(cold_bench, pack_bytes_max=4_000)
    assert done.packs == 5 and readable(cold_bench, digests)


def test_a_damaged_piece_is_a_problem_and_the_others_are_packed(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    path = next(path for path in files_of(cold_bench.store) if path.name == digests[1] and "acme" in path.parts)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    done = packed(cold_bench)
    assert done.pieces == 4 and len(done.problems) == 1 and digests[1] in done.problems[0] and path.exists()
    path.write_bytes(content)
    assert packed(cold_bench).pieces == 1 and readable(cold_bench, digests)


def test_a_piece_that_is_gone_is_a_problem(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    next(path for path in files_of(cold_bench.store) if path.name == digests[1] and "acme" in path.parts).unlink()
    done = packed(cold_bench)
    assert done.pieces == 4 and done.problems == (f"content {digests[1]} of acme is missing",)


def test_not_while_a_consolidation_runs_and_not_without_postgres(cold_bench: ColdBench) -> None:
    with cold_bench.steps(), pytest.raises(Locked):
        packed(cold_bench)
    with pytest.raises(Invalid):
        table_of(FsContentStore(cold_bench.store.url))


STEPS: list[tuple[Any, str, bool, int]] = [
    (Consolidation, "__enter__", True, 1),
    (PackWriter := pack_writer.PackWriter, "add", True, 2),
    (Folder, "move", False, 1),
    (Folder, "move", True, 1),
    (module, "publish", True, 1),
    (PackTable, "record", True, 1),
    (Folder, "delete", False, 1),
    (Folder, "delete", True, 1),
    (Folder, "delete", True, 4),
    (PackTable, "record", True, 2),
    (PackTable, "note_files", False, 1),
    (PackTable, "note_files", True, 1),
    (PackTable, "forget_files", False, 1),
]


@pytest.mark.parametrize(("owner", "name", "after", "on"), STEPS)
def test_the_next_run_finishes_whatever_step_it_was(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool, on: int
) -> None:
    digests = fill(cold_bench)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
        with pytest.raises(Crash):
            packed(cold_bench)
    cold_bench.store.close()  # as the end of the process would: its session, its locks, its scratch
    assert readable(cold_bench, digests) and readable(cold_bench, digests[:1], "globex")
    done = packed(cold_bench)
    assert done.problems == () and len(packs(cold_bench)) == 2
    assert loose(cold_bench) == {BlobRef.of(b"of one that still runs").sha256}
    assert readable(cold_bench, digests) and len(rows(cold_bench)) == 5
    assert verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).problems == ()
    assert packed(cold_bench) == Packed()


def test_deleting_before_the_pack_is_there_would_be_noticed(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control of the crash points: the same crash, in a packing that deletes the loose copies first.
    digests = fill(cold_bench)
    add = PackWriter.add

    def deleting(writer: Any, digest: bytes, content: bytes) -> None:
        cold_bench.store.storage.delete(module.loose_path("acme", digest.hex()))
        add(writer, digest, content)

    monkeypatch.setattr(PackWriter, "add", deleting)
    monkeypatch.setattr(Folder, "move", crashing(Folder.move, after=False))
    with pytest.raises(Crash):
        packed(cold_bench)
    assert not any(cold_bench.store.has("acme", sha256) for sha256 in digests)


KILLED = """
import os, signal, sys
from stratalog.cold import packs
from stratalog.cold.cas import FsContentStore
from stratalog.cold.catalog import Catalog
from stratalog.cold.installation import Installation, Tiers
from stratalog.cold.owner import database_id, places
from stratalog.cold.pack_check import check_packs
from stratalog.cold.lake import Lake
from stratalog.cold.pack_table import PackTable
from stratalog.schemas.settings import ColdSettings
from stratalog.warm.database import connect

dsn, lake_url, cas_url, target, on = sys.argv[1:]
owner, name = {"record": (PackTable, "record"), "publish": (packs, "publish"),
               "delete": (packs._Packing, "_delete_loose")}[target]
call, calls = getattr(owner, name), 0

def killed(*given, **named):
    global calls
    calls += 1
    result = call(*given, **named)
    if calls == int(on):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name, killed)
with Lake(lake_url) as lake, Catalog(dsn, lake) as catalog:
    store = FsContentStore(cas_url, table=PackTable(lambda: connect(dsn)))
    packs.pack(Tiers(dsn, lake, catalog, store, ColdSettings()))
"""


@pytest.mark.parametrize(("target", "on"), [("publish", 1), ("record", 1), ("delete", 2)])
def test_a_killed_run_is_finished_by_the_next(cold_bench: ColdBench, target: str, on: int) -> None:
    digests = fill(cold_bench)
    command = [sys.executable, "-c", KILLED, cold_bench.dsn, cold_bench.lake.url, cold_bench.store.url, target, str(on)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert readable(cold_bench, digests)
    assert packed(cold_bench).problems == () and readable(cold_bench, digests) and len(rows(cold_bench)) == 5
    assert loose(cold_bench) == {BlobRef.of(b"of one that still runs").sha256}
    assert not list(Path(cold_bench.store.url.removeprefix("file://")).glob(".partial-*/*.pack"))


def test_whoever_puts_a_piece_while_it_is_packed_loses_nothing(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = fill(cold_bench)
    content = report_of_tests(1, 50)
    moments: list[Callable[..., Any]] = [PackWriter.add, Folder.move, PackTable.record, Folder.delete]
    owners: list[Any] = [PackWriter, Folder, PackTable, Folder]
    for owner, moment in zip(owners, moments, strict=True):

        def putting(*given: Any, moment: Callable[..., Any] = moment, **named: Any) -> Any:
            writer = FsContentStore(cold_bench.store.url)
            writer.put("acme", BlobRef.of(content), content)
            result = moment(*given, **named)
            if moment is not Folder.move:  # which `put` does not come to
                writer.put("acme", BlobRef.of(content), content)
            assert writer.get("acme", digests[1]) == content
            writer.close()
            return result

        monkeypatch.setattr(owner, moment.__name__, putting)
    packed(cold_bench)
    assert readable(cold_bench, digests)
    monkeypatch.undo()
    assert packed(cold_bench).deleted >= 1 and readable(cold_bench, digests)
    assert loose(cold_bench) == {BlobRef.of(b"of one that still runs").sha256}


def test_a_pack_that_does_not_read_back_costs_nothing(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = fill(cold_bench)
    scan = PackFile.scan

    def failing(pack_file: PackFile, problems: list[str]) -> Any:
        yield from list(scan(pack_file, problems))[:-1]

    monkeypatch.setattr(PackFile, "scan", failing)
    with pytest.raises(Exception, match="does not read back"):
        packed(cold_bench)
    assert {*digests} <= loose(cold_bench) and rows(cold_bench) == set()
    monkeypatch.undo()
    assert packed(cold_bench).problems == () and readable(cold_bench, digests)


def test_loose_copies_stay_until_a_listing_shows_the_pack(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = fill(cold_bench)
    monkeypatch.setattr(PackShelf, "names", lambda shelf, tenant: {})
    done = packed(cold_bench)
    assert (done.pieces, done.waiting, done.deleted) == (5, 5, 0) and {*digests} <= loose(cold_bench)
    monkeypatch.undo()
    assert packed(cold_bench).deleted == 5 and readable(cold_bench, digests)


def test_content_that_is_erased_while_packs_are_written_does_not_come_back(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = fill(cold_bench)
    add = module._Packing._add

    def erased(work: Any, tenant: str, digest: bytes) -> None:
        if work._writer is None and digest.hex() != digests[0] and tenant == "acme":
            other = FsContentStore(cold_bench.store.url, table=PackTable(cold_bench.connect))
            other.erase_content("acme", [digests[0]])
            other.close()
        add(work, tenant, digest)

    monkeypatch.setattr(module._Packing, "_add", erased)
    packed(cold_bench, pack_bytes_max=4_000)
    assert not FsContentStore(cold_bench.store.url).has("acme", digests[0]) and readable(cold_bench, digests[1:])
    assert ("acme", digests[0]) not in rows(cold_bench) and ("globex", digests[0]) in rows(cold_bench)


def test_erasing_keeps_the_rows_true(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    packed(cold_bench)
    before = packs(cold_bench)
    done = cold_bench.store.erase_content("acme", [digests[2], BlobRef.of(b"of one that still runs").sha256])
    assert (done.loose, done.packed, done.packs) == (1, 1, 1)
    assert rows(cold_bench) == {("globex", digests[0]), *(("acme", digests[number]) for number in (0, 1, 3))}
    assert readable(cold_bench, [digests[number] for number in (0, 1, 3)]) and not loose(cold_bench)
    assert len(packs(cold_bench)) == 2 and packs(cold_bench) != before
    assert [row.replaced for row in table_of(cold_bench.store).packs()] == [False, False]


ERASE_STEPS: list[tuple[Any, str, bool, int]] = [
    (Folder, "purge", True, 1),
    (pack_rewrite, "publish", False, 1),
    (pack_rewrite, "publish", True, 1),
    (PackTable, "replace", True, 1),
    (Folder, "purge", False, 2),
    (Folder, "purge", True, 2),
    (PackTable, "forget_pack", False, 1),
    (PackTable, "forget_pack", True, 1),
    (PackTable, "forget_pieces", False, 1),
]


@pytest.mark.parametrize(("owner", "name", "after", "on"), ERASE_STEPS)
def test_an_erasure_that_was_cut_short_is_finished_by_the_same_call(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool, on: int
) -> None:
    digests = fill(cold_bench)
    packed(cold_bench)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
        with pytest.raises(Crash):
            cold_bench.store.erase_content("acme", [digests[2]])
    cold_bench.store.close()
    rest = [digests[number] for number in (0, 1, 3)]
    assert readable(cold_bench, rest)
    if after:
        packed(cold_bench)  # which must bring nothing back
    cold_bench.store.erase_content("acme", [digests[2]])
    canary = report_of_tests(2, 50)
    for path in files_of(cold_bench.store):
        if path.suffix == ".pack":
            found = PackFile(cold_bench.store.storage, path.parent.parent.name, path.stem, path.stat().st_size)
            assert canary not in [content for _, content in found.scan([])]
    assert digests[2] not in loose(cold_bench) and readable(cold_bench, rest)
    assert ("acme", digests[2]) not in rows(cold_bench)
    assert verify_rows(cold_bench)


def verify_rows(bench: ColdBench) -> bool:
    """Whether each row leads to its piece."""
    table = table_of(bench.store)
    return all(
        (place := table.find(tenant, digest)) is not None
        and PackFile(bench.store.storage, tenant, *place).index.find(digest) is not None
        for tenant, digest, _ in table.live()
    )


def test_verify_names_what_is_wrong_with_packs_and_the_index_is_made_again(
    cold_bench: ColdBench, tmp_path: Path
) -> None:
    home = home_of(cold_bench, tmp_path)
    cli = Cli(home.path)
    digests = fill(cold_bench)
    assert cli.json("storage", "pack")["pieces"] == 5
    assert cli.json("verify")["ok"]
    found = cli.json("storage")
    assert found["packs"]["pieces"] == 5 and found["packs"]["raw_bytes"] > found["packs"]["bytes"]
    assert {part["part"]: part["files"] for part in found["parts"] if part["tier"] == "content"} == {
        "pieces": 1,
        "packs": 2,
    }
    assert "5 pieces of content in 2 packs" in cli("storage").out
    # A lost index: found, and made again. Reading does without it.
    cold_bench.execute("DELETE FROM packed_content WHERE sha256 = %s", bytes.fromhex(digests[1]))
    cold_bench.execute("UPDATE packed_content SET start = start + 1 WHERE sha256 = %s", bytes.fromhex(digests[2]))
    problems = cli.json("verify", code=20)["blobs"]["problems"]
    assert len(problems) == 2 and all("stratalog storage reindex" in problem for problem in problems)
    assert digests[1] in problems[0] and digests[2] in problems[1] and readable(cold_bench, digests)
    assert cli.json("storage", "reindex") == {"packs": 2, "made": 2, "removed": 1, "problems": []}
    assert cli.json("verify")["ok"]
    cold_bench.execute("DELETE FROM packed_content")
    cold_bench.execute("DELETE FROM content_packs")
    assert cli.json("verify", code=20)["blobs"]["problems"] and readable(cold_bench, digests)
    assert cli("storage", "reindex").code == 0 and cli.json("verify")["ok"] and len(rows(cold_bench)) == 5
    # A damaged block, then a pack that is gone: named with the trajectories that need what was in it.
    path = next(path for path in files_of(cold_bench.store) if path.suffix == ".pack" and "acme" in path.parts)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    report = cli.json("verify", code=20)
    assert any(f"pack {path.stem} of acme: block 0 is damaged" in problem for problem in report["blobs"]["problems"])
    trajectories = [str(cold_bench.author(number).trajectory_id) for number in range(4)]
    assert all(any(id_ in problem for problem in report["tiers"]["cold"]["problems"]) for id_ in trajectories)
    path.unlink()
    assert f"pack {path.stem} of acme is gone" in " ".join(cli.json("verify", code=20)["blobs"]["problems"])
    path.write_bytes(whole)
    assert cli.json("verify")["ok"]


def test_a_backup_has_packs_as_they_are_and_what_no_listing_shows(
    cold_bench: ColdBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(cold_bench, tmp_path)
    digests = fill(cold_bench)
    packed(cold_bench)
    late = put_all(cold_bench.store, [b"put a moment ago"])[0]
    ref = BlobRef.of(b"put a moment ago")
    cold_bench.append(cold_bench.author(7), [ev.ToolResult(tool_call_id="c", output=Blob(ref))])
    entries = FsContentStore.entries
    monkeypatch.setattr(
        FsContentStore,
        "entries",
        lambda store, tenant: (entry for entry in entries(store, tenant) if not entry.path.endswith(late)),
    )
    backup = create_backup(Installation(Home.open(home.path)), tmp_path / "backups")
    monkeypatch.undo()
    names = {path.name for path in (backup / "cas").rglob("*") if path.is_file()}
    assert late in names and {f"{name}.pack" for name in packs(cold_bench)} <= names
    restore_backup(backup, tmp_path / "restored")
    restored = Installation(Home.open(tmp_path / "restored", flags=LOCAL))
    with restored.tiers() as there:
        assert [place.ours for place in places(there)] == [True, True]
        assert all(there.store.get("acme", sha256) for sha256 in [*digests, late])
        assert {digest.hex() for tenant, digest, _ in table_of(there.store).live() if tenant == "acme"} == {*digests}
        with closing(there.connect()) as conn, cold_bench.connect() as other:
            assert database_id(conn) != database_id(other)
    assert verify_all(restored)["ok"]


def test_the_sweep_removes_what_is_not_needed_from_packs(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    packed(cold_bench)
    sweep_in = partial(sweep, tiers(cold_bench), cold_bench.store)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
    before = packs(cold_bench)
    # As if an erasure had rewritten the rows of two trajectories: nothing refers to their content.
    roots = sweep_module.find_roots
    gone = {("acme", bytes.fromhex(digests[number])) for number in (0, 1)}

    class Fewer(Roots):
        def __contains__(self, piece: tuple[str, bytes]) -> bool:
            return piece not in gone and super().__contains__(piece)

    def fewer(*given: Any) -> Roots:
        found = Fewer()
        for tenant, digest in roots(*given):
            found.add(tenant, digest.hex())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_module, "find_roots", fewer)
        assert sweep_in().condemned == 2 and sweep_in().waiting == 2 and packs(cold_bench) == before
        done = sweep_in(now=later, dead_share_max=0.9)
        assert (done.deleted, done.packs) == (2, 0) and packs(cold_bench) == before
        assert readable(cold_bench, digests)  # they are dead, and still there
        done = sweep_in(now=later)
    assert (done.packs, done.problems) == (1, ()) and done.bytes > 0 and packs(cold_bench) != before
    assert readable(cold_bench, digests[2:]) and verify_rows(cold_bench)
    assert not any(FsContentStore(cold_bench.store.url).has("acme", sha256) for sha256 in digests[:2])
    assert len(table_of(cold_bench.store).packs()) == 2


def test_a_piece_that_no_row_knows_survives_the_rewriting_of_its_pack(cold_bench: ColdBench) -> None:
    # A lost row must never make a piece look unneeded.
    digests = fill(cold_bench)
    packed(cold_bench)
    with cold_bench.connect() as conn:
        table_of(cold_bench.store).kill(conn, [("acme", bytes.fromhex(digests[0]))])
    cold_bench.execute("DELETE FROM packed_content WHERE sha256 = %s AND tenant = 'acme'", bytes.fromhex(digests[1]))
    shelf = cold_bench.store.shelf
    assert pack_rewrite.compact(cold_bench.store.storage, shelf, 0.1)[0] == 1
    assert readable(cold_bench, digests[1:]) and not FsContentStore(cold_bench.store.url).has("acme", digests[0])
    assert ("acme", digests[1]) in rows(cold_bench)


def test_packing_again_after_a_pack_was_left_by_a_rewrite_that_crashed(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = fill(cold_bench)
    packed(cold_bench)
    compact = partial(pack_rewrite.compact, cold_bench.store.storage, cold_bench.store.shelf, 0.1)
    steps: list[tuple[Any, str]] = [(pack_rewrite, "publish"), (PackTable, "replace"), (Folder, "purge")]
    for owner, name in steps:
        with cold_bench.connect() as conn:
            table_of(cold_bench.store).kill(conn, [("acme", bytes.fromhex(digests.pop(0)))])
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, crashing(getattr(owner, name), after=True))
            with pytest.raises(Crash):
                compact()
        cold_bench.store.close()
        assert readable(cold_bench, digests)
        assert packed(cold_bench).problems == ()
        assert check_packs(cold_bench.store).problems == () and readable(cold_bench, digests)
        compact()
        assert len(packs(cold_bench)) == 2 and verify_rows(cold_bench)


def test_content_that_is_referred_to_but_was_dead_in_its_pack_is_revived(cold_bench: ColdBench) -> None:
    digests = fill(cold_bench)
    packed(cold_bench)
    with cold_bench.connect() as conn:
        table_of(cold_bench.store).kill(conn, [("acme", bytes.fromhex(digests[0]))])
    put_all(cold_bench.store, [report_of_tests(0, 50)])
    author = cold_bench.author(300)
    ref = BlobRef.of(report_of_tests(0, 50))
    done: list[Any] = [
        ev.TaskStarted(task="t", model=ev.Model(name="m")),
        ev.ToolResult(tool_call_id="c", output=Blob(ref)),
    ]
    cold_bench.append(author, [*done, ev.TaskFinished(status="completed")])
    cold_bench.run()
    assert ("acme", digests[0]) not in rows(cold_bench)
    assert packed(cold_bench).deleted == 1
    assert ("acme", digests[0]) in rows(cold_bench) and digests[0] not in loose(cold_bench)
    assert readable(cold_bench, digests)


def test_dagster_packs_after_the_marks(cold_bench: ColdBench, tmp_path: Path) -> None:
    dg = pytest.importorskip("dagster")
    from stratalog.pipelines.packed_content import packed_content
    from stratalog.pipelines.place import RESOURCE, Place

    home = home_of(cold_bench, tmp_path)
    digests = fill(cold_bench)
    done = dg.materialize([packed_content], resources={RESOURCE: Place(home.path)})
    assert done.success and readable(cold_bench, digests) and len(packs(cold_bench)) == 2
    (made,) = done.asset_materializations_for_node(packed_content.op.name)
    assert made.metadata["pieces"].value == 5
