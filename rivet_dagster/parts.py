"""Parts: written, verified against what the store says, and known by a receipt only then."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any

from rivet_dagster.attempt import Verify
from rivet_dagster.contract import (
    ABSENT,
    ANY,
    Checksum,
    Destination,
    EncodedPart,
    ObjectDestination,
    Staged,
    WriteOutcome,
)
from rivet_dagster.control import repeats
from rivet_dagster.errors import DestinationError, IntegrityError, NoAnswer, PreconditionFailed
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Part

__all__ = ["Uploads", "read_md5", "write_part"]

_RANGE_BYTES = 8 * 2**20


class Uploads:
    """Parts on their way, begun in the order in which they were added.

    One part more than there are threads waits: what is staged at a time is these and those being encoded.
    Left by an exception, what has not begun is discarded, and what is under way ends before the block does: nothing
    writes to the destination any more after it.
    """

    def __init__(
        self,
        destination: Destination,
        prefix: Prefix,
        *,
        verify: Verify,
        threads: int = 1,
        adopted: Sequence[Part] = (),
    ) -> None:
        """Begin with what is there already: `adopted`, each with its place in `resume`."""
        self._destination, self._prefix, self._verify = destination, prefix, verify
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="upload")
        self._most = threads + 1
        self._pending: deque[tuple[EncodedPart, Future[Part]]] = deque()
        self._orders: list[tuple[int, ...]] = [tuple((part.resume or {})["order"]) for part in adopted]
        self._arrived = [replace(part, part_id=number) for number, part in enumerate(adopted, start=1)]
        self._added = len(adopted)

    def __enter__(self) -> Uploads:  # noqa: PYI034 - typing has no Self in Python 3.10
        return self

    def add(self, encoded: EncodedPart) -> Sequence[Part]:
        """Send a part on its way, and wait while too many are on theirs.

        Returns:
            All that have arrived so far, as they came and numbered so.

        Raises:
            DestinationError: as `write_part`, of this or an earlier part.
        """
        self._added += 1
        written = self._threads.submit(
            write_part, self._destination, encoded, number=self._added, prefix=self._prefix, verify=self._verify
        )
        self._pending.append((encoded, written))
        while self._pending and (len(self._pending) > self._most or self._pending[0][1].done()):
            self._take()
        return self._arrived

    def rest(self) -> tuple[Part, ...]:
        """Wait for all that are still on their way.

        Returns:
            All parts in their `order`, numbered by it, as a delivery lists them.

        Raises:
            DestinationError: as `add`.
        """
        while self._pending:
            self._take()
        in_order = sorted(zip(self._orders, self._arrived, strict=True), key=lambda arrived: arrived[0])
        return tuple(replace(part, part_id=number, resume=None) for number, (_, part) in enumerate(in_order, start=1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for encoded, written in self._pending:
            if written.cancel():
                encoded.staged.discard()
        self._threads.shutdown(wait=True)

    def _take(self) -> None:
        encoded, written = self._pending[0]
        self._arrived.append(written.result())
        self._orders.append(encoded.order)
        self._pending.popleft()


def write_part(destination: Destination, encoded: EncodedPart, *, number: int, prefix: Prefix, verify: Verify) -> Part:
    """Write a part and compare what the store has with what was encoded; the staged bytes are gone afterwards.

    Raises:
        IntegrityError: the store holds other bytes; that object goes with the attempt.
        NoAnswer: the store did not confirm, and reading back did not help; the object may be there.
        DestinationError: the store failed. What is left behind is what the capabilities say.
    """
    staged = encoded.staged
    try:
        outcome = _written(destination, staged)
        level = _verified(destination, staged, outcome, verify)
    except DestinationError as e:
        if destination.capabilities.partial_write_risk:
            msg = f"{e}; part of the output may have been seen"
            raise type(e)(msg) from e
        raise
    finally:
        staged.discard()
    return Part(
        part_id=number,
        path=staged.key.removeprefix(prefix.root),
        rows=encoded.rows,
        size_bytes=staged.size_bytes,
        content_fingerprint=f"xxh3:{staged.digests['xxh3'].hex()}",
        content_md5=base64.b64encode(staged.digests["md5"]).decode(),
        verification=level,
        key_range=encoded.key_range,
        resume=None if encoded.key_range is None else _resume(encoded, outcome.checksum),
    )


def _resume(encoded: EncodedPart, store: Checksum | None) -> dict[str, Any]:
    said = {"kind": store.kind, "value": store.value.hex()} if store else None
    return {"order": list(encoded.order), "last": encoded.last, "checksum": said}


def _written(destination: Destination, staged: Staged) -> WriteOutcome:
    if not isinstance(destination, ObjectDestination):
        return destination.write(staged.key, staged, md5=staged.digests["md5"], expect=ANY)
    if not destination.capabilities.idempotent_overwrite:
        return destination.write(staged.key, staged, md5=staged.digests["md5"], expect=ABSENT)
    return repeats()(_write_or_find, destination, staged)


def _write_or_find(destination: ObjectDestination, staged: Staged) -> WriteOutcome:
    """Write once; where the store refuses or is silent, look whether the object is there already."""
    try:
        return destination.write(staged.key, staged, md5=staged.digests["md5"], expect=ABSENT)
    except (PreconditionFailed, NoAnswer) as e:
        there = destination.head(staged.key)
        if there is None:
            msg = f"{e}; nothing is there yet"
            raise NoAnswer(msg) from e
        known = there.checksum is not None and there.checksum.kind in staged.digests
        checksum = there.checksum if known else read_md5(destination, staged.key)
        found = WriteOutcome(size_bytes=there.size_bytes, version=there.version, checksum=checksum)
        if _same(staged, found):
            return found
        if destination.capabilities.partial_write_risk:
            destination.remove(staged.key)
            msg = f"{e}; a part of the object was there and was removed"
            raise NoAnswer(msg) from e
        raise IntegrityError(_difference(destination, staged, found)) from e


def _verified(destination: Destination, staged: Staged, outcome: WriteOutcome, verify: Verify) -> str:
    if not _same(staged, outcome):
        raise IntegrityError(_difference(destination, staged, outcome))
    if verify == "store" or not isinstance(destination, ObjectDestination):
        return outcome.checksum.level if outcome.checksum else outcome.level
    read = WriteOutcome(
        size_bytes=outcome.size_bytes, version=outcome.version, checksum=read_md5(destination, staged.key)
    )
    if not _same(staged, read):
        raise IntegrityError(_difference(destination, staged, read))
    return "readback-md5"


def _same(staged: Staged, outcome: WriteOutcome) -> bool:
    store = outcome.checksum
    return outcome.size_bytes == staged.size_bytes and (store is None or staged.digests.get(store.kind) == store.value)


def _difference(destination: Destination, staged: Staged, outcome: WriteOutcome) -> str:
    store = outcome.checksum
    kind = store.kind if store else "md5"
    sent = staged.digests.get(kind, b"").hex()
    return (
        f"{destination.uri(staged.key)}: sent {staged.size_bytes} bytes with {kind} {sent or 'unknown'}, "
        f"the store holds {outcome.size_bytes} with {store.value.hex() if store else 'no checksum'}; "
        "nothing was published, run again"
    )


def read_md5(destination: ObjectDestination, key: str) -> Checksum:
    """Read the whole object in bounded pieces, as a reader would."""
    md5 = hashlib.md5(usedforsecurity=False)
    start = 0
    while found := destination.read(key, start=start, length=_RANGE_BYTES):
        md5.update(found.body)
        start += len(found.body)
        if start >= found.meta.size_bytes or not found.body:
            break
    return Checksum(kind="md5", value=md5.digest(), level="readback-md5")
