"""Whole HTTP requests and responses, as a proxy sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace

# They describe one connection, and this proxy has two.
HOP_BY_HOP = frozenset({"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"})

Headers = tuple[tuple[str, str], ...]


class ClientGone(Exception):
    """The client closed its connection, or the proxy was told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What requests and responses share. `headers` keep their order and spelling; lookups ignore case."""

    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """Give the first value of a header."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def without(self, *names: str) -> Headers:
        """Give all other headers."""
        left_out = {name.lower() for name in names}
        return tuple((key, value) for key, value in self.headers if key.lower() not in left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    """One request, its body with transfer encoding undone.

    Attributes:
        target: path and query as sent.
        missing: how many bytes of the body the client announced and never sent.
    """

    method: str
    target: str
    missing: int = 0

    def with_headers(self, **headers: str) -> Request:
        """Replace headers; `if_match="x"` sets `if-match: x`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers=(*self.without(*named), *named.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """One response. `length` is the Content-Length of an answer that has no body: to HEAD, or a 304."""

    status: int
    reason: str = ""
    length: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request as it arrived, and what became of it.

    Attributes:
        request: without its body where that is larger than a control object.
        size_bytes: of the body as it arrived.
        status: what the client was answered; `None` without an answer.
        fault: the name of the action that broke it.
    """

    request: Request
    size_bytes: int
    status: int | None = None
    fault: str | None = None

    @property
    def method(self) -> str:
        """The request's."""
        return self.request.method

    @property
    def target(self) -> str:
        """Path and query as sent."""
        return self.request.target
