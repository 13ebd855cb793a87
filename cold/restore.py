"""A backup becomes a home again: in a folder that does not exist yet, whole or not at all.

Everything is checked against the manifest while it is read. The home has an embedded Postgres and its own folders for
the cold tier, wherever those of the backup were. It has no hot logs: the next one gets an id of its own, so nothing
that is replicated from it can be mistaken for what another machine has replicated. What was erased after the backup was
made, as far as the ledgers at hand tell, is erased in it before it gets its name. An interrupted restore leaves a
folder `<home>.partial`, which the next one removes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from psycopg import sql

from stratalog.hot.files import sync_folder, write_durably
from stratalog.hot.home import Home
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, Invalid, MigrationNeeded
from stratalog.schemas.statements import statements
from stratalog.warm import database, erasure, erasure_ledger, migrate
from stratalog.warm.database import Connection, answering
from stratalog.warm.erasure_ledger import Entry
from stratalog.warm.server import EmbeddedPostgres

from .backup import DRAFT_SUFFIX, PIECE_BYTES, Manifest, Table, check_backup, read_manifest
from .cas import FsContentStore
from .catalog import Catalog
from .erasure import make_bytes_go
from .erasure_file import known_ledger, merged, publish_ledger
from .installation import Installation
from .owner import database_id as current_id
from .owner import mark, renew
from .pack_check import reindex
from .pack_file import pack_name
from .verification import verify_all

_SQL = statements("backup")
Step = Callable[[str], None]


def restore_backup(backup: Path, to: Path, *, erased: Sequence[Entry] = (), step: Step = lambda what: None) -> Manifest:
    """Make a home at `to` from a backup; returns the manifest. `step` is told what is being done.

    `erased` is what is known to have been erased, also after the backup was made: it is erased again before the home
    gets its name, unreadable and its bytes gone.

    Raises `Invalid` where `to` exists, `Corrupt` for a damaged backup, `MigrationNeeded` for one of a newer version.
    """
    return _restore(backup, to, erased, step)[0]


def _restore(backup: Path, to: Path, erased: Sequence[Entry], step: Step) -> tuple[Manifest, list[str]]:
    """The manifest, and tables that did not become what it says, looked at before anything is erased."""
    manifest = read_manifest(backup)
    to = to.expanduser().absolute()
    if to.exists():
        raise Invalid(f"{to} exists", hint="restore into a new folder, then replace the old home by it")
    _check_migrations(manifest)
    step("checking")
    if problems := check_backup(backup, manifest):
        raise Corrupt(f"{backup}: {problems[0]}" + (f", and {len(problems) - 1} more" if len(problems) > 1 else ""))
    draft = to.with_name(f"{to.name}{DRAFT_SUFFIX}")
    if draft.exists():
        shutil.rmtree(draft)
    to.parent.mkdir(parents=True, exist_ok=True)
    home = Home.open(draft, create=True)
    _restore_keys(backup, manifest, home)
    home = Home.open(draft, flags=LOCAL)
    installation = Installation(home)
    step("files")
    _restore_files(backup, manifest, installation)
    with EmbeddedPostgres(home.path / "pg") as server:
        step("tables")
        _restore_tables(backup, manifest, server.dsn, installation)
        _settle(server.dsn, installation)
        with closing(database.connect(server.dsn)) as conn:
            wrong = _compare_rows(conn, manifest)
        step("erasures")
        replay_erasures(installation, erased)
    draft.rename(to)
    sync_folder(to.parent)
    return manifest, wrong


LOCAL: dict[str, Any] = {"warm.dsn": "", "cold.url": "", "cold.cas_url": ""}
"""Everything of a restored home lies in it."""


def replay_erasures(installation: Installation, erased: Sequence[Entry]) -> int:
    """Erase what the ledgers say, that of the restored home and `erased`; returns how many were new to the home.

    A backup may also have been made while the bytes of something erased were still in its files.
    """
    with installation.tiers() as tiers, closing(tiers.connect()) as conn:
        new = erasure.replay(conn, merged([known_ledger(installation), erased]))
        gone = make_bytes_go(installation, tiers)
        publish_ledger(conn, installation, tiers)
    if gone.problems:
        raise Corrupt(f"what was erased is still in the backup's files: {gone.problems[0]}")
    return new


def drill(backup: Path, *, erased: Sequence[Entry] = (), step: Step = lambda what: None) -> dict[str, Any]:
    """Restore a backup into a temporary folder, erase there what is known to be erased, and verify everything; returns
    what `verify` returns, with `tables` and `erased`.

    Nothing of it stays.
    """
    with tempfile.TemporaryDirectory(prefix="stratalog-drill-") as folder:
        manifest, wrong = _restore(backup, Path(folder) / "home", erased, step)
        installation = Installation(Home.open(Path(folder) / "home", flags=LOCAL))
        step("verifying")
        with installation.connection() as conn:
            entries = len(erasure_ledger.entries(conn))
        report = verify_all(installation)
    report["tables"] = {"checked": len(manifest.tables), "problems": wrong}
    report["erased"] = entries
    report["ok"] = report["ok"] and not wrong
    return report


def _check_migrations(manifest: Manifest) -> None:
    known = [migration.name for migration in migrate.read_migrations(migrate.default_folder())]
    if list(manifest.migrations) != known[: len(manifest.migrations)]:
        raise MigrationNeeded(
            f"this backup has the schema {manifest.migrations[-1]}, which this version does not know",
            hint=f"restore it with stratalog {manifest.version} or newer",
        )


def _restore_keys(backup: Path, manifest: Manifest, home: Home) -> None:
    """Settings stay beside the home as they were: they may name a Postgres and a storage that are others now."""
    for path in manifest.files:
        if path.startswith(("keys/", "audit/")):
            target = home.path / path
            home.folder(str(Path(path).parent))
            write_durably(target, (backup / path).read_bytes())
        elif path == "stratalog.toml":
            write_durably(home.path / "stratalog.toml.restored", (backup / path).read_bytes())


def _restore_files(backup: Path, manifest: Manifest, installation: Installation) -> None:
    with installation.lake() as lake, closing(installation.content_store()) as store:
        for path in manifest.files:
            kind, _, rest = path.partition("/")
            if kind == "cold":
                draft = lake.scratch() / "restored"
                shutil.copyfile(backup / path, draft)
                lake.publish(draft, rest)
            elif kind == "cas":
                _restore_content(backup / path, rest, store)


def _restore_content(source: Path, path: str, store: FsContentStore) -> None:
    tenant, _, name = path.partition("/")
    content = source.read_bytes()
    ref = BlobRef.of(content)
    if ref.sha256 != (pack_name(name) or name):
        raise Corrupt(f"{source} is not the content that its name says")
    if pack_name(name):
        store.storage.put(path, content)
    else:
        store.put(tenant, ref, content)


def _settle(dsn: str, installation: Installation) -> None:
    """The rows of packs are those of the packs that are here, and what is here belongs to a database of its own."""
    with closing(database.connect(dsn)) as conn, answering(), conn.transaction():
        renew(conn)
        database_id = current_id(conn)
    with installation.lake() as lake, closing(installation.content_store(dsn)) as store:
        if problems := reindex(store).problems:
            raise Corrupt(f"a pack of the backup is damaged: {problems[0]}")
        mark(database_id, (lake.storage, store.storage))


def _restore_tables(backup: Path, manifest: Manifest, dsn: str, installation: Installation) -> None:
    """The schema as it was, then the rows, then what this version adds to the schema."""
    with closing(database.connect(dsn, check=False)) as conn, tempfile.TemporaryDirectory() as folder:
        for migration in migrate.read_migrations(migrate.default_folder()):
            if migration.name in manifest.migrations:
                (Path(folder) / f"{migration.name}.sql").write_bytes(migration.text)
        migrate.migrate(conn, Path(folder))
    if any(table.schema != "stratalog" for table in manifest.tables):
        with installation.lake() as lake, Catalog(dsn, lake, movable=True) as catalog:
            catalog.ensure_schema()
    with closing(database.connect(dsn, check=False)) as conn:
        with answering(), conn.transaction():
            conn.execute(_SQL["unlimited"])
            conn.execute(_SQL["without_triggers"])
            # The trajectories first: the partitions are made for them.
            for table in sorted(manifest.tables, key=lambda table: table.name != "trajectories"):
                _load_table(conn, table, backup / table.path)
                if table.name == "trajectories":
                    conn.execute(_SQL["partitions"])
            _set_identities(conn)
        migrate.migrate(conn)


def _load_table(conn: Connection, table: Table, path: Path) -> None:
    name = sql.Identifier(table.schema, table.name)
    # What the migrations and the catalog have put there is part of the backup.
    conn.execute(sql.SQL("DELETE FROM {}").format(name))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        name, sql.SQL(", ").join(map(sql.Identifier, table.columns))
    )
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream, conn.cursor() as cursor:
        with cursor.copy(statement) as copy:
            while piece := stream.read(PIECE_BYTES):
                copy.write(piece)
        if cursor.rowcount != table.rows:
            raise Corrupt(f"{path} has {cursor.rowcount} rows, not {table.rows}")


def _set_identities(conn: Connection) -> None:
    for schema, name, column, sequence in conn.execute(_SQL["identities"]).fetchall():
        conn.execute(
            sql.SQL("SELECT setval({}, (SELECT coalesce(max({}), 0) + 1 FROM {}), false)").format(
                sql.Literal(sequence), sql.Identifier(column), sql.Identifier(schema, name)
            )
        )


def _compare_rows(conn: Connection, manifest: Manifest) -> list[str]:
    problems = []
    for table in manifest.tables:
        counted = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table.schema, table.name))
        row = conn.execute(counted).fetchone()
        if row != (table.rows,):
            problems.append(f"{table.schema}.{table.name} has {row and row[0]} rows, the backup {table.rows}")
    return problems
