"""How far a long export is, for the people who wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query, Source, SplittableSource

__all__ = ["Progress", "estimate_of"]

_EVERY_S = 10.0


class Progress:
    """Counts rows where batches pass, in whatever thread, and logs from the one that made it: a log may belong to it.

    Nothing is logged in the first ten seconds, and then at most every ten.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        subject: str,
        estimate: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count now.

        Args:
            log: of the step.
            subject: the export, as its messages begin.
            estimate: about how many rows there will be; asked once, and only if it comes to a line.
            clock: seconds that only rise.
        """
        self._log, self._subject, self._estimate, self._clock = log, subject, estimate, clock
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._rows = 0
        self._parts = 0
        self._warnings: list[str] = []
        self._begun = self._told = clock()
        self._expected: int | None = None
        self._asked = False

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on batches and count their rows; those of a reading that failed do not count."""
        rows = 0
        try:
            for batch in batches:
                rows += batch.num_rows
                self._count(batch.num_rows)
                self.tell()
                yield batch
        except SourceError:
            self._count(-rows)
            raise

    def part(self) -> None:
        """Count a part that is encoded."""
        with self._lock:
            self._parts += 1
        self.tell()

    def warn(self, message: str) -> None:
        """Have something logged as a warning, at the next occasion."""
        with self._lock:
            self._warnings.append(message)
        self.tell()

    def tell(self) -> None:
        """Log what there is to say, if it is time; in any other thread than the log's, nothing."""
        if threading.get_ident() != self._thread:
            return
        with self._lock:
            warnings, self._warnings = self._warnings, []
            rows, parts = self._rows, self._parts
        for message in warnings:
            self._log.warning("%s: %s", self._subject, message)
        now = self._clock()
        if now - self._told < _EVERY_S:
            return
        self._told = now
        if not self._asked:
            self._asked, self._expected = True, self._estimate()
        of = f" of about {self._expected:,}" if self._expected else ""
        per_second = rows / (now - self._begun)
        self._log.info(
            "%s: %s%s rows, %s rows/s, part %d", self._subject, f"{rows:,}", of, f"{per_second:,.0f}", parts + 1
        )

    def _count(self, rows: int) -> None:
        with self._lock:
            self._rows += rows


def estimate_of(source: Source, query: Query) -> int | None:
    """How many rows the catalog believes there are; `None` where it does not say, or cannot be asked."""
    if not isinstance(source, SplittableSource):
        return None
    try:
        return source.estimated_rows(query)
    except SourceError:
        return None
