"""Why no answer came. Pure; for every SDK the same, because below each is the same HTTP library."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from rivet_dagster.destinations.answers import NO_REPLY, UNREACHABLE, UNTRUSTED, Answer

__all__ = ["no_answer", "reasons"]


def no_answer(error: BaseException) -> Answer:
    """Tell what can never have been sent from what may have been applied; in doubt it may have been."""
    from urllib3.exceptions import NewConnectionError  # noqa: PLC0415 - loads with an SDK only

    found = [*reasons(error)]
    code = NO_REPLY
    if any(isinstance(r, ssl.SSLCertVerificationError) for r in found):
        code = UNTRUSTED
    elif any(isinstance(r, (NewConnectionError, ConnectionRefusedError, socket.gaierror)) for r in found):
        code = UNREACHABLE
    return Answer(code=code, failure=type(error).__name__)


def reasons(error: object, *, known: frozenset[int] = frozenset()) -> Iterator[BaseException]:
    """An error and all that it was made of: SDKs keep it under different names."""
    if not isinstance(error, BaseException) or id(error) in known:
        return
    yield error
    inner = (getattr(error, "reason", None), getattr(error, "inner_exception", None), *error.args)
    for reason in (error.__cause__, error.__context__, *inner):
        yield from reasons(reason, known=known | {id(error)})
