"""A home: the folder that holds everything of one installation, and its settings.

    HOME/
      home.json          what this is (id, format version)
      stratalog.toml     settings, optional
      hot/<log_id>/      hot logs, one per process that appends at the same time
      pg/ cold/ cas/     the other tiers, unless they lie elsewhere
      keys/              secrets, readable by the owner alone
      dagster/ run/      Dagster's storage; sockets, locks and status files

Settings come from a flag, then from the environment (`STRATALOG_HOT__GROUP_EVENTS_MAX=…`), then from stratalog.toml,
then from the default in `schemas/settings.py`; `origins` tells which.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stratalog.schemas import ids, subjects
from stratalog.schemas.errors import HomeMissing, Invalid, NotFound
from stratalog.schemas.settings import Settings

from .files import make_folder, write_durably
from .logfile import LogFile as LogFile

HOME_VERSION = 1
MARKER = "home.json"
FIRST_FOLDERS = ("hot", "keys", "run")
SOCKET_PATH_BYTES_MAX = 100
"""A socket's path must fit into sockaddr_un; longer ones move to a private temporary folder."""
ENVIRONMENT_PREFIX = "STRATALOG_"
SECTIONS = ("hot", "warm", "cold", "erasure")
TABLES = (*SECTIONS, "cold.storage_options")
"""What is merged name by name; everything else replaces what came before."""


class HomeFile(msgspec.Struct, frozen=True):
    """The content of home.json."""

    home_id: str
    version: int
    product: str = "stratalog"


class Home:
    """An opened home; cheap, holds no lock."""

    def __init__(self, path: Path, file: HomeFile, settings: Settings, origins: dict[str, str]) -> None:
        self.path = path
        self.id = file.home_id
        self.settings = settings
        self.origins = origins

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, create: bool = False, flags: Mapping[str, Any] | None = None
    ) -> Home:
        """Open the home at `path`; `flags` are settings by dotted name (`warm.dsn`).

        Raises `HomeMissing` where there is none and `create` is false, `Invalid` for a foreign folder or bad settings.
        """
        home = Path(path).expanduser().absolute()
        marker = home / MARKER
        if not marker.exists():
            if not create:
                raise HomeMissing(f"there is no stratalog home at {home}")
            _create(home)
        try:
            file = msgspec.json.decode(marker.read_bytes(), type=HomeFile)
        except (msgspec.MsgspecError, OSError) as error:
            raise Invalid(f"{marker} is not a home file: {error}", hint="is this folder really a home?") from error
        if file.product != "stratalog" or file.version != HOME_VERSION:
            raise Invalid(
                f"{home} is a home of version {file.version}, this program reads version {HOME_VERSION}",
                hint="use the version of stratalog that made it",
            )
        settings, origins = load_settings(home / "stratalog.toml", os.environ, flags or {})
        return cls(home, file, settings, origins)

    @property
    def run(self) -> Path:
        """Where locks, sockets and status files lie."""
        return self.folder("run")

    def folder(self, name: str) -> Path:
        """A subfolder, made if needed, private to the owner."""
        return make_folder(self.path / name)

    def logs(self) -> list[tuple[Path, LogFile]]:
        """The hot logs of this home, oldest first; raises `Corrupt` where one cannot say what it is."""
        found = []
        for path in self._log_folders():
            with contextlib.suppress(NotFound):  # just now it got another name
                found.append((path, LogFile.read(path)))
        return sorted(found, key=lambda entry: (entry[1].created_at, entry[1].log_id))

    def log_ids(self) -> list[uuid.UUID]:
        """The ids of the hot logs, oldest first."""
        return [uuid.UUID(path.name) for path, _ in self.logs()]

    def _log_folders(self) -> Iterator[Path]:
        hot = self.path / "hot"
        if hot.is_dir():
            for path in hot.iterdir():
                try:
                    uuid.UUID(path.name)
                except ValueError:
                    continue
                yield path

    def log_folder(self, log_id: uuid.UUID) -> Path:
        """Where a log lies."""
        return self.path / "hot" / str(log_id)

    def socket_path(self, log_id: uuid.UUID) -> Path:
        """Where the owner of a log listens. Same answer in every process of this user."""
        path = self.run / f"{log_id}.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        short = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        # Not TMPDIR, which may differ between the owner and the sidecar.
        temporary = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
        folder = temporary / f"stratalog-{os.getuid()}-{short}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise Invalid(
                f"{folder} is not private to this user", hint=f"remove it, or use a shorter path than {self.path}"
            )
        return folder / f"{str(log_id)[:18]}.sock"

    def import_key(self, tenant: str) -> bytes:
        """The tenant's import key (32 bytes), made on first use; durable before it is returned."""
        ids.check_tenant(tenant)
        return _key(self.folder("keys/import") / f"{tenant}.key")

    def subject_key(self) -> bytes:
        """The key (32 bytes) with which subjects are hashed, made on first use; durable before it is returned."""
        return _key(self.folder("keys") / "subject.key")

    def subject_labels(self, tenant: str, *names: str) -> dict[str, str]:
        """Labels for `TaskStarted` that say whom a trajectory of a tenant is about, without their names."""
        key = self.subject_key()
        return {subjects.LABEL: subjects.label(subjects.subject_hash(key, tenant, name) for name in names)}

    def has_import_key(self, tenant: str) -> bool:
        """Whether this home already has a key for the tenant."""
        return (self.path / "keys/import" / f"{ids.check_tenant(tenant)}.key").exists()

    def adopt_import_key(self, tenant: str, key: bytes) -> None:
        """Use the key that the warm tier already has for this tenant."""
        ids.check_tenant(tenant)
        write_durably(self.folder("keys/import") / f"{tenant}.key", key, mode=0o600)


