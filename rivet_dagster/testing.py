"""The capability experiments, for our destinations and for other people's. Needs no test framework.

::

    class MyHarness:
        def fresh(self) -> Destination: ...
        def raw(self) -> Mapping[str, bytes]: ...
        def raw_name(self, key: str) -> str: ...

    assert observe_capabilities(MyHarness()) == MyDestination.capabilities
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from rivet_dagster.contract import ANY, Body, Destination, DestinationCapabilities, WriteCommitProtocol
from rivet_dagster.errors import DestinationError

__all__ = ["Harness", "ScriptedBody", "observe_capabilities"]

_KEY = "observed/data/part-00001.bin"
_PATIENCE_S = 120.0


class Harness(Protocol):
    """How the experiments look at a store: never through the destination that is judged."""

    def fresh(self) -> Destination:
        """Give a new destination on an empty namespace."""
        ...

    def raw(self) -> Mapping[str, bytes]:
        """All that a reader of the store sees now in the namespace of the last `fresh`, by the store's own names.

        A stream is one entry: all bytes that have come out so far. May be called while a write is under way.
        """
        ...

    def raw_name(self, key: str) -> str:
        """Give the name under which `raw` shows what was written to `key`."""
        ...


class ScriptedBody:
    """A body that does something in the middle: waits, raises, or ends elsewhere than it promised."""

    def __init__(
        self,
        content: bytes,
        *,
        promised: int | None = None,
        at: int | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Describe the body.

        Args:
            content: what is really read.
            promised: the length to claim; the true one by default.
            at: the position before which `then` is called, once per reader; never by default.
            then: what happens there.
        """
        self._content = content
        self._promised = len(content) if promised is None else promised
        self._at = at
        self._then = then

    @property
    def size_bytes(self) -> int:
        """The length it claims."""
        return self._promised

    def open(self) -> BinaryIO:
        """Read from the first byte."""
        return io.BufferedReader(_ScriptedReader(self._content, self._at, self._then), buffer_size=1)


class _ScriptedReader(io.RawIOBase):
    def __init__(self, content: bytes, at: int | None, then: Callable[[], None]) -> None:
        self._rest = memoryview(content)
        self._until = at
        self._then = then

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._until == 0:
            self._until = None
            self._then()
        count = min(len(buffer), len(self._rest), len(self._rest) if self._until is None else self._until)
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        if self._until is not None:
            self._until -= count
        return count


def observe_capabilities(harness: Harness, *, size_bytes: int = 16 << 20) -> DestinationCapabilities:
    """Derive all four promises from what the store shows, by experiment.

    A write is halted in the middle and looked at, then broken and looked at, then repeated and looked at; what is
    staged is treated the same; a key is written twice. Each experiment has its own empty namespace.

    Args:
        harness: the destination, and the way to look behind its back.
        size_bytes: of the bodies; more than what the destination sends in one request.

    Raises:
        AssertionError: a write did not read its body, or did not end when its body had failed.
        DestinationError: a first, whole write failed.
    """
    content = hashlib.shake_128(b"observed").digest(size_bytes)
    broken = (_break_a_write(harness, content), _break_what_is_staged(harness, content))
    twice = _write_twice(harness, content)
    seen = {b.seen_in_the_middle for b in broken}
    # One way of writing that shows more than the other is what readers must be ready for.
    weakest = next(p for p in (_STREAMING, _ATOMIC, _FINALIZE) if p in seen)
    return DestinationCapabilities(
        commit_protocol=weakest,
        idempotent_overwrite=twice,
        retry_safe=all(b.repeated_once for b in broken),
        partial_write_risk=any(b.left_in_part for b in broken),
    )


_ATOMIC = WriteCommitProtocol.ATOMIC
_FINALIZE = WriteCommitProtocol.FINALIZE_ON_CLOSE
_STREAMING = WriteCommitProtocol.STREAMING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """What one broken and then repeated write showed."""

    seen_in_the_middle: WriteCommitProtocol
    left_in_part: bool
    repeated_once: bool


