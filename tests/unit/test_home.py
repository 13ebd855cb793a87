"""A home: made whole or completed, refused when it is something else, with settings that say where they come from."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

import pytest

from stratalog.hot.home import SOCKET_PATH_BYTES_MAX, Home, load_settings
from stratalog.hot.log import HotLog
from stratalog.schemas.errors import Corrupt, HomeMissing, Invalid


def test_a_home_is_made_once_and_opened_again(tmp_path: Path) -> None:
    made = Home.open(tmp_path / "deep" / "home", create=True)
    again = Home.open(tmp_path / "deep" / "home", create=True)
    assert made.id == again.id and made.logs() == []
    assert (made.path.stat().st_mode & 0o777, (made.path / "keys").stat().st_mode & 0o777) == (0o700, 0o700)


def test_where_there_is_no_home(tmp_path: Path) -> None:
    with pytest.raises(HomeMissing):
        Home.open(tmp_path / "none")
    with pytest.raises(HomeMissing):
        Home.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_folder_or_file_is_not_made_a_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises((Invalid, HomeMissing)):
            Home.open(path, create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\0\xff", b"[]", b'{"home_id":"x","version":99}', b'{"home_id":"x","version":1,"product":"y"}'],
)
def test_a_marker_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "home.json").write_bytes(content)
    with pytest.raises(Invalid):
        Home.open(tmp_path, create=True)


@pytest.mark.parametrize("left", [["hot"], ["hot", "keys"], ["hot", "keys", "run", ".home.json.x1"]])
def test_what_a_killed_creation_left_is_completed(tmp_path: Path, left: list[str]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in left:
        (home / name).touch() if name.startswith(".") else (home / name).mkdir()
    assert Home.open(home, create=True).id


def test_many_who_make_the_same_home_get_the_same(tmp_path: Path) -> None:
    ids: list[str] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        ids.append(Home.open(tmp_path / "home", create=True).id)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8 and len(set(ids)) == 1


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    toml = tmp_path / "stratalog.toml"
    toml.write_text("tenant = 'acme'\n[hot]\ngroup_events_max = 1\ngroup_window_us = 1\nprune_lag_events = 1\n")
    environment = {"STRATALOG_HOT__GROUP_EVENTS_MAX": "2", "STRATALOG_HOT__GROUP_WINDOW_US": "2", "STRATALOG_HOME": "x"}
    settings, origins = load_settings(toml, environment, {"hot.group_events_max": 3, "warm.dsn": None})
    hot = settings.hot
    assert (hot.group_events_max, hot.group_window_us, hot.prune_lag_events, hot.head_interval_ms) == (3, 2, 1, 100)
    assert settings.tenant == "acme"
    assert origins == {
        "tenant": str(toml),
        "hot.group_events_max": "flag",
        "hot.group_window_us": "environment",
        "hot.prune_lag_events": str(toml),
    }


@pytest.mark.parametrize(
    "text",
    [
        "not toml at all",
        "[hot]\nno_such_setting = 1",
        "[no_such_section]\nx = 1",
        "hot = 3",
        "[hot]\ngroup_events_max = 'many'",
        "[hot]\ngroup_events_max = -1",
        "[hot]\nmemtable_bytes = 99999999999999999999999",
        "[hot]\ndisk_free_min = nan",
        "tenant = '../x'",
        "tenant = 5",
        "\ud800",
    ],
)
def test_bad_settings_are_refused_with_the_culprit(tmp_path: Path, text: str) -> None:
    toml = tmp_path / "stratalog.toml"
    toml.write_bytes(text.encode("utf-8", "surrogatepass"))
    for environment in ({}, {"STRATALOG_HOT__GROUP_WINDOW_US": "5"}):
        if text == "hot = 3" and environment:
            continue
        with pytest.raises(Invalid):
            load_settings(toml, environment, {})


def test_a_bad_environment_is_refused(tmp_path: Path) -> None:
    for name, value in [("HOT__GROUP_EVENTS_MAX", "many"), ("HOT__NOPE", "1"), ("TENANT", "A B")]:
        with pytest.raises(Invalid):
            load_settings(tmp_path / "none", {f"STRATALOG_{name}": value}, {})


def test_a_socket_lies_in_the_home_or_where_its_path_fits(tmp_path: Path, home: Home) -> None:
    log_id = uuid.uuid4()
    deep = Home.open(tmp_path / ("x" * 60) / ("y" * 60), create=True)
    other = Home.open(tmp_path / ("x" * 60) / ("z" * 60), create=True)
    assert home.socket_path(log_id).parent == home.run
    path = deep.socket_path(log_id)
    assert len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX
    assert path == deep.socket_path(log_id) != other.socket_path(log_id)
    assert path.parent.stat().st_mode & 0o077 == 0
    path.parent.chmod(0o755)
    with pytest.raises(Invalid, match="not private"):
        deep.socket_path(log_id)
    path.parent.rmdir()
    other.socket_path(log_id).parent.rmdir()


def test_the_owner_and_the_sidecar_may_have_different_temporary_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.open(tmp_path / ("x" * 60) / ("y" * 60), create=True)
    log_id = uuid.uuid4()
    path = home.socket_path(log_id)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert home.socket_path(log_id) == path
    path.parent.rmdir()


def test_an_import_key_is_made_once_and_private(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home", create=True)
    assert not home.has_import_key("acme")
    key = home.import_key("acme")
    assert len(key) == 32 and home.import_key("acme") == key != home.import_key("other")
    path = home.path / "keys/import/acme.key"
    assert path.stat().st_mode & 0o777 == 0o600 and home.has_import_key("acme")
    home.adopt_import_key("acme", b"k" * 32)
    assert home.import_key("acme") == b"k" * 32
    path.write_bytes(b"short")
    with pytest.raises(Invalid, match="not a key"):
        home.import_key("acme")
    for tenant in ("../x", "", "A"):
        with pytest.raises(Invalid):
            home.import_key(tenant)


def test_folders_that_are_no_logs_are_passed_over(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home", create=True)
    for name in (str(uuid.uuid4()), f"{uuid.uuid4()}.damaged", f".new-{uuid.uuid4()}", "x"):
        (home.path / "hot" / name).mkdir()
    (home.path / "hot" / "file").touch()
    assert home.logs() == []


def test_a_log_that_cannot_say_what_it_is_is_not_passed_over(tmp_path: Path) -> None:
    with HotLog.open(tmp_path / "home") as log:
        log.start_blocking(tenant="default")
        log_id = log.log_id
    home = Home.open(tmp_path / "home")
    path = home.log_folder(log_id) / "log.json"
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x20]) + content[position + 1 :])
        for refused in (home.logs, HotLog.open(home).__enter__, HotLog.open(home, log_id=log_id).__enter__):
            with pytest.raises(Corrupt, match=r"log\.json"):
                refused()
    path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        HotLog.open(home).__enter__()
    assert len(list((home.path / "hot").iterdir())) == 1, "no other log was made in its place"
    path.write_bytes(content)
    with HotLog.open(home) as log:
        assert log.log_id == log_id
