"""The one way rows leave a source: bounded batches of the declared schema, and a stream that can be closed any time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import ResultColumn
from rivet_dagster.sources.description import schema_of
from rivet_dagster.sources.guards import Misfits

__all__ = ["BatchStream"]

_CLOSE_SECONDS = 10.0


class BatchStream:
    """A `ResultStream` over one connection of its own, which it frees at the end, on an error and on `close`.

    It can be read once. A stream that was closed raises when it is read on: it never looks like the end.
    """

    def __init__(
        self,
        columns: tuple[ResultColumn, ...],
        batches: Generator[pa.RecordBatch, None, None],
        *,
        cancel: Callable[[], None],
        release: Callable[[], None],
        misfits: Misfits,
        batch_rows: int,
        batch_bytes: int,
    ) -> None:
        """Take over a connection.

        Args:
            columns: the declared result.
            batches: executes the query when first asked, raises `SourceError` alone, and lets go of the driver's cursor
                or reader when it is closed.
            cancel: stops a running statement; called from any thread while `batches` may be running.
            release: frees the connection; called once, never while `batches` is running.
            misfits: of these batches.
            batch_rows: no batch has more rows.
            batch_bytes: batches larger than it are cut, down to one row.
        """
        self._columns = columns
        self._schema = schema_of(columns)
        self._batches = batches
        self._cancel = cancel
        self._release = release
        self._misfits = misfits
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._reading = threading.Lock()
        self._closing = threading.Event()
        self._begun = False
        self._released = False

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        """In order; names are unique."""
        return self._columns

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""
        return self._schema

    @property
    def coerced(self) -> Mapping[str, int]:
        """How many values became NULL so far, for each column of the query's `coerce`."""
        return self._misfits.counts

    @property
    def closed(self) -> bool:
        """Whether the connection is free: the rows have ended, failed or been closed."""
        return self._released

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches, none of them empty.

        Raises:
            SourceError: the database failed, the stream was closed or is read again; the connection is free.
        """
        if self._begun:
            raise SourceError("these rows can be read once; open the query again")
        self._begun = True
        try:
            while (batch := self._next()) is not None:
                yield from self._bounded(batch)
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading, cancel the running statement and free the connection.

        Waits for a read in another thread to notice, but never much longer than ten seconds.
        """
        self._closing.set()
        if self._released:
            return
        # In a thread of its own, because neither a cancel request nor a read of a dead network has an end of its own.
        closer = threading.Thread(target=self._stop, name="rivet-close-stream", daemon=True)
        closer.start()
        closer.join(_CLOSE_SECONDS)

    def _stop(self) -> None:
        with contextlib.suppress(Exception):
            self._cancel()
        with self._reading:
            self._free()

    def _free(self) -> None:
        if self._released:
            return
        self._released = True
        # The generator first: what it holds of the driver keeps a connection open.
        for end in (self._batches.close, self._release):
            with contextlib.suppress(Exception):
                end()

    def _next(self) -> pa.RecordBatch | None:
        with self._reading:
            if self._released or self._closing.is_set():
                raise SourceError("reading was stopped: the stream is closed")
            try:
                batch = next(self._batches, None)
            except BaseException:
                self._free()
                if self._closing.is_set():
                    raise SourceError("reading was stopped: the stream is closed") from None
                raise
            if batch is None:
                self._free()
            elif batch.schema != self._schema:
                self._free()
                raise SourceError(f"the driver changed the schema: expected {self._schema}, found {batch.schema}")
            return batch

    def _bounded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.num_rows == 0:
            return
        pieces = max(1, -(-batch.nbytes // self._batch_bytes))
        rows = max(1, min(self._batch_rows, batch.num_rows // pieces))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