class _Break(Exception):
    """Raised by the experiment into the write."""


def _break_a_write(harness: Harness, content: bytes) -> _Broken:
    destination = harness.fresh()
    reached, go_on = threading.Event(), threading.Event()

    def halt_then_break() -> None:
        reached.set()
        go_on.wait(_PATIENCE_S)
        raise _Break

    body = ScriptedBody(content, at=len(content) * 3 // 4, then=halt_then_break)
    with _in_a_thread(lambda: _write(destination, body, content), reached, go_on):
        seen = _seen(harness)
    left = _holds_a_part(harness, content)
    repeated = _succeeds(lambda: _write(destination, ScriptedBody(content), content))
    once = repeated and _is_there_once(harness, content)
    return _Broken(seen_in_the_middle=seen, left_in_part=left, repeated_once=once)


def _break_what_is_staged(harness: Harness, content: bytes) -> _Broken:
    destination = harness.fresh()
    staged = destination.stage(_KEY)
    staged.write(content[: len(content) * 3 // 4])
    staged.flush()
    seen = _seen(harness)
    staged.discard()
    left = _holds_a_part(harness, content)
    repeated = _succeeds(lambda: _stage_and_write(destination, content))
    once = repeated and _is_there_once(harness, content)
    return _Broken(seen_in_the_middle=seen, left_in_part=left, repeated_once=once)


def _write_twice(harness: Harness, content: bytes) -> bool:
    destination = harness.fresh()
    # The longer one first: a write in place would leave its end.
    _write(destination, content, content)
    shorter = content[: len(content) // 2]
    for write_again in (lambda: _write(destination, shorter, shorter), lambda: _stage_and_write(destination, shorter)):
        if not (_succeeds(write_again) and _is_there_once(harness, shorter)):
            return False
    return True


def _succeeds(write: Callable[[], None]) -> bool:
    """Whether a repeat is taken: one that is refused, for example since the key is taken, is no repeat."""
    try:
        write()
    except DestinationError:
        return False
    return True


def _write(destination: Destination, body: Body | bytes, content: bytes) -> None:
    destination.write(_KEY, body, md5=_md5(content), expect=ANY)


def _stage_and_write(destination: Destination, content: bytes) -> None:
    staged = destination.stage(_KEY)
    try:
        staged.write(content)
        staged.close()
        _write(destination, staged, content)
    finally:
        staged.discard()


def _seen(harness: Harness) -> WriteCommitProtocol:
    shown = {name for name, held in harness.raw().items() if held}
    if harness.raw_name(_KEY) in shown:
        return _STREAMING
    return _ATOMIC if shown else _FINALIZE


def _holds_a_part(harness: Harness, content: bytes) -> bool:
    return harness.raw().get(harness.raw_name(_KEY), content) != content


def _is_there_once(harness: Harness, content: bytes) -> bool:
    return {name: held for name, held in harness.raw().items() if held} == {harness.raw_name(_KEY): content}


@contextmanager
def _in_a_thread(write: Callable[[], None], reached: threading.Event, go_on: threading.Event) -> Iterator[None]:
    """Run the block while the write is halted, then let it break and wait for its end."""
    ended = threading.Event()

    def run() -> None:
        # What the destination makes of the broken body is judged by what the store shows.
        with suppress(Exception):
            write()
        ended.set()
        reached.set()

    thread = threading.Thread(target=run, name="halted-write", daemon=True)
    thread.start()
    try:
        if not reached.wait(_PATIENCE_S) or ended.is_set():
            msg = "the write ended, or waited, without reading its body to the middle"
            raise AssertionError(msg)
        yield
    finally:
        go_on.set()
        thread.join(_PATIENCE_S)
    if thread.is_alive():
        msg = "the write did not end after its body had failed"
        raise AssertionError(msg)


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()
