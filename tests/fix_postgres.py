"""A real Postgres for tests: one embedded server for each worker process, a fresh database for each test.

STRATALOG_TEST_PG_MAJOR chooses the version (15, 17, 18); where it is not installed, what needs a server is skipped.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from stratalog.schemas.errors import MissingExtra, Unavailable
from stratalog.warm.binaries import find_binaries
from stratalog.warm.server import EmbeddedPostgres

# These tests are about statements, not about power loss; the tests of the launcher itself keep the defaults.
FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB", "max_wal_size": "256MB"}


def bin_dir_of(major: int | None) -> Path:
    """Return the programs of this major version (None: any), or skip the test."""
    try:
        return find_binaries(major).bin_dir
    except (MissingExtra, Unavailable) as error:
        pytest.skip(f"{error.message}; {error.hint}")


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server of this worker alone, stopped and removed at the end."""
    major = os.environ.get("STRATALOG_TEST_PG_MAJOR")
    base = tmp_path_factory.mktemp("postgres")
    bin_dir = bin_dir_of(int(major) if major else None)
    with EmbeddedPostgres(base, bin_dir=bin_dir, settings=FAST_SETTINGS) as server:
        yield server
    shutil.rmtree(base)


@pytest.fixture
def database(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The DSN of an empty database that is dropped after the test, with whatever is still connected to it."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield psycopg.conninfo.make_conninfo(postgres_server.dsn, dbname=name)
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
