"""kill -9 at random moments, then the same commands again: everything ends as if nothing had happened.

Whole programs are killed from outside: the importer, the sidecar (one that ends and one that follows), the
consolidation, and the main process of Postgres below them. STRATALOG_KILL_ROUNDS asks for more rounds; each has a seed
of its own, which its failure names. Two sabotaged programs show that the same kills find what they are made to find.
"""

from __future__ import annotations

import os
import random
import textwrap
from pathlib import Path

import pytest
from fix_pipeline import STEPS, VICTIMS, Outcome, Pipeline, differences, fresh, kill_postgres, measured

from stratalog.testing.foreign import write_foreign_files

pytestmark = [pytest.mark.required_in_ci, pytest.mark.postgres, pytest.mark.slow]

FILES, TURNS = 20, 30
ROUNDS = int(os.environ.get("STRATALOG_KILL_ROUNDS", "1"))
SEED = int(os.environ.get("STRATALOG_KILL_SEED", "1"))
KILLS_PER_STEP = 3
CONTROL_FILES, CONTROL_TURNS = 6, 20
CONTROL_ATTEMPTS = 5


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    write_foreign_files(folder, SEED, FILES, TURNS)
    return folder


@pytest.fixture(scope="module")
def undisturbed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, dict[str, float], Outcome]:
    pipeline = Pipeline(fresh(tmp_path_factory.mktemp("undisturbed")), sources)
    seconds = measured(pipeline)
    return pipeline, seconds, pipeline.outcome()


def disturb_all(pipeline: Pipeline, seconds: dict[str, float], source: random.Random) -> None:
    """Run the steps with kills; what they are begun with is finished by the same command."""
    for step in STEPS:
        victims = ["process"] * KILLS_PER_STEP if step == "import" else source.sample(VICTIMS, KILLS_PER_STEP)
        pipeline.disturb(step, victims, seconds[step], source)
        pipeline.finish(step)


def disturb_while_following(pipeline: Pipeline, seconds: dict[str, float], source: random.Random) -> None:
    """The importer is killed while a sidecar reads from it, which is killed too, and so is its Postgres."""
    with pipeline.following():
        for _ in range(KILLS_PER_STEP):
            pipeline.disturb("import", ["process"], seconds["import"], source)
            kill_postgres(pipeline.home)
    for step in STEPS:
        pipeline.finish(step)


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
@pytest.mark.parametrize("disturb", [disturb_all, disturb_while_following])
def test_kills_change_nothing(undisturbed, sources, tmp_path, disturb, seed) -> None:  # type: ignore[no-untyped-def]
    _, seconds, expected = undisturbed
    assert expected.verified["ok"] and expected.quarantined == 0
    pipeline = Pipeline(fresh(tmp_path), sources)
    disturb(pipeline, seconds, random.Random(f"{disturb.__name__}/{seed}"))
    assert pipeline.kills >= KILLS_PER_STEP
    assert differences(expected, pipeline.outcome()) == []


def test_the_input_is_what_it_should_be(undisturbed) -> None:  # type: ignore[no-untyped-def]
    _, _, expected = undisturbed
    assert expected.imported["trajectories"] == FILES
    assert expected.imported["events"] >= 3_000
    assert len(expected.contents) >= FILES


def test_the_comparison_sees_one_event_that_is_gone(undisturbed) -> None:  # type: ignore[no-untyped-def]
    """Control of the checker: the last event of one trajectory is taken out of the warm tier."""
    pipeline, _, expected = undisturbed
    with pipeline.installation.connection() as conn, conn.transaction():
        taken = conn.execute(
            "DELETE FROM trajectory_events WHERE (trajectory_id, sequence_number) = "
            "(SELECT trajectory_id, max(sequence_number) FROM trajectory_events GROUP BY 1 ORDER BY 1 LIMIT 1)"
        ).rowcount
    assert taken == 1
    found = differences(expected, pipeline.outcome())
    assert len(found) == 1 and "'ok': True" in found[0] and "'ok': False" in found[0]


CURSOR_BEFORE_EVENTS = textwrap.dedent("""
    import time
    from stratalog.hot.log import HotLog

    together = HotLog.append_many_blocking

    def apart(self, trajectory_id, events, *, notes=None):
        together(self, trajectory_id, [], notes=notes)
        time.sleep(0.1)
        return together(self, trajectory_id, events)

    HotLog.append_many_blocking = apart
""")

CURSOR_BEFORE_COMMIT = textwrap.dedent("""
    import time
    from stratalog.warm import database, ingest

    move = ingest._move_cursor

    def early(conn, log_id, envelopes, to):
        with database.connect(conn.info.dsn) as other:
            move(other, log_id, envelopes, to)
        time.sleep(0.1)

    ingest._move_cursor = early
""")


def test_an_importer_that_notes_before_it_appends_is_caught(tmp_path: Path) -> None:
    """Control of the protocol: the cursor of the import and its events in two commits."""
    source, sources = random.Random(SEED), tmp_path / "sources"
    write_foreign_files(sources, SEED, CONTROL_FILES, CONTROL_TURNS)
    calm = Pipeline(fresh(tmp_path), sources, CURSOR_BEFORE_EVENTS)
    seconds = measured(calm, ("import",))["import"]
    expected = calm.hot_heads()
    for _ in range(CONTROL_ATTEMPTS):
        pipeline = Pipeline(fresh(tmp_path), sources, CURSOR_BEFORE_EVENTS)
        pipeline.disturb("import", ["process"] * KILLS_PER_STEP, seconds, source)
        pipeline.finish("import")
        if pipeline.hot_heads() != expected:
            return
    pytest.fail("the kills did not find an importer that loses events")


def test_a_sidecar_that_moves_its_cursor_before_the_commit_is_caught(tmp_path: Path) -> None:
    """Control of the protocol: the cursor and the events of a batch in two transactions."""
    source, sources = random.Random(SEED), tmp_path / "sources"
    write_foreign_files(sources, SEED, CONTROL_FILES, CONTROL_TURNS)
    small_batches = {"STRATALOG_WARM__BATCH_EVENTS_MAX": "64"}
    seconds = 0.0
    for attempt in range(CONTROL_ATTEMPTS):
        pipeline = Pipeline(fresh(tmp_path), sources, CURSOR_BEFORE_COMMIT, small_batches)
        pipeline.run("import")
        expected = pipeline.hot_heads()
        with pipeline.installation.postgres():
            if attempt == 0:
                seconds = measured(pipeline, ("sidecar",))["sidecar"]
                assert pipeline.warm_heads() == expected, "without kills even this sidecar is right"
                continue
            pipeline.disturb("sidecar", ["process"] * KILLS_PER_STEP, seconds, source)
            pipeline.finish("sidecar")
            if pipeline.warm_heads() != expected:
                return
    pytest.fail("the kills did not find a sidecar that loses events")
