"""One query on its way into parts: read ahead of the encoder, and read again where a failure may pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_attempt,
    wait_random_exponential,
)

from rivet_dagster.contract import EncodedPart, Staged
from rivet_dagster.errors import SourceError
from rivet_dagster.exports.columns import conform
from rivet_dagster.exports.encode import encode
from rivet_dagster.exports.handoff import STOPPED
from rivet_dagster.exports.judge import Judge
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.pace import Pace
from rivet_dagster.exports.progress import Progress
from rivet_dagster.exports.read_ahead import ReadAhead
from rivet_dagster.rows import ResultStream

__all__ = ["Encoder", "Reading"]

_ATTEMPTS = 3
_PAUSE = wait_random_exponential(multiplier=1, max=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """How the rows of an export become parts; the same for all of its readings.

    Attributes:
        schema: as it is written.
        output: how parts come out.
        subject: the export, as messages begin.
        progress: counts what passes.
        pace: how fast rows may come, all readings together.
        coerce: the columns in which a value that would be refused is NULL.
        judge: of the rows, where there are gates.
        retried: why a reading was begun again, each time.
        coerced: of each reading that was read to its end, how many values became NULL.
    """

    schema: pa.Schema
    output: OutputSettings
    subject: str
    progress: Progress
    pace: Pace = field(default_factory=lambda: Pace(None))
    coerce: frozenset[str] = frozenset()
    judge: Judge | None = None
    retried: list[str] = field(default_factory=list)
    coerced: list[Mapping[str, int]] = field(default_factory=list)

    def parts(self, batches: Iterable[pa.RecordBatch], stage: Callable[[], Staged]) -> Iterator[EncodedPart]:
        """Check, count, judge and encode batches; see `encode` and `Judge.over` for what it raises."""
        checked = conform(self.progress.over(batches), self.schema, subject=self.subject)
        judged = checked if self.judge is None else self.judge.over(checked)
        with closing(encode(judged, self.schema, output=self.output, stage=stage)) as parts:
            for part in parts:
                self.progress.part()
                yield part

    def coerced_values(self) -> dict[str, int]:
        """How many values became NULL in what was read to its end: of each column in which one may, also none."""
        return {column: sum(counts[column] for counts in self.coerced) for column in sorted(self.coerce)}


class Reading:
    """The rows of one query. `parts` is called once, by one thread; `close` by any, at any time and again."""

    def __init__(
        self,
        encoder: Encoder,
        open_stream: Callable[[], ResultStream],
        *,
        ahead_bytes: int,
        opened: ResultStream | None = None,
        fetched: bool = False,
    ) -> None:
        """Read nothing yet.

        Args:
            encoder: what becomes of the rows.
            open_stream: begins to read.
            ahead_bytes: how much may be read before it is encoded; one batch may have more.
            opened: a stream that was opened already; it is read first, and closed in any case.
            fetched: whether a thread calls `fetch`; else `parts` begins one.
        """
        self._encoder = encoder
        self._attempt = partial(ReadAhead, open_stream, encoder.pace, most=ahead_bytes)
        self._latest = self._attempt(opened=opened)
        self._fetched = fetched
        self._tried = False
        self._closed, self._settled = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def fetch(self) -> None:
        """Read in this thread what another one turns into parts; called once.

        Returns when all rows are read; where that failed, when `parts` has ended, since it may read them again.
        """
        if not self._latest.run():
            self._settled.wait()

    def parts(self, stage: Callable[[], Staged]) -> Generator[EncodedPart, None, None]:
        """Read, if nobody fetches, and encode.

        A failure that may pass is tried again, from the first row, as long as no part has been given: what was staged
        is discarded then. Afterwards it is raised.

        Raises:
            SourceError: reading failed, or this was closed.
            ContractError: the rows are not what was described.
        """
        again = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=_PAUSE,
            retry=retry_if_exception(lambda e: isinstance(e, SourceError) and e.transient),
            before_sleep=self._note,
            sleep=sleep_using_event(self._closed),
            reraise=True,
        )
        try:
            first, rest = again(self._begin, stage)
            if first is not None:
                yield first
                yield from rest
        finally:
            self._settled.set()

    def close(self) -> None:
        """Stop reading and free the connection; a part that is not complete is discarded by the thread that encodes."""
        self._closed.set()
        with self._lock:
            latest = self._latest
        latest.close()
        self._settled.set()

    def _begin(self, stage: Callable[[], Staged]) -> tuple[EncodedPart | None, Iterator[EncodedPart]]:
        parts = self._encoder.parts(self._rows(), stage)
        return next(parts, None), parts

    def _rows(self) -> Iterator[pa.RecordBatch]:
        ahead = self._ahead()
        try:
            yield from ahead.batches()
            if self._encoder.coerce:
                self._encoder.coerced.append(ahead.coerced)
        finally:
            ahead.close()

    def _ahead(self) -> ReadAhead:
        with self._lock:
            # Whoever closes this later finds all that there is to stop.
            if self._closed.is_set():
                raise SourceError(STOPPED)
            again, self._tried = self._tried, True
            if again:
                self._latest = self._attempt()
            latest = self._latest
        if again or not self._fetched:
            latest.start()
        return latest

    def _note(self, state: RetryCallState) -> None:
        cause = state.outcome.exception() if state.outcome else None
        self._encoder.retried.append(str(cause))
        self._encoder.progress.warn(
            f"reading is tried again from its first row, after attempt {state.attempt_number}: {cause}"
        )
