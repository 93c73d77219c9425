"""The local file system: staged beside the target, published by one atomic step, durable when `write` returns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from rivet_dagster.contract import (
    ABSENT,
    ANY,
    Body,
    DestinationCapabilities,
    Expect,
    ObjectDestination,
    ObjectMeta,
    StoredObject,
    WriteCommitProtocol,
    WriteOutcome,
)
from rivet_dagster.destinations import beside, posix
from rivet_dagster.destinations.beside import Place
from rivet_dagster.destinations.bodies import BytesBody, checked
from rivet_dagster.destinations.keys import directory_segments, is_key, key_segments
from rivet_dagster.destinations.staging import StagedFile
from rivet_dagster.errors import ConfigError, DestinationError, PreconditionFailed

__all__ = ["LocalDestination"]


class LocalDestination(ObjectDestination):
    """A directory of this host, or of a network file system whose locks work.

    An object is a regular file; symbolic links are followed between directories of the base and never out of it.
    The version token of an object up to 1 MiB is a hash of its content, that of a larger one its identity as a file.
    """

    capabilities: ClassVar[DestinationCapabilities] = DestinationCapabilities(
        commit_protocol=WriteCommitProtocol.ATOMIC,
        idempotent_overwrite=True,
        retry_safe=True,
        partial_write_risk=False,
    )
    kind: ClassVar[str] = "local"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        unsafe_unfenced_commits: bool = False,
        lock_patience: timedelta = timedelta(seconds=60),
    ) -> None:
        """Touches nothing; the directory is made by the first write.

        Args:
            path: the base directory.
            unsafe_unfenced_commits: write without locks; two writers of one prefix then lose each other's commits.
            lock_patience: how long a write waits for another writer of the same directory.

        Raises:
            ConfigError: this is no POSIX system, or the path is empty.
        """
        if sys.platform == "win32":
            msg = "the local destination needs POSIX file semantics; on Windows run it in WSL, or choose another one"
            raise ConfigError(msg)
        from rivet_dagster.destinations.directory_lock import DirectoryLocks  # noqa: PLC0415 - fcntl is POSIX only

        if not os.fspath(path):
            msg = "the local destination's path is empty: expected a directory"
            raise ConfigError(msg)
        self._base = Path(path).absolute()
        # What was there before anything was made below it.
        self._ground = Path(os.path.realpath(next(p for p in (self._base, *self._base.parents) if p.exists())))
        self._locks = None if unsafe_unfenced_commits else DirectoryLocks(patience=lock_patience)

    def uri(self, key: str = "") -> str:
        """A `file://` URI."""
        ending = "/" if key.endswith("/") else ""
        return f"{self._base.joinpath(key).as_uri()}{ending}"

    def stage(self, key: str) -> StagedFile:
        """Open a temporary in the key's own directory, so that publishing it moves no bytes."""
        return beside.stage(self._place(key))

    def write(self, key: str, body: Body | bytes, *, md5: bytes, expect: Expect) -> WriteOutcome:
        """Publish what `stage` gave for this key, or a copy of any other body, in one atomic step.

        Raises:
            PreconditionFailed: `expect` does not hold; nothing was written.
            IntegrityError: the body is not what was declared; nothing was written.
            ConfigError: the file system cannot fence commits; nothing was written.
            DestinationError: the file system failed. The key holds what it held before, or, where only the
                directory's own durability is in doubt (the message says so), all of the body.
        """
        place = self._place(key)
        if isinstance(body, StagedFile) and body.path is not None and body.path.parent == place.directory:
            return self._publish(place, body, md5=md5, expect=expect)
        if isinstance(body, bytes):
            # Under the lock, so that a copy which is found there belongs to nobody alive.
            with self._fence(place.directory):
                if self._locks is not None:
                    beside.sweep(place)
                return self._copy(place, BytesBody(body), of_bytes=True, md5=md5, expect=expect)
        return self._copy(place, body, of_bytes=False, md5=md5, expect=expect)

    def head(self, key: str) -> ObjectMeta | None:
        """Describe a regular file; `None` also where a directory has this name."""
        with posix.object_at(self._place(key).path, key) as fd:
            return None if fd is None else posix.describe(key, fd)

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        """Bytes `start` to `start + length` of one version; `None` where there is no regular file."""
        with posix.object_at(self._place(key).path, key) as fd:
            if fd is None:
                return None
            meta = posix.describe(key, fd)
            end = meta.size_bytes if length is None else min(start + length, meta.size_bytes)
            body = posix.read_range(fd, start, end)
        if len(body) < end - start:
            msg = f"{self.uri(key)}: expected {meta.size_bytes} bytes, the file was cut while it was read; read again"
            raise DestinationError(msg)
        return StoredObject(meta=meta, body=body)

    def list(self, directory: str) -> Iterator[ObjectMeta]:
        """The regular files directly in a directory whose names can be keys, in order of name."""
        at = self._directory(directory_segments(directory), directory)
        names = posix.names_in(at, lambda entry: entry.is_file(follow_symlinks=False), shown=directory)
        return self._described(directory, names)

    def directories(self, directory: str) -> Iterator[str]:
        """Those whose names can be part of a key, in order of name; not a link to one."""
        at = self._directory(directory_segments(directory), directory)
        names = posix.names_in(at, lambda entry: entry.is_dir(follow_symlinks=False), shown=directory)
        return (name for name in names if is_key(name))

    def move(self, source: str, target: str) -> None:
        """Give an object another name; what a crash left under both names only loses the first.

        Raises:
            PreconditionFailed: another object stands at `target`; nothing was done.
            DestinationError: there is no source, or the file system failed; the object is under one name or both.
        """
        old, new = self._place(source), self._place(target)
        if self.head(source) is None:
            msg = f"{self.uri(source)}: expected an object to move to {target!r}, found none"
            raise DestinationError(msg)
        with beside.failing(new, "move to"):
            posix.make_directory(new.directory)
            self._name(old.path, new)
            os.utime(new.path)
            posix.sync_directory(new.directory)
        self.remove(source)

    def remove(self, key: str) -> None:
        """Remove one name; its directory stays."""
        place = self._place(key)
        if not os.path.lexists(place.path) or place.path.is_dir():
            return
        with self._fence(place.directory, only_where_used=True), beside.failing(place, "remove"):
            place.path.unlink(missing_ok=True)
            posix.sync_directory(place.directory)

    def unfinished(self, key_prefix: str) -> Iterator[str]:
        """Name temporaries, relative to the base, of keys that begin so."""
        for place in self._temporaries(key_prefix):
            yield place.key

    def discard_unfinished(self, key_prefix: str) -> None:
        """Remove the temporaries of keys that begin so, also those of a writer that is still alive."""
        for place in self._temporaries(key_prefix):
            with beside.failing(place, "discard"):
                place.path.unlink(missing_ok=True)

    def hold(self, directory: str) -> AbstractContextManager[None]:
        """Lock a directory against all other writers of its control objects; re-entrant in this thread."""
        return self._fence(self._directory(directory_segments(directory), directory))

    def forget(self, directory: str) -> None:
        """Remove it with its lock, and the directories above that are empty, as far as this destination made them."""
        from rivet_dagster.destinations.directory_lock import LOCK_NAME  # noqa: PLC0415 - fcntl is POSIX only

        at = self._directory(directory_segments(directory), directory)
        with suppress(OSError):
            (at / LOCK_NAME).unlink(missing_ok=True)
            while at != self._ground and self._ground in at.parents:
                at.rmdir()
                at = at.parent

    def _place(self, key: str) -> Place:
        *directory, name = key_segments(key)
        return Place(key, self._directory(directory, key), name)

    def _directory(self, segments: Iterable[str], shown: str) -> Path:
        base = os.path.realpath(self._base)
        found = Path(os.path.realpath(os.path.join(base, *segments)))  # noqa: PTH118 - Path.resolve raises on a circle
        if not found.is_relative_to(base):
            msg = f"{self.uri(shown)}: a symbolic link leads out of {base}; keep the directories of an export below it"
            raise DestinationError(msg)
        return found

    def _fence(self, directory: Path, *, only_where_used: bool = False) -> AbstractContextManager[None]:
        if self._locks is None or (only_where_used and not self._locks.used(directory)):
            return nullcontext()
        with beside.failing(Place(directory.name, directory.parent, directory.name), "make the directory"):
            posix.make_directory(directory)
        return self._locks.hold(directory)

    def _copy(self, place: Place, body: Body, *, of_bytes: bool, md5: bytes, expect: Expect) -> WriteOutcome:
        copy = beside.stage(place, of_bytes=of_bytes)
        try:
            for piece in checked(place.key, body, md5=md5):
                copy.write(piece)
            copy.close()
            return self._publish(place, copy, md5=md5, expect=expect)
        finally:
            copy.discard()

    def _publish(self, place: Place, staged: StagedFile, *, md5: bytes, expect: Expect) -> WriteOutcome:
        path = beside.settle(staged, place, md5)
        with beside.failing(place, "publish"):
            if expect is ABSENT:
                self._name(path, place)
                path.unlink(missing_ok=True)
            else:
                with self._fence(place.directory, only_where_used=expect is ANY):
                    if expect is not ANY:
                        self._compare(place, expect)
                    os.replace(path, place.path)
        staged.release()
        with beside.failing(place, "make durable the name (all of its bytes are in place) of"):
            posix.sync_directory(place.directory)
            meta = posix.describe(place.key, staged.fileno())
        return WriteOutcome(size_bytes=meta.size_bytes, version=meta.version)

    def _compare(self, place: Place, expect: Expect) -> None:
        found = self.head(place.key)
        version = "no object" if found is None else found.version
        if version != expect:
            msg = f"{self.uri(place.key)}: expected version {expect}, found {version}; nothing was written"
            raise PreconditionFailed(msg)

    def _name(self, source: Path, place: Place) -> None:
        """Give a file the place's name, in addition or instead, if that is free."""
        try:
            if posix.link_new(source, place.path):
                return
        except FileExistsError as e:
            # A step that was cut off after the link has already done it.
            if os.path.samestat(source.lstat(), place.path.lstat()):
                return
            raise self._occupied(place) from e
        with self._fence(place.directory):
            if os.path.lexists(place.path):
                raise self._occupied(place)
            os.replace(source, place.path)

    def _occupied(self, place: Place) -> DestinationError:
        if place.path.is_dir() and not place.path.is_symlink():
            return DestinationError(f"{place.path}: expected no directory of this name, found one; move it away")
        return PreconditionFailed(f"{self.uri(place.key)}: expected no object, found one; nothing was written")

    def _described(self, directory: str, names: Iterable[str]) -> Iterator[ObjectMeta]:
        for name in names:
            if is_key(name) and (meta := self.head(f"{directory}{name}")):
                yield meta

    def _temporaries(self, key_prefix: str) -> Iterator[Place]:
        directory = key_prefix[: key_prefix.rfind("/") + 1]
        root = self._directory(directory_segments(directory), key_prefix)
        return beside.temporaries(root, directory, key_prefix)
