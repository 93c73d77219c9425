"""Try out all that a commit asks of a destination, under a name that nothing else has, and leave nothing behind."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rivet_dagster.contract import ABSENT, Expect, ObjectDestination
from rivet_dagster.control import md5_of
from rivet_dagster.errors import ConfigError, DestinationError, PreconditionFailed
from rivet_dagster.readback import remove

__all__ = ["NAME", "Tried", "probe"]

NAME = "rivet-doctor-"
"""What the name of each directory that is made to try something begins with."""

_BODY, _OTHER = b"rivet_dagster tries whether it can write here\n", b"rivet_dagster tries to write over it\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One thing that a commit asks of a destination.

    Attributes:
        what: "write", "head", "read", "list", "conditional create", "conditional replace" or "remove".
        ok: whether it works; `None` where it could not be tried.
        found: what happened.
        remedy: what to do where it does not work.
    """

    what: str
    ok: bool | None
    found: str
    remedy: str | None = None


def probe(destination: ObjectDestination, *, log: logging.Logger) -> tuple[Tried, ...]:
    """Write, look, list, write under conditions that hold and that do not, and remove; an error is a finding.

    What was written is removed whatever happens, and what could not be removed is named.
    """
    trial = _Trial(destination, directory=f"{NAME}{secrets.token_hex(8)}/", log=log)
    try:
        trial.run()
    finally:
        trial.clean()
    return tuple(trial.tried)


class _Trial:
    def __init__(self, destination: ObjectDestination, *, directory: str, log: logging.Logger) -> None:
        self._destination, self._directory, self._log = destination, directory, log
        self._key = f"{directory}probe"
        self._where = destination.uri()
        self._version: str | None = None
        self.tried: list[Tried] = []

    def run(self) -> None:
        allow = f"allow this identity to {{}} objects below {self._where}".format
        if not self._try("write", self._write, allow("create and replace")):
            for what in ("head", "read", "list", "conditional create", "conditional replace"):
                self.tried.append(Tried(what=what, ok=None, found="not tried, since nothing could be written"))
            return
        self._try("head", self._head, allow("read"))
        self._try("read", self._read, allow("read"))
        self._try("list", self._list, f"allow this identity to list {self._where}")
        unsafe = (
            "use a store with conditional writes; or set unsafe_unfenced_commits=True, and never run two exports of "
            "one dataset at a time"
        )
        self._try("conditional create", lambda: self._refused(ABSENT, "over an object that is there"), unsafe)
        self._try("conditional replace", self._replaced, unsafe)

    def clean(self) -> None:
        """The last step, which is tried in any case: a write that failed may have left something."""
        removable = self._try("remove", self._remove, f"allow this identity to delete objects below {self._where}")
        if removable:
            self._destination.forget(self._directory)

    def _try(self, what: str, step: Callable[[], str], remedy: str) -> bool:
        try:
            self.tried.append(Tried(what=what, ok=True, found=step()))
        except (DestinationError, ConfigError) as e:
            self.tried.append(Tried(what=what, ok=False, found=str(e), remedy=remedy))
            return False
        return True

    def _put(self, body: bytes, expect: Expect) -> None:
        written = self._destination.write(self._key, body, md5=md5_of(body), expect=expect)
        self._version = written.version

    def _write(self) -> str:
        self._put(_BODY, ABSENT)
        return f"wrote {len(_BODY)} bytes"

    def _head(self) -> str:
        found = self._destination.head(self._key)
        size = None if found is None else found.size_bytes
        if size != len(_BODY):
            raise DestinationError(f"expected an object of {len(_BODY)} bytes, found {size}")
        return f"{size} bytes"

    def _read(self) -> str:
        found = self._destination.read(self._key)
        if found is None or found.body != _BODY:
            raise DestinationError("expected the bytes that were written, found others")
        return "the bytes that were written"

    def _list(self) -> str:
        listed = [found.key for found in self._destination.list(self._directory)]
        if listed != [self._key]:
            raise DestinationError(f"expected {self._key} in a listing, found {listed}")
        return "the object that was written"

    def _refused(self, expect: Expect, what: str) -> str:
        try:
            self._put(_OTHER, expect)
        except PreconditionFailed:
            return f"refused {what}"
        raise DestinationError(
            f"expected a write {what} to be refused, it was accepted: two runs would not be told apart"
        )

    def _replaced(self) -> str:
        stale = self._version
        self._put(_OTHER, stale or ABSENT)
        self._refused(stale or ABSENT, "over a version that is gone")
        return "accepted over its own version, refused over one that is gone"

    def _remove(self) -> str:
        remove(self._destination, [self._key], because="it was written to try this destination", log=self._log)
        if self._destination.head(self._key) is not None:
            raise DestinationError(f"{self._destination.uri(self._key)} is still there; remove it by hand")
        with suppress(DestinationError):
            self._destination.discard_unfinished(self._key)
        return "nothing is left"
