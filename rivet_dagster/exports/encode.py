"""A stream of record batches becomes parts, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from rivet_dagster.contract import EncodedPart, Staged
from rivet_dagster.errors import ContractError
from rivet_dagster.exports.csv import CsvEncoding
from rivet_dagster.exports.formats import Parquet
from rivet_dagster.exports.memory import divide
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.parquet import ParquetEncoding
from rivet_dagster.exports.row_groups import cut
from rivet_dagster.exports.sink import Sink

__all__ = ["encode"]

_CSV_ROWS = 65_536
# A part is at least so many row groups long, if `max_file_size` divides it at all: what it overshoots stays small.
_GROUPS_PER_PART = 8


class _Part(Protocol):
    def write(self, rows: pa.Table) -> None: ...

    def finish(self) -> None: ...


class _Encoding(Protocol):
    def begin(self, sink: Sink) -> _Part: ...


class _OpenPart:
    """A part between its first and its last row group."""

    def __init__(self, staged: Staged, encoding: _Encoding) -> None:
        self._staged = staged
        self._sink = Sink(staged)
        self._rows = 0
        self._last_group_bytes = 0
        try:
            self._part = encoding.begin(self._sink)
        except BaseException:
            self.abandon()
            raise

    def write(self, rows: pa.Table) -> None:
        before = self._sink.tell()
        try:
            self._part.write(rows)
        except pa.ArrowException as e:
            names = ", ".join(repr(name) for name in rows.column_names)
            msg = (
                f"{self._staged.key}: a row of the columns {names} cannot be encoded ({e}); export the odd one as text"
            )
            raise ContractError(msg) from e
        self._rows += rows.num_rows
        self._last_group_bytes = self._sink.tell() - before

    def is_full(self, max_bytes: int) -> bool:
        # One more group of this size would lead beyond.
        return self._sink.tell() + self._last_group_bytes > max_bytes

    def finish(self) -> EncodedPart:
        self._part.finish()
        self._sink.let_go()
        self._staged.close()
        # The allocator keeps what other threads have made; asked after each row group, it costs more than it saves.
        pa.default_memory_pool().release_unused()
        return EncodedPart(staged=self._staged, rows=self._rows)

    def abandon(self) -> None:
        self._sink.let_go()
        self._staged.discard()


def encode(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, output: OutputSettings, stage: Callable[[], Staged]
) -> Generator[EncodedPart, None, None]:
    """Encode batches of one schema into parts, each yielded as soon as it is complete.

    The bytes of the parts and where they end depend on the rows and on `output` alone, not on how batches arrive
    (and on pyarrow's version, whose name each Parquet part carries). A part ends with the row group after which the
    next one would lead beyond `max_file_size`; it exceeds that by one row group at the most. No part is empty. At
    most one row group and one batch are held in memory.

    When the batches, the encoder or `stage` fail, or the iterator is closed early, the part that is not complete is
    discarded and gets no footer; those already yielded belong to the caller.

    Raises:
        ContractError: the format cannot hold a value, though it has the column's type.
    """
    group_bytes, group_rows = _group_limits(output)
    encoding: _Encoding | None = None
    part: _OpenPart | None = None
    try:
        for group in cut(batches, schema, group_bytes=group_bytes, group_rows=group_rows):
            encoding = encoding or _encoding(group, output)
            part = part or _OpenPart(stage(), encoding)
            part.write(group)
            # Not while the next one is gathered, too.
            del group
            if output.max_file_size is not None and part.is_full(output.max_file_size):
                done, part = part.finish(), None
                yield done
        if part is not None:
            done, part = part.finish(), None
            yield replace(done, last=True)
    finally:
        if part is not None:
            part.abandon()


def _encoding(first: pa.Table, output: OutputSettings) -> _Encoding:
    if isinstance(output.format, Parquet):
        return ParquetEncoding(first, output.format)
    return CsvEncoding(first, output.format)


def _group_limits(output: OutputSettings) -> tuple[int, int]:
    group_bytes = divide(output.max_memory, output.format).group_bytes
    group_rows = output.format.row_group_rows if isinstance(output.format, Parquet) else _CSV_ROWS
    if output.max_file_size is not None:
        group_bytes = min(group_bytes, max(output.max_file_size // _GROUPS_PER_PART, 1))
    return group_bytes, group_rows
