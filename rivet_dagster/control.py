"""Control objects: created and swapped by compare-and-swap, with three outcomes: ours, someone else's, unknown."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from rivet_dagster.contract import ABSENT, Expect, ObjectDestination
from rivet_dagster.errors import (
    CommitConflict,
    CommitUnknown,
    ConfigError,
    DestinationError,
    NoAnswer,
    PreconditionFailed,
)
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Manifest, Part, Status
from rivet_dagster.readback import read_record
from rivet_dagster.wire import serialise

__all__ = ["SideRecord", "md5_of", "repeats", "swap"]


def md5_of(body: bytes) -> bytes:
    """The raw digest that a write declares."""
    return hashlib.md5(body, usedforsecurity=False).digest()


def repeats() -> Retrying:
    """How a request that got no answer is sent again: the same precondition, a few times, slower each time."""
    return Retrying(
        stop=stop_after_attempt(5),
        wait=wait_random_exponential(multiplier=0.3, max=5),
        retry=retry_if_exception_type(NoAnswer),
        reraise=True,
    )


def swap(destination: ObjectDestination, key: str, body: bytes, *, expect: Expect) -> str | None:
    """Create or replace a control object, only over what is expected there.

    A refusal and a silence are both read back, since SDKs repeat requests whose reply was lost. Reading back can
    prove "ours" or "someone else's"; it never proves "not applied", so after silence the same request is sent again.

    Returns:
        The new version, or `None` when the key holds something else than expected.

    Raises:
        CommitUnknown: no answer, and it may still be applied.
        DestinationError: the store refused; not applied.
    """
    try:
        return repeats()(_swap_once, destination, key, body, expect)
    except NoAnswer as e:
        msg = f"{destination.uri(key)}: no answer to the write, and reading back did not settle it ({e}); run again"
        raise CommitUnknown(msg) from e


def _swap_once(destination: ObjectDestination, key: str, body: bytes, expect: Expect) -> str | None:
    try:
        return destination.write(key, body, md5=md5_of(body), expect=expect).version
    except (PreconditionFailed, NoAnswer) as e:
        try:
            now = destination.read(key)
        except DestinationError as again:
            msg = f"{e}; reading back failed too: {again}"
            raise NoAnswer(msg) from e
        if now is not None and now.body == body:
            return now.meta.version
        as_expected = now is None if expect is ABSENT else now is not None and now.meta.version == expect
        if as_expected:
            msg = f"{e}; the key still holds what was expected there"
            raise NoAnswer(msg) from e
        return None


class SideRecord:
    """The record of one attempt, `manifest-<token>.json`: its heartbeat while it runs, its final bytes after.

    Only its own attempt, or a takeover, ever changes it. Safe to use from several threads.
    """

    def __init__(
        self,
        destination: ObjectDestination,
        prefix: Prefix,
        manifest: Manifest,
        *,
        log: logging.Logger,
        at_most_every: float = 5.0,
        at_least_every: float = 60.0,
    ) -> None:
        self._destination, self._prefix, self._log = destination, prefix, log
        self._key = prefix.side(manifest.run_id)
        self._running = replace(manifest, status=Status.RUNNING, heartbeat=0)
        self._at_most_every, self._at_least_every = at_most_every, at_least_every
        self._version: str | None = None
        self._written_at = 0.0
        self._lost = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def create(self, *, unfenced: bool) -> None:
        """Create it, prove that the store compares before it swaps, and start the heartbeat.

        Raises:
            ConfigError: the store has no conditional writes and `unfenced` does not allow that; the record is gone.
            CommitConflict: there is a record of this attempt already.
        """
        first = serialise(self._running)
        created = swap(self._destination, self._key, first, expect=ABSENT)
        if created is None:
            msg = f"{self._destination.uri(self._key)}: expected no record of this attempt, found one; run again"
            raise CommitConflict(msg)
        self._version = created
        self._rewrite()
        stale = serialise(replace(self._running, heartbeat=-1))
        try:
            self._destination.write(self._key, stale, md5=md5_of(stale), expect=created)
        except PreconditionFailed:
            fenced = True
        else:
            fenced = False
        if not fenced and not unfenced:
            self._destination.remove(self._key)
            self._version = None
            msg = (
                f"{self._destination.uri(self._prefix.root)}: expected the store to refuse a write over a version that "
                "is gone, it accepted: two runs could overwrite each other's commit; use a store with conditional "
                "writes, or set unsafe_unfenced_commits=True and never run two exports of one prefix at a time"
            )
            raise ConfigError(msg)
        if not fenced:
            found = self._destination.head(self._key)
            self._version = found.version if found else None
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat {self._key}", daemon=True)
        self._thread.start()

    def add(self, parts: Sequence[Part]) -> None:
        """Note the parts that are there; written when the last write is long enough ago.

        Raises:
            CommitConflict: the attempt was taken over.
        """
        with self._lock:
            self._running = replace(self._running, parts=tuple(parts))
            if time.monotonic() - self._written_at >= self._at_most_every:
                self._rewrite_if_possible()
        self.check()

    def check(self) -> None:
        """Fail early when the attempt was taken over.

        Raises:
            CommitConflict: it was; what its taker may still list is not to be removed by this attempt.
        """
        if self._lost:
            raise CommitConflict(self._whose())

    @property
    def lost(self) -> bool:
        """Whether this attempt is known to have been taken over."""
        return self._lost

    def own(self, final: bytes) -> None:
        """Swap `running` for the final bytes: from here on nobody else may clean this attempt up.

        Raises:
            CommitConflict: the attempt was taken over; delete nothing.
            CommitUnknown: no answer; delete nothing.
        """
        self.stop()
        if not self._settle(final):
            raise CommitConflict(self._whose())

    def fail(self) -> bool:
        """Swap the record for `failed`; only if this returns True may the attempt's objects be removed."""
        self.stop()
        failed = serialise(replace(self._running, status=Status.FAILED, heartbeat=(self._running.heartbeat or 0) + 1))
        try:
            return self._settle(failed)
        except DestinationError as e:
            self._log.warning("%s: could not be marked failed, nothing is removed: %s", self._key, e)
            return False

    def retract(self, final: Manifest) -> None:
        """Swap the final bytes for `failed` after a proven conflict; best effort, the parts are nobody's anyway."""
        failed = serialise(replace(final, status=Status.FAILED))
        try:
            if self._version is not None:
                swap(self._destination, self._key, failed, expect=self._version)
        except DestinationError as e:
            self._log.warning("%s: could not be marked failed: %s", self._key, e)

    def stop(self) -> None:
        """End the heartbeat; may be called again."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _settle(self, body: bytes) -> bool:
        # A heartbeat that got no answer may land late: then the record is still ours, at a version not yet seen.
        with self._lock:
            for _ in range(5):
                if self._version is None or self._lost:
                    return False
                version = swap(self._destination, self._key, body, expect=self._version)
                if version is not None:
                    self._version = version
                    return True
                if not self._still_running():
                    return False
            msg = f"{self._destination.uri(self._key)}: the record kept changing under its own attempt; run again"
            raise CommitUnknown(msg)

    def _still_running(self) -> bool:
        found = read_record(self._destination, self._prefix, self._running.run_id)
        running = found is not None and found.manifest.status is Status.RUNNING
        self._version = found.version if found else None
        self._lost = not running
        return running

    def _rewrite(self) -> None:
        expect = self._version
        # Once the attempt is lost, the version that is known is its taker's.
        if expect is None or self._lost:
            return
        self._running = replace(self._running, heartbeat=(self._running.heartbeat or 0) + 1)
        version = swap(self._destination, self._key, serialise(self._running), expect=expect)
        if version is not None:
            self._version = version
        else:
            self._still_running()
        self._written_at = time.monotonic()

    def _beat(self) -> None:
        while not self._stop.wait(min(1.0, self._at_least_every / 4)):
            with self._lock:
                if time.monotonic() - self._written_at >= self._at_least_every / 2:
                    self._rewrite_if_possible()

    def _rewrite_if_possible(self) -> None:
        # A missed heartbeat is no reason to stop: whether this attempt still owns its record is asked in `own`.
        try:
            self._rewrite()
        except DestinationError as e:
            self._log.warning("%s: the heartbeat got no answer: %s", self._key, e)

    def _whose(self) -> str:
        found = read_record(self._destination, self._prefix, self._running.run_id)
        by = found.manifest.taken_over_by if found else None
        said = f"it was taken over by {by}" if by else "its record is gone"
        return f"{self._destination.uri(self._key)}: expected this attempt to be running, but {said}; run again"
