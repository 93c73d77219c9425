"""Temporaries of the local destination: beside their target, settled before they are published, found again later."""

from __future__ import annotations

import io
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rivet_dagster.destinations import posix
from rivet_dagster.destinations.keys import is_key
from rivet_dagster.destinations.staging import StagedFile, os_failure
from rivet_dagster.errors import DestinationError, IntegrityError

__all__ = ["Place", "failing", "settle", "stage", "sweep", "temporaries"]

_TEMPORARY = re.compile(r"^\.(?P<name>.+)\.\d+\.[0-9a-f]{16}(?P<of_bytes>\.bytes)?\.tmp$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key is: its directory without any symbolic link, and its name there."""

    key: str
    directory: Path
    name: str

    @property
    def path(self) -> Path:
        """Of the object."""
        return self.directory / self.name


def stage(place: Place, *, of_bytes: bool = False) -> StagedFile:
    """Open a temporary beside `place` whose name no other process or attempt has.

    One `of_bytes` is made and published under the lock of its directory, so that `sweep` may tell dead ones.

    Raises:
        DestinationError: the file system refused; directories made before that stay, empty.
    """
    kind = ".bytes" if of_bytes else ""
    path = place.directory / f".{place.name}.{os.getpid()}.{secrets.token_hex(8)}{kind}.tmp"
    with failing(place, "stage"):
        posix.make_directory(place.directory)
        return StagedFile(place.key, io.FileIO(path, "x+"), path=path)


def settle(staged: StagedFile, place: Place, md5: bytes) -> Path:
    """Make what is staged durable, be sure that it is what was declared, and give its name.

    Raises:
        IntegrityError: it is not; it stays staged.
        DestinationError: the device failed; it is discarded.
    """
    if not staged.closed or staged.path is None:
        msg = f"{place.path}: expected a part whose encoding has ended, found it open or discarded; encode it again"
        raise DestinationError(msg)
    found = staged.digests["md5"]
    if found != md5:
        msg = f"{place.path}: expected a part with MD5 {md5.hex()}, staged one with {found.hex()}; encode it again"
        raise IntegrityError(msg)
    try:
        os.fsync(staged.fileno())
        size_bytes = os.fstat(staged.fileno()).st_size
    except OSError as e:
        # A second fsync that succeeds would prove nothing: the kernel may have dropped the bytes.
        staged.discard()
        raise os_failure(e, doing=f"make durable what is staged for {place.key!r}", where=place.path) from e
    if size_bytes != staged.size_bytes:
        msg = f"{place.path}: staged {staged.size_bytes} bytes, the file holds {size_bytes}; encode it again"
        raise IntegrityError(msg)
    return staged.path


def sweep(place: Place) -> None:
    """Remove what killed writers of bytes to this key left; only for who holds the directory's lock.

    Raises:
        DestinationError: the file system refused.
    """
    with failing(place, "discard what is unfinished of"), os.scandir(place.directory) as entries:
        for entry in entries:
            found = _TEMPORARY.match(entry.name)
            if found and found["of_bytes"] and found["name"] == place.name:
                Path(entry).unlink(missing_ok=True)


def temporaries(root: Path, directory: str, key_prefix: str) -> Iterator[Place]:
    """Temporaries of keys that begin with `key_prefix`, at or below `root`, which is where `directory` is.

    Raises:
        DestinationError: the file system refused to list.
    """
    for at, below, names in os.walk(root, onerror=_unless_absent):
        within = directory + "".join(f"{s}/" for s in Path(at).relative_to(root).parts)
        below[:] = [d for d in below if is_key(d) and f"{within}{d}/".startswith(key_prefix)]
        for name in names:
            found = _TEMPORARY.match(name)
            if found and f"{within}{found['name']}".startswith(key_prefix):
                yield Place(f"{within}{name}", Path(at), name)


@contextmanager
def failing(place: Place, doing: str) -> Iterator[None]:
    """Turn what the operating system refuses in the block into a `DestinationError` that names the key."""
    try:
        yield
    except OSError as e:
        raise os_failure(e, doing=f"{doing} {place.key!r}", where=place.path) from e


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise os_failure(error, doing="look for what is unfinished", where=error.filename or "?") from error
