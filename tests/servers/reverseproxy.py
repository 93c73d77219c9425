"""A small reverse proxy on loopback, one thread per connection, that hands whole requests to whoever builds on it."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.servers.messages import HOP_BY_HOP, ClientGone, Exchange, Request, Response

UPSTREAM_TIMEOUT_S = 60.0
KEPT_BODY_BYTES = 1 << 20


@dataclass(kw_only=True, eq=False)
class Passage:
    """One request on its way: what a proxy may do with it."""

    proxy: ReverseProxy
    request: Request
    exchange: Exchange
    _connection: _Connection = field(repr=False)

    def forward(self, request: Request | None = None) -> Response:
        """Send a request (this one, if none is given) to the store and give its whole answer."""
        return self.proxy.send(request or self.request)

    def reply(self, response: Response, *, cut_after: int | None = None, reset: bool = True) -> None:
        """Answer the client, or only the first bytes of the body and then close."""
        self.exchange.status = response.status
        self._connection.answer(response, head=self.request.method == "HEAD", cut_after=cut_after)
        if cut_after is not None:
            self.hang_up(reset=reset)

    def hang_up(self, *, reset: bool = True) -> None:
        """Close the client's connection: with RST, or with FIN."""
        self._connection.hang_up(reset=reset)


class ReverseProxy:
    """A context manager that listens on a free loopback port and passes requests to `handle`.

    Attributes:
        exchanges: every request in the order of arrival.
        errors: what went wrong in handlers other than on purpose.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.exchanges: list[Exchange] = []
        self.closing = threading.Event()
        self.errors: list[BaseException] = []
        self._server = _Server()
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop.

        Raises:
            BaseException: the first error in a handler, so that a proxy which did not do its work fails the test.
        """
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up_all()
        self._server.server_close()
        if self.errors and _exception[0] is None:
            raise self.errors[0]

    def handle(self, passage: Passage) -> None:
        """Answer one request; the default forwards it."""
        passage.reply(passage.forward())

    def requests(self, method: str = ".*", target: str = "") -> list[Exchange]:
        """Give the exchanges whose method and target match these regular expressions, in order of arrival."""
        return [
            exchange
            for exchange in list(self.exchanges)
            if re.fullmatch(method, exchange.method) and re.search(target, exchange.target)
        ]

    def send(
        self,
        request: Request,
        *,
        stop_after: int | None = None,
        reset: bool = True,
        at_stop: Callable[[], None] | None = None,
    ) -> Response:
        """Send a request to the store and give its whole answer.

        Args:
            request: what to send; Content-Length is that of its body (and what is missing of it).
            stop_after: send only so many bytes of the body, call `at_stop`; without one, break the connection.
            reset: break it with RST, else FIN.
            at_stop: returns when the rest may follow.

        Raises:
            ClientGone: the connection to the store was broken on purpose.
        """
        store = http.client.HTTPConnection(*self.upstream, timeout=UPSTREAM_TIMEOUT_S)
        try:
            store.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in _for_one_connection(request):
                store.putheader(name, value)
            store.endheaders()
            stop = len(request.body) if stop_after is None else stop_after
            with suppress(ConnectionError):
                store.send(request.body[:stop])
            if at_stop is not None:
                at_stop()
            elif stop_after is not None or request.missing:
                _close(store.sock, reset=reset)
                raise ClientGone
            # A store may refuse a request before it has read it whole, and its answer is then there.
            with suppress(ConnectionError):
                store.send(request.body[stop:])
            return _whole(store.getresponse(), head=request.method == "HEAD")
        finally:
            store.close()


def _for_one_connection(request: Request) -> Iterable[tuple[str, str]]:
    yield from request.without("content-length", *HOP_BY_HOP)
    if request.body or request.missing or request.method in {"PUT", "POST", "PATCH"}:
        yield "Content-Length", str(len(request.body) + request.missing)
    yield "Connection", "close"


def _whole(answer: http.client.HTTPResponse, *, head: bool) -> Response:
    body = answer.read()
    bodiless = head or answer.status in {204, 304}
    response = Response(status=answer.status, reason=answer.reason, headers=tuple(answer.getheaders()), body=body)
    return replace(
        response,
        headers=response.without("content-length", *HOP_BY_HOP),
        length=answer.getheader("Content-Length") if bodiless else None,
    )


def _close(connection: socket.socket, *, reset: bool) -> None:
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing the server waits for its threads
    request_queue_size = 128
    proxy: ReverseProxy

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up_all(self) -> None:
        """Wake every thread that waits for its client's next request."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        expected = isinstance(error, ClientGone | ConnectionError) or self.proxy.closing.is_set()
        if error is not None and not expected:
            self.proxy.errors.append(error)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        request = self._read()
        size = len(request.body)
        kept = request if size <= KEPT_BODY_BYTES else replace(request, body=b"")
        exchange = Exchange(request=kept, size_bytes=size)
        proxy.exchanges.append(exchange)
        proxy.handle(Passage(proxy=proxy, request=request, exchange=exchange, _connection=self))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = _serve  # noqa: N815 - http.server's names

    def _read(self) -> Request:
        headers = tuple(self.headers.items())
        announced = int(self.headers.get("Content-Length") or 0)
        if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
            body, missing = self._chunks()
        else:
            body = self._bytes(announced)
            missing = announced - len(body)
        if missing:
            self.close_connection = True
        return Request(method=self.command, target=self.path, headers=headers, body=body, missing=missing)

    def _bytes(self, count: int) -> bytes:
        """Read so many bytes, or what there is until the client leaves."""
        received = bytearray()
        while len(received) < count:
            try:
                piece = self.rfile.read1(min(count - len(received), 1 << 20))  # type: ignore[attr-defined]
            except ConnectionError:
                break
            if not piece:
                break
            received += piece
        return bytes(received)

    def _chunks(self) -> tuple[bytes, int]:
        body = bytearray()
        while True:
            line = self.rfile.readline(1024)
            if not line.endswith(b"\n"):
                return bytes(body), 1
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while self.rfile.readline(65536) not in {b"\r\n", b"\n", b""}:
                    pass
                return bytes(body), 0
            body += self._bytes(size)
            self.rfile.readline(1024)

    def answer(self, response: Response, *, head: bool, cut_after: int | None) -> None:
        length = response.length if head or response.status in {204, 304} else str(len(response.body))
        lines = [f"HTTP/1.1 {response.status} {response.reason or http.client.responses.get(response.status, '')}"]
        lines += [f"{name}: {value}" for name, value in response.headers]
        lines += [f"Content-Length: {length}"] if length is not None else []
        lines += ["Connection: close"] if self.close_connection else []
        start = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            self.wfile.write(start + (b"" if head else response.body[:cut_after]))
        except ConnectionError:
            self.close_connection = True

    def hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        self.rfile.close()
        _close(self.connection, reset=reset)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing: `exchanges` is the log."""


def requests_in_order(exchanges: Sequence[Exchange]) -> list[tuple[str, str, int | None]]:
    """Give (method, path without query, status) of exchanges, for comparison as a whole."""
    return [(exchange.method, urlsplit(exchange.target).path, exchange.status) for exchange in exchanges]
