"""The folder of an embedded PostgreSQL: what lies where, who may use it, and whether a server lives in it.

    base/data          the cluster; made as data.new, which gets its name only when it is complete and on disk
    base/s             the socket, or base/socket-folder names a private temporary folder (a socket path has 107 bytes)
    base/server.log    the server's messages; the former 8 MiB are in server.log.1
    base/start.lock    held while somebody starts or stops the server
    base/use.lock      held, shared, by each process that uses the server
    base/server.lock   held by the processes of the server themselves, all of them, from initdb on

A process number says little: it is used again, and after a restart of a container nearly always. The kernel drops a
lock when its last holder is gone, however it went, so server.lock alone tells whether anything of a server is left,
also of one whose main process was killed. Numbers only serve to send the signal, if that process works in our data.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stratalog.schemas.errors import Invalid, Unavailable

from .binaries import sync_path
from .server_user import ServerUser

SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_BYTES_MAX = 107
POLL_S = 0.02
LOG_BYTES_MAX = 8 * 1024 * 1024
# libpq splits hosts at commas and conninfo at blanks; whatever else is unusual goes the same safe way.
PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+:@~-]*")


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """Paths and locks of one embedded server; `base` is resolved, so that two names of it are one server."""

    base: Path

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def unfinished_data(self) -> Path:
        return self.base / "data.new"

    def major(self) -> int | None:
        """Return the major version that made the data, None if there is none yet."""
        try:
            return int((self.data / "PG_VERSION").read_text())
        except FileNotFoundError:
            if self.data.exists():
                raise Invalid(
                    f"{self.data} is not the data of a PostgreSQL",
                    hint="restore it from a backup, or move it away to begin with an empty one",
                ) from None
            return None
        except ValueError as error:
            raise Invalid(f"{self.data}/PG_VERSION is damaged", hint="restore the folder from a backup") from error

    # -- locks -----------------------------------------------------------------------------------------------------

    @contextmanager
    def start_lock(self, deadline: float) -> Iterator[None]:
        """Hold the lock that serialises starts and stops; `Unavailable` if it is not free at `deadline` (monotonic)."""
        with self.open_lock("start.lock") as lock:
            while not take(lock, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"another process has been starting or stopping PostgreSQL in {self.base} for too long",
                        hint=f"see what it waits for in {self.log}",
                    )
                time.sleep(POLL_S)
            yield

    def open_lock(self, name: str) -> IO[str]:
        return (self.base / name).open("a")

    def free_server_lock(self) -> IO[str] | None:
        """Return the server lock, taken, if no process of a server is left; None if there is one."""
        lock = self.open_lock("server.lock")
        if take(lock, fcntl.LOCK_EX):
            return lock
        lock.close()
        return None

    def postmaster(self) -> int | None:
        """Return the number of the main process, if there is one and it really works in our data folder."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            working = Path(f"/proc/{pid}/cwd")
            try:
                ours = working.samefile(self.data)
            except PermissionError:
                # Root of a container may not look into processes of others (no CAP_SYS_PTRACE), that user itself may.
                ours = ServerUser.of(self.data).is_same(working, self.data)
        except (OSError, ValueError):
            return None
        return pid if ours else None

    # -- socket ----------------------------------------------------------------------------------------------------

    def socket_folder(self) -> Path | None:
        """Return the folder of the socket, None if it is still to be made."""
        folder = self.base / "s"
        if not _fits(folder):
            try:
                folder = Path((self.base / "socket-folder").read_text())
            except FileNotFoundError:
                return None
        # A cleaner of temporary files may have removed it, and somebody else may have taken its name.
        try:
            found = folder.lstat()
        except FileNotFoundError:
            return None
        owner = self.data.stat().st_uid if self.data.exists() else found.st_uid
        private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == owner
        return folder if private else None

    def make_socket_folder(self, user: ServerUser) -> Path:
        """Return the folder of the socket, private to the server's account (and root)."""
        folder = self.socket_folder()
        if folder is None and _fits(self.base / "s"):
            folder = self.base / "s"
        elif folder is None:
            folder = _temporary_folder(user)
            write_durably(self.base / "socket-folder", os.fspath(folder))
        user.own(folder)
        return folder

    def remove_stale_files(self, socket_folder: Path) -> None:
        """Remove what a dead server left behind; only for the holder of the server lock."""
        for stale in (self.data / "postmaster.pid", socket_folder / SOCKET_NAME, socket_folder / f"{SOCKET_NAME}.lock"):
            stale.unlink(missing_ok=True)

    # -- log -------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        return self.base / "server.log"

    def open_log(self) -> IO[bytes]:
        """Open the log at its end, readable for us alone: statements in it carry data."""
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.base / "server.log.1")
        return os.fdopen(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")

    def log_tail(self, from_byte: int) -> str:
        """Return at most the last 2,000 bytes of what was logged from this position on."""
        with self.log.open("rb") as log:
            log.seek(max(from_byte, log.seek(0, os.SEEK_END) - 2000))
            return log.read().decode("utf-8", "replace").strip()


def take(lock: IO[str], mode: int) -> bool:
    """Try to take an flock; False if somebody else holds one that excludes it."""
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_durably(path: Path, text: str) -> None:
    """Replace a small file so that a crash leaves the old or the new text, never a part."""
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_path(path.parent)


def _fits(folder: Path) -> bool:
    path = os.fspath(folder / SOCKET_NAME)
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX and PLAIN_PATH.fullmatch(path) is not None


def _temporary_folder(user: ServerUser) -> Path:
    for parent in (tempfile.gettempdir(), "/tmp"):
        if _fits(Path(parent, "stratalog-pg-12345678")) and user.can_use(Path(parent)):
            # The name cannot be foreseen, so nobody can have prepared it.
            return Path(tempfile.mkdtemp(prefix="stratalog-pg-", dir=parent))
    raise Unavailable(
        "no folder is short enough for the socket of PostgreSQL",
        hint="set TMPDIR to a short path that every user can enter, or choose a shorter --home",
    )
