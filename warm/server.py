"""An embedded PostgreSQL: the programs come from a wheel or the system, the data lies in the home, the life is ours.

    with EmbeddedPostgres(home / "pg") as server:
        psycopg.connect(server.dsn)

Guarantees:
- One server for one folder, however many processes start it, at the same time or one after the other. Each process
  holds a lock as long as it uses the server; the last one to call `stop` stops it, the others leave.
- Whoever is killed keeps nothing up and breaks nothing. A server whose users are all gone goes on running and is met by
  the next start; a server that was killed is started again once its last child has gone, and replays its log. How a
  live server is told from a dead one is explained in `server_folder`.
- The cluster appears complete and synced, or not at all. Every acknowledged commit survives a power loss: fsync and
  synchronous_commit are on unless the caller's settings turn them off.
- Nobody but this account (and root) can connect: there is only a unix socket in a folder with mode 0700, no TCP and no
  password.

The settings are those of the first start: a server that is running is used as it is. Linux only (/proc, pidfd).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

from stratalog.schemas.errors import Invalid, Unavailable
from stratalog.schemas.extras import require

from .binaries import Binaries, find_binaries, reachable_by, read_binaries, sync_path
from .server_folder import POLL_S, ServerFolder, take
from .server_user import Passage, ServerUser

DEFAULT_SETTINGS = {
    "cluster_name": "stratalog",
    "fsync": "on",
    "listen_addresses": "",
    "log_timezone": "UTC",
    "max_connections": "100",
    # Detaching and locking many partitions in one transaction takes a lock for each of them and their indexes.
    "max_locks_per_transaction": "512",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "unix_socket_permissions": "0700",
    # A write-ahead log file that is used again would keep the bytes of what was erased.
    "wal_recycle": "off",
}
# The launcher decides these; with another value it would not find its own server again.
RESERVED_SETTINGS = {
    "config_file",
    "data_directory",
    "external_pid_file",
    "hba_file",
    "port",
    "unix_socket_directories",
}
INITDB_OPTIONS = ["-U", "postgres", "-E", "UTF8", "--locale=C", "--data-checksums", "--no-instructions"]
# Trust holds for the socket alone: even if a setting opened a port, nobody would be let in through it.
INITDB_OPTIONS += ["--auth-local=trust", "--auth-host=reject"]
SERVER_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
PING_TIMEOUT_S = 2


class EmbeddedPostgres:
    """A PostgreSQL server for one folder, shared by all processes that start it; not for several threads at once."""

    def __init__(
        self,
        base: Path,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 120,
    ) -> None:
        """`settings` go over `DEFAULT_SETTINGS`; `start_timeout_s` bounds a start (with its log replay) and a stop.

        Raises `MissingExtra` without psycopg, `Invalid` for a setting that the launcher decides.
        """
        self._pq = require("psycopg.pq", "warm")
        for name, value in (settings or {}).items():
            if name in RESERVED_SETTINGS or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name) or "\0" in value:
                raise Invalid(f"{name!r} cannot be set for the embedded server", hint="use a server of your own: --dsn")
        self._settings = dict(settings or {})
        self._bin_dir = bin_dir
        self._folder = ServerFolder(Path(base).resolve())
        self._timeout_s = start_timeout_s
        self._dsn = ""
        self._major = 0
        self._use: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._owner = os.getpid()

    @property
    def dsn(self) -> str:
        """The libpq conninfo of the server's superuser over the unix socket; `Invalid` before the start."""
        self._check_started()
        return self._dsn

    @property
    def major(self) -> int:
        """The major version of the data and the server; `Invalid` before the start."""
        self._check_started()
        return self._major

    def start(self) -> Self:
        """Start the server, or join the one that runs; also brings back one that died since.

        Raises `Unavailable` (no answer in time, no fitting binaries, no access), `Invalid` (wrong version of the data)
        or `MissingExtra` (no PostgreSQL at all).
        """
        self._check_process()
        deadline = time.monotonic() + self._timeout_s
        try:
            self._folder.base.mkdir(parents=True, exist_ok=True)
            with self._folder.start_lock(deadline):
                self._ensure_running(deadline)
                if self._use is None:
                    self._use = self._folder.open_lock("use.lock")
                    fcntl.flock(self._use, fcntl.LOCK_SH)
        except OSError as error:
            raise Unavailable(
                f"cannot run PostgreSQL in {self._folder.base}: {error}",
                hint="check that this user may write there and that the disk has room, or choose another --home",
            ) from error
        return self

    def stop(self) -> bool:
        """Stop using the server, and stop it if nobody else uses it; whether it was stopped.

        Raises `Unavailable` if it does not go in time. Stopping twice is harmless.
        """
        if self._use is None:
            return False
        self._check_process()
        deadline = time.monotonic() + self._timeout_s
        with self._folder.start_lock(deadline):
            try:
                # Others can begin to use it only under the start lock, which we hold.
                last = take(self._use, fcntl.LOCK_EX)
                if last:
                    self._shut_down(deadline)
            finally:
                self._use.close()
                self._use = None
        return last

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # -- start -----------------------------------------------------------------------------------------------------

    def _ensure_running(self, deadline: float) -> None:
        spawned = False
        while True:
            lock = self._folder.free_server_lock()
            if lock is None:
                # Something of a server is alive: it answers, or is replaying its log, or its last children are leaving.
                if self._answers():
                    return
                if time.monotonic() > deadline:
                    raise self._no_answer()
                time.sleep(POLL_S)
                continue
            with lock:
                if spawned:
                    raise self._exited()
                self._spawn(lock, deadline)
            spawned = True

    def _answers(self) -> bool:
        socket_folder, major = self._folder.socket_folder(), self._folder.major()
        if socket_folder is None or major is None:
            return False
        dsn = f"host={socket_folder} port=5432 user=postgres dbname=postgres"
        # A ping, unlike a connection, also succeeds while all connections are taken.
        ping = self._pq.PGconn.ping(f"{dsn} connect_timeout={PING_TIMEOUT_S}".encode())
        if ping != self._pq.Ping.OK:
            return False
        if self._bin_dir is not None:
            self._check_major(read_binaries(self._bin_dir), major)
        self._dsn, self._major = dsn, major
        return True

    def _spawn(self, lock: IO[str], deadline: float) -> None:
        folder = self._folder
        if folder.postmaster() is not None:
            raise Unavailable(
                f"a PostgreSQL that stratalog did not start runs in {folder.data}",
                hint=f"stop it: pg_ctl stop -D {folder.data}",
            )
        found = self._find_binaries()
        user = ServerUser.of(folder.data)
        binaries = reachable_by(user, found)
        if folder.major() is None:
            self._make_cluster(binaries, user, lock, deadline)
        socket_folder = folder.make_socket_folder(user)
        folder.remove_stale_files(socket_folder)
        with folder.open_log() as log, Passage(user) as passage:
            self._log_start = log.tell()
            data = passage.path(folder.data)
            command = [os.fspath(binaries.postgres), "-D", data]
            settings = self._all_settings(command, passage)
            settings |= {"port": "5432", "unix_socket_directories": passage.path(socket_folder)}
            for name, value in settings.items():
                command += ["-c", f"{name}={value}"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=SERVER_ENVIRONMENT,
                # A session of its own: an interrupt at the terminal is meant for the program, not for the server.
                start_new_session=True,
                pass_fds=[lock.fileno(), *passage.descriptors],
                **user.identity,
            )

    def _find_binaries(self) -> Binaries:
        major = self._folder.major()
        if self._bin_dir is None:
            return find_binaries(major)
        binaries = read_binaries(self._bin_dir)
        self._check_major(binaries, major)
        return binaries

    def _check_major(self, binaries: Binaries, major: int | None) -> None:
        if major is not None and binaries.major != major:
            raise Invalid(
                f"{self._folder.data} was made by PostgreSQL {major}, {binaries.bin_dir} holds {binaries.major}",
                hint=f"use PostgreSQL {major}, or carry the data over with pg_dump and pg_restore",
            )

    def _make_cluster(self, binaries: Binaries, user: ServerUser, lock: IO[str], deadline: float) -> None:
        unfinished = self._folder.unfinished_data
        if unfinished.exists():
            shutil.rmtree(unfinished)  # of a start that was killed; its initdb is gone, or it would hold the lock
        user.own(unfinished)
        with Passage(user) as passage:
            command = [os.fspath(binaries.initdb), "-D", passage.path(unfinished), *INITDB_OPTIONS]
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=max(1.0, deadline - time.monotonic()),
                    cwd="/",
                    env=SERVER_ENVIRONMENT,
                    pass_fds=[lock.fileno(), *passage.descriptors],
                    check=False,
                    **user.identity,
                )
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"initdb did not end in time in {unfinished}", hint="try again") from error
        if done.returncode != 0:
            raise Unavailable(
                f"initdb failed in {unfinished}: {done.stderr.strip()[-1500:]}",
                hint="check the free disk space and memory, or use a server of your own with --dsn",
            )
        # initdb has synced what is inside.
        unfinished.rename(self._folder.data)
        sync_path(self._folder.base)

    def _all_settings(self, command: list[str], passage: Passage) -> dict[str, str]:
        # With -C the program only prints a setting; it fails where its build does not know the value.
        lz4 = subprocess.run(
            [*command, "-c", "wal_compression=lz4", "-C", "wal_compression"],
            capture_output=True,
            cwd="/",
            env=SERVER_ENVIRONMENT,
            pass_fds=passage.descriptors,
            check=False,
            **passage.user.identity,
        )
        return DEFAULT_SETTINGS | {"wal_compression": "on" if lz4.returncode else "lz4"} | self._settings

    def _exited(self) -> Unavailable:
        return Unavailable(
            f"PostgreSQL did not start in {self._folder.base}: {self._folder.log_tail(self._log_start)[-1500:]}",
            hint=f"the whole log is {self._folder.log}",
        )

    def _no_answer(self) -> Unavailable:
        pid = self._folder.postmaster()
        alive = "its last processes have not ended" if pid is None else f"process {pid} runs but does not answer"
        return Unavailable(
            f"PostgreSQL in {self._folder.base} is not ready after {self._timeout_s:g} s: {alive}",
            hint=f"after a crash it may still be replaying its log: see {self._folder.log}, and start again to wait on",
        )

    # -- stop ------------------------------------------------------------------------------------------------------

    def _shut_down(self, deadline: float) -> None:
        pid = self._folder.postmaster()
        if pid is not None:
            self._interrupt(pid)
        while (lock := self._folder.free_server_lock()) is None:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"PostgreSQL in {self._folder.base} does not stop", hint=f"see what it does in {self._folder.log}"
                )
            time.sleep(POLL_S)
        lock.close()
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _interrupt(self, pid: int) -> None:
        """Ask for a fast shutdown: sessions are ended, then a checkpoint is written."""
        try:
            # The descriptor stands for this very process, so the check after it holds for the signal too.
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if self._folder.postmaster() == pid:
                signal.pidfd_send_signal(process, signal.SIGINT)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise Unavailable(
                f"this user may not stop PostgreSQL in {self._folder.base} (process {pid})",
                hint=f"stop it as the user who started it: kill -INT {pid}",
            ) from error
        finally:
            os.close(process)

    # -- use -------------------------------------------------------------------------------------------------------

    def _check_started(self) -> None:
        if self._use is None:
            raise Invalid("the embedded PostgreSQL is not started", hint="call start(), or use it in a with statement")

    def _check_process(self) -> None:
        # A forked child shares our locks: what it released or took would be released or taken for us.
        if os.getpid() != self._owner:
            raise Invalid(
                "an embedded PostgreSQL cannot be used after a fork", hint="make a new EmbeddedPostgres in the child"
            )
