"""A part being encoded: a file that hashes what is written into it."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

from rivet_dagster.errors import DestinationError

__all__ = ["Digests", "Hasher", "StagedFile", "os_failure"]

_REMEDIES = {
    errno.ENOSPC: "free space there, or choose another place",
    errno.EDQUOT: "raise the quota, or choose another place",
    errno.EFBIG: "raise the limit on file sizes, or set a smaller max_file_size",
    errno.EACCES: "give this user the rights it needs there",
    errno.EPERM: "give this user the rights it needs there",
    errno.EROFS: "mount it for writing, or choose another place",
    errno.EEXIST: "move away what stands where a directory is needed",
    errno.ENOTDIR: "move away what stands where a directory is needed",
    errno.EISDIR: "move the directory away that stands at this name",
    errno.ENOTEMPTY: "move the directory away that stands at this name",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the circle of symbolic links",
    errno.EMFILE: "raise the limit on open files",
    errno.ENFILE: "raise the limit on open files",
    errno.EIO: "check the device; what it holds of this attempt is not to be trusted, so run again from the start",
    errno.ESTALE: "mount the network file system again",
    errno.EPIPE: "keep the reader of the stream alive until its end",
}


class Hasher(Protocol):
    """What `hashlib` objects are."""

    def update(self, data: Any, /) -> Any:
        """Take more bytes."""
        ...

    def digest(self) -> bytes:
        """Raw, of all bytes so far."""
        ...


class Digests:
    """MD5, xxh3-64 and what else a store compares, of the same bytes in one pass."""

    def __init__(self, more: Mapping[str, Hasher] | None = None) -> None:
        self._hashers: dict[str, Hasher] = {
            "md5": hashlib.md5(usedforsecurity=False),
            "xxh3": xxhash.xxh3_64(),
            **(more or {}),
        }

    def update(self, data: Any) -> None:
        """Take more bytes."""
        for hasher in self._hashers.values():
            hasher.update(data)

    def by_kind(self) -> dict[str, bytes]:
        """Raw digests; xxh3 is 8 bytes, big-endian."""
        return {kind: hasher.digest() for kind, hasher in self._hashers.items()}


class StagedFile:
    """A part in a file that is not yet its object: `contract.Staged`, and a sink for pyarrow and compressors.

    Each write is hashed and handed to the operating system at once; nothing waits in a buffer that a failure
    could lose without a word.
    """

    def __init__(
        self, key: str, raw: io.FileIO, *, path: Path | None = None, hashers: Mapping[str, Hasher] | None = None
    ) -> None:
        """Take over an empty file.

        Args:
            key: where the part will be written.
            raw: open for reading and writing, unbuffered; belongs to this object from now on.
            path: its name, removed by `discard`; `None` where it has none.
            hashers: more digests to compute, by kind.
        """
        self._key = key
        self._raw = raw
        self._path = path
        self._digests = Digests(hashers)
        self._size_bytes = 0
        self._closed = False
        self._failure: DestinationError | None = None

    @classmethod
    def spool(
        cls, key: str, *, directory: str | None = None, hashers: Mapping[str, Hasher] | None = None
    ) -> StagedFile:
        """Stage in a temporary file without a name, so that even a killed process leaves nothing.

        Raises:
            DestinationError: there is no room for it; nothing is left.
        """
        try:
            raw = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - lives as long as this object
        except OSError as e:
            where = directory or tempfile.tempdir
            if where is None:
                # Where there is none, asking for its name fails in the same way again.
                msg = f"cannot stage {key!r}: {e.strerror}; set TMPDIR to a directory with room for parts"
                raise DestinationError(msg) from e
            raise os_failure(e, doing=f"stage {key!r}", where=where) from e
        return cls(key, raw, hashers=hashers)

    @property
    def key(self) -> str:
        """Where it will be written."""
        return self._key

    @property
    def path(self) -> Path | None:
        """Its present name; `None` where it has none, or none any more."""
        return self._path

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    @property
    def digests(self) -> Mapping[str, bytes]:
        """Of all bytes written so far, raw, by kind."""
        return self._digests.by_kind()

    @property
    def closed(self) -> bool:
        """Whether encoding has ended."""
        return self._closed

    def writable(self) -> bool:
        """As for any file open for writing."""
        return not self._closed

    def readable(self) -> bool:
        """Reading goes through `open`."""
        return False

    def seekable(self) -> bool:
        """Only appending is possible: what was hashed is not written twice."""
        return False

    def fileno(self) -> int:
        """The descriptor, open for reading and writing until `discard`."""
        return self._raw.fileno()

    def write(self, data: Any, /) -> int:
        """Append all of `data`.

        Raises:
            ValueError: encoding has ended.
            DestinationError: no space, or the device failed, now or before; what was staged is discarded.
        """
        if self._failure is not None:
            # A writer that is closed on the way out must not hide why.
            raise self._failure
        if self._closed:
            msg = f"{self._key}: write after close"
            raise ValueError(msg)
        with memoryview(data) as given, given.cast("B") as view:
            self._digests.update(view)
            done = 0
            try:
                while done < len(view):
                    done += self._raw.write(view[done:]) or 0
            except OSError as e:
                where = self._path or tempfile.gettempdir()
                self._failure = os_failure(e, doing=f"stage {self._key!r}", where=where)
                with suppress(DestinationError):
                    self.discard()
                raise self._failure from e
            self._size_bytes += done
            return done

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: each write has reached the operating system."""

    def close(self) -> None:
        """End encoding; the digests and the size are final, and `open` reads them."""
        self._closed = True

    def open(self) -> BinaryIO:
        """Read from the first byte; readers are independent of each other and outlive `discard`.

        Raises:
            DestinationError: it has been discarded.
        """
        if self._raw.closed:
            msg = f"{self._key}: expected a staged part, found it discarded; encode it again"
            raise self._failure or DestinationError(msg)
        return io.BufferedReader(_Reader(os.dup(self._raw.fileno())))

    def release(self) -> None:
        """Forget the name, which is the object's now: `discard` will leave it alone."""
        self._path = None

    def discard(self) -> None:
        """Remove what is staged. May be called at any time and again; a written object is not touched."""
        self._closed = True
        with suppress(OSError):
            self._raw.close()
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as e:
                raise os_failure(e, doing=f"discard what is staged for {self._key!r}", where=self._path) from e
            self._path = None


class _Reader(io.RawIOBase):
    """Reads a descriptor at a position of its own, and owns it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        found = os.pread(self._fd, len(buffer), self._at)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: os.fstat(self._fd).st_size}[whence]
        if origin + offset < 0:
            msg = f"seek before the first byte: {origin + offset}"
            raise ValueError(msg)
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def os_failure(error: OSError, *, doing: str, where: str | os.PathLike[str]) -> DestinationError:
    """Say in one sentence what the operating system refused, where, and the remedy."""
    why = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "see the reason given by the operating system, then run again")
    return DestinationError(f"{os.fspath(where)}: cannot {doing}: {why}; {remedy}")
