"""One part as a file, for what reads files: Arrow, and whoever looks at it again."""

from __future__ import annotations

import io

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ReadError, RivetError
from rivet_dagster.orchestration.failures import leave_out_foreign_texts

__all__ = ["PartFile"]


class PartFile(io.RawIOBase):
    """An object of a known size as a seekable stream of ranged reads.

    A read raises `ReadError` where there is another object by then, or none, `DestinationError` where the store fails.
    """

    def __init__(self, destination: ObjectDestination, key: str, *, size_bytes: int) -> None:
        """Read nothing yet."""
        super().__init__()
        self._destination, self._key, self._size_bytes = destination, key, size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size_bytes - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        try:
            body = self._range(wanted)
        except RivetError as e:
            leave_out_foreign_texts(e)
            raise
        self._at += len(body)
        return body

    def _range(self, wanted: int) -> bytes:
        where = self._destination.uri(self._key)
        stored = self._destination.read(self._key, start=self._at, length=wanted)
        if stored is None:
            msg = (
                f"{where}: expected the part that the manifest lists, found nothing: a newer delivery may have "
                "replaced it: read again, or keep superseded deliveries longer with retain; if none has, export again"
            )
            raise ReadError(msg)
        said, found = self._size_bytes, stored.meta.size_bytes
        if found != said or len(stored.body) != wanted:
            msg = f"{where}: expected a part of {said} bytes, found {found}; export again"
            raise ReadError(msg)
        return stored.body
