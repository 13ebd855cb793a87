"""A backup of one installation in a folder: everything that was durable in it when the backup began.

    FOLDER/<UTC time>/manifest.json            comes last: without it there is no backup
                      warm/<schema>.<table>.zst  rows in Postgres' binary COPY format
                      cold/…  cas/…            files of the cold table with its metadata; content, loose and in packs
                      stratalog.toml  audit/…  keys/…   settings, signed heads; keys only when asked for

The hot logs are not copied: what is durable in them is replicated first, so it is in the tables. These are read in one
snapshot, while no consolidation can commit, and the files after them: files are only added, so none that a table names
can be missing. A backup that is interrupted leaves a folder without a manifest, which the next one removes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
from psycopg import sql

from stratalog import __version__
from stratalog.hot.files import make_folder, sync_folder, write_durably
from stratalog.hot.source import open_reader
from stratalog.schemas.errors import Conflict, Corrupt, Invalid, Locked, NotFound, Unavailable
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering
from stratalog.warm.sidecar import Sidecar

from .cas import FsContentStore
from .installation import Installation, Tiers
from .pack_file import PackFile, pack_path
from .roots import find_roots

FORMAT = 1
MANIFEST = "manifest.json"
DRAFT_SUFFIX = ".partial"
PIECE_BYTES = 1 << 20
DRAIN_TIMEOUT_S = 600.0
"""How long a running sidecar gets to replicate what was durable when the backup began."""
POLL_S = 0.2
LISTINGS_MAX = 5
"""How often the packs of a tenant are listed: erasures, which do not wait, may replace some meanwhile."""
KEPT_FOLDERS = ("iceberg", "audit")
"""Beside the events: the table's metadata, and what audit has published."""

_SQL = statements("backup")
Step = Callable[[str], None]


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a backup: its length and the SHA-256 (hex) of its bytes."""

    bytes: int
    sha256: str


class Table(msgspec.Struct, frozen=True):
    """A table of a backup, its columns in the order of the rows, and how many rows there are."""

    schema: str
    name: str
    columns: tuple[str, ...]
    rows: int

    @property
    def path(self) -> str:
        """Where its rows lie in the backup."""
        return f"warm/{self.schema}.{self.name}.zst"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a backup."""

    product: str = "stratalog"
    format: int = FORMAT
    version: str
    home_id: str
    created_at: str
    migrations: tuple[str, ...]
    tables: tuple[Table, ...]
    files: dict[str, BackupFile]
    with_keys: bool

    @property
    def bytes(self) -> int:
        """The length of all files."""
        return sum(file.bytes for file in self.files.values())


