"""What assets return, as record batches of one schema."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from rivet_dagster.errors import ConfigError, ContractError
from rivet_dagster.exports.columns import as_plain, name_check, plain_schema, plain_type
from rivet_dagster.exports.spec import Batches

__all__ = ["Rows", "rows_of"]

_BATCH_ROWS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that can be read once.

    Attributes:
        schema: of every batch, but for how the same values are stored.
        read: the batches.
        stop: frees what is read from; may be called again.
    """

    schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]
    stop: Callable[[], None]


def rows_of(value: Any, *, subject: str) -> Rows:
    """Read an asset's value as Arrow.

    Raises:
        ConfigError: it is nothing that can be exported; names what can.
        ContractError: its values have no one type.
    """
    if isinstance(value, pa.RecordBatchReader):
        return Rows(schema=value.schema, read=lambda: iter(value), stop=value.close)
    if isinstance(value, Batches):
        return _of_pieces(value, subject)
    table = _table(value, subject)
    if table is None:
        msg = (
            f"{subject}: expected a pandas.DataFrame, pyarrow.Table, pyarrow.RecordBatchReader, or an iterator of "
            f"DataFrames, Tables or RecordBatches in Batches(…); found {type(value).__module__}.{type(value).__name__}"
        )
        raise ConfigError(msg)
    return Rows(schema=table.schema, read=lambda: _batches(table), stop=lambda: None)


def _of_pieces(value: Batches, subject: str) -> Rows:
    pieces = iter(value.batches)

    def stop() -> None:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()

    first: list[pa.Table] = []
    schema = value.schema
    if schema is None:
        try:
            first = [_piece(piece, subject) for piece in islice(pieces, 1)]
        except BaseException:
            stop()
            raise
        if not first:
            msg = f"{subject}: expected at least one batch, or Batches(…, schema=…); found none, so no columns"
            raise ConfigError(msg)
        schema = first[0].schema
    schema = plain_schema(schema)
    tables = chain(first, (_piece(piece, subject) for piece in pieces))
    return Rows(
        schema=schema,
        read=lambda: (batch for table in tables for batch in _batches(_fitted(table, schema, subject))),
        stop=stop,
    )


def _piece(value: Any, subject: str) -> pa.Table:
    table = _table(value, subject)
    if table is None:
        found = f"{type(value).__module__}.{type(value).__name__}"
        msg = f"{subject}: expected Batches of pandas DataFrames, Arrow Tables or RecordBatches; found a {found}"
        raise ConfigError(msg)
    return table


def _table(value: Any, subject: str) -> pa.Table | None:
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    # Whoever made a DataFrame has imported pandas; for everybody else it stays out.
    if "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].DataFrame):
        from rivet_dagster.exports.frames import table_of  # noqa: PLC0415 (imports pandas)

        return table_of(value, subject=subject)
    return None


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.to_batches(max_chunksize=_BATCH_ROWS))


def _fitted(table: pa.Table, schema: pa.Schema, subject: str) -> pa.Table:
    """The same rows under the fixed schema; the order of the columns does not matter."""
    name_check(table.column_names, subject=subject)
    if sorted(table.column_names) != sorted(schema.names):
        msg = f"{subject}: expected the columns {schema.names} in every batch, found {table.column_names}"
        raise ContractError(msg)
    columns = [_as_type(table[f.name], f, subject) for f in schema]
    return pa.table(columns, schema=schema)


def _as_type(column: pa.ChunkedArray, wanted: pa.Field, subject: str) -> pa.ChunkedArray:
    if column.type == wanted.type:
        return column
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), wanted.type)])
    why = ""
    same = plain_type(column.type) == wanted.type
    if same or _widens(column.type, wanted.type):
        try:
            if same:
                return pa.chunked_array([as_plain(chunk, wanted.type) for chunk in column.chunks], wanted.type)
            if pt.is_integer(column.type) and pt.is_decimal(wanted.type):
                # Wide enough for every integer; what is too wide for the column is found by the second cast.
                column = column.cast(pa.decimal256(76, max(wanted.type.scale, 0)))
            return column.cast(wanted.type)
        except pa.ArrowInvalid as e:
            why = f" ({e})"
    remedy = "state the type of every column: Batches(…, schema=…)"
    if pt.is_floating(column.type) and pt.is_integer(wanted.type):
        remedy = 'keep whole numbers whole before NULLs come in, e.g. with dtype "Int64"'
    found = f"found {column.type} in a later batch{why}"
    msg = f"{subject}: column {wanted.name!r}: expected {wanted.type}, {found}; {remedy}"
    raise ContractError(msg)


def _widens(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a checked cast gives the same values or fails, and never rounds."""
    if pt.is_timestamp(found) and pt.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    families = (
        (pt.is_integer, pt.is_integer),
        (pt.is_integer, pt.is_decimal),
        (pt.is_integer, pt.is_float64),
        (pt.is_decimal, pt.is_decimal),
        (pt.is_float32, pt.is_float64),
        (_is_text, _is_text),
        (_is_bytes, _is_bytes),
    )
    return any(a(found) and b(wanted) for a, b in families)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind))
