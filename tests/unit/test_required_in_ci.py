"""The rule of conftest.py: in CI a test that must prove something fails when it is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = """
import pytest
{module_skip}
@pytest.mark.required_in_ci
@pytest.mark.skipif(True, reason="not installed")
def test_marked_skip(): pass

@pytest.mark.required_in_ci
def test_skip_inside(): pytest.skip("not there")

@pytest.mark.required_in_ci
@pytest.mark.xfail(reason="known")
def test_expected_failure(): assert False

@pytest.mark.skip(reason="optional")
def test_optional(): pass
"""


def run(folder: Path, ci: str, module_skip: str = "") -> subprocess.CompletedProcess[str]:
    shutil.copy(HERE.parent / "conftest.py", folder)
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers = required_in_ci: must run\naddopts = --import-mode=importlib\n"
    )
    (folder / "test_some.py").write_text(TESTS.format(module_skip=module_skip))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", os.fspath(folder)]
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"CI": ci}, capture_output=True, text=True, check=False, timeout=120
    )


def test_what_is_required_and_skipped_fails_in_ci(tmp_path: Path) -> None:
    done = run(tmp_path, "true")
    assert done.returncode == 1, done.stdout + done.stderr
    # Skipped by its mark it fails while it is set up, which counts as an error.
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in done.stdout
    assert "required in CI, but skipped there: Skipped: not there" in done.stdout
    assert "required in CI, but skipped there: Skipped: not installed" in done.stdout


def test_elsewhere_it_is_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, "")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 skipped, 1 xfailed" in done.stdout


@pytest.mark.parametrize(("ci", "code"), [("true", 2), ("", 5)])
def test_a_file_that_skips_itself_is_seen_too(tmp_path: Path, ci: str, code: int) -> None:
    done = run(tmp_path, ci, 'pytest.importorskip("no_such_module")')
    # 2: an error while collecting; 5: nothing to run.
    assert done.returncode == code, done.stdout + done.stderr