def create_backup(
    installation: Installation, folder: Path, *, with_keys: bool = False, step: Step = lambda what: None
) -> Path:
    """Make a backup below `folder`; returns its own folder. `step` is told what is being done.

    Raises `Unavailable` where Postgres, the storage or a running sidecar do not answer, `Locked` while a consolidation
    or an application of retention policies runs, `Corrupt` where content does not match its digest, `Conflict` where a
    partition is half dropped or this second's backup is there already.
    """
    make_folder(folder)
    for left in folder.glob(f"*{DRAFT_SUFFIX}"):
        shutil.rmtree(left)
    name = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"
    if (folder / name).exists():
        raise Conflict(f"{folder / name} is there already", hint="try again in a second")
    draft = make_folder(folder / f"{name}{DRAFT_SUFFIX}")
    writer = _Writer(draft)
    with installation.tiers() as tiers:
        step("replicating")
        replicate(installation, tiers)
        with tiers.consolidation(), _no_deletions(tiers), closing(tiers.connect()) as conn:
            step("tables")
            migrations, tables = _dump(conn, writer)
            step("cold files")
            _copy_cold(tiers, writer)
            # Under the lock, too: a sweep would take away what is about to be copied.
            step("content")
            _copy_content(tiers, conn, writer)
    _copy_settings(installation, writer, with_keys=with_keys)
    manifest = Manifest(
        version=__version__,
        home_id=installation.home.id,
        created_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        migrations=migrations,
        tables=tables,
        files=writer.files,
        with_keys=with_keys,
    )
    writer.sync()
    write_durably(draft / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    draft.rename(folder / name)
    sync_folder(folder)
    return folder / name


def read_manifest(backup: Path) -> Manifest:
    """What is in a backup; raises `NotFound` without a manifest, `Invalid` for one that this version cannot read."""
    try:
        manifest = msgspec.json.decode((backup / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise NotFound(
            f"{backup} is not a backup: it has no {MANIFEST}", hint="name the folder that `backup create` has printed"
        ) from error
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{backup / MANIFEST} is damaged: {error}") from error
    if manifest.product != "stratalog" or manifest.format != FORMAT:
        raise Invalid(f"{backup} has format {manifest.format}, this version reads {FORMAT}", hint="upgrade stratalog")
    return manifest


def check_backup(backup: Path, manifest: Manifest) -> list[str]:
    """Read every file of a backup; what is missing, damaged, or not part of it."""
    problems = []
    for path, file in sorted(manifest.files.items()):
        try:
            with (backup / path).open("rb") as stream:
                digest, size = _copied(stream, None)
        except FileNotFoundError:
            problems.append(f"{path} is missing")
            continue
        if (size, digest) != (file.bytes, file.sha256):
            problems.append(f"{path} is damaged")
    there = {str(path.relative_to(backup)) for path in backup.rglob("*") if path.is_file()}
    return problems + [
        f"{path} is not part of the backup" for path in sorted(there - manifest.files.keys() - {MANIFEST})
    ]


def replicate(installation: Installation, tiers: Tiers) -> None:
    """Bring everything that is durable in the hot logs into Postgres; a sidecar that runs is waited for."""
    try:
        Sidecar(installation.home, tiers.dsn, tiers.store).run_once()
    except Locked:
        _await_sidecar(installation)


@contextmanager
def _no_deletions(tiers: Tiers) -> Iterator[None]:
    """Nothing leaves the warm tier meanwhile: a partition that is half dropped would be no part of the tables."""
    sql = statements("deletions")
    with closing(tiers.connect()) as conn:  # closing it releases the lock
        with answering(), conn.transaction():
            if conn.execute(sql["lock"]).fetchone() != (True,):
                raise Locked("retention is being applied", hint="wait for it to end, then run again")
            dropping = conn.execute(sql["dropping"]).fetchone()
        if dropping is not None:
            raise Conflict(
                f"the partition {dropping[0]} is being dropped", hint="finish that with: stratalog retention apply"
            )
        yield


def _await_sidecar(installation: Installation) -> None:
    ends = {log_id: _status(installation, log_id)["durable_lsn"] for log_id in installation.home.log_ids()}
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while any(_status(installation, log_id)["replicated_lsn"] < end for log_id, end in ends.items()):
        if time.monotonic() > deadline:
            raise Unavailable("the sidecar that runs does not get on", hint="look at: stratalog status")
        time.sleep(POLL_S)


def _status(installation: Installation, log_id: uuid.UUID) -> dict[str, Any]:
    with closing(open_reader(installation.home, log_id)) as reader:
        return reader.status()


class _Writer:
    """Writes files below a folder and remembers their digests; `sync` makes all of them durable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: dict[str, BackupFile] = {}

    def copy(self, source: BinaryIO, path: str) -> None:
        """Copy a stream to `path`."""
        target = self._root / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with target.open("xb") as stream:
            digest, size = _copied(source, stream)
        self.files[path] = BackupFile(size, digest)

    def note(self, path: str) -> None:
        """Take in a file that was written otherwise."""
        with (self._root / path).open("rb") as stream:
            digest, size = _copied(stream, None)
        self.files[path] = BackupFile(size, digest)

    def place(self, path: str) -> Path:
        """The absolute path of a file to write."""
        target = self._root / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return target

    def sync(self) -> None:
        """Make every file and every folder durable."""
        for path in self.files:
            descriptor = os.open(self._root / path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for place in (*(path for path in self._root.rglob("*") if path.is_dir()), self._root):
            sync_folder(place)


def _copied(source: BinaryIO, target: BinaryIO | None) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while piece := source.read(PIECE_BYTES):
        digest.update(piece)
        size += len(piece)
        if target is not None:
            target.write(piece)
    return digest.hexdigest(), size


def _dump(conn: Connection, writer: _Writer) -> tuple[tuple[str, ...], tuple[Table, ...]]:
    """Copy all tables out of one snapshot."""
    tables = []
    with answering(), conn.transaction():
        conn.execute(_SQL["snapshot"])
        conn.execute(_SQL["unlimited"])
        migrations = tuple(name for (name,) in conn.execute(_SQL["migrations"]))
        for schema, name in conn.execute(_SQL["tables"]).fetchall():
            columns = tuple(column for (column,) in conn.execute(_SQL["columns"], {"schema": schema, "name": name}))
            table = Table(schema, name, columns, 0)
            rows = _dump_table(conn, table, writer.place(table.path))
            writer.note(table.path)
            tables.append(msgspec.structs.replace(table, rows=rows))
    return migrations, tuple(tables)


def _dump_table(conn: Connection, table: Table, path: Path) -> int:
    statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(", ").join(map(sql.Identifier, table.columns)), sql.Identifier(table.schema, table.name)
    )
    with pa.CompressedOutputStream(str(path), "zstd") as stream, conn.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for piece in copy:
                stream.write(piece)
        return cursor.rowcount


def _copy_cold(tiers: Tiers, writer: _Writer) -> None:
    """The files of the current snapshot, and the table's metadata."""
    for path in _cold_paths(tiers):
        with tiers.lake.open(path) as stream:
            writer.copy(stream, f"cold/{path}")


def _cold_paths(tiers: Tiers) -> Iterator[str]:
    yield from (tiers.lake.path_of(url) for url in tiers.catalog.snapshot_files())
    for folder in KEPT_FOLDERS:
        yield from (entry.path for entry in tiers.lake.files(folder))


def _copy_content(tiers: Tiers, conn: Connection, writer: _Writer) -> None:
    """All content, verified on the way; packs as they are. What no listing shows yet is asked for by its name."""
    store = tiers.store
    copied: set[tuple[str, bytes]] = set()
    for tenant in store.tenants():
        for _ in range(LISTINGS_MAX):
            packs = [
                pack for pack in store.shelf.all(tenant) if f"cas/{pack_path(tenant, pack.name)}" not in writer.files
            ]
            if not packs:
                break
            for pack in packs:
                if _copy_pack(store, pack, writer):
                    copied.update((tenant, piece.digest) for piece in pack.index.pieces())
        for entry in store.entries(tenant):
            _copy_piece(store, (tenant, bytes.fromhex(entry.path.rpartition("/")[2])), copied, writer)
    for piece in find_roots(conn, tiers.lake, tiers.catalog):
        _copy_piece(store, piece, copied, writer)


def _copy_pack(store: FsContentStore, pack: PackFile, writer: _Writer) -> bool:
    """False where an erasure has replaced it meanwhile: the next listing shows the other one."""
    path = pack_path(pack.tenant, pack.name)
    try:
        with store.storage.open(path) as stream:
            writer.copy(stream, f"cas/{path}")
    except NotFound:
        return False
    if writer.files[f"cas/{path}"].sha256 != pack.name:
        raise Corrupt(f"pack {pack.name} of {pack.tenant} is damaged", hint="see what that costs: stratalog verify")
    return True


def _copy_piece(
    store: FsContentStore, piece: tuple[str, bytes], copied: set[tuple[str, bytes]], writer: _Writer
) -> None:
    """What is gone is left out: it was erased or swept, or `verify` finds that it is lost."""
    if piece in copied:
        return
    tenant, sha256 = piece[0], piece[1].hex()
    with contextlib.suppress(NotFound):
        writer.copy(io.BytesIO(store.get(tenant, sha256)), f"cas/{tenant}/{sha256}")
        copied.add(piece)


def _copy_settings(installation: Installation, writer: _Writer, *, with_keys: bool) -> None:
    home = installation.home.path
    paths = [home / "stratalog.toml"]
    for folder in ("audit", "keys") if with_keys else ("audit",):
        paths += sorted(path for path in (home / folder).rglob("*") if path.is_file())
    for path in paths:
        if path.exists():
            with path.open("rb") as stream:
                writer.copy(stream, str(path.relative_to(home)))
