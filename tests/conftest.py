"""What all tests share: the fixtures of the files `fix_*.py`, and the rule that CI skips nothing that it must prove.

Tests are imported in importlib mode, which puts no test folder on the path. This file adds its own folder and registers
the fixture files as plugins; a test, or another fixture file, may import them by name (`from fix_postgres import ...`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    # Behind everything else, so that no name of a test folder hides an installed package.
    sys.path.append(str(FOLDER))
    for path in sorted(FOLDER.glob("fix_*.py")):
        config.pluginmanager.register(importlib.import_module(path.stem), path.stem)


def _in_ci() -> bool:
    return os.environ.get("CI") == "true"


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"required in CI, but skipped there: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # An expected failure is reported as skipped too.
    if _in_ci() and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("required_in_ci"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    # A file that skips itself as a whole (importorskip) never shows its marks: look into its text.
    skipped_file = _in_ci() and report.skipped and isinstance(collector, pytest.Module)
    if skipped_file and "required_in_ci" in collector.path.read_text(encoding="utf-8"):
        _fail(report)
    return report
