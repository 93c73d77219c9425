"""What is written: a body in memory, and any body read with its promises checked."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import BinaryIO

from rivet_dagster.contract import Body
from rivet_dagster.errors import DestinationError, IntegrityError

__all__ = ["BytesBody", "as_body", "checked"]

_STEP = 1 << 20


class BytesBody:
    """A body that is in memory."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    @property
    def size_bytes(self) -> int:
        """How many bytes `open` yields."""
        return len(self._body)

    def open(self) -> BinaryIO:
        """Read from the first byte."""
        return io.BytesIO(self._body)


def as_body(body: Body | bytes) -> Body:
    """Give bytes the shape of a body."""
    return BytesBody(body) if isinstance(body, bytes) else body


def checked(key: str, body: Body, *, md5: bytes, step: int = _STEP) -> Iterator[bytes]:
    """Read a body in pieces of `step` bytes (the last may be shorter), none of them empty.

    The last piece is handed out only when the length and the MD5 of all of them are as promised, so whoever
    publishes after the iteration never publishes a short, long or other body.

    Raises:
        DestinationError: the body is shorter or longer than its `size_bytes`.
        IntegrityError: its MD5 is not `md5`.
    """
    promised, found = body.size_bytes, 0
    digest = hashlib.md5(usedforsecurity=False)
    held = b""
    with body.open() as reader:
        while piece := _exactly(reader, step):
            found += len(piece)
            if found > promised:
                msg = f"{key}: the body promised {promised} bytes and holds more; nothing was published, encode again"
                raise DestinationError(msg)
            digest.update(piece)
            if held:
                yield held
            held = piece
    if found < promised:
        msg = f"{key}: the body promised {promised} bytes and ended after {found}; nothing was published, encode again"
        raise DestinationError(msg)
    if digest.digest() != md5:
        msg = (
            f"{key}: expected a body with MD5 {md5.hex()}, read one with {digest.hexdigest()} ({found} bytes); "
            "nothing was published, encode again"
        )
        raise IntegrityError(msg)
    if held:
        yield held


def _exactly(reader: BinaryIO, size: int) -> bytes:
    """`size` bytes, fewer only at the end: a reader may return less than it was asked for."""
    first = reader.read(size)
    if not first or len(first) == size:
        return first
    pieces = [first]
    missing = size - len(first)
    while missing and (piece := reader.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
