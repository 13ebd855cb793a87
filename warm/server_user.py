"""The account that the embedded PostgreSQL runs as, and how it reaches folders that it may not walk to.

PostgreSQL refuses to run as root. Root therefore starts it as the owner of the data, at first `postgres` or `nobody`.
That user often cannot walk to the home: it lies below /root, or below any other folder with mode 0700. Opening the
parents to everybody, granting capabilities or mount namespaces would weaken the machine or fail in a container. Instead
root opens the folder and hands the descriptor down: the path `/proc/self/fd/N` leads every process of the server into
the folder without a look at its parents, and needs no privilege.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratalog.schemas.errors import Unavailable

ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The account of the server; `switch` tells whether it is another one than ours."""

    uid: int
    gid: int
    switch: bool

    @classmethod
    def of(cls, data: Path) -> ServerUser:
        """Return the account for this data folder, which may not exist yet; `Unavailable` if we cannot be that user."""
        owner = data.stat() if data.exists() else None
        ours = os.geteuid()
        if ours != 0:
            if owner is not None and owner.st_uid != ours:
                raise Unavailable(
                    f"{data} belongs to user {owner.st_uid}, this process runs as user {ours}",
                    hint="run stratalog as the user who made this home, or give it a home of its own with --home",
                )
            return cls(ours, os.getegid(), switch=False)
        if owner is None:
            return cls._first_account()
        if owner.st_uid == 0:
            account = cls._first_account()
            raise Unavailable(
                f"{data} belongs to root, and PostgreSQL refuses to run as root",
                hint=f"give the data to the server's user: chown -R {account.uid}:{account.gid} {data}",
            )
        return cls(owner.st_uid, owner.st_gid, switch=True)

    @classmethod
    def _first_account(cls) -> ServerUser:
        for name in ACCOUNTS:
            try:
                account = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(account.pw_uid, account.pw_gid, switch=True)
        raise Unavailable(
            "PostgreSQL refuses to run as root, and this system has neither a user postgres nor nobody",
            hint="run stratalog as a normal user, or use a server of your own with --dsn",
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Keyword arguments that make `subprocess` run a program as this account, without our groups."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def can_use(self, path: Path) -> bool:
        """Whether this account can enter the folder, or run the program: tried, because modes do not show ACLs."""
        return self._test("-x", os.fspath(path)) if self.switch else os.access(path, os.X_OK)

    def is_same(self, one: Path, other: Path) -> bool:
        """Whether this account sees the same folder at both paths; False where it may not look."""
        with Passage(self) as passage:
            return self._test(os.fspath(one), "-ef", passage.path(other), pass_fds=passage.descriptors)

    def _test(self, *condition: str, pass_fds: Sequence[int] = ()) -> bool:
        command = ["/usr/bin/env", "test", *condition]
        try:
            done = subprocess.run(command, cwd="/", check=False, pass_fds=pass_fds, **self.identity)
            return done.returncode == 0
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(
                f"cannot run a program as user {self.uid}: {error}",
                hint="run stratalog as a normal user, or use a server of your own with --dsn",
            ) from error

    def own(self, folder: Path) -> None:
        """Make `folder` if needed, for this account alone."""
        folder.mkdir(mode=0o700, exist_ok=True)
        # Not through a link: in a shared folder it could be somebody else's, and lead anywhere.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if self.switch:
                os.fchown(descriptor, self.uid, self.gid)
            os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)


@dataclass(slots=True)
class Passage:
    """The names under which the processes of the server meet our folders; the descriptors live while this is open."""

    user: ServerUser
    descriptors: list[int] = field(default_factory=list)

    def path(self, folder: Path) -> str:
        """Return the folder's own path if the account can walk to it, else one through a descriptor."""
        if self.user.can_use(folder):
            return os.fspath(folder)
        if not Path("/proc/self/fd").exists():
            raise Unavailable(
                f"user {self.user.uid} cannot reach {folder}, and /proc is not mounted",
                hint="mount /proc, or choose a home whose parent folders are open to others (chmod o+x)",
            )
        self.descriptors.append(os.open(folder, os.O_PATH | os.O_DIRECTORY))
        return f"/proc/self/fd/{self.descriptors[-1]}"

    def __enter__(self) -> Passage:
        return self

    def __exit__(self, *exception: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
