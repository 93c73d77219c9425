"""MySQL and MariaDB types: what each becomes, and what it may be cast to. Pure.

The README's table says what each becomes; a test holds it against the server. tinyint(1) holds -128 to 127 and is no
boolean; float and double are as they are stored and not as they are printed; an expression that is always NULL is a
string. Characters without a form in UTF-8 are refused.

A cast is made here, exactly or not at all: everything may be cast to text, which is what the database itself shows (a
float is its shortest text, bytes must be UTF-8); numbers and text to bigint, bigint unsigned, double, decimal(p, s) and
boolean (0 and 1); text to date, time, datetime and timestamptz; text and geometry to binary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rivet_dagster.errors import ConfigError
from rivet_dagster.sources.casts import cast_type
from rivet_dagster.sources.description import decimal_type
from rivet_dagster.sources.guards import refused

__all__ = ["ColumnPlan", "WireColumn", "plan_column"]

_UNSIGNED, _ZEROFILL, _ENUM, _SET = 32, 64, 256, 2048
_BINARY_CHARSET = 63
_DATE_BYTES, _TIME_BYTES = 11, 12

Shape = np.dtype[Any] | int | None

_DECIMALS = frozenset({0, 246})
_BIT, _GEOMETRY = 16, 255
_INTEGERS = {1: ("tinyint", 1), 2: ("smallint", 2), 3: ("int", 4), 9: ("mediumint", 4), 8: ("bigint", 8)}
_TEXTS = {
    15: "char",
    253: "char",
    254: "char",
    247: "enum",
    248: "set",
    249: "text",
    250: "text",
    251: "text",
    252: "text",
}
_SIMPLE: dict[int, tuple[str, Shape, pa.DataType]] = {
    4: ("float", np.dtype("<f4"), pa.float32()),
    5: ("double", np.dtype("<f8"), pa.float64()),
    6: ("null", None, pa.string()),
    7: ("timestamp", _DATE_BYTES, pa.timestamp("us", tz="UTC")),
    10: ("date", _DATE_BYTES, pa.date32()),
    11: ("time", _TIME_BYTES, pa.time64("us")),
    12: ("datetime", _DATE_BYTES, pa.timestamp("us")),
    13: ("year", np.dtype("<u2"), pa.uint16()),
    14: ("date", _DATE_BYTES, pa.date32()),
    245: ("json", None, pa.string()),
    _GEOMETRY: ("geometry", None, pa.binary()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireColumn:
    """One column as the server describes it: the protocol's numbers."""

    name: str
    code: int
    charset: int
    flags: int
    length: int
    scale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """How one column travels and what it becomes.

    Attributes:
        source_type: the database's name of its type.
        shape: how its values travel, for `mysql_wire.decode`.
        natural: the Arrow type that holds all its values exactly.
        exported_as: the same, or what it is cast to.
        digits: how many an integer's text has at least: the database shows it with zeros in front.
    """

    source_type: str
    shape: Shape
    natural: pa.DataType
    exported_as: pa.DataType
    digits: int = 0


def plan_column(column: WireColumn, cast: str | None) -> ColumnPlan:
    """Decide for one column.

    Raises:
        ConfigError: there is no such cast, or not from this type.
        SourceError: permanent, the type cannot be exported as it is.
    """
    source_type, shape, natural = _natural(column)
    if cast is None:
        if column.code == _GEOMETRY:
            raise refused(
                column.name,
                "a geometry has no type in Parquet or CSV",
                remedy="select ST_AsText(…) or ST_AsBinary(…), or remove the column",
            )
        return ColumnPlan(source_type=source_type, shape=shape, natural=natural, exported_as=natural)
    wanted = cast_type(column.name, cast)
    if not _may_become(natural, wanted, geometry=column.code == _GEOMETRY):
        raise ConfigError(
            f"column {column.name!r}: {source_type} cannot be cast to {cast!r} exactly; cast it to text, or in a query"
        )
    # The year 0 is 0000, too.
    digits = column.length if column.flags & _ZEROFILL and pa.types.is_integer(natural) else 0
    return ColumnPlan(source_type=source_type, shape=shape, natural=natural, exported_as=wanted, digits=digits)


def _natural(column: WireColumn) -> tuple[str, Shape, pa.DataType]:
    code, unsigned = column.code, bool(column.flags & _UNSIGNED)
    if code in _SIMPLE:
        return _SIMPLE[code]
    if code in _INTEGERS:
        name, size = _INTEGERS[code]
        shape = np.dtype(f"<{'u' if unsigned else 'i'}{size}")
        return f"{name} unsigned" if unsigned else name, shape, pa.from_numpy_dtype(shape)
    if code in _DECIMALS:
        return _decimal(column, unsigned=unsigned)
    if code == _BIT:
        return f"bit({column.length})", None, pa.uint64()
    if code not in _TEXTS:
        raise refused(column.name, f"its type (number {code} of the protocol) is not known")
    if column.charset == _BINARY_CHARSET:
        return "binary", None, pa.binary()
    name = "enum" if column.flags & _ENUM else "set" if column.flags & _SET else _TEXTS[code]
    return name, None, pa.string()


def _decimal(column: WireColumn, *, unsigned: bool) -> tuple[str, None, pa.DataType]:
    # The length counts the sign and the point.
    precision = column.length - (not unsigned) - (column.scale > 0)
    arrow = decimal_type(precision, column.scale)
    if arrow is None:
        return "decimal", None, pa.string()
    return f"decimal({precision},{column.scale})", None, arrow


def _may_become(natural: pa.DataType, wanted: pa.DataType, *, geometry: bool) -> bool:
    kinds = pa.types
    if geometry:
        return bool(wanted == pa.binary())
    if wanted in {pa.string(), natural}:
        return True
    if wanted == pa.binary() or kinds.is_temporal(wanted):
        return bool(natural == pa.string())
    if wanted == pa.bool_():
        return bool(kinds.is_integer(natural))
    if wanted == pa.float64():
        return bool(natural == pa.string() or kinds.is_integer(natural) or kinds.is_floating(natural))
    return bool(natural == pa.string() or kinds.is_integer(natural) or kinds.is_decimal(natural))
