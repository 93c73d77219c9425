"""Random Arrow tables of every type that is exported, and random ways for their rows to arrive."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_INT64 = st.integers(-(2**63), 2**63 - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    return st.integers(-top, top).map(lambda n: Decimal(n).scaleb(-scale) if n else Decimal(0))


def _exact(n: int, precision: int, scale: int) -> Decimal:
    return Decimal(n).scaleb(-scale)


SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): _INT64,
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(12, 2): _decimals(12, 2),
    pa.decimal128(28, 10): _decimals(27, 10),
    pa.decimal256(60, 20): _decimals(27, 20),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.timezone.utc)),
    pa.timestamp("s", "Europe/Berlin"): st.integers(-(10**9), 10**10),
    pa.string(): _TEXT,
    pa.large_string(): _TEXT,
    pa.binary(): st.binary(max_size=12),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.null(): st.none(),
}
NESTED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.list_(pa.string()): st.lists(st.none() | _TEXT, max_size=4),
    pa.list_(pa.list_(pa.int32())): st.lists(st.none() | st.lists(st.integers(0, 9), max_size=3), max_size=3),
    pa.large_list(pa.int64()): st.lists(_INT64, max_size=4),
    pa.list_(pa.int16(), 2): st.lists(st.integers(0, 99), min_size=2, max_size=2),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9), "b": st.none() | _TEXT}
    ),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(_TEXT, st.none() | _INT64, max_size=3).map(
        lambda d: list(d.items())
    ),
}


@st.composite
def tables(draw: st.DrawFn, kinds: dict[pa.DataType, st.SearchStrategy[Any]], *, max_rows: int = 60) -> pa.Table:
    """A table of up to four columns; values repeat often, so that every encoding is met."""
    chosen = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=4))
    rows = draw(st.integers(1, max_rows))
    columns = []
    for kind in chosen:
        some = draw(st.lists(st.none() | kinds[kind], min_size=1, max_size=8))
        columns.append(pa.array([some[i % len(some)] for i in _order(draw, rows)], kind))
    return pa.table(columns, names=[f"c{i}" for i in range(len(columns))])


def _order(draw: st.DrawFn, rows: int) -> Sequence[int]:
    return draw(st.lists(st.integers(0, 7), min_size=rows, max_size=rows))


@st.composite
def arrivals(draw: st.DrawFn, table: pa.Table) -> list[pa.RecordBatch]:
    """The table's rows in order, in batches of any size: slices of one buffer, copies of their own, and empty ones."""
    cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), max_size=12)))
    batches = []
    for start, end in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
        piece = table.slice(start, end - start).combine_chunks()
        batch = piece.to_batches()[0] if piece.num_rows else pa.RecordBatch.from_pylist([], table.schema)
        if draw(st.booleans()):
            # Buffers of its own that begin at the first row.
            batch = pa.RecordBatch.from_arrays(
                [pa.concat_arrays([c, c.slice(0, 0)]) for c in batch.columns], schema=table.schema
            )
        batches.append(batch)
    return batches
