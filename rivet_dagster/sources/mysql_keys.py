"""MySQL and MariaDB keys: their values as literals, the predicate of a range, and the walk over an index.

A key's columns are integers, decimals, text, bytes of limited length, uuid, date, datetime or timestamp. Text is
compared by the server in the column's own collation, which also decides what is unique; a boundary is written in it, so
no row is in two ranges or in none, whatever the collation calls equal. Instants are in UTC, as the session's zone is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Key, KeyRange, Query
from rivet_dagster.sources.mysql_catalog import BYTES, INTEGERS, TEXTS, Rows, Table, backquoted, from_clause
from rivet_dagster.sources.ranges import (
    KeyColumn,
    check_rows,
    checked_key,
    compared_column_by_column,
    divided,
    values_of,
    wrong_value,
)

__all__ = ["boundaries", "range_text"]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def range_text(query: Query, table: Table) -> str:
    """The select statement of a range, along its key's index.

    Raises:
        ConfigError: the catalog does not vouch for the key, or a value is not of its column's kind.
    """
    if query.within is None:
        return f"SELECT * FROM {from_clause(query)}"
    key = checked_key(table.relation, query.within.key.columns, query)
    condition = _range_condition(table, query.within)
    text = f"SELECT * FROM {from_clause(query, table.indexes[key.columns])}"
    return f"{text} WHERE {condition}" if condition else text


def _range_condition(table: Table, within: KeyRange) -> str:
    """SQL that is true for the rows of a range of `r`; empty for the range of all rows."""
    names = [f"r.{backquoted(name)}" for name in within.key.columns]
    conditions = []
    for operator, bound in ((">=", within.low), ("<", within.high)):
        if bound is not None:
            pairs = zip(within.key.columns, values_of(within, bound), strict=True)
            values = [_literal(table, table.relation.columns[name], value) for name, value in pairs]
            # Comparing rows, the server would begin to read at the first row of the table.
            conditions.append(compared_column_by_column(names, operator, values))
    return " AND ".join(conditions)


def boundaries(query: Query, table: Table, key: Key, *, rows: int, run: Rows) -> Iterator[tuple[Any, ...]]:
    """The first key of the second range, of the third, and so on, each by one statement over the key's index.

    Raises:
        ConfigError: `rows` is less than one.
        SourceError: a boundary has no exact literal, or the server failed.
    """
    check_rows(rows)
    names = ", ".join(f"r.{backquoted(name)}" for name in key.columns)
    sent = ", ".join(_sent(table, name) for name in key.columns)
    source = from_clause(query, table.indexes[key.columns])
    inside = divided(query, key)
    last = inside.low
    while True:
        condition = _range_condition(table, replace(inside, low=last))
        where = f" WHERE {condition}" if condition else ""
        found = run(f"SELECT {sent} FROM {source}{where} ORDER BY {names} LIMIT {rows}, 1")
        if not found:
            return
        last = tuple(_value(table, name, value) for name, value in zip(key.columns, found[0], strict=True))
        yield last


def _sent(table: Table, name: str) -> str:
    column = f"r.{backquoted(name)}"
    # As text, bytes that are not ASCII would come as question marks, and the walk would begin again at those.
    return f"CAST({column} AS BINARY)" if table.collations.get(name, ("",))[0] == "ascii" else column


def _value(table: Table, name: str, value: Any) -> Any:
    column = table.relation.columns[name]
    if isinstance(value, bytes) and column.type_name in TEXTS:
        try:
            value = value.decode("ascii")
        except UnicodeDecodeError:
            raise SourceError(
                f"key column {name!r}: a value between two ranges is declared as ASCII and holds other bytes; correct "
                "the text, or choose another key"
            ) from None
    if column.type_name == "timestamp" and isinstance(value, datetime):
        value = value.replace(tzinfo=timezone.utc)
    try:
        _literal(table, column, value)
    except ConfigError:
        raise SourceError(
            f"key column {name!r}: a value between two ranges is no date of the calendar; choose another key"
        ) from None
    return value


def _literal(table: Table, column: KeyColumn, value: object) -> str:
    """A value of a key column in SQL: exact, and compared as the column is.

    Raises:
        ConfigError: it is not of the column's kind.
    """
    kind = column.type_name
    text: str | None = None
    if kind in INTEGERS:
        expected, text = _integer(kind, value, unsigned=column.name in table.unsigned)
    elif kind in TEXTS:
        charset, collation = table.collations[column.name]
        expected = "str"
        if isinstance(value, str):
            text = f"CONVERT(_utf8mb4 X'{value.encode().hex()}' USING {charset}) COLLATE {collation}"
    elif kind in BYTES:
        expected, text = "bytes", f"X'{value.hex()}'" if isinstance(value, bytes) else None
    elif kind == "uuid":
        expected = "a uuid as str"
        text = f"CAST('{value}' AS UUID)" if isinstance(value, str) and _UUID.fullmatch(value) else None
    elif kind == "decimal":
        expected = "a finite Decimal"
        text = format(value, "f") if isinstance(value, Decimal) and value.is_finite() else None
    else:
        expected, text = _moment(kind, value)
    if text is None:
        raise wrong_value(column, value, expected)
    return text


def _integer(kind: str, value: object, *, unsigned: bool) -> tuple[str, str | None]:
    bits = INTEGERS[kind]
    low, high = (0, 2**bits) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    fits = isinstance(value, int) and not isinstance(value, bool) and low <= value < high
    return f"int from {low} to {high - 1}", str(value) if fits else None


def _moment(kind: str, value: object) -> tuple[str, str | None]:
    if kind == "date":
        return "date", f"DATE '{value}'" if isinstance(value, date) and not isinstance(value, datetime) else None
    aware = kind == "timestamp"
    expected = "datetime with zone" if aware else "datetime without zone"
    if not isinstance(value, datetime) or (value.tzinfo is not None) is not aware:
        return expected, None
    naive = value.astimezone(timezone.utc).replace(tzinfo=None) if aware else value
    return expected, f"TIMESTAMP '{naive.isoformat(sep=' ')}'"
