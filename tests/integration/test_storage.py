"""`stratalog storage`: the numbers are what lies there, and what they cost; bad prices are said, not guessed."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from fix_cli import Cli, call
from fix_cold import ColdBench

from stratalog.cold.forecast import Day, growth
from stratalog.cold.installation import Installation
from stratalog.cold.usage import measure
from stratalog.hot.home import Home

pytestmark = pytest.mark.postgres

PRICES = "[per_gb_month]\nwarm = 100.0\ncold = 1e3\n"


def files_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_bytes_are_those_that_lie_there(filled: Cli) -> None:
    found = filled.json("storage")
    tiers = found["tiers"]
    with psycopg.connect(Home.open(filled.home).settings.warm.dsn) as conn:
        size, events = conn.execute(
            "SELECT pg_database_size(current_database()), (SELECT count(*) FROM stratalog.all_events)"
        ).fetchone() or (0, 0)
    # The free space maps of tables that were just written may still appear.
    assert tiers["warm"]["bytes"] == pytest.approx(size, rel=0.02)
    assert tiers["warm"]["events"] == events
    assert tiers["cold"]["bytes"] == files_below(filled.home / "cold")
    assert tiers["cold"]["events"] == filled.json("sql", "SELECT count(*) AS n FROM events")[0]["n"]
    assert tiers["hot"]["bytes"] > 0 and tiers["hot"]["events"] is None
    assert tiers["cold"]["bytes_per_event"] == tiers["cold"]["bytes"] / tiers["cold"]["events"]
    assert found["bytes"] == sum(tier["bytes"] for tier in tiers.values())
    assert found["cost_per_month"] is None and tiers["warm"]["cost_per_month"] is None


def test_parts_tenants_and_kinds_add_up(filled: Cli) -> None:
    found = filled.json("storage")
    for tier, whole in found["tiers"].items():
        assert sum(part["bytes"] for part in found["parts"] if part["tier"] == tier) == whole["bytes"]
    assert sum(of["cold_events"] for of in found["tenants"]) == found["tiers"]["cold"]["events"]
    assert sum(of["cold_events"] for of in found["kinds"]) == found["tiers"]["cold"]["events"]
    assert sum(of["warm_events"] for of in found["kinds"]) == found["tiers"]["warm"]["events"]
    assert sum(of["warm_bytes"] for of in found["kinds"]) == sum(of["warm_bytes"] for of in found["tenants"]) > 0
    data = next(part for part in found["parts"] if part["part"] == "data")
    assert sum(of["cold_bytes"] for of in found["tenants"]) == data["bytes"]
    assert len(found["days"]) == 7 and found["days"][-1]["cold"] == data["bytes"]


def test_content_is_counted_by_tenant(cold_bench: ColdBench, tmp_path: Path) -> None:
    cold_bench.task(1, blob=b"a" * 5_000)
    cold_bench.task(2, tenant="globex", blob=b"b" * 700)
    cold_bench.run()
    home = Home.open(tmp_path / "home", create=True)
    (home.path / "stratalog.toml").write_text(
        f'[warm]\ndsn = "{cold_bench.dsn}"\n[cold]\nurl = "{cold_bench.lake.url}"\ncas_url = "{cold_bench.store.url}"\n'
    )
    found = measure(Installation(Home.open(home.path)))
    assert {of.tenant: (of.content_bytes, of.content_files) for of in found.tenants} == {
        "acme": (5_000, 1),
        "globex": (700, 1),
    }
    assert found.bytes_of("content") == found.days[-1].content == 5_700
    left = cold_bench.lake.scratch() / "left"
    left.write_bytes(b"x" * 123)
    cold_bench.lake.publish(left, "events/tenant=acme/date=2025-01-01/model=m/left-1-0000000000000000.parquet")
    parts = {part.part: part.bytes for part in measure(Installation(Home.open(home.path))).parts}
    assert parts["not in the snapshot"] == 123


def test_costs_come_from_the_prices_of_the_home(broken: Cli) -> None:
    (broken.home / "prices.toml").write_text(PRICES)
    found = broken.json("storage")
    tiers = found["tiers"]
    assert tiers["warm"]["cost_per_month"] == pytest.approx(tiers["warm"]["bytes"] / 1e9 * 100)
    assert tiers["cold"]["cost_per_month"] == pytest.approx(tiers["cold"]["bytes"] / 1e9 * 1000)
    assert tiers["hot"]["cost_per_month"] is None and found["currency"] == "USD"
    assert "USD" in broken("storage").out


@pytest.mark.parametrize(
    "text", ["per_gb_month = ", "[per_gb_month]\nwarm = -1.0", "[per_gb_month]\nwarm = nan", "[per_gb]\nwarm = 1.0",
             "[per_gb_month]\nwarm = 'cheap'", "[per_gb_month]\nlukewarm = 1.0", ""]
)  # fmt: skip
def test_bad_prices_are_refused_with_a_hint(broken: Cli, text: str) -> None:
    (broken.home / "prices.toml").write_text(text)
    error = broken.error("storage", code=1)
    assert error["code"] == "invalid" and "prices.toml" in error["message"] and error["hint"]


def test_the_table_and_the_plot(filled: Cli, tmp_path: Path) -> None:
    said = filled("storage", "--plot", tmp_path / "storage.png")
    assert said.code == 0 and "ModelReplied" in said.out and "in 365 days" in said.out
    assert (tmp_path / "storage.png").read_bytes().startswith(b"\x89PNG")
    assert filled.error("storage", "--plot", tmp_path / "no" / "such.png", code=1)["code"] == "invalid"
    assert filled.error("storage", "--days", "0", code=1)["code"] == "invalid"


def test_a_home_without_postgres_has_only_its_logs(tmp_path: Path) -> None:
    Home.open(tmp_path / "home", create=True)
    said = call("storage", "--home", tmp_path / "home", "--json")
    assert said.code == 0 and said.document["tenants"] == [] and said.document["tiers"]["warm"]["bytes"] == 0


def test_matplotlib_is_loaded_only_for_a_plot() -> None:
    program = "import sys, stratalog.cli.storage; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_forecast_is_a_straight_line_over_the_days_since_the_first() -> None:
    noon = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC)
    days = [
        Day(dt.date(2026, 3, 7)),
        Day(dt.date(2026, 3, 8), 100, 10),
        Day(dt.date(2026, 3, 9)),
        Day(noon.date(), 150, 40),
    ]
    warm, cold, content = growth(days, noon, {"warm": 1_000, "cold": 50})
    assert warm.bytes_per_day == 250 / 2.5 and cold.bytes_per_day == 50 / 2.5
    assert warm.forecast == {30: 4_000, 90: 10_000, 365: 37_500}
    assert content.forecast == {30: 0, 90: 0, 365: 0}
    assert growth([Day(noon.date())], noon, {"warm": 7})[0].forecast[365] == 7
