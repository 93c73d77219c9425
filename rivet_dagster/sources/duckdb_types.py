"""DuckDB types: which travel as they are, and what the others are cast to in SQL, at any depth.

The README's table says what each becomes; a test holds it against files. Nested types stay nested. What Arrow or
Parquet have no exact type for is cast before it leaves: integers of 128 bits to DECIMAL(38, 0), where one of 39 digits
has no place, all others to DuckDB's own text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa

from rivet_dagster.sources.description import quoted

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

__all__ = ["exported_as", "may_fail", "plain"]

_AS_THEY_ARE = frozenset(
    {
        "boolean",
        "tinyint",
        "smallint",
        "integer",
        "bigint",
        "utinyint",
        "usmallint",
        "uinteger",
        "ubigint",
        "float",
        "double",
        "decimal",
        "varchar",
        "blob",
        "date",
        "time",
        "time_ns",
        "timestamp",
        "timestamp_ms",
        "timestamp_ns",
        "timestamp with time zone",
    }
)
_NESTED = frozenset({"list", "array", "struct", "map"})
_LARGEST = "DECIMAL(38,0)"
_CAST = {"hugeint": _LARGEST, "uhugeint": _LARGEST, "timestamp_s": "TIMESTAMP"}


def plain(arrow: pa.DataType) -> pa.DataType:
    """The type with Arrow's usual names for the elements of lists, which change from one DuckDB to the next."""
    if pa.types.is_map(arrow):
        return pa.map_(plain(arrow.key_type), plain(arrow.item_type))
    if pa.types.is_fixed_size_list(arrow):
        return pa.list_(plain(arrow.value_type), arrow.list_size)
    if pa.types.is_list(arrow):
        return pa.list_(plain(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, plain(field.type)) for field in arrow])
    return arrow


def exported_as(kind: DuckDBPyType) -> str | None:
    """The SQL type to cast to before the value leaves DuckDB; `None` where it can leave as it is."""
    if kind.id in _AS_THEY_ARE:
        return None
    if kind.id not in _NESTED:
        return _CAST.get(kind.id, "VARCHAR")
    parts = dict(kind.children)
    size = parts.pop("size", "") if kind.id == "array" else ""
    casts = {name: exported_as(cast("DuckDBPyType", part)) for name, part in parts.items()}
    if not any(casts.values()):
        return None
    inner = {name: casts[name] or str(part) for name, part in parts.items()}
    match kind.id:
        case "map":
            return f"MAP({inner['key']}, {inner['value']})"
        case "struct":
            return f"STRUCT({', '.join(f'{quoted(name)} {sql}' for name, sql in inner.items())})"
        case _:
            return f"{inner['child']}[{size}]"


def may_fail(cast_to: str | None) -> bool:
    """Whether `exported_as` gave a type that does not hold all values: not integers of 39 digits."""
    return cast_to is not None and _LARGEST in cast_to
