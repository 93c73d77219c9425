"""MySQL and MariaDB cursors: what a term is, and values as literals. Nobody can tell who is still writing there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.mysql_catalog import Rows, backquoted, of_table, utf8_literal
from rivet_dagster.sources.mysql_types import WireColumn, plan_column
from rivet_dagster.sources.terms import (
    counted_nulls,
    no_column,
    no_cursor,
    nulls_sql,
    relation_text,
    term_sql,
    top_sql,
    windowed,
)
from rivet_dagster.windows import Cursor, CursorKind, CursorTerm, Noted, Settling, Window

__all__ = ["cursor_of", "note", "value_literal", "window_text"]

_KINDS: dict[pa.DataType, CursorKind] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), "integer"),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), "integer"),
    pa.timestamp("us", tz="UTC"): "instant",
    pa.timestamp("us"): "naive",
    pa.date32(): "date",
}
_TEXTS = frozenset({"char", "text"})
_NOT_NULL = 1
_UNIQUE = """
SELECT COUNT(*) FROM (
    SELECT s.INDEX_NAME FROM information_schema.STATISTICS AS s
    WHERE {of_table} AND s.NON_UNIQUE = 0
    GROUP BY s.INDEX_NAME
    HAVING COUNT(*) = 1 AND MAX(s.SUB_PART) IS NULL AND MAX(LOWER(s.COLUMN_NAME)) = LOWER({column})
) AS u
"""

_LEADS_AN_INDEX = """
SELECT s.INDEX_NAME FROM information_schema.STATISTICS AS s
WHERE {of_table} AND s.SEQ_IN_INDEX = 1
  AND s.INDEX_TYPE = 'BTREE' AND LOWER(s.COLUMN_NAME) = LOWER({column})
LIMIT 1
"""


def cursor_of(
    query: Query,
    term: CursorTerm,
    text: str,
    *,
    rows: Rows,
    describe: Callable[[str], tuple[WireColumn, ...]],
) -> Cursor:
    """Describe a term.

    Args:
        query: whose rows it is over.
        term: the term.
        text: the query's whole statement.
        rows: runs a small statement.
        describe: the columns of a statement.

    Raises:
        ConfigError: it is no column, or of a type that no window can be over.
    """
    if term.column is not None:
        known = [column.name for column in describe(text)]
        if term.column.lower() not in [name.lower() for name in known]:
            raise no_column(query, term.column, known)
    (found,) = describe(f"SELECT {term_sql(term, backquoted)} AS c FROM {relation_text(query, text)}")
    plan = plan_column(found, None)
    kind = _KINDS.get(plan.natural, "text" if plan.source_type in _TEXTS else None)
    if kind is None or plan.source_type in {"year", "null"} or plan.source_type.startswith("bit"):
        raise no_cursor(query, term, plan.source_type)
    unique = leads = False
    if query.table is not None and term.column is not None:
        asked = {"of_table": of_table(query, "s"), "column": utf8_literal(term.column)}
        unique = bool(rows(_UNIQUE.format(**asked))[0][0])
        leads = bool(rows(_LEADS_AN_INDEX.format(**asked)))
    return Cursor(
        term=term,
        kind=kind,
        type_name=plan.source_type,
        # NOW() gives whole seconds, whatever the column's own precision is.
        resolution=timedelta(seconds=1),
        unique=unique,
        nullable=not (query.table is not None and found.flags & _NOT_NULL),
        finds_nulls=leads,
    )


def value_literal(value: Any) -> str:
    """A value of a cursor as a literal; an instant in UTC, which is the session's zone."""
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return f"TIMESTAMP'{moment.isoformat(sep=' ', timespec='microseconds')}'"
    if isinstance(value, int):
        return str(value)
    # A literal, so that the column's collation decides.
    return f"_utf8mb4 x'{value.encode().hex()}'" if isinstance(value, str) else f"DATE'{value.isoformat()}'"


def window_text(query: Query, window: Window, text: str) -> str:
    """A query's statement, restricted to a window."""
    term = term_sql(window.cursor.term, backquoted)
    return windowed(query, text, term, value_literal, exact="CAST(CONVERT({0} USING utf8mb4) AS BINARY)")


def note(query: Query, cursor: Cursor, text: str, asked: Settling, rows: Rows) -> Noted:
    """Note clock, greatest value and NULLs.

    Raises:
        ConfigError: `writers` is asked for.
        SourceError: the server failed.
    """
    if asked.writers:
        raise ConfigError(f'{what_is_read(query)}: MySQL cannot tell who is still writing; choose lag or settle="none"')
    relation, term = relation_text(query, text), term_sql(cursor.term, backquoted)
    nulls = None
    if asked.nulls:
        nulls = counted_nulls(int(rows(nulls_sql(relation, term, asked))[0][0]), asked)
    top = None
    if asked.top:
        found = rows(top_sql(relation, term, term))
        top = found[0][0] if found else None
    clock = rows("SELECT UTC_TIMESTAMP(6)")[0][0]
    if not isinstance(clock, datetime):
        raise SourceError(f"{what_is_read(query)}: the server's clock cannot be read, found {clock!r}")
    return Noted(clock=clock.replace(tzinfo=timezone.utc), top=top, nulls=nulls)
