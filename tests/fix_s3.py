"""An S3 server of our own on 127.0.0.1 (moto), one for the session, and a fresh bucket for each test.

It proves that the protocol is used rightly, not that a store is durable. Nothing leaves this machine: credentials come
from the fixture, and the settings of the user who runs the tests are out of sight.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from stratalog.cold import patience


class S3Bucket(NamedTuple):
    """A bucket and how to reach it."""

    name: str
    url: str
    options: dict[str, str]
    client: Any
    """A boto3 client, for tests that act behind our back."""


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server_module = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    """An empty bucket; its `options` are `storage_options`, the credentials are in the environment."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    client = boto3.client("s3", endpoint_url=s3_endpoint)
    name = f"test-{uuid.uuid4()}"
    client.create_bucket(Bucket=name)
    return S3Bucket(name, f"s3://{name}/some/prefix", {"endpoint_url": s3_endpoint}, client)


@pytest.fixture
def dead_endpoint(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address of this machine at which nothing listens; nobody waits long for it."""
    monkeypatch.setattr(patience, "ATTEMPTS_MAX", 2)
    with contextlib.closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"
