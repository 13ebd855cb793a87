"""A role that may only read: what the operations guide grants it is enough for every command that reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_cli import call
from fix_cold import ColdBench
from fix_retention import load, run_apply
from psycopg.conninfo import make_conninfo

from stratalog.cold import pins
from stratalog.hot.home import Home

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
GUIDE = Path(__file__).parents[2] / "docs" / "operate.md"
WARM = '[[policy]]\nname = "week"\nwarm = "7d"\n'


def grants() -> str:
    """The SQL of the guide for roles that only read."""
    found = re.search(r"```sql\n(GRANT USAGE ON SCHEMA.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def analyst(cold_bench: ColdBench, cold_home: Home) -> Iterator[str]:
    """The DSN of such a role, over trajectories in both tiers, some of which have left Postgres."""
    for number in range(3):
        cold_bench.task(number)
    cold_bench.run()
    load(cold_bench, WARM)
    run_apply(cold_bench)
    cold_bench.task(9, finished=False)
    role = f"reader_{cold_bench.dsn.rpartition('test_')[2][:12]}"
    cold_bench.execute(f"CREATE ROLE {role} LOGIN")
    cold_bench.execute(re.sub(r"\breader\b", role, grants()))
    try:
        yield make_conninfo(cold_bench.dsn, user=role)
    finally:
        cold_bench.execute(f"DROP OWNED BY {role}")
        cold_bench.execute(f"DROP ROLE {role}")


def test_every_command_that_reads_works_and_leaves_no_pin(cold_bench: ColdBench, cold_home: Home, analyst: str) -> None:
    gone = str(cold_bench.author(1).trajectory_id)
    for command in (
        ("sql", "SELECT count(*) AS n FROM trajectories"),
        ("trajectory", "list"),
        ("trajectory", "show", gone),
        ("status",),
        ("verify",),
        ("verify", "--read-data", "50%", "--workers", "2"),
        ("audit", "effects"),
        ("audit", "policies"),
    ):
        said = call(*command, "--home", cold_home.path, "--dsn", analyst, "--json")
        assert said.code == 0, (command, said)
    with cold_bench.connect() as conn:
        conn.commit()
        assert pins.live(conn) == [] and conn.execute("SELECT count(*) FROM snapshot_pins").fetchone() == (0,)


def test_it_may_not_write(cold_bench: ColdBench, cold_home: Home, analyst: str) -> None:
    for command in (("consolidate", "--older-than", "0d"), ("audit", "seal")):
        said = call(*command, "--home", cold_home.path, "--dsn", analyst, "--json")
        assert said.code != 0
