"""PostgreSQL types: how each travels, what it becomes, and which values are refused. Pure.

The README's table says what each becomes; a test holds it against the server. Three ways lead there: as the driver has
it, where it has it exactly; as the text of a number that becomes one here, which is faster and keeps every digit; as
PostgreSQL's own text, for all other types, with ISO dates, UTC and ISO 8601 intervals. A domain is what it is made
from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.sources.description import decimal_type

__all__ = ["ColumnPlan", "numeric_limits", "plan_column", "type_name", "unnamed_oid"]

# What a type modifier is raised by, so that none at all is told from zero.
_MODIFIER_BASE = 4

_NATIVE = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_TEXT_ELEMENTS = frozenset({"numeric", "uuid", "oid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """How one column travels and what it becomes.

    Attributes:
        expression: what is selected for it.
        travels_as: the Arrow type that the driver must deliver.
        arrives_as: the Arrow type that is exported.
        refuse_if: SQL that is true for a value which the driver would change silently.
    """

    expression: str
    travels_as: pa.DataType
    arrives_as: pa.DataType
    refuse_if: str | None = None


def plan_column(column: str, field: pa.Field) -> ColumnPlan:
    """Decide for one column, from the driver's description of it.

    Args:
        column: SQL that names it.
        field: as the driver describes it.

    Raises:
        SourceError: it does not say what type it is.
    """
    name = _metadata(field, "type")
    if not name:
        raise SourceError(
            f"column {field.name!r}: expected the driver to name its type, found {field.type} without one; install "
            "adbc-driver-postgresql 1.13 or newer"
        )
    # A type of the same name in another schema is not the built-in one; the Arrow type tells them apart.
    if _NATIVE.get(name) == field.type:
        return ColumnPlan(expression=column, travels_as=field.type, arrives_as=field.type)
    # Its cast to text would add the mask of a single host, which PostgreSQL itself does not show.
    text = f"textin(inet_out({column}))" if name == "inet" else f"{column}::text"
    as_text = ColumnPlan(expression=text, travels_as=pa.string(), arrives_as=pa.string())
    if name == "oid" and field.type == pa.int32():
        return ColumnPlan(expression=f"{column}::int8", travels_as=pa.int64(), arrives_as=pa.int64())
    if name == "numeric":
        decimal = _decimal(field)
        return (
            as_text
            if decimal is None
            else ColumnPlan(expression=as_text.expression, travels_as=pa.string(), arrives_as=decimal)
        )
    if name.startswith("_") and pa.types.is_list(field.type):
        element = name[1:]
        # Silently flattened, or renumbered, by the driver.
        odd = f"array_ndims({column}) > 1 OR array_lower({column}, 1) <> 1"
        inner = _NATIVE.get(element)
        if inner is not None and inner == field.type.value_type:
            kind = pa.list_(inner)
            sent = column
        elif element in _TEXT_ELEMENTS:
            kind = pa.list_(pa.string())
            sent = f"{column}::text[]"
        else:
            return as_text
        return ColumnPlan(
            expression=f"CASE WHEN {odd} THEN NULL ELSE {sent} END", travels_as=kind, arrives_as=kind, refuse_if=odd
        )
    return as_text


def type_name(field: pa.Field) -> str:
    """PostgreSQL's name of a described type, with precision and scale where the driver knows them."""
    name = _metadata(field, "type")
    if limits := numeric_limits(field):
        return f"numeric({limits[0]},{limits[1]})"
    return f"{name[1:]}[]" if name.startswith("_") else name


def unnamed_oid(field: pa.Field) -> int | None:
    """The number of a type that the driver has no name for."""
    match = re.fullmatch(r"unnamed<oid:(\d+)>", _metadata(field, "type"))
    return int(match.group(1)) if match else None


def numeric_limits(field: pa.Field) -> tuple[int, int] | None:
    """Precision and scale of a described numeric; `None` where it has none."""
    modifier = int(_metadata(field, "typmod") or -1)
    if _metadata(field, "type") != "numeric" or modifier < _MODIFIER_BASE:
        return None
    # The layout of numeric's type modifier: precision in the upper half, scale as 11 signed bits in the lower.
    packed = modifier - _MODIFIER_BASE
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def _decimal(field: pa.Field) -> pa.DataType | None:
    limits = numeric_limits(field)
    if limits is None:
        return None
    precision, scale = limits
    # Parquet knows neither a negative scale nor one above the precision.
    if scale < 0:
        precision, scale = precision - scale, 0
    return decimal_type(max(precision, scale), scale)


def _metadata(field: pa.Field, key: str) -> str:
    metadata: dict[bytes, bytes] = field.metadata or {}
    return metadata.get(f"POSTGRESQL:{key}".encode(), b"").decode()
