"""A TCP relay in front of a server, to cut or stall a connection where a test wants it."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

__all__ = ["Relay", "relay_to"]


class Relay:
    """Passes bytes both ways until it is told otherwise.

    Attributes:
        port: where it listens on loopback.
        after: how many bytes from the server pass before `then` is done; `None` for all.
        accepted: how many connections there have been.
        passed: how many bytes from the server the latest connection has passed.
        then: "close" ends the connection in order, "reset" without one, "stall" passes nothing more.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.after: int | None = None
        self.accepted = 0
        self.passed = 0
        self.then = "close"
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        for opened in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            self.accepted += 1
            threading.Thread(target=self._pass, args=(client, server, self.after), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket, after: int | None) -> None:
        # One thread for both ways: a socket that another thread reads from does not end when it is closed.
        passed = 0
        with contextlib.suppress(OSError, ValueError):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if source is server and after is not None and passed + len(data) > after:
                        client.sendall(data[: after - passed])
                        self._break(client, server)
                        return
                    if not data:
                        client.close()
                        server.close()
                        return
                    passed += len(data) if source is server else 0
                    self.passed = passed
                    (client if source is server else server).sendall(data)

    def _break(self, client: socket.socket, server: socket.socket) -> None:
        if self.then == "stall":
            self._over.wait()
            return
        if self.then == "reset":
            # A linger of zero seconds sends a reset instead of an end.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        server.close()


@contextlib.contextmanager
def relay_to(host: str, port: int) -> Iterator[Relay]:
    """A relay for one test."""
    relay = Relay(host, port)
    try:
        yield relay
    finally:
        relay.stop()
