"""The columns of a dataset: names that can be told apart, types that its format can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from rivet_dagster.errors import ConfigError, ContractError
from rivet_dagster.exports.buffers import valid_of, values_of
from rivet_dagster.exports.csv import writable_as_text
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.plan import Diagnostic, Level, format_findings, reject

__all__ = ["as_plain", "conform", "name_check", "plain_schema", "plain_type", "type_check"]

_PLAIN_SCALARS = {
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time32("ms"),
}


def name_check(names: Sequence[str], *, subject: str) -> None:
    """Refuse what would lose columns, or readers would have to name.

    Raises:
        ConfigError: there is no column, a name is used twice, or one is empty or no text that UTF-8 can hold.
    """
    if not names:
        msg = f"{subject}: expected at least one column, found none"
        raise ConfigError(msg)
    if "" in names:
        msg = f"{subject}: expected a name for each column, found none for column {list(names).index('') + 1}; name it"
        raise ConfigError(msg)
    broken = [name for name in names if name.encode(errors="replace").decode() != name]
    if broken:
        msg = f"{subject}: expected names that UTF-8 can hold, found {', '.join(map(repr, broken))}; rename them"
        raise ConfigError(msg)
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        listed = ", ".join(repr(name) for name in twice)
        msg = f"{subject}: expected each column name once, found more than one column {listed}; give them other names"
        raise ConfigError(msg)


def type_check(schema: pa.Schema, *, format: Parquet | Csv, subject: str) -> None:  # noqa: A002 (the setting's name)
    """Refuse, before the first row, columns that the format cannot hold, and a format that cannot be.

    Raises:
        ConfigError: a struct has two fields of one name.
        PlanRejected: with one diagnostic for each finding.
    """
    for field in schema:
        _field_check(field, where=f"{subject}: column {field.name!r}")
    csv = isinstance(format, Csv)
    remedy = f'read it as text (columns={{"…": cast("text")}}) or convert it{"; or use Parquet" if csv else ""}'
    holds = writable_as_text if csv else _writable_as_parquet
    unfit = (
        Diagnostic(
            level=Level.REJECTED,
            rule=f"{format.kind}-column-type",
            subject=subject,
            message=f"column {field.name!r} is {field.type}, which {'CSV' if csv else 'Parquet'} cannot hold",
            remedy=remedy.replace("…", field.name),
        )
        for field in schema
        if not holds(field.type)
    )
    reject([*format_findings(format, subject=subject), *unfit])


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as it is written: no metadata, and no type that is only another way to store the same values."""
    return pa.schema([pa.field(f.name, plain_type(f.type), nullable=f.nullable) for f in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values as it is written: no dictionary, no run lengths, no views, no type of few readers.

    Whole seconds become milliseconds, because Parquet has none.
    """
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([f.with_type(plain_type(f.type)) for f in kind])
    if pt.is_map(kind):
        return pa.map_(plain_type(kind.key_type), kind.item_field.with_type(plain_type(kind.item_type)))
    if pt.is_nested(kind) and hasattr(kind, "value_field"):
        # What Parquet calls it, so that a reader finds the type by the very name that was said.
        element = pa.field("element", plain_type(kind.value_type), nullable=kind.value_field.nullable)
        return _plain_list(kind, element)
    return _plain_scalar(kind)


def as_plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The same values as they are written; `wanted` is what `plain_type` says of the array's type.

    Raises:
        pa.ArrowException: a value is none of the plain type, or Arrow cannot convert how it is stored.
    """
    return _decoded(array).cast(wanted)


def conform(batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, subject: str) -> Iterable[pa.RecordBatch]:
    """Pass on batches as exactly `schema`.

    Raises:
        ContractError: a batch has other columns or types, or NULL in a column that has none; names the column.
    """
    return (_conformed(batch, schema, subject) for batch in batches)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, subject: str) -> pa.RecordBatch:
    if batch.schema.names != schema.names:
        msg = f"{subject}: expected the columns {schema.names}, found a batch with {batch.schema.names}"
        raise ContractError(msg)
    arrays = []
    for field, array in zip(schema, batch.columns, strict=True):
        if array.type != field.type:
            if plain_type(array.type) != field.type:
                msg = f"{subject}: column {field.name!r}: expected {field.type}, found a batch with {array.type}"
                raise ContractError(msg)
            array = _same_values(array, field, subject)  # noqa: PLW2901 (the same column)
        if array.null_count and not field.nullable:
            msg = f"{subject}: column {field.name!r}: expected no NULL as described, found {array.null_count}"
            raise ContractError(msg)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _field_check(field: pa.Field, *, where: str) -> None:
    inner = [field.type.field(i) for i in range(field.type.num_fields)]
    if inner and pt.is_struct(field.type):
        name_check([f.name for f in inner], subject=where)
    for f in inner:
        _field_check(f, where=where)


def _same_values(array: pa.Array, field: pa.Field, subject: str) -> pa.Array:
    try:
        return as_plain(array, field.type)
    except pa.ArrowException as e:
        msg = f"{subject}: column {field.name!r}: a value of {array.type} is none of {field.type} ({e})"
        raise ContractError(msg) from e


def _decoded(array: Any) -> pa.Array:
    kind = array.type
    if pt.is_run_end_encoded(kind):
        return _decoded(pc.run_end_decode(array))
    if pt.is_dictionary(kind):
        return _decoded(array.dictionary_decode())
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return _lists_of(array)
    if _has_views(kind):
        msg = f"Arrow converts no lists within {kind} that are views of others; convert them to lists before"
        raise pa.ArrowInvalid(msg)
    return array


def _lists_of(views: Any) -> pa.Array:
    # Not by Arrow's cast, which takes the views for lists that lie one after the other.
    large = pt.is_large_list_view(views.type)
    valid = valid_of(views)
    sizes = np.where(valid, values_of(views.sizes, np.int64 if large else np.int32), 0)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    if not large and offsets[-1] > np.iinfo(np.int32).max:
        msg = f"{views.type} holds {offsets[-1]} elements in one batch, more than a list can; make batches shorter"
        raise pa.ArrowInvalid(msg)
    values = _decoded(views.flatten())
    field = views.type.value_field.with_type(values.type)
    kind = pa.large_list(field) if large else pa.list_(field)
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    starts = pa.py_buffer(offsets if large else offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(views), [validity, starts], children=[values])


def _has_views(kind: pa.DataType) -> bool:
    views = pt.is_list_view(kind) or pt.is_large_list_view(kind)
    return views or any(_has_views(kind.field(i).type) for i in range(kind.num_fields))


def _plain_scalar(kind: pa.DataType) -> pa.DataType:
    if pt.is_decimal32(kind) or pt.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return _PLAIN_SCALARS.get(kind, kind)


def _plain_list(kind: pa.DataType, element: pa.Field) -> pa.DataType:
    if pt.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    return pa.large_list(element) if pt.is_large_list(kind) or pt.is_large_list_view(kind) else pa.list_(element)


def _writable_as_parquet(kind: pa.DataType) -> bool:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([("c", kind)])).close()
    except (pa.ArrowException, OSError):
        return False
    return True
