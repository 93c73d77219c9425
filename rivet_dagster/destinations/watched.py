"""A destination that remembers what was taken away, and one on which nothing happens: what cleaning would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from typing import Any

from rivet_dagster.contract import (
    ABSENT,
    ANY,
    Body,
    Expect,
    ObjectDestination,
    ObjectMeta,
    Staged,
    StoredObject,
    WriteOutcome,
)
from rivet_dagster.destinations.staging import StagedFile
from rivet_dagster.errors import DestinationError, PreconditionFailed

__all__ = ["RehearsedDestination", "Removed", "WatchedDestination"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """An object that was there and is not any more.

    Attributes:
        key: relative to the destination.
        size_bytes: of the object.
    """

    key: str
    size_bytes: int


class WatchedDestination(ObjectDestination):
    """Another destination, of which is remembered what was removed and what could not be.

    Attributes:
        removed: in order; nothing that was made through this one.
        failed: why an object could not be removed, by key.
    """

    def __init__(self, inner: ObjectDestination) -> None:
        self.capabilities = inner.capabilities  # type: ignore[misc] # of an instance, here
        self.kind = inner.kind  # type: ignore[misc]
        self._inner = inner
        self.removed: list[Removed] = []
        self.failed: dict[str, DestinationError] = {}
        # What was made here meanwhile, and so was never there for anybody else.
        self._made: set[str] = set()

    def uri(self, key: str = "") -> str:
        return self._inner.uri(key)

    def stage(self, key: str) -> Staged:
        return self._inner.stage(key)

    def write(self, key: str, body: Body | bytes, *, md5: bytes, expect: Expect) -> WriteOutcome:
        written = self._inner.write(key, body, md5=md5, expect=expect)
        self._note(key, expect)
        return written

    def head(self, key: str) -> ObjectMeta | None:
        return self._inner.head(key)

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        return self._inner.read(key, start=start, length=length)

    def list(self, directory: str) -> Iterator[ObjectMeta]:
        return self._inner.list(directory)

    def directories(self, directory: str) -> Iterator[str]:
        return self._inner.directories(directory)

    def move(self, source: str, target: str) -> None:
        self._inner.move(source, target)

    def remove(self, key: str) -> None:
        found = self.head(key)
        try:
            self._take_away(key)
        except DestinationError as e:
            self.failed[key] = e
            raise
        if found is not None and key not in self._made:
            self.removed.append(Removed(key=key, size_bytes=found.size_bytes))

    def unfinished(self, key_prefix: str) -> Iterator[str]:
        return self._inner.unfinished(key_prefix)

    def discard_unfinished(self, key_prefix: str) -> None:
        self._inner.discard_unfinished(key_prefix)

    def hold(self, directory: str) -> AbstractContextManager[None]:
        return self._inner.hold(directory)

    def _take_away(self, key: str) -> None:
        self._inner.remove(key)

    def _note(self, key: str, expect: Expect) -> None:
        if expect is ABSENT:
            self._made.add(key)


class RehearsedDestination(WatchedDestination):
    """Another destination as it would be: what is written, moved or removed happens here alone.

    Its clock is this machine's, since only a write could tell the store's.
    """

    def __init__(self, inner: ObjectDestination) -> None:
        super().__init__(inner)
        # What is there instead; `None` for what is gone.
        self._changed: dict[str, StoredObject | None] = {}
        self._versions = count(1)

    def stage(self, key: str) -> Staged:
        return StagedFile.spool(key, directory=None, hashers={})

    def write(self, key: str, body: Body | bytes, *, md5: bytes, expect: Expect) -> WriteOutcome:
        del md5
        found = self.head(key)
        as_expected = expect is ANY or (found is None if expect is ABSENT else found and found.version == expect)
        if not as_expected:
            msg = f"{self.uri(key)}: expected {expect}, found {found.version if found else 'no object'}"
            raise PreconditionFailed(msg)
        self._note(key, expect)
        written = self._put(key, body if isinstance(body, bytes) else _read(body))
        return WriteOutcome(size_bytes=written.size_bytes, version=written.version)

    def head(self, key: str) -> ObjectMeta | None:
        if key not in self._changed:
            return super().head(key)
        found = self._changed[key]
        return found.meta if found else None

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        if key not in self._changed:
            return super().read(key, start=start, length=length)
        found = self._changed[key]
        end = None if length is None else start + length
        return StoredObject(meta=found.meta, body=found.body[start:end]) if found else None

    def list(self, directory: str) -> Iterator[ObjectMeta]:
        yield from (found for found in super().list(directory) if found.key not in self._changed)
        for key, found in self._changed.items():
            if found is not None and key.startswith(directory) and "/" not in key[len(directory) :]:
                yield found.meta

    def move(self, source: str, target: str) -> None:
        found = self.read(source)
        if found is None or self.head(target) is not None:
            msg = f"{self.uri(source)}: expected an object to move to {target}, and none there"
            raise DestinationError(msg)
        self._put(target, found.body)
        self._changed[source] = None

    def discard_unfinished(self, key_prefix: str) -> None:
        """Nothing is discarded."""

    def hold(self, directory: str) -> AbstractContextManager[None]:
        del directory
        return nullcontext()

    def _take_away(self, key: str) -> None:
        self._changed[key] = None

    def _put(self, key: str, body: bytes) -> ObjectMeta:
        version, now = f"rehearsed-{next(self._versions)}", datetime.now(timezone.utc)
        meta = ObjectMeta(key=key, size_bytes=len(body), version=version, modified_at=now)
        self._changed[key] = StoredObject(meta=meta, body=body)
        return meta


def _read(body: Any) -> bytes:
    with body.open() as opened:
        return bytes(opened.read())
