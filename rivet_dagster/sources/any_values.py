"""Types and values of databases that only SQLAlchemy knows: declared, and never guessed from the first rows.

=====================================================  ==============================================================
SQLAlchemy's reflected type of a table's column        Arrow, and what the driver may deliver for it
=====================================================  ==============================================================
Boolean                                                bool: booleans, 0 and 1
Integer and its kinds                                  int64, unsigned uint64: whole numbers
Float, Double                                          double: floats, and integers up to 2^53
Numeric(p, s)                                          decimal128 or decimal256: decimals and integers
Numeric                                                string
String, Text, Enum, Uuid                               string
LargeBinary                                            binary: bytes
Date, Time                                             date32, time64[us]: dates and times, or their ISO text
DateTime, with timezone=True                           timestamp[us], timestamp[us, UTC]: instants with a zone, or none
every other type                                       refused, until a cast says what it is
=====================================================  ==============================================================

The columns of a query are what the driver's description says, where it names Python types; else they are text: numbers
with all their digits, dates and times in ISO form, true and false. Bytes are no text: they need a cast to binary. A
cast replaces the type; a value that does not fit is refused, never changed.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from rivet_dagster.sources.casts import number_text, text_as
from rivet_dagster.sources.description import decimal_type
from rivet_dagster.sources.guards import check_temporal, holds_temporal, refused

__all__ = ["column_array", "described_type", "reflected_type", "selected_as"]

_EXACT_INTEGER = 2**53
_ZONED = pa.timestamp("us", tz="UTC")


def reflected_type(kind: Any) -> pa.DataType | None:
    """What a reflected SQLAlchemy type becomes; `None` where only a cast can say."""
    from sqlalchemy import types

    if isinstance(kind, types.Numeric) and not isinstance(kind, types.Float):
        return pa.string() if kind.precision is None else decimal_type(kind.precision, kind.scale or 0)
    if isinstance(kind, types.DateTime):
        return _ZONED if kind.timezone else pa.timestamp("us")
    if isinstance(kind, types.Integer):
        return pa.uint64() if getattr(kind, "unsigned", False) else pa.int64()
    simple: tuple[tuple[type, pa.DataType], ...] = (
        (types.Boolean, pa.bool_()),
        (types.Float, pa.float64()),
        (types.String, pa.string()),
        (types.Uuid, pa.string()),
        (types.LargeBinary, pa.binary()),
        (types.BINARY, pa.binary()),
        (types.VARBINARY, pa.binary()),
        (types.Date, pa.date32()),
        (types.Time, pa.time64("us")),
    )
    return next((arrow for known, arrow in simple if isinstance(kind, known)), None)


def selected_as(name: str, kind: Any, engine: str) -> str:
    """SQL for a table's column, so that its driver cannot deliver another value than the database has."""
    from sqlalchemy import types

    if engine not in {"mysql", "mariadb"}:
        return name
    if isinstance(kind, (types.Date, types.DateTime)):
        # For a date in no calendar drivers give NULL.
        return f"CAST({name} AS CHAR) AS {name}"
    # Six digits are sent of a float, and all of a double.
    return f"{name} * 1e0 AS {name}" if isinstance(kind, types.FLOAT) else name


def described_type(description: Sequence[Any]) -> pa.DataType:
    """What a column of a query becomes, from one line of a cursor's description."""
    code = description[1]
    if code is Decimal:
        precision, scale = description[4], description[5]
        return (precision and decimal_type(precision, scale or 0)) or pa.string()
    known: dict[Any, pa.DataType] = {
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        bytes: pa.binary(),
        bytearray: pa.binary(),
        dt.date: pa.date32(),
        dt.datetime: pa.timestamp("us"),
        dt.time: pa.time64("us"),
    }
    return known.get(code, pa.string()) if isinstance(code, type) else pa.string()


def column_array(column: str, values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    """Values as a driver delivers them, as an array of the column's type.

    Raises:
        SourceError: permanent, naming the column, the kind of the first value that does not fit, and the remedy.
    """
    convert = _reading(arrow)
    converted = []
    for value in values:
        try:
            converted.append(None if value is None else convert(value))
        except (TypeError, ValueError, ArithmeticError, pa.ArrowInvalid):
            raise _misfit(column, value, arrow) from None
    try:
        array = pa.array(converted, arrow)
    except (ValueError, TypeError, OverflowError, pa.ArrowInvalid):
        raise refused(column, f"a value does not fit {arrow}") from None
    if holds_temporal(arrow):
        check_temporal(column, array)
    return array


def _misfit(column: str, value: object, arrow: pa.DataType) -> Exception:
    kind = type(value).__name__
    if arrow == pa.string():
        return refused(
            column,
            f"a value of the driver's type {kind} is no text",
            remedy=f'set columns={{"{column}": rd.cast("binary")}} for bytes, cast it to text in a query',
        )
    return refused(column, f"a value of the driver's type {kind} is no {arrow}")


def _reading(arrow: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_decimal(arrow):
        return _decimal
    table: dict[pa.DataType, Callable[[Any], Any]] = {
        pa.bool_(): _boolean,
        pa.int64(): _integer,
        pa.uint64(): _integer,
        pa.float64(): _real,
        pa.string(): _text,
        pa.binary(): _bytes,
        pa.date32(): _moment(arrow, dt.date),
        pa.time64("us"): _moment(arrow, dt.time),
        pa.timestamp("us"): _moment(arrow, dt.datetime),
        _ZONED: _instant,
    }
    return table[arrow]


def _boolean(value: object) -> bool:
    if value not in {0, 1} or not isinstance(value, int):
        raise ValueError
    return value == 1


def _integer(value: object) -> int:
    if isinstance(value, str):
        return int(number_text(value))
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or int(value) != value:
        raise ValueError
    return int(value)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    if isinstance(value, int) and abs(value) > _EXACT_INTEGER:
        raise ValueError
    return float(number_text(value) if isinstance(value, str) else value)


def _decimal(value: object) -> Decimal:
    # A float has lost what the database held.
    if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
        raise TypeError
    exact = Decimal(number_text(value) if isinstance(value, str) else value)
    if not exact.is_finite():
        raise ValueError
    return exact


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, float):
        return repr(float(value))
    if not isinstance(value, (str, int, dt.date, dt.time, uuid.UUID)):
        raise TypeError
    return value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)


def _bytes(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError
    return bytes(value)


def _moment(arrow: pa.DataType, kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, str):
            return text_as(pa.array([value], pa.string()), arrow)[0]
        # A datetime is a date to Python.
        if type(value) is not kind or getattr(value, "tzinfo", None) is not None:
            raise TypeError
        return value

    return convert


def _instant(value: object) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise TypeError
    return value.astimezone(dt.timezone.utc)
