"""What other processes do to a destination, each given a recipe to make their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait

from rivet_dagster.contract import ABSENT, ANY, Destination, ObjectDestination
from rivet_dagster.errors import PreconditionFailed
from rivet_dagster.testing import ScriptedBody
from tests.contract.kit import content, md5

PATIENCE_S = 120.0
_SPAWN = multiprocessing.get_context("spawn")


def count_up(recipe: Callable[[], ObjectDestination], talk: Connection, key: str, times: int, as_bytes: bool) -> None:
    """Raise a counter by compare-and-swap, each time from what is there."""
    destination = recipe()
    _meet(talk)
    done = 0
    while done < times:
        found = destination.read(key)
        try:
            raised = b"%d" % (int(found.body) + 1)
            body = raised if as_bytes else ScriptedBody(raised)
            destination.write(key, body, md5=md5(raised), expect=found.meta.version)
            done += 1
        except PreconditionFailed:
            continue
    talk.send(done)


def create(recipe: Callable[[], Destination], talk: Connection, key: str, size_bytes: int) -> None:
    """Create an object that says who made it; tell whether that succeeded."""
    destination = recipe()
    body = content(size_bytes, str(os.getpid()))
    _meet(talk)
    try:
        destination.write(key, ScriptedBody(body), md5=md5(body), expect=ABSENT)
    except PreconditionFailed:
        talk.send(None)
    else:
        talk.send(os.getpid())


def halt_while_writing(recipe: Callable[[], Destination], talk: Connection, key: str, body: bytes) -> None:
    """Write, and stop in the middle for ever."""
    halted = ScriptedBody(body, at=len(body) * 3 // 4, then=lambda: _halt(talk))
    recipe().write(key, halted, md5=md5(body), expect=ANY)


def halt_while_staging(recipe: Callable[[], Destination], talk: Connection, key: str, body: bytes) -> None:
    """Stage, and stop in the middle for ever."""
    part = recipe().stage(key)
    part.write(body[: len(body) * 3 // 4])
    part.flush()
    _halt(talk)


def halt_while_holding(recipe: Callable[[], ObjectDestination], talk: Connection, directory: str) -> None:
    """Hold a directory for ever."""
    with recipe().hold(directory):
        _halt(talk)


def at_once(target: Callable[..., None], recipe: Callable[[], Destination], processes: int, *given: object) -> list:
    """Run `target` in several processes that begin together, and give what each says at its end."""
    pairs = [_start(target, recipe, *given) for _ in range(processes)]
    talks = [talk for _, talk in pairs]
    try:
        for talk in talks:
            assert _heard(talk) == "ready"
        for talk in talks:
            talk.send("go")
        return [_heard(talk) for talk in talks]
    finally:
        _end(pairs)


@contextmanager
def halted(target: Callable[..., None], recipe: Callable[[], Destination], *given: object) -> Iterator[None]:
    """Run the block while another process has stopped in the middle of `target`; then kill it."""
    pair = _start(target, recipe, *given)
    try:
        assert _heard(pair[1]) == "halted"
        yield
    finally:
        _end([pair])


def _start(target: Callable[..., None], recipe: Callable[[], Destination], *given: object) -> tuple:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(recipe, theirs, *given), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _heard(talk: Connection) -> object:
    assert wait([talk], PATIENCE_S), "the other process said nothing in time"
    return talk.recv()


def _end(pairs: Sequence[tuple]) -> None:
    for process, talk in pairs:
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join(PATIENCE_S)
        process.close()
        talk.close()


def _meet(talk: Connection) -> None:
    talk.send("ready")
    talk.recv()


def _halt(talk: Connection) -> None:
    talk.send("halted")
    while True:
        time.sleep(PATIENCE_S)
