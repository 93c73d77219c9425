"""Rows that one thread reads while another encodes what it has read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.exports.handoff import STOPPED, Handoff
from rivet_dagster.exports.pace import Pace
from rivet_dagster.rows import ResultStream

__all__ = ["ReadAhead"]

# A stream that is closed lets its reader go within ten seconds.
_END_S = 15.0


class ReadAhead:
    """One attempt at the rows of a query. `run` and `batches` are called once each, by two threads; `close` by any."""

    def __init__(
        self, open_stream: Callable[[], ResultStream], pace: Pace, *, most: int, opened: ResultStream | None = None
    ) -> None:
        """Read nothing yet.

        Args:
            open_stream: begins to read; called by the thread that reads.
            pace: how fast rows may come.
            most: bytes of the rows that wait to be taken; one batch may have more.
            opened: a stream that was opened already; it is read instead, and closed in any case.
        """
        self._open = open_stream
        self._pace = pace
        self._queue: Handoff[pa.RecordBatch] = Handoff(givers=1, most=most)
        self._stream = opened
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def coerced(self) -> Mapping[str, int]:
        """As of the stream, once its rows have been taken."""
        return {} if self._stream is None else self._stream.coerced

    def run(self) -> bool:
        """Open and read, as fast as batches are taken; True once all are read. What fails, `batches` raises."""
        if self._closed:
            return False
        error: BaseException | None = None
        try:
            return self._read()
        except BaseException as e:  # noqa: BLE001 (raised where the batches are taken)
            error = e
            return False
        finally:
            self._queue.end(error)

    def start(self) -> None:
        """`run` in a thread of its own."""
        with self._lock:
            # Whoever closes this finds no thread, or one that can be waited for.
            if not self._closed:
                self._thread = threading.Thread(target=self.run, name="read-ahead", daemon=True)
                self._thread.start()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Take what is read, in order.

        Raises:
            SourceError: reading failed, or this was closed.
        """
        return self._queue.items()

    def close(self) -> None:
        """Stop reading and free the connection; waits for a thread of its own, not much longer than that takes."""
        with self._lock:
            self._closed = True
            stream, thread = self._stream, self._thread
        self._queue.close()
        if stream is not None:
            stream.close()
        if thread is not None:
            thread.join(_END_S)

    def _read(self) -> bool:
        stream = self._stream or self._open()
        try:
            with self._lock:
                # Whoever closes this from now on finds the stream to stop.
                self._stream = stream
                if self._closed:
                    raise SourceError(STOPPED)
            for batch in stream:
                if not self._queue.give(batch, weight=batch.nbytes):
                    return False
                self._pace.keep(batch.num_rows, self._queue.closed_within)
            return True
        finally:
            stream.close()
