"""A trajectory is listed and shown wherever its events lie, and what has left Postgres comes back to the byte."""

from __future__ import annotations

import datetime as dt
from contextlib import closing

import pytest
from fix_cli import call
from fix_cold import Author, ColdBench
from fix_retention import load, run_apply

from stratalog.cold.installation import Installation
from stratalog.cold.installation import Tiers as ColdTiers
from stratalog.cold.listing import Tiers
from stratalog.cold.retention import delete_from_cold
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas import events as ev
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.warm import erasure

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
WARM = '[[policy]]\nname = "week"\nwarm = "7d"\n'
BOTH = '[[policy]]\nname = "month"\nwarm = "7d"\ncold = "30d"\n'
ODD = b'{"tool_call_id":"c", "output":"\\u00e9","duration_ms":1e-7,"new":[1, 2]}'


def odd(bench: ColdBench, number: int) -> Author:
    """A trajectory with bodies that no encoder of ours has written."""
    author = bench.task(number, turns=4, finished=False)
    bench.append(author, [("ToolResult", ODD), ("Whatever", b"\xff no json"), ev.TaskFinished(status="completed")])
    return author


def events(home: Home, author: Author) -> list[tuple[object, bytes, bytes, bool]]:
    with Tiers(Installation(home)) as tiers, closing(tiers.events(author.trajectory_id)) as found:
        return [_shown(envelope) for envelope in found]


def _shown(envelope: Envelope) -> tuple[object, bytes, bytes, bool]:
    return envelope.header, envelope.body, envelope.hash, envelope.erased


def place(home: Home, author: Author) -> tuple[str, tuple[str, ...]]:
    with Tiers(Installation(home)) as tiers:
        listed = tiers.get(author.trajectory_id)
        (same,) = (one for one in tiers.all() if one.trajectory_id == author.trajectory_id)
        assert same == listed
        return listed.tier, listed.tiers


def test_what_has_left_postgres_is_shown_to_the_byte(cold_bench: ColdBench, cold_home: Home) -> None:
    author, other = odd(cold_bench, 1), odd(cold_bench, 2)
    before = events(cold_home, author)
    assert [body for _, body, _, _ in before][-3] == ODD
    cold_bench.run()
    assert place(cold_home, author) == ("cold", ("warm", "cold"))
    load(cold_bench, WARM)
    assert run_apply(cold_bench, NOW).trajectories == 2
    assert place(cold_home, author) == ("cold", ("cold",))
    assert events(cold_home, author) == before
    assert [header.trajectory_id for header, *_ in events(cold_home, other)] == [other.trajectory_id] * len(before)  # type: ignore[attr-defined]
    said = call("trajectory", "show", str(author.trajectory_id), "--home", cold_home.path, "--dsn", cold_bench.dsn)
    assert said.code == 0 and "complete in cold" in said.out and "turn 3: I will look" in said.out


def test_later_events_follow_from_wherever_they_are(cold_bench: ColdBench, cold_home: Home) -> None:
    author = odd(cold_bench, 1)
    cold_bench.run()
    cold_bench.append(author, [ev.Annotation(name="first", score=1.0)])
    cold_bench.run()
    load(cold_bench, WARM)
    run_apply(cold_bench, NOW)
    whole = events(cold_home, author)  # two segments of two runs
    assert len(whole) == author.at.sequence_number + 1
    cold_bench.append(author, [ev.Annotation(name="second", score=2.0)])
    found = events(cold_home, author)
    assert found[:-1] == whole and found[-1][2] == author.at.hash
    assert place(cold_home, author) == ("several", ("warm", "cold"))


def test_what_retention_has_deleted_everywhere_is_said_so(cold_bench: ColdBench, cold_home: Home) -> None:
    author = odd(cold_bench, 1)
    cold_bench.run()
    load(cold_bench, BOTH)
    run_apply(cold_bench, NOW)
    tiers = ColdTiers(cold_bench.dsn, cold_bench.lake, cold_bench.catalog, cold_bench.store, cold_bench.settings)
    assert delete_from_cold(tiers, NOW, wait_s=0).trajectories == 1
    assert place(cold_home, author) == ("deleted", ())
    with pytest.raises(NotFound, match="deleted by retention in every tier"):
        events(cold_home, author)


def test_an_erased_trajectory_shows_no_body_although_the_files_still_have_it(
    cold_bench: ColdBench, cold_home: Home
) -> None:
    author = odd(cold_bench, 1)
    cold_bench.run()
    load(cold_bench, WARM)
    run_apply(cold_bench, NOW)
    before = events(cold_home, author)
    with closing(cold_bench.connect()) as conn:
        chosen = erasure.Selection(trajectories=(author.trajectory_id,))
        erasure.proceed(conn, erasure.request(conn, chosen, by="mira", reason="asked for"))
    assert events(cold_home, author) == [(header, b"", digest, True) for header, _, digest, _ in before]


def test_damage_in_the_cold_tier_is_never_shown(cold_bench: ColdBench, cold_home: Home) -> None:
    author = odd(cold_bench, 1)
    cold_bench.run()
    load(cold_bench, WARM)
    run_apply(cold_bench, NOW)
    (url,) = cold_bench.catalog.snapshot_files()
    cold_bench.lake.delete(url)
    with pytest.raises((Corrupt, NotFound)):
        events(cold_home, author)


def test_a_hot_log_alone_is_shown_as_before(cold_home: Home) -> None:
    with HotLog.open(cold_home) as log:
        id_ = log.start_blocking(tenant="acme", task="new")
    with Tiers(Installation(cold_home)) as tiers, closing(tiers.events(id_)) as found:
        assert [envelope.header.kind for envelope in found] == ["TaskStarted"]
        assert tiers.get(id_).tiers == ("hot",)
