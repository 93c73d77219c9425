"""Encoding in tests: staged parts that remember what became of them, and readers that are not ours."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from rivet_dagster.contract import EncodedPart
from rivet_dagster.exports.encode import encode
from rivet_dagster.exports.output import resolve_output


class Shelf:
    """Stages parts one after the other.

    Attributes:
        staged: all of them.
        fail_write: called before each write with the part and the bytes; may raise.
    """

    def __init__(self, fail_write: Callable[[RecordingPart, bytes], None] = lambda _part, _data: None) -> None:
        self.staged: list[RecordingPart] = []
        self.fail_write = fail_write

    def stage(self) -> RecordingPart:
        self.staged.append(RecordingPart(f"part-{len(self.staged) + 1}", self.fail_write))
        return self.staged[-1]


class RecordingPart:
    """A staged part in memory, whose bytes can still be seen after it was discarded."""

    def __init__(self, key: str, fail_write: Callable[[RecordingPart, bytes], None]) -> None:
        self.key = key
        self.written = b""
        self.writes = 0
        self.closed = False
        self.discarded = False
        self._fail_write = fail_write

    def write(self, data: Any, /) -> int:
        assert not self.closed, "written to after its end"
        assert not self.discarded, "written to after it was discarded"
        self._fail_write(self, bytes(data))
        self.written += bytes(data)
        self.writes += 1
        return memoryview(data).nbytes

    def tell(self) -> int:
        return len(self.written)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def discard(self) -> None:
        self.discarded = True

    @property
    def size_bytes(self) -> int:
        return len(self.written)

    @property
    def digests(self) -> dict[str, bytes]:
        return {}

    def open(self) -> BinaryIO:
        assert self.closed
        assert not self.discarded
        return io.BytesIO(self.written)


def encoded(
    rows: pa.Table | Iterable[pa.RecordBatch],
    fmt: Any,
    *,
    schema: pa.Schema | None = None,
    max_file_size: int | None = None,
) -> list[EncodedPart]:
    """All parts of some rows."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    schema = rows.schema if isinstance(rows, pa.Table) else schema
    output = resolve_output(format=fmt, max_file_size=max_file_size)
    return list(encode(batches, schema, output=output, stage=Shelf().stage))


def body(part: EncodedPart) -> bytes:
    """A part's bytes, through its own reader."""
    with part.staged.open() as f:
        found = f.read()
    assert len(found) == part.staged.size_bytes
    return found


def bodies(parts: Sequence[EncodedPart]) -> list[bytes]:
    return [body(p) for p in parts]


def parquet(part: EncodedPart) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(body(part)))


def read_back(parts: Sequence[EncodedPart]) -> pa.Table:
    return pa.concat_tables([parquet(p).read() for p in parts])


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Wait until something holds, for as long as a loaded machine may need."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        threading.Event().wait(0.005)
    return holds()
