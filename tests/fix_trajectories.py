"""The sample sessions of `examples/`, and the collected real files where they are present."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "examples" / "trajectories"
COLLECTED = ROOT.parent / "shared" / "data" / "trajectories"


def sample_files() -> list[Path]:
    """The committed samples that are trajectories."""
    return sorted(path for path in SAMPLES.rglob("*") if path.is_file() and not path.name.endswith(".meta.json"))