def _key(path: Path) -> bytes:
    if not path.exists():
        write_durably(path, secrets.token_bytes(32), mode=0o600, exclusive=True)
    key = path.read_bytes()
    if len(key) != 32:
        raise Invalid(f"{path} is not a key of 32 bytes", hint="restore it from a backup of keys/")
    return key


def _create(home: Path) -> None:
    """Make a home; it is one when home.json is there, which comes last. What a killed creation left is completed."""
    if home.exists() and not _is_unfinished(home):
        raise Invalid(
            f"{home} exists and is not a stratalog home", hint="choose an empty or a new folder with --home DIR"
        )
    try:
        make_folder(home)
        for name in FIRST_FOLDERS:
            (home / name).mkdir(mode=0o700, exist_ok=True)
        file = HomeFile(home_id=str(uuid.uuid4()), version=HOME_VERSION)
        write_durably(home / MARKER, msgspec.json.encode(file), exclusive=True)
    except OSError as error:
        raise Invalid(f"cannot make a home at {home}: {error}", hint="choose a folder that you may write to") from error


def _is_unfinished(home: Path) -> bool:
    """Whether there is nothing but what a creation makes before it is complete; another process may be at it."""
    if not home.is_dir():
        return False
    foreign = [
        path
        for path in home.iterdir()
        if not path.name.startswith(f".{MARKER}.")
        and not (path.name in FIRST_FOLDERS and path.is_dir() and not any(path.iterdir()))
    ]
    return not foreign or (home / MARKER).exists()


def load_settings(
    toml: Path, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[Settings, dict[str, str]]:
    """The settings in force, and for each dotted name where it comes from; raises `Invalid` that names the culprit."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if toml.exists():
        try:
            _merge(values, origins, tomllib.loads(toml.read_text(encoding="utf-8")), str(toml))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{toml} is not TOML: {error}", hint="correct the line it names") from error
        except OSError as error:
            raise Invalid(f"{toml} cannot be read: {error}", hint="check its owner and its mode") from error
    for dotted, text in _from_environment(environment):
        _merge(values, origins, _nested(dotted, text), "environment")
    for dotted, value in flags.items():
        if value is not None:
            _merge(values, origins, _nested(dotted, value), "flag")
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"settings: {error}", hint="see the names and defaults with: stratalog config show") from error
    ids.check_tenant(settings.tenant)
    _check_not_negative(settings)
    return settings, origins


def _check_not_negative(settings: Settings) -> None:
    for section in SECTIONS:
        for name, value in msgspec.structs.asdict(getattr(settings, section)).items():
            if isinstance(value, (int, float)) and not 0 <= value < 1 << 63:
                raise Invalid(f"settings: {section}.{name} must not be {value}", hint="use a number from 0 on")


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        dotted = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        if dotted == "tenant" or (dotted.split(".")[0] in SECTIONS and "." in dotted):
            yield dotted, text


def _nested(dotted: str, value: Any) -> dict[str, Any]:
    head, _, rest = dotted.partition(".")
    return {head: _nested(rest, value) if rest else value}


def _merge(
    into: dict[str, Any], origins: dict[str, str], values: Mapping[str, Any], origin: str, prefix: str = ""
) -> None:
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and dotted in TABLES:
            section = into.get(name)
            into[name] = section if isinstance(section, dict) else {}
            _merge(into[name], origins, value, origin, f"{dotted}.")
        else:
            into[name] = value
            origins[dotted] = origin
