"""A table read in ranges of a key: several at a time, each range a part, all of them from one snapshot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rivet_dagster.contract import EncodedPart, Staged
from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.exports.handoff import STOPPED, Handoff
from rivet_dagster.exports.modes import Chunked
from rivet_dagster.exports.progress import Progress
from rivet_dagster.exports.reading import Reading
from rivet_dagster.exports.resume import recorded
from rivet_dagster.rows import Key, KeyRange, Query, Snapshot, SplittableSource

__all__ = ["RangesReading", "key_of", "ranges_between", "ranges_of", "rows_of_a_range"]

# A worker whose reading is closed ends within the time that closing a stream may take.
_JOIN_S = 30.0


def key_of(mode: Chunked, source: SplittableSource, snapshot: Snapshot, query: Query, *, subject: str) -> Key:
    """The key to divide by: the one that is given; where rows lie, for ranges of a size; else one of the catalog's.

    Raises:
        ConfigError: the catalog does not vouch for the one that is given, or knows none.
    """
    if mode.key_columns is not None:
        return source.check_key(query, mode.key_columns)
    # Where rows lie, a range has about so many; who asks for a number of rows gets that number.
    if mode.rows_per_part is None and (storage := snapshot.storage_key(query)) is not None:
        return storage
    keys = source.keys(query)
    if not keys:
        msg = (
            f"{subject}: expected a key for Chunked, found that the catalog knows no primary key and no unique index "
            "over columns that are never NULL; create one, or export with Full()"
        )
        raise ConfigError(msg)
    return keys[0]


def rows_of_a_range(mode: Chunked, source: SplittableSource, query: Query) -> int:
    """How many rows are read by one statement."""
    if mode.rows_per_part is not None:
        return mode.rows_per_part
    return max(1, mode.range_bytes // source.row_bytes(query))


def ranges_between(
    key: Key, left_out: Callable[[], Iterable[KeyRange]], ranges: Callable[[KeyRange], Iterable[KeyRange]]
) -> Generator[tuple[tuple[int, int], KeyRange], None, None]:
    """All ranges but some, each with its place: even first numbers, so that those left out can have the odd ones.

    Args:
        key: of all of them.
        left_out: asked for when the first is needed: in their order, no two of which overlap.
        ranges: divides what lies before, between and behind them.
    """
    low: tuple[Any, ...] | None = None
    gap = 0
    for done in left_out():
        # Without a low end it is the first of all, and nothing lies before it.
        if done.low is not None and done.low != low:
            for place, within in enumerate(ranges(KeyRange(key=key, low=low, high=done.low))):
                yield (gap, place), within
        low, gap = done.high, gap + 2
        if low is None:
            return
    for place, within in enumerate(ranges(KeyRange(key=key, low=low, high=None))):
        yield (gap, place), within


def ranges_of(all_of_it: KeyRange, boundaries: Iterable[tuple[Any, ...]]) -> Generator[KeyRange, None, None]:
    """Half-open ranges, one after the other, that leave nothing out of a range.

    Raises:
        SourceError: a boundary is found twice, so that no end is in sight.
    """
    key, low = all_of_it.key, all_of_it.low
    for high in boundaries:
        if high == low:
            raise SourceError(
                f"key {', '.join(key.columns)}: expected each boundary to be another one, found one twice"
            )
        yield KeyRange(key=key, low=low, high=high)
        low = high
    yield KeyRange(key=key, low=low, high=all_of_it.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    place: tuple[int, int]
    within: KeyRange
    reading: Reading


class RangesReading:
    """Ranges read and encoded by workers. `parts` is called once; `close` by any thread, at any time and again.

    A worker is two threads: one reads range after range, one encodes what whoever of them has read. So the source does
    not wait for the end of a part.
    """

    def __init__(
        self,
        ranges: Generator[tuple[tuple[int, int], KeyRange], None, None],
        read: Callable[[KeyRange], Reading],
        *,
        workers: int,
        progress: Progress,
        release: Callable[[], None],
    ) -> None:
        """Read nothing yet.

        Args:
            ranges: with their places; found when a worker needs the next one, by one thread at a time.
            read: begins a range, which is then fetched; nothing is connected to yet.
            workers: how many ranges are read at a time.
            progress: told of each part.
            release: frees what all ranges are read from, once no worker is left; may be called again.
        """
        self._ranges = ranges
        self._read = read
        self.workers = workers
        self._progress = progress
        self._release = release
        # One part waits to be taken, besides those being encoded.
        self._parts: Handoff[EncodedPart] = Handoff(givers=workers, most=1)
        # As many ranges are read ahead as are encoded.
        self._begun: Handoff[_Range] = Handoff(givers=workers, most=workers)
        self._threads: list[threading.Thread] = []
        self._active: set[Reading] = set()
        self._stopped = False
        self._taking, self._staging, self._lock = threading.Lock(), threading.Lock(), threading.Lock()

    def parts(self, stage: Callable[[], Staged]) -> Iterator[EncodedPart]:
        """Read and encode all ranges; parts come as they are finished, each with its range and its place.

        Raises:
            SourceError: reading failed; the other workers are stopped, and what they had staged is discarded.
            ContractError: the rows are not what was described; likewise.
        """

        def staged() -> Staged:
            with self._staging:
                self._go_on()
                return stage()

        self._threads = [
            threading.Thread(target=target, args=args, name=f"range-{what}-{n}", daemon=True)
            for n in range(self.workers)
            for what, target, args in (("reader", self._fetch, ()), ("encoder", self._encode, (staged,)))
        ]
        try:
            for thread in self._threads:
                thread.start()
            for part in self._parts.items(idle=self._progress.tell):
                self._progress.tell()
                yield part
        finally:
            self.close()

    def close(self) -> None:
        """Stop all workers, discard what they have staged, and free the source."""
        with self._lock:
            self._stopped = True
            active = list(self._active)
        for part in self._parts.close():
            part.staged.discard()
        self._begun.close()
        for reading in active:
            reading.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_S)
        if self._taking.acquire(timeout=_JOIN_S):
            try:
                self._ranges.close()
            finally:
                self._taking.release()
        self._release()

    def _fetch(self) -> None:
        error: BaseException | None = None
        try:
            while (found := self._next()) is not None and self._begun.give(found):
                found.reading.fetch()
        except BaseException as e:  # noqa: BLE001 (raised where the ranges are taken)
            error = e
        finally:
            self._begun.end(error)

    def _encode(self, stage: Callable[[], Staged]) -> None:
        error: BaseException | None = None
        try:
            for found in self._begun.items():
                self._encode_one(found, stage)
        except BaseException as e:  # noqa: BLE001 (raised where the parts are taken)
            error = e
        finally:
            self._parts.end(error)

    def _next(self) -> _Range | None:
        with self._taking:
            self._go_on()
            found = next(self._ranges, None)
        if found is None:
            return None
        place, within = found
        reading = self._read(within)
        with self._lock:
            self._go_on()
            self._active.add(reading)
        return _Range(place=place, within=within, reading=reading)

    def _encode_one(self, found: _Range, stage: Callable[[], Staged]) -> None:
        try:
            said = recorded(found.within)
            with contextlib.closing(found.reading.parts(stage)) as parts:
                for number, part in enumerate(parts):
                    if not self._parts.give(replace(part, key_range=said, order=(*found.place, number))):
                        part.staged.discard()
                        raise SourceError(STOPPED)
        finally:
            found.reading.close()
            with self._lock:
                self._active.discard(found.reading)

    def _go_on(self) -> None:
        if self._stopped:
            raise SourceError(STOPPED)
