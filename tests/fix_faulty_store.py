"""A proxy before the S3 server of the tests that answers late, not at all, 503, or cuts uploads; and lists late."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from fix_s3 import S3Bucket

from stratalog.cold import patience

FOR_EVER = 1 << 30
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_PREFIXES = re.compile(rb"<CommonPrefixes>.*?</CommonPrefixes>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>")
_PREFIX = re.compile(rb"<Prefix>(.*?)</Prefix>")


class FaultyStore:
    """Passes everything on, but for what it is told; use as a context.

    `fail(how, times, methods)` lets the next requests of these methods fail: `hang` leaves them without an answer,
    `503` refuses them, `cut` ends the connection in the middle of the upload, `drop` takes the upload and breaks off
    before the answer, `shorten` stores half of what was sent and says that all is well. While `lists_late`, what is put
    is not listed, until `catch_up`.
    """

    def __init__(self, endpoint: str, bucket: str) -> None:
        self.target = urlsplit(endpoint).netloc
        self._bucket = bucket
        self.requests: list[str] = []
        self.lists_late = False
        self.released = threading.Event()
        self._guard = threading.Lock()
        self._how, self._left, self._after, self._methods = "", 0, 0, ("",)
        self._hidden: set[bytes] = set()
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def endpoint(self) -> str:
        """The URL of the proxy."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def fail(
        self, how: str, times: int = FOR_EVER, methods: tuple[str, ...] = ("GET", "PUT", "HEAD", "DELETE", "POST"),
        after: int = 0,
    ) -> None:  # fmt: skip
        """Let `times` requests fail, after as many as `after` that do not."""
        with self._guard:
            self._how, self._left, self._methods, self._after = how, times, methods, after
            self.requests.clear()

    def heal(self) -> None:
        """No request fails any more."""
        self.fail("", 0)

    def catch_up(self) -> None:
        """Listings show everything again."""
        self.lists_late = False
        self._hidden.clear()

    def fate(self, method: str, path: str) -> str:
        """How this request fails, if at all."""
        with self._guard:
            self.requests.append(f"{method} {path}")
            if method not in self._methods or not self._left:
                return ""
            if self._after:
                self._after -= 1
                return ""
            self._left -= 1
            return self._how

    def note(self, method: str, path: str) -> None:
        """A request has been passed on."""
        if method == "PUT" and self.lists_late:
            self._hidden.add(path.partition("?")[0].strip("/").partition("/")[2].encode())

    def listed(self, content: bytes) -> bytes:
        """A listing without what is too new for it."""
        if not self._hidden:
            return content
        content = _CONTENTS.sub(lambda entry: b"" if _KEY.findall(entry[0])[0] in self._hidden else entry[0], content)
        return _PREFIXES.sub(lambda entry: entry[0] if self._has_old(_PREFIX.findall(entry[0])[0]) else b"", content)

    def _has_old(self, prefix: bytes) -> bool:
        """Whether a folder has something that is listed."""
        connection = http.client.HTTPConnection(self.target)
        connection.request("GET", f"/{self._bucket}?list-type=2&prefix={prefix.decode()}")
        keys = set(_KEY.findall(connection.getresponse().read()))
        connection.close()
        return bool(keys - self._hidden)


class _Handler(BaseHTTPRequestHandler):
    store: FaultyStore
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        """The client waits for this before it sends its body, so it must not wait in the buffer."""
        done = super().handle_expect_100()
        self.wfile.flush()
        return done

    def log_message(self, *arguments: Any) -> None:
        """Silence."""

    def _serve(self) -> None:
        fate = self.store.fate(self.command, self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if fate == "cut":
            self.rfile.read(length // 2)
            self._hang_up()
            return
        body = self.rfile.read(length)
        if fate == "hang":
            self.store.released.wait(30)
            self._hang_up()
        elif fate == "503":
            error = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            self._answer(503, {"Content-Type": "application/xml"}, error)
        else:
            self._pass_on(body[: len(body) // 2] if fate == "shorten" else body, fate)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815 - the names that the base class looks for

    def _pass_on(self, body: bytes, fate: str) -> None:
        connection = http.client.HTTPConnection(self.store.target)
        left_out = {"content-length", "content-md5", "x-amz-checksum-crc32", "x-amz-sdk-checksum-algorithm"}
        sent = {
            name: value for name, value in self.headers.items() if fate != "shorten" or name.lower() not in left_out
        }
        sent["Content-Length"] = str(len(body))
        connection.request(self.command, self.path, body, sent)
        answer = connection.getresponse()
        content = answer.read()
        self.store.note(self.command, self.path)
        if self.command == "GET" and "list-type" in self.path:
            content = self.store.listed(content)
        if fate == "drop":
            self._hang_up()
        else:
            self._answer(answer.status, dict(answer.getheaders()), content)
        connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
            self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)


@pytest.fixture
def faulty(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """The S3 server behind a proxy; who waits for it is impatient."""
    monkeypatch.setattr(patience, "PAUSE_S_MIN", 0.01)
    monkeypatch.setattr(patience, "PAUSE_S_MAX", 0.02)
    monkeypatch.setattr(patience, "ATTEMPTS_MAX", 4)
    with FaultyStore(s3_bucket.options["endpoint_url"], s3_bucket.name) as store:
        yield store


@pytest.fixture
def faulty_options(faulty: FaultyStore) -> dict[str, str]:
    """`storage_options` through the proxy."""
    return {"endpoint_url": faulty.endpoint, "read_timeout": "0.5", "connect_timeout": "2"}
