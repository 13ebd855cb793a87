"""A consolidation whose first file is damaged right after its commit, and what tests of the pipelines share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fix_cold import ColdBench

from stratalog.cold.consolidate import Consolidation
from stratalog.hot.home import Home
from stratalog.schemas.settings import ColdSettings, Settings, WarmSettings


def settings_of(bench: ColdBench) -> Settings:
    cold = ColdSettings(url=bench.lake.url, cas_url=f"{bench.lake.url.rpartition('/')[0]}/cas", idle_after="1d")
    return Settings(warm=WarmSettings(dsn=bench.dsn), cold=cold)


def marked(bench: ColdBench) -> list[int]:
    return sorted(through for through, _ in bench.marks().values())


class Damage:
    """Changes the first file that a run writes, right after the commit; `undo` puts it back."""

    def __init__(self, bench: ColdBench) -> None:
        self.bench = bench
        self.path: Path | None = None
        self.content = b""

    def commit(self, work: Consolidation, run: Any, files: Any) -> Any:
        done = ORIGINAL_COMMIT(work, run, files)
        if self.path is None and files:
            self.path = Path(files[0].url.removeprefix("file://"))
            self.content = self.path.read_bytes()
            middle = len(self.content) // 2
            flipped = bytes([self.content[middle] ^ 0xFF])
            self.path.write_bytes(self.content[:middle] + flipped + self.content[middle + 1 :])
        return done

    def undo(self) -> None:
        assert self.path is not None
        self.path.write_bytes(self.content)


ORIGINAL_COMMIT = Consolidation.commit


@pytest.fixture
def damage(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> Damage:
    inflicted = Damage(cold_bench)
    monkeypatch.setattr(Consolidation, "commit", lambda work, run, files: inflicted.commit(work, run, files))
    return inflicted


@pytest.fixture
def cold_home(cold_bench: ColdBench, tmp_path: Path) -> Home:
    """A home with the tiers of the bench."""
    settings = settings_of(cold_bench)
    Home.open(tmp_path / "home", create=True)
    (tmp_path / "home" / "stratalog.toml").write_text(
        f"""
warm.dsn = "{settings.warm.dsn}"
cold.url = "{settings.cold.url}"
cold.cas_url = "{settings.cold.cas_url}"
"""
    )
    return Home.open(tmp_path / "home")
