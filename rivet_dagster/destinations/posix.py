"""What the local destination asks of POSIX: steps that survive a crash, and objects that are regular files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import xxhash

from rivet_dagster.contract import ObjectMeta
from rivet_dagster.destinations.staging import os_failure
from rivet_dagster.errors import DestinationError

__all__ = ["describe", "link_new", "make_directory", "names_in", "object_at", "read_range", "sync_directory"]

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Control objects are far smaller; to hash a part of many gigabytes at each look would cost more than it tells.
_HASHED_UP_TO = 1 << 20


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, each durable in its own parent.

    Raises:
        OSError: what the operating system refused; parents made before that stay, empty.
    """
    missing = []
    at = directory
    while not at.exists():
        missing.append(at)
        at = at.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, where its file system can.

    Raises:
        OSError: they are not.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as e:
        # Some network file systems cannot; theirs are durable or not as the server decides.
        if e.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(fd)


def link_new(source: Path, target: Path) -> bool:
    """Give a file a second name in one atomic step; False where the file system has no links.

    Raises:
        FileExistsError: something stands there; it was not touched.
        OSError: anything else; nothing was done.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as e:
        if e.errno in _NO_LINKS:
            return False
        raise
    return True


def names_in(directory: Path, wanted: Callable[[os.DirEntry[str]], bool], *, shown: str) -> list[str]:
    """The names in a directory that are wanted, in order; none where there is no directory.

    Raises:
        DestinationError: the operating system refused.
    """
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if wanted(entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise os_failure(e, doing=f"list {shown!r}", where=directory) from e


@contextmanager
def object_at(path: Path, key: str) -> Iterator[int | None]:
    """Lend a descriptor to read a regular file; `None` where there is none.

    Raises:
        DestinationError: something else stands there, or the operating system refused, here or in the block.
    """
    fd = None
    try:
        fd = _open(path, key)
        yield fd
    except OSError as e:
        raise os_failure(e, doing=f"read {key!r}", where=path) from e
    finally:
        if fd is not None:
            os.close(fd)


def _open(path: Path, key: str) -> int | None:
    try:
        # Without waiting for the other end of a pipe, and without following a link.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):
            raise _no_object(path, key) from e
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        return None
    raise _no_object(path, key)


def _no_object(path: Path, key: str) -> DestinationError:
    return DestinationError(
        f"{path}: expected {key!r} to be a regular file, found a symbolic link, pipe, socket or device; move it away"
    )


def describe(key: str, fd: int) -> ObjectMeta:
    """What the file system says of an open object, and the version token of what it holds."""
    said = os.fstat(fd)
    if said.st_size <= _HASHED_UP_TO:
        version = f"xxh3:{xxhash.xxh3_64_hexdigest(read_range(fd, 0, said.st_size))}"
    else:
        version = f"file:{said.st_ino}-{said.st_size}-{said.st_mtime_ns}"
    modified_at = datetime.fromtimestamp(said.st_mtime_ns / 1e9, tz=timezone.utc)
    return ObjectMeta(key=key, size_bytes=said.st_size, version=version, modified_at=modified_at)


def read_range(fd: int, start: int, end: int) -> bytes:
    """Bytes `start` to `end`, fewer only where the file ends."""
    pieces = []
    while start < end and (piece := os.pread(fd, end - start, start)):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
