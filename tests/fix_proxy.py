"""A proxy before Postgres that loses the reply to a COMMIT: the server has done it, the client cannot know."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psycopg


class LosesCommits:
    """Passes everything on, but cuts the connection instead of answering each `every`-th COMMIT. Use as a context."""

    def __init__(self, dsn: str, every: int) -> None:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        self._server = str(Path(str(parts["host"])) / f".s.PGSQL.{parts.get('port', 5432)}")
        self._dsn = {name: value for name, value in parts.items() if name not in ("host", "port")}
        self._every = every
        self._commits = 0
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def dsn(self) -> str:
        """The DSN through the proxy."""
        host, port = self._listener.getsockname()
        return psycopg.conninfo.make_conninfo("", **self._dsn, host=host, port=port, sslmode="disable")

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        cut = threading.Event()
        back = threading.Thread(target=self._answer, args=(server, client, cut), daemon=True)
        back.start()
        for data in _received(client):
            if b"COMMIT" in data:
                self._commits += 1
                if self._commits % self._every == 0:
                    cut.set()
                    self.lost += 1
            server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)
        back.join()
        server.close()

    def _answer(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        """Replies to the client; the first one after the cut is swallowed, and with it the connection."""
        with contextlib.suppress(OSError):
            for data in _received(server):
                if cut.is_set():
                    break
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()


def _received(connection: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            yield data
