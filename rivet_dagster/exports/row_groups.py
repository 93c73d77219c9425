"""Where row groups end: a function of the rows alone, whatever batches they arrive in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from rivet_dagster.exports.buffers import offsets_of, valid_of

__all__ = ["cut", "row_bytes"]

# So many slices are joined at once; a source of one-row batches must not pile up a million small objects.
_MOST_PENDING = 512
_OFFSET_BYTES = 4


def cut(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, group_bytes: int, group_rows: int
) -> Iterator[pa.Table]:
    """Join and divide batches into row groups, each one contiguous and with at least one row.

    A row group ends with the row that brings it to `group_bytes` by `row_bytes`, or to `group_rows`. At most one row
    group and one batch are held.
    """
    pending: list[pa.RecordBatch] = []
    rows, held = 0, 0
    for batch in batches:
        sizes = np.cumsum(_sizes_of(batch))
        start, taken = 0, 0
        while start < batch.num_rows:
            # The first row whose running total reaches what is still wanted.
            end = int(np.searchsorted(sizes, taken + group_bytes - held)) + 1
            end = min(end, start + group_rows - rows)
            full = end <= batch.num_rows
            end = min(end, batch.num_rows)
            pending.append(batch.slice(start, end - start))
            rows += end - start
            held += int(sizes[end - 1]) - taken
            start, taken = end, int(sizes[end - 1])
            if full:
                yield _joined(pending, schema)
                rows, held = 0, 0
        if len(pending) > _MOST_PENDING:
            pending = _joined(pending, schema).to_batches()
    if pending:
        yield _joined(pending, schema)


def row_bytes(array: pa.Array) -> npt.NDArray[np.int64]:
    """The logical size of each value, the same however it is stored: what it holds, and 4 bytes for each length.

    NULL counts as its fixed width, or as a length.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(array.storage)
    if pt.is_struct(kind):
        return _added([row_bytes(c) for c in array.flatten()], len(array))
    if pt.is_nested(kind):
        return _of_lists(array.cast(pa.list_(kind.value_type)) if pt.is_fixed_size_list(kind) else array)
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _where_valid(array, np.diff(offsets_of(array))) + _OFFSET_BYTES
    return np.full(len(array), 0 if pt.is_null(kind) else (kind.bit_width + 7) // 8, np.int64)


def _of_lists(array: Any) -> npt.NDArray[np.int64]:
    offsets = offsets_of(array)
    children = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(row_bytes(children))])
    offsets = offsets - offsets[0]
    return _where_valid(array, running[offsets[1:]] - running[offsets[:-1]]) + _OFFSET_BYTES


def _where_valid(array: pa.Array, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What lies behind a NULL is not data."""
    return np.where(valid_of(array), sizes, 0) if array.null_count else sizes


def _sizes_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    # At least one byte, so that the running total rises with every row.
    return np.maximum(_added([row_bytes(c) for c in batch.columns], batch.num_rows), 1)


def _added(sizes: list[npt.NDArray[np.int64]], rows: int) -> npt.NDArray[np.int64]:
    total = np.zeros(rows, np.int64)
    for one in sizes:
        total += one
    return total


def _joined(pending: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    # One contiguous array per column: where a page ends depends on where arrays end.
    joined = pa.Table.from_batches(pending, schema=schema).combine_chunks()
    # Not while the row group is encoded, too.
    pending.clear()
    return joined
