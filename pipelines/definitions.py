"""What `dagster dev -m stratalog.pipelines.definitions` loads: the home of STRATALOG_HOME, or ./.stratalog."""

from __future__ import annotations

import os
from pathlib import Path

from .build import build_definitions

defs = build_definitions(Path(os.environ.get("STRATALOG_HOME") or ".stratalog").absolute())
