"""PostgreSQL cursors: what a term is, and where a window over it may end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.description import query_text, what_is_read
from rivet_dagster.sources.postgres_keys import Rows, literal, relation_of, text_literal
from rivet_dagster.sources.postgres_writers import (
    check_promise,
    last_drawn,
    relation_literal,
    server_of,
    settled,
    unseen,
)
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
    "int2": "integer",
    "int4": "integer",
    "int8": "integer",
    "timestamptz": "instant",
    "timestamp": "naive",
    "date": "date",
    "text": "text",
    "varchar": "text",
    "uuid": "uuid",
}
_LITERALS: dict[CursorKind, str] = {
    "integer": "int8",
    "instant": "timestamptz",
    "naive": "timestamp",
    "date": "date",
    "text": "text",
    "uuid": "uuid",
}
_DECLARED = """
SELECT format_type(b.oid, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END) AS declared,
       c.relkind = 'v' AS made
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
     JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = to_regclass({relation}) AND a.attname = {column}
"""

_LEADS_AN_INDEX = """
SELECT i.indexrelid FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid JOIN pg_am m ON m.oid = n.relam
     JOIN pg_class t ON t.oid = i.indrelid
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass({relation}) AND a.attname = {column} AND m.amname = 'btree'
  AND i.indisvalid AND i.indpred IS NULL AND (t.relkind = 'p' OR NOT t.relhassubclass)
LIMIT 1
"""


def cursor_of(query: Query, term: CursorTerm, rows: Rows, describe: Callable[[str], pa.Schema]) -> Cursor:
    """Describe a term.

    Args:
        query: whose rows it is over.
        term: the term.
        rows: runs a small statement.
        describe: a statement as the driver describes it.

    Raises:
        ConfigError: it is no column, or of a type that no window can be over.
    """
    text = query_text(query, most=2, fold=True)
    if query.table is None or term.column is None:
        if term.column is not None and term.column not in (names := describe(text).names):
            raise no_column(query, term.column, names)
        field = describe(f"SELECT {term_sql(term)} AS c FROM {relation_text(query, text)}").field(0)
        metadata: dict[bytes, bytes] = field.metadata or {}
        name = metadata.get(b"POSTGRESQL:type", b"").decode() or str(field.type)
        return Cursor(term=term, kind=_kind(query, term, name), type_name=name, resolution=COARSEST)
    relation = relation_of(query, rows)
    column = relation.columns.get(term.column)
    if column is None:
        raise no_column(query, term.column, relation.columns)
    if column.obstacle is not None:
        raise no_cursor(query, term, column.type_name)
    unique = relation.is_unique(term.column)
    nullable = column.nullable or relation.obstacle is not None
    named = {"relation": relation_literal(query), "column": text_literal(term.column)}
    return Cursor(
        term=term,
        kind=_kind(query, term, column.type_name),
        type_name=column.type_name,
        resolution=_resolution(query, term, rows),
        unique=unique,
        nullable=nullable,
        finds_nulls=nullable and bool(rows(_LEADS_AN_INDEX.format(**named))),
    )


def _kind(query: Query, term: CursorTerm, type_name: str) -> CursorKind:
    if type_name not in _KINDS:
        raise no_cursor(query, term, type_name)
    return _KINDS[type_name]


def _resolution(query: Query, term: CursorTerm, rows: Rows) -> timedelta:
    relation = relation_literal(query)
    found = rows(_DECLARED.format(relation=relation, column=text_literal(str(term.column))))
    digits = re.search(r"\((\d)\)", found[0]["declared"]) if found else None
    if digits:
        return timedelta(microseconds=10 ** (6 - int(digits.group(1))))
    return COARSEST if found and found[0]["made"] else timedelta(microseconds=1)


def value_literal(cursor: Cursor) -> Callable[[Any], str]:
    """What writes values of a cursor as literals of its own type; instants in UTC, whatever the session's zone is."""
    column = KeyColumn(name=cursor.term.shown, type_name=_LITERALS[cursor.kind], nullable=False)
    return lambda value: literal(column, value)


def note(query: Query, cursor: Cursor, asked: Settling, rows: Rows) -> Noted:
    """Note clock, greatest value and NULLs, and wait until whoever could still write below them has ended.

    Args:
        query: the whole export.
        cursor: its cursor.
        asked: what is to be noted.
        rows: runs a statement in a transaction of its own.

    Raises:
        ConfigError: the promise of `writers` cannot be kept here; names the alternative.
        SourceError: transient, someone is still writing when the time is up; names them.
    """
    term, relation = term_sql(cursor.term), relation_text(query, query_text(query, most=2, fold=True))
    replica = bool(rows("SELECT pg_is_in_recovery() AS replica")[0]["replica"])
    if asked.writers:
        check_promise(query, cursor, rows, replica=replica, by_clock=not asked.top)
    nulls = None
    if asked.nulls:
        nulls = counted_nulls(int(rows(nulls_sql(relation, term, asked))[0]["n"]), asked)
    now = _clock(query, rows, replica=False)
    clock = _clock(query, rows, replica=True) if replica else now
    top = None
    if asked.top:
        sent = f"{term}::text" if cursor.kind == "uuid" else term
        found = rows(top_sql(relation, term, sent))
        top = found[0]["top"] if found else None
    drawn = None
    if asked.top and cursor.kind == "integer" and asked.low is not None and (top is None or top < asked.low):
        drawn = last_drawn(query, cursor, rows)
    noted = Noted(clock=clock, now=now, top=top, nulls=nulls, drawn=drawn)
    if not asked.writers:
        return noted
    lowered, said = settled(rows, asked, what_is_read(query))
    if not asked.top and (missed := unseen(rows)):
        said = {**said, "note": missed}
    return replace(noted, clock=min([clock, *lowered]), said=said, server=server_of(rows))


def _clock(query: Query, rows: Rows, *, replica: bool) -> datetime:
    if not replica:
        found = rows("SELECT clock_timestamp() AS now")[0]["now"]
    else:
        # What the primary has done since is not here yet.
        found = rows(
            "SELECT least(clock_timestamp(), pg_last_xact_replay_timestamp()) AS now, "
            "pg_last_xact_replay_timestamp() IS NOT NULL AS known"
        )[0]
        if not found["known"]:
            raise SourceError(
                f"{what_is_read(query)}: this replica has replayed no transaction since it started, so how far it is "
                "is not known; run again later, or read from the primary",
                transient=True,
            )
        found = found["now"]
    if not isinstance(found, datetime):
        raise SourceError(f"{what_is_read(query)}: the server's clock cannot be read, found {found!r}")
    return found.astimezone(timezone.utc)
