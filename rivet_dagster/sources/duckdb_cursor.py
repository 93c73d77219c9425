"""DuckDB cursors: what a term is. While a file is open to be read, DuckDB lets no other process write to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.description import query_text, what_is_read
from rivet_dagster.sources.duckdb_keys import Rows, literal, relation_of
from rivet_dagster.sources.ranges import KeyColumn
from rivet_dagster.sources.terms import (
    COARSEST,
    counted_nulls,
    no_column,
    no_cursor,
    nulls_sql,
    relation_text,
    term_sql,
    top_sql,
)
from rivet_dagster.windows import Cursor, CursorKind, CursorTerm, Noted, Settling

__all__ = ["cursor_of", "note", "value_literal"]

_KINDS: dict[str, CursorKind] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"), "integer"),
    "UBIGINT": "integer",
    "TIMESTAMP WITH TIME ZONE": "instant",
    "TIMESTAMP": "naive",
    "TIMESTAMP_S": "naive",
    "TIMESTAMP_MS": "naive",
    "DATE": "date",
    "VARCHAR": "text",
    "UUID": "uuid",
}
_LITERALS: dict[CursorKind, str] = {
    "instant": "TIMESTAMP WITH TIME ZONE",
    "naive": "TIMESTAMP",
    "date": "DATE",
    "text": "VARCHAR",
    "uuid": "UUID",
}
_RESOLUTIONS = {"TIMESTAMP_S": timedelta(seconds=1), "TIMESTAMP_MS": timedelta(milliseconds=1)}


def cursor_of(query: Query, term: CursorTerm, rows: Rows, types: Callable[[str], dict[str, str]]) -> Cursor:
    """Describe a term.

    Args:
        query: whose rows it is over.
        term: the term.
        rows: runs a small statement.
        types: of the columns of a statement, by name.

    Raises:
        ConfigError: it is no column, or of a type that no window can be over.
    """
    text = query_text(query, most=3, fold=False)
    unique, nullable, finds_nulls, finest = False, True, False, COARSEST
    if query.table is not None and term.column is not None:
        relation = relation_of(query, rows)
        # Names that differ in case only are one name to DuckDB.
        named = {name.lower(): name for name in relation.columns}
        column = relation.columns.get(named.get(term.column.lower(), ""))
        if column is None:
            raise no_column(query, term.column, relation.columns)
        kind_name, nullable = column.type_name, column.nullable or relation.obstacle is not None
        if kind_name == "VARCHAR" and column.obstacle is not None:
            raise no_cursor(query, term, kind_name, column.obstacle)
        unique = relation.is_unique(column.name)
        # A column is stored by itself, and each piece of it says whether it has any.
        finds_nulls = relation.obstacle is None
        finest = timedelta(microseconds=1) if relation.obstacle is None else COARSEST
    else:
        if term.column is not None and term.column not in (known := types(text)):
            raise no_column(query, term.column, known)
        kind_name = types(f"SELECT {term_sql(term)} AS c FROM {relation_text(query, text)}")["c"]
    if kind_name not in _KINDS:
        raise no_cursor(query, term, kind_name)
    return Cursor(
        term=term,
        kind=_KINDS[kind_name],
        type_name=kind_name,
        resolution=_RESOLUTIONS.get(kind_name, finest),
        unique=unique,
        nullable=nullable,
        finds_nulls=finds_nulls,
    )


def value_literal(cursor: Cursor) -> Callable[[Any], str]:
    """What writes values of a cursor as literals of its own type."""
    kind = cursor.type_name if cursor.kind == "integer" else _LITERALS[cursor.kind]
    column = KeyColumn(name=cursor.term.shown, type_name=kind, nullable=False)
    # A count of time may be more than the column's own type holds.
    return str if cursor.kind == "integer" else lambda value: literal(column, value)


def note(query: Query, cursor: Cursor, asked: Settling, rows: Rows) -> Noted:
    """Note clock, greatest value and NULLs.

    Raises:
        SourceError: DuckDB failed.
    """
    relation, term = relation_text(query, query_text(query, most=3, fold=False)), term_sql(cursor.term)
    nulls = None
    if asked.nulls:
        nulls = counted_nulls(int(rows(nulls_sql(relation, term, asked))[0]["n"]), asked)
    top = None
    if asked.top:
        found = rows(top_sql(relation, term, f"{term}::VARCHAR" if cursor.kind == "uuid" else term))
        top = found[0]["top"] if found else None
    clock = rows("SELECT now() AS now")[0]["now"]
    if not isinstance(clock, datetime):
        raise SourceError(f"{what_is_read(query)}: DuckDB's clock cannot be read, found {clock!r}")
    return Noted(clock=clock.astimezone(timezone.utc), top=top, nulls=nulls)
