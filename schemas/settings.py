"""All settings with their defaults. `hot/home.py` fills them from flags, environment and stratalog.toml."""

from __future__ import annotations

import msgspec

from .envelope import EVENT_BYTES_MAX


class HotSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hot log."""

    group_events_max: int = 256
    """B_max: the most events in one commit."""
    group_bytes_max: int = 8 << 20
    """The most bytes in one commit, unless a single event is larger."""
    group_window_us: int = 0
    """W: how long a commit waits for company. 0 commits what queued while the previous one ran."""
    inline_bytes_max: int = 32 << 10
    """Longer strings go out of line, as blobs."""
    event_bytes_max: int = EVENT_BYTES_MAX
    """The largest body after long strings went out of line."""
    blob_bytes_max: int = 1 << 30
    """The largest single blob."""
    memtable_bytes: int = 256 << 20
    wal_bytes_max: int = 256 << 20
    hot_bytes_max: int = 4 << 30
    """Above this, even what live trajectories need is pruned once it is replicated."""
    disk_free_min: float = 0.05
    """Appends fail below this share of free disk."""
    prune_lag_events: int = 0
    """Replicated events kept all the same, for a warm tier restored from an older backup."""
    head_interval_ms: int = 100
    """How often the HEAD file is brought up to date."""


class WarmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The warm tier."""

    dsn: str = ""
    """A Postgres of your own; empty for the embedded one."""
    batch_events_max: int = 512
    batch_bytes_max: int = 16 << 20
    poll_ms: int = 200
    """How often the sidecar looks for new logs."""
    statement_timeout_ms: int = 60_000


class ColdSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cold tier."""

    url: str = ""
    """Where Parquet lies, an fsspec URL; empty for `HOME/cold`."""
    cas_url: str = ""
    """Where bulky content lies, an fsspec URL; empty for `HOME/cas`."""
    storage_options: dict[str, str] = {}
    """Passed to fsspec, e.g. `endpoint_url`."""
    older_than: str = "7d"
    """A trajectory is consolidated this long after its end."""
    idle_after: str = "1d"
    """An import without an end counts as ended this long after its last event."""
    row_group_rows: int = 16_384
    row_group_bytes_max: int = 32 << 20
    file_bytes_max: int = 256 << 20
    zstd_level: int = 3


class ErasureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Erasure."""

    backups_expire: str = ""
    """After how long your backups are gone, such as `30d`; receipts say so. Nothing is deleted by it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be configured."""

    tenant: str = "default"
    hot: HotSettings = HotSettings()
    warm: WarmSettings = WarmSettings()
    cold: ColdSettings = ColdSettings()
    erasure: ErasureSettings = ErasureSettings()


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATION_S_MAX = 1000 * 366 * 86_400


def duration_us(text: str) -> int:
    """µs of a duration such as `90s`, `15m`, `12h`, `7d`, `2w`; raises `ValueError` otherwise."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    if unit not in _UNITS_S or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise ValueError(f"{text!r} is not a duration: write a number and one of s, m, h, d, w")
    if float(number) > DURATION_S_MAX / _UNITS_S[unit]:
        raise ValueError(f"{text!r} is longer than a thousand years")
    return int(float(number) * _UNITS_S[unit] * 1_000_000)
