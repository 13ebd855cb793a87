"""A log as the version before erasure wrote it: it opens, reads, goes on, and can be erased.

`hot_v1/home.tar.gz` is a home with three trajectories, the last of which lies in the write-ahead log alone; its process
was killed. It is never made again.
"""

from __future__ import annotations

import tarfile
import uuid
from pathlib import Path

import pytest
from fix_hot import check_chains, names, note

from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.hot.residue import search_files

ARCHIVE = Path(__file__).parent / "hot_v1/home.tar.gz"
IDS = [uuid.UUID(f"018bcfe5-6800-7000-8000-0000000000{number:02d}") for number in (1, 2, 3)]


@pytest.fixture
def old(tmp_path: Path) -> Home:
    with tarfile.open(ARCHIVE) as archive:
        # Our own archive; Python 3.11 has filters only from 3.11.4 on.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (tmp_path / "stratalog.toml").write_text("[hot]\ndisk_free_min = 0.0\n")
    return Home.open(tmp_path)


def test_a_log_of_the_version_before_erasure_opens_and_goes_on(old: Home) -> None:
    with HotLog.open(old, serve=False) as log:
        assert log.durable_lsn == 12 and log.erased() == {}
        assert check_chains(log) == 12
        for number, trajectory_id in enumerate(IDS, 1):
            log.append_blocking(trajectory_id, note("later"))
            assert names(log.read(trajectory_id)) == [f"note {number}", "later"]
            assert log.note(b"import/" + trajectory_id.bytes) == b"cursor"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_it_can_be_erased(old: Home, number: int) -> None:
    needles = [bytes([number]) * 32, b"task %d" % number, b"note %d" % number, b"content %d " % number]
    heard = {found.needle_index for found in search_files(old.path, needles)}
    assert heard == {0, 1, 2, 3}
    with HotLog.open(old, serve=False) as log:
        done = log.erase_blocking([IDS[number - 1]])
        assert (done.events, done.contents) == (4, 1)
        assert list(search_files(old.path, needles)) == []
        assert log.note(b"import/" + IDS[number - 1].bytes) is None
        assert check_chains(log) == 12
