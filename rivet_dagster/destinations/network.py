"""Who was asked, and why no answer came. Pure; for every SDK the same, since below each is the same HTTP library."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator

from rivet_dagster.destinations.answers import NO_REPLY, NOT_SENT, UNREACHABLE, UNTRUSTED, Answer

__all__ = ["no_answer", "reasons", "shown_host"]

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w-]+(\.[\w-]+)+|localhost|[\w-]+(?=:))(:\d+)?")


def shown_host(url: str) -> str:
    """Host and port of an endpoint, for messages.

    Nothing else of it, and nothing at all of what is no such thing: a connection string or a key that someone took
    for the URL is a secret.
    """
    host = re.split("[/?#]", url.partition("//")[2], maxsplit=1)[0].rpartition("@")[2]
    return host if _HOST.fullmatch(host) else "its endpoint"


def no_answer(error: BaseException) -> Answer:
    """Tell what can never have been sent from what may have been applied; in doubt it may have been."""
    from urllib3.exceptions import LocationParseError, NewConnectionError  # noqa: PLC0415 - loads with an SDK only

    found = [*reasons(error)]
    code = NO_REPLY
    if any(isinstance(r, ssl.SSLCertVerificationError) for r in found):
        code = UNTRUSTED
    elif any(isinstance(r, (NewConnectionError, ConnectionRefusedError, socket.gaierror)) for r in found):
        code = UNREACHABLE
    elif any(isinstance(r, LocationParseError) for r in found):
        code = NOT_SENT
    return Answer(code=code, failure=type(error).__name__)


def reasons(error: object, *, known: frozenset[int] = frozenset()) -> Iterator[BaseException]:
    """An error and all that it was made of: SDKs keep it under different names."""
    if not isinstance(error, BaseException) or id(error) in known:
        return
    yield error
    inner = (getattr(error, "reason", None), getattr(error, "inner_exception", None), *error.args)
    for reason in (error.__cause__, error.__context__, *inner):
        yield from reasons(reason, known=known | {id(error)})
