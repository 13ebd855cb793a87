"""Settings: defaults, names that must be known, durations."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas.settings import ColdSettings, HotSettings, Settings, WarmSettings, duration_us


def test_defaults() -> None:
    settings = Settings()
    assert settings.hot.inline_bytes_max == 32 << 10
    assert settings.hot.event_bytes_max == 1 << 20
    assert settings.hot.group_window_us == 0
    assert settings.cold.older_than == "7d"
    assert settings.cold.zstd_level == 3
    assert settings.warm.dsn == ""


@pytest.mark.parametrize("struct", [Settings, HotSettings, WarmSettings, ColdSettings])
def test_an_unknown_name_is_refused(struct: type[msgspec.Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"no_such_setting": 1}, struct)


def test_settings_survive() -> None:
    settings = Settings(tenant="acme", hot=HotSettings(group_window_us=2000), cold=ColdSettings(url="s3://b"))
    assert msgspec.convert(msgspec.to_builtins(settings), Settings) == settings


def test_defaults_that_are_durations_are_durations() -> None:
    assert duration_us(ColdSettings().older_than) == 7 * 86_400_000_000
    assert duration_us(ColdSettings().idle_after) == 86_400_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0d", 0),
        ("90s", 90),
        ("15m", 900),
        ("12h", 43_200),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("1.5h", 5400),
        (" 3d ", 259_200),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_us(text) == seconds * 1_000_000


@pytest.mark.parametrize(
    "text",
    ["", "d", "7", "7 d", "-1d", "1e3d", "7D", "7y", "nand", "infd", ".d", "²d", "٣d", "9" * 400 + "d"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        duration_us(text)


@given(st.text(max_size=6) | st.text("0123456789.smhdw", max_size=30))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert duration_us(text) >= 0
    except ValueError as error:
        assert not isinstance(error, UnicodeError)
