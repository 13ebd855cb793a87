"""Verification in parts: whatever the number of workers, whatever the sample, what is found is what is there."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from fix_cli import call
from fix_cold import ColdBench

from stratalog.cold import verification, workers
from stratalog.cold.installation import Installation
from stratalog.cold.sample import Sample
from stratalog.cold.verification import verify_all
from stratalog.hot.home import Home
from stratalog.schemas import events as ev
from stratalog.schemas.errors import Unavailable
from stratalog.schemas.settings import ColdSettings

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
TRAJECTORIES = 12


@pytest.fixture
def full(cold_bench: ColdBench) -> ColdBench:
    """Trajectories of two days and two tenants in several small files, one of which goes over two; late events."""
    cold_bench.settings = ColdSettings(row_group_rows=16, file_bytes_max=12_000)
    for number in range(TRAJECTORIES):
        cold_bench.task(number, turns=3 + 9 * (number == 3), day=number % 2, tenant="acme" if number % 3 else "globex")
    cold_bench.task(90, blob=b"bulky" * 9_000)
    cold_bench.run()
    cold_bench.append(cold_bench.author(1, day=1), [ev.Annotation(name="late", score=1.0)])
    cold_bench.run()
    return cold_bench


def verified(home: Home, count: int, sample: Sample = verification.EVERYTHING) -> dict[str, Any]:
    return verify_all(Installation(home), sample=sample, workers=count)


def files_of(bench: ColdBench) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")) for url in bench.catalog.snapshot_files())


def damage(bench: ColdBench) -> None:
    """Something of every kind: a changed row, a lost row, a lost head, a changed file, a lost file, lost content."""
    ids = [bench.author(number, day=number % 2).trajectory_id for number in (1, 2, 4, 5)]
    bench.execute("UPDATE trajectory_events SET body = '{}' WHERE trajectory_id = %s AND sequence_number = 4", ids[0])
    bench.execute("DELETE FROM trajectory_events WHERE trajectory_id = %s AND sequence_number = 5", ids[1])
    bench.execute("DELETE FROM trajectories WHERE trajectory_id = %s", ids[2])
    bench.execute("UPDATE trajectories SET head_hash = %s WHERE trajectory_id = %s", b"h" * 32, ids[3])
    first, *_, last = files_of(bench)
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes(content)
    last.unlink()
    for piece in Path(bench.store.url.removeprefix("file://")).rglob("*"):
        if piece.is_file():
            piece.unlink()


def test_any_number_of_workers_finds_the_same(full: ColdBench, cold_home: Home) -> None:
    assert len(files_of(full)) > 6
    whole = verified(cold_home, 1)
    assert whole["ok"] and whole["tiers"]["cold"]["events"] == whole["tiers"]["warm"]["events"] > 200
    assert verified(cold_home, 3) == whole
    damage(full)
    found = verified(cold_home, 1)
    assert not found["ok"]
    assert len(found["tiers"]["warm"]["problems"]) == 4 and len(found["tiers"]["cold"]["problems"]) >= 3
    assert len(found["blobs"]["problems"]) == 1
    assert verified(cold_home, 3) == found


def test_a_sample_is_whole_where_all_is_and_can_be_repeated(full: ColdBench, cold_home: Home) -> None:
    trajectories, files = TRAJECTORIES + 1, len(files_of(full))
    seen = set()
    for seed in range(6):
        report = verified(cold_home, 1 + (seed == 5), Sample(0.4, seed))
        assert report["ok"], report
        sample = report["sample"]
        assert sample["looked_at"]["trajectories"] + sample["left_out"]["trajectories"] == trajectories
        assert sample["looked_at"]["files"] + sample["left_out"]["files"] == files
        assert report == verified(cold_home, 1, Sample(0.4, seed))
        seen.add(sample["looked_at"]["trajectories"])
    assert len(seen) > 1 and max(seen) < trajectories


def test_damage_is_found_by_the_samples_that_look_at_it_and_by_no_other(full: ColdBench, cold_home: Home) -> None:
    hurt = full.author(2).trajectory_id
    full.execute("UPDATE trajectory_events SET body = '{}' WHERE trajectory_id = %s AND sequence_number = 4", hurt)
    file = files_of(full)[0]
    file.write_bytes(file.read_bytes()[:-9])
    path = file.as_posix().partition("/cold/")[2]
    for seed in range(8):
        sample = Sample(0.5, seed)
        tiers = verified(cold_home, 1, sample)["tiers"]
        assert any(str(hurt) in problem for problem in tiers["warm"]["problems"]) == sample.takes(hurt.bytes)
        if sample.takes(path.encode()):
            assert any(file.name in problem for problem in tiers["cold"]["problems"])


def test_events_of_nobody_are_found_at_the_ends_of_the_range(full: ColdBench, cold_home: Home) -> None:
    for number in (0, (1 << 128) - 1):
        full.execute(
            "INSERT INTO trajectory_events_stray SELECT %s, sequence_number, tenant, event_type, epoch, schema_version,"
            " created_at, turn, tool_name, event_status, cryptographic_hash, body_digest, body, erased, payload"
            " FROM trajectory_events WHERE sequence_number = 0 LIMIT 1",
            uuid.UUID(int=number),
        )
    for count in (1, 2):
        problems = verified(cold_home, count)["tiers"]["warm"]["problems"]
        assert sum("but no head" in problem for problem in problems) == 2


def test_a_worker_that_is_killed_ends_the_whole(full: ColdBench, cold_home: Home) -> None:
    with (
        workers.Workers(cold_home, full.dsn, 2) as pool,
        pytest.raises(Unavailable, match="ended from outside"),
    ):
        list(pool.map(_die, [9]))


def _die(worker: workers.Worker, code: int) -> None:
    import os

    os._exit(code)


def test_files_that_are_replaced_meanwhile_are_no_damage(
    full: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, hidden = verification._look, files_of(full)[0]
    content, calls = hidden.read_bytes(), []
    named = full.catalog.snapshot_files()

    def replaced(worker: workers.Worker, group: tuple[str, ...], gone: Any) -> Any:
        if not calls:  # as an erasure does it, which waits for nobody
            hidden.unlink()
        calls.append(group)
        found = look(worker, group, gone)
        hidden.write_bytes(content)
        return found

    def files(catalog: object) -> list[str]:
        return [*named, f"state {bool(calls)}"] if moving else named

    monkeypatch.setattr(verification, "_look", replaced)
    monkeypatch.setattr(verification, "_files_in", files)
    moving = False
    assert not verified(cold_home, 1)["ok"]  # the control: the same table, a file is gone
    calls.clear()
    moving = True
    assert verified(cold_home, 1)["ok"]


def test_the_command_prints_how_to_look_at_the_same_again(full: ColdBench, cold_home: Home) -> None:
    where = ("--home", cold_home.path, "--dsn", full.dsn)
    said = call("verify", "--read-data", "40%", "--workers", "1", *where)
    assert said.code == 0 and said.out.splitlines()[-1] == "verified"
    again = re.search(r"the same again: stratalog (verify --read-data 40% --seed \d+)", said.out)
    assert again is not None and "not at" in said.out
    first = call(*again[1].split(), "--json", *where).document
    assert first["sample"]["share"] == 0.4 and first == call(*again[1].split(), "--json", *where).document
    for wrong in (("--read-data", "7"), ("--workers", "0"), ("--read-data", "5%", "--seed", "-1")):
        assert call("verify", *wrong, *where).code == 1
