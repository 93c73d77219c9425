"""The lock of a directory: one writer of its control objects at a time, among the processes of one host."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

from rivet_dagster.destinations.staging import os_failure
from rivet_dagster.errors import ConfigError, DestinationError

__all__ = ["LOCK_NAME", "DirectoryLocks"]

LOCK_NAME = ".rivet.lock"
_REFUSED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})


class DirectoryLocks:
    """Exclusive locks by `flock`, between processes and threads; re-entrant in one thread.

    The file `.rivet.lock` is made when it is first needed and stays: removing it would let two writers hold two
    different ones. The kernel gives the lock back when its holder dies.
    """

    def __init__(self, *, patience: timedelta) -> None:
        """Wait for a lock no longer than `patience`."""
        self._patience = patience
        self._mine = threading.local()
        self._proven: set[int] = set()

    @contextmanager
    def hold(self, directory: Path) -> Iterator[None]:
        """Keep every other holder of this directory out until the block is left.

        Raises:
            ConfigError: the file system has no locks, or ones that lock nobody out.
            DestinationError: another holder kept it for too long, or the file could not be opened; nothing was done.
        """
        held: dict[Path, int] = self._mine.__dict__.setdefault("held", {})
        if directory in held:
            yield
            return
        fd = self._acquire(directory)
        held[directory] = fd
        try:
            yield
        finally:
            del held[directory]
            try:
                # Closing is not enough where a forked child has inherited the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)

    def used(self, directory: Path) -> bool:
        """Whether anybody ever locked this directory: a conditional write may be under way only then."""
        return (directory / LOCK_NAME).exists()

    def _acquire(self, directory: Path) -> int:
        path = directory / LOCK_NAME
        while True:
            fd = self._open(path)
            try:
                self._lock(fd, path)
                self._prove(fd, path)
                # A file that someone has removed meanwhile locks out nobody who comes later.
                if _same_file(fd, path):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise os_failure(e, doing="open the lock", where=path) from e

    def _lock(self, fd: int, path: Path) -> None:
        patient = Retrying(
            retry=retry_if_exception_type(BlockingIOError),
            wait=wait_random(0.0005, 0.01),
            stop=stop_after_delay(self._patience),
            reraise=True,
        )
        try:
            patient(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            msg = (
                f"{path}: expected to get the lock within {self._patience.total_seconds():g} s, another writer still "
                "holds it; see whether that process is alive, then run again"
            )
            raise DestinationError(msg) from e
        except OSError as e:
            if e.errno in _REFUSED:
                raise _no_locks(path, f"refuses locks ({e.strerror})") from e
            raise os_failure(e, doing="take the lock", where=path) from e

    def _prove(self, fd: int, path: Path) -> None:
        device = os.fstat(fd).st_dev
        if device in self._proven:
            return
        second = self._open(path)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._proven.add(device)
        except OSError as e:
            raise _no_locks(path, f"refuses locks ({e.strerror})") from e
        else:
            if _same_file(fd, path):
                raise _no_locks(path, "grants one lock to two holders at once")
        finally:
            os.close(second)


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _no_locks(path: Path, found: str) -> ConfigError:
    return ConfigError(
        f"{path}: commits need a file system whose locks lock others out; this one {found}. Choose a local disk, or "
        "set unsafe_unfenced_commits=True if never more than one run writes to this prefix"
    )
