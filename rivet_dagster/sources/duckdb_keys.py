"""DuckDB keys: what PRIMARY KEY and UNIQUE vouch for, key values as literals, and where ranges end.

A key's columns are integers of at most 64 bits, VARCHAR, UUID, DATE, TIMESTAMP (not in nanoseconds), TIMESTAMP WITH
TIME ZONE or DECIMAL. Values travel as literals, each quoted and cast to its column's own type: a result with parameters
would be computed whole before its first row leaves.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Key, KeyRange, Query
from rivet_dagster.sources.description import quoted, split_name, table_text, what_is_read
from rivet_dagster.sources.ranges import (
    KeyColumn,
    Relation,
    UniqueIndex,
    check_rows,
    compared_column_by_column,
    divided,
    no_catalog,
    values_of,
    wrong_value,
)

__all__ = ["Rows", "boundaries", "estimated_rows", "literal", "range_condition", "relation_of"]

Rows = Callable[[str], list[dict[str, Any]]]
"""All rows of a small statement."""

_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"})
_NAIVE = frozenset({"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"})
_AWARE = "TIMESTAMP WITH TIME ZONE"
_TEMPORAL = _NAIVE | {"DATE", _AWARE}
_EXACT = _INTEGERS | _TEMPORAL | {"VARCHAR", "UUID"}
_COLLATION = re.compile(r"\bCOLLATE\b", re.IGNORECASE)


def relation_of(query: Query, rows: Rows) -> Relation:
    """What the catalog says about the table of a query.

    Raises:
        ConfigError: the query is no table.
        SourceError: permanent, there is no such table.
    """
    named = _named(query)
    columns = rows(
        f"SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE {named} ORDER BY column_index"
    )
    if not columns:
        raise SourceError(f"{what_is_read(query)}: there is no such table; check schema and name")
    tables = rows(f"SELECT sql FROM duckdb_tables() WHERE {named}")
    found = rows(
        "SELECT constraint_type AS kind, constraint_column_names AS columns FROM duckdb_constraints() "
        f"WHERE {named} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') "
        "ORDER BY constraint_type, len(constraint_column_names), constraint_index"
    )
    # The catalog does not say which column a collation is of.
    collated = any(_COLLATION.search(table["sql"] or "") for table in tables)
    return Relation(
        columns={
            row["column_name"]: _column(row["column_name"], row["data_type"], row["is_nullable"], collated=collated)
            for row in columns
        },
        indexes=tuple(
            UniqueIndex(
                name="its primary key" if row["kind"] == "PRIMARY KEY" else f"UNIQUE ({', '.join(row['columns'])})",
                columns=tuple(row["columns"]),
            )
            for row in found
        ),
        obstacle=None if tables else "it is a view, and nothing vouches for what a view returns",
    )


def estimated_rows(query: Query, rows: Rows) -> int | None:
    """How many rows the catalog counts in the table of a query; `None` for a view."""
    found = rows(f"SELECT estimated_size AS rows FROM duckdb_tables() WHERE {_named(query)}")
    return int(found[0]["rows"]) if found else None


def _named(query: Query) -> str:
    """SQL that is true for the catalog's rows about the table of a query."""
    if query.table is None:
        raise no_catalog(query)
    *outer, table = (f"lower({_text_literal(part)})" for part in split_name(query.table, most=3, fold=False))
    ours = "database_name = current_database()"
    match outer:
        case [catalog, schema]:
            place = f"lower(database_name) = {catalog} AND lower(schema_name) = {schema}"
        case [either]:
            place = (
                f"(({ours} AND lower(schema_name) = {either})"
                f" OR (lower(database_name) = {either} AND schema_name = 'main'))"
            )
        case _:
            place = f"{ours} AND schema_name = current_schema()"
    return f"{place} AND lower(table_name) = {table}"


def _column(name: str, kind: str, nullable: object, *, collated: bool) -> KeyColumn:
    obstacle = None
    if kind not in _EXACT and not kind.startswith("DECIMAL("):
        obstacle = (
            "a key is of integers up to 64 bits, VARCHAR, UUID, DATE, TIMESTAMP or DECIMAL, which are compared exactly"
        )
    elif kind == "VARCHAR" and collated:
        obstacle = "its table declares a collation, which may call different texts equal"
    return KeyColumn(name=name, type_name=kind, nullable=bool(nullable), obstacle=obstacle)


