"""SQLite types: what a column becomes, decided before the first row, and the strict reading of its values.

SQLite stores a type per value. The declared type decides what the column becomes, by SQLite's own rules for names after
those of booleans, dates and decimals; where it decides nothing, all values are looked at once, in the same snapshot. A
value that does not fit is refused, never changed. The README's table says what is what; a test holds it against files.

A cast replaces the declared type. Cast to text, integers and reals are written out in full, text stays, and a blob must
be UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.casts import number_text
from rivet_dagster.sources.description import decimal_type, schema_of
from rivet_dagster.sources.guards import Misfits, refused

__all__ = ["arrow_type_of", "batch_of", "column_array", "type_of_values"]

_NAMED = (
    (r"BOOL|BOOLEAN", pa.bool_()),
    (r"DATE", pa.date32()),
    (r"(DATETIME|TIMESTAMP)( ?\( ?\d ?\))?", pa.timestamp("us")),
)
# In SQLite's own order.
_AFFINITIES = (
    (r"INT", pa.int64()),
    (r"CHAR|CLOB|TEXT", pa.string()),
    (r"BLOB", pa.binary()),
    (r"REAL|FLOA|DOUB", pa.float64()),
)
_EXACT_DIGITS = 15
_EXACT_INTEGER = 2**53
_CLASSES = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


def arrow_type_of(declared: str) -> pa.DataType | None:
    """What a declared type becomes; `None` where only the values can tell."""
    name = " ".join(declared.upper().split())
    for pattern, arrow in _NAMED:
        if re.fullmatch(pattern, name):
            return arrow
    if match := re.fullmatch(r"(?:DECIMAL|NUMERIC) ?\( ?(\d+) ?(?:, ?(\d+) ?)?\)", name):
        return decimal_type(int(match.group(1)), int(match.group(2) or 0))
    return next((arrow for pattern, arrow in _AFFINITIES if re.search(pattern, name)), None)


def type_of_values(column: str, classes: set[str], declared: str) -> pa.DataType:
    """What a column becomes whose values alone can tell.

    Args:
        column: its name.
        classes: SQLite's `typeof` of all its values, without "null".
        declared: as declared, may be empty.

    Raises:
        SourceError: permanent, the values have nothing in common.
    """
    if classes <= {"integer", "real"} and classes:
        return pa.float64() if "real" in classes else pa.int64()
    if classes == {"blob"} or (not classes and declared.upper() == "BLOB"):
        return pa.binary()
    if classes <= {"text"}:
        return pa.string()
    raise refused(column, f"values of the storage classes {' and '.join(sorted(classes)).upper()} have no common type")


def column_array(column: str, values: Sequence[Any], arrow: pa.DataType, *, first_row: int, as_text: bool) -> pa.Array:
    """Values as SQLite stores them, as an array of the column's type.

    Args:
        column: its name.
        values: int, float, str, bytes or None.
        arrow: a type that this module chose.
        first_row: the position of the first value in the result, from 1.
        as_text: the column was cast to text.

    Raises:
        SourceError: permanent, naming column, row, storage class and remedy.
    """
    kinds = set(map(type, values)) - {type(None)}
    fits, convert = _reading(arrow, as_text=as_text)
    try:
        if kinds <= fits and convert is None:
            return pa.array(values, arrow)
        if kinds <= fits and arrow in {pa.date32(), pa.timestamp("us")}:
            return pa.array(values, pa.string()).cast(arrow)
        if kinds <= fits and convert is not None:
            return pa.array([None if value is None else convert(value) for value in values], arrow)
    except (ValueError, ArithmeticError, pa.ArrowInvalid):
        pass
    raise _first_misfit(column, values, arrow, first_row=first_row, as_text=as_text)


def _reading(arrow: pa.DataType, *, as_text: bool) -> tuple[frozenset[type], Callable[[Any], Any] | None]:
    """The Python types that may be read as an Arrow type, and how, where Arrow cannot do it by itself."""
    if as_text:
        return frozenset({int, float, str, bytes}), _text
    if pa.types.is_decimal(arrow):
        return frozenset({int, float, str}), _decimal
    table: dict[pa.DataType, tuple[frozenset[type], Callable[[Any], Any] | None]] = {
        pa.bool_(): (frozenset({int}), _boolean),
        pa.int64(): (frozenset({int}), None),
        pa.float64(): (frozenset({int, float}), _real),
        pa.string(): (frozenset({str}), None),
        pa.binary(): (frozenset({bytes}), None),
        pa.date32(): (frozenset({str}), _dated(arrow)),
        pa.timestamp("us"): (frozenset({str}), _dated(arrow)),
    }
    return table[arrow]


def _first_misfit(
    column: str, values: Sequence[Any], arrow: pa.DataType, *, first_row: int, as_text: bool
) -> SourceError:
    fits, convert = _reading(arrow, as_text=as_text)
    for row, value in enumerate(values, first_row):
        if value is None:
            continue
        try:
            if type(value) in fits:
                pa.array([value if convert is None else convert(value)], arrow)
                continue
        except (ValueError, ArithmeticError, pa.ArrowInvalid):
            pass
        found = f"row {row} holds a value of storage class {_CLASSES[type(value)]} that is no {arrow}"
        if as_text:
            return refused(column, found, remedy="read a BLOB as it is, or as hex(…) in a query")
        return refused(column, found)
    return refused(column, f"rows from {first_row} on cannot be read as {arrow}")


def _text(value: float | str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode()
    # SQLite's own cast keeps 15 digits of a real; `repr` keeps them all.
    return value if isinstance(value, str) else repr(value)


def _boolean(value: int) -> bool:
    if value not in {0, 1}:
        raise ValueError
    return value == 1


def _real(value: float) -> float:
    if isinstance(value, int) and abs(value) > _EXACT_INTEGER:
        raise ValueError
    return float(value)


def _dated(arrow: pa.DataType) -> Callable[[str], Any]:
    return lambda value: pa.scalar(value, pa.string()).cast(arrow)


def _decimal(value: float | str) -> Decimal:
    # Of a real, the shortest text that reads back as it; beyond 15 digits several decimals share one real.
    exact = Decimal(repr(value) if isinstance(value, float) else number_text(str(value)))
    if not exact.is_finite() or (isinstance(value, float) and len(exact.normalize().as_tuple().digits) > _EXACT_DIGITS):
        raise ValueError
    return exact


def batch_of(
    rows: list[tuple[Any, ...]], columns: tuple[ResultColumn, ...], query: Query, misfits: Misfits, *, first_row: int
) -> pa.RecordBatch:
    """Rows as they were fetched, as a batch.

    Raises:
        SourceError: a value is none that its column can hold.
    """
    arrays = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        as_text = column.name in query.casts and column.arrow_type == pa.string()
        read = partial(column_array, column.name, arrow=column.arrow_type, first_row=first_row, as_text=as_text)
        arrays.append(misfits.temporal(column.name, misfits.converted(column.name, values, read)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
