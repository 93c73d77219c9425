"""What the contract tests share: bodies, digests, and the way to write them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from rivet_dagster.contract import ANY, Body, Destination, Expect, ObjectDestination, WriteOutcome
from tests.harnesses import Harness

MIB = 1 << 20
KEY = "orders/data/part-00001.bin"
# Above every size up to which a harness's destination sends a body in one request.
LARGE = 12 * MIB
SMALL = 1000


class Boom(Exception):
    """What a body raises in the middle."""


def boom() -> None:
    """Raise it."""
    raise Boom


def content(size_bytes: int, seed: str = "content") -> bytes:
    """Bytes that are nowhere the same."""
    return hashlib.shake_128(seed.encode()).digest(size_bytes)


def md5(body: bytes) -> bytes:
    """Raw."""
    return hashlib.md5(body).digest()


def write(destination: Destination, key: str, body: bytes, expect: Expect = ANY) -> WriteOutcome:
    """Write bytes as they are."""
    return destination.write(key, body, md5=md5(body), expect=expect)


@contextmanager
def staged(destination: Destination, key: str, body: bytes) -> Iterator[Body]:
    """Lend a part that holds `body`, in two pieces."""
    part = destination.stage(key)
    try:
        part.write(body[: len(body) // 3])
        part.write(body[len(body) // 3 :])
        part.close()
        yield part
    finally:
        part.discard()


def objects(harness: Harness) -> ObjectDestination | None:
    """Give a fresh destination whose objects can be looked at; for a stream prove that it has no way to."""
    destination = harness.fresh()
    if isinstance(destination, ObjectDestination):
        return destination
    assert not destination.capabilities.commit_protocol.leaves_objects_at_rest
    promised = ("head", "read", "list", "directories", "move", "remove", "unfinished", "discard_unfinished", "hold")
    assert not [name for name in promised if hasattr(destination, name)]
    return None