def _text_literal(value: str) -> str:
    # Not every DuckDB reads on behind a NUL in the SQL text.
    pieces = ["'" + piece.replace("'", "''") + "'" for piece in value.split("\0")]
    return pieces[0] if len(pieces) == 1 else f"({' || chr(0) || '.join(pieces)})"


def literal(column: KeyColumn, value: object) -> str:
    """A key value as a literal of its column's own type.

    Raises:
        ConfigError: the value is not of the column's kind.
    """
    kind = column.type_name
    text: str | None = None
    if kind in _INTEGERS:
        expected = "int"
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else None
    elif kind == "VARCHAR":
        expected = "str"
        text = value if isinstance(value, str) else None
    elif kind == "UUID":
        expected = "a uuid as str"
        text = _uuid(value)
    elif kind == "DATE":
        expected = "date"
        text = value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else None
    elif kind in _NAIVE:
        expected = "datetime without zone"
        text = value.isoformat(sep=" ") if isinstance(value, datetime) and value.tzinfo is None else None
    elif kind == _AWARE:
        expected = "datetime with zone"
        aware = isinstance(value, datetime) and value.tzinfo is not None
        text = value.astimezone(timezone.utc).isoformat(sep=" ") if aware and isinstance(value, datetime) else None
    else:
        expected = "a finite Decimal"
        text = f"{value:f}" if isinstance(value, Decimal) and value.is_finite() else None
    if text is None:
        raise wrong_value(column, value, expected)
    return f"{_text_literal(text)}::{kind}"


def _uuid(value: object) -> str | None:
    try:
        return str(uuid.UUID(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def range_condition(relation: Relation, within: KeyRange, *, alias: str) -> str:
    """SQL that is true for the rows of a range; empty for the range of all rows.

    Raises:
        ConfigError: a value is not of its column's kind.
    """
    columns = [f"{alias}.{quoted(name)}" for name in within.key.columns]
    conditions = []
    for operator, bound in ((">=", within.low), ("<", within.high)):
        if bound is not None:
            pairs = zip(within.key.columns, values_of(within, bound), strict=True)
            values = [literal(relation.columns[name], value) for name, value in pairs]
            conditions.append(compared_column_by_column(columns, operator, values))
    return " AND ".join(conditions)


def boundaries(query: Query, relation: Relation, key: Key, *, rows: int, run: Rows) -> Iterator[tuple[Any, ...]]:
    """The first key of the second range, of the third, and so on.

    All are found by one statement: DuckDB cannot walk along an index, and sorts the keys once instead of once for each.

    Raises:
        ConfigError: `rows` is less than one.
        SourceError: a boundary has no exact literal, or DuckDB failed.
    """
    check_rows(rows)
    columns = [relation.columns[name] for name in key.columns]
    names = [f"r.{quoted(column.name)}" for column in columns]
    sent = [f"{_sent(column, name)} AS k{i}" for i, (column, name) in enumerate(zip(columns, names, strict=True))]
    order = ", ".join(f"{name} ASC" for name in names)
    table = table_text(query, most=3, fold=False)
    condition = range_condition(relation, divided(query, key), alias="r")
    some = f"{table} AS r{f' WHERE {condition}' if condition else ''}"
    numbered = f"SELECT {', '.join(sent)}, row_number() OVER (ORDER BY {order}) - 1 AS n FROM {some}"
    for found in run(f"SELECT * FROM ({numbered}) WHERE n > 0 AND n % {rows} = 0 ORDER BY n ASC"):
        values = tuple(found[f"k{i}"] for i in range(len(columns)))
        for column, value in zip(columns, values, strict=True):
            _check(column, value)
        yield values


def _sent(column: KeyColumn, name: str) -> str:
    if column.type_name in _TEMPORAL:
        # Instants that have no date in the calendar, as NULL.
        kind = column.type_name
        return f"CASE WHEN {name} >= '0001-01-01'::{kind} AND {name} < '10000-01-01'::{kind} THEN {name} END"
    return f"{name}::VARCHAR" if column.type_name == "UUID" else name


def _check(column: KeyColumn, value: object) -> None:
    try:
        literal(column, value)
    except ConfigError:
        raise SourceError(
            f"key column {column.name!r}: a value between two ranges is infinite, or outside the years 1 to 9999; "
            "choose another key"
        ) from None
