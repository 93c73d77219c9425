"""Encoding in tests: real staged parts that remember what became of them, and readers that are not ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rivet_dagster.contract import EncodedPart
from rivet_dagster.destinations.staging import StagedFile
from rivet_dagster.exports.encode import encode
from rivet_dagster.exports.output import resolve_output


class Shelf:
    """Stages parts one after the other."""

    def __init__(self) -> None:
        self.staged: list[RecordingPart] = []

    def stage(self) -> RecordingPart:
        self.staged.append(RecordingPart(f"part-{len(self.staged) + 1}"))
        return self.staged[-1]


class RecordingPart:
    """A staged part in a real spool, whose bytes can still be seen after it was discarded."""

    def __init__(self, key: str) -> None:
        self._file = StagedFile.spool(key)
        self.key = key
        self.written = bytearray()
        self.discarded = False

    def write(self, data: Any, /) -> int:
        self.written += bytes(memoryview(data))
        return self._file.write(data)

    def discard(self) -> None:
        self.discarded = True
        self._file.discard()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


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
