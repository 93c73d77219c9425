"""SQLite cursors: what a term is, how its times are stored, and the one writer that SQLite lets in.

Times are texts to SQLite, in ISO form: `2026-01-31`, with the time behind a blank or a T. They are compared as texts,
which is right as long as all of them have one form; what has another is refused. A bound is the shortest text of its
time, which is the least of all texts of it. Whole numbers may count time, with `unit`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import pyarrow as pa

from rivet_dagster.errors import ConfigError, ContractError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.description import query_text, what_is_read
from rivet_dagster.sources.sqlite_keys import Fetch, draws_ids, leads_an_index, relation_of
from rivet_dagster.sources.sqlite_types import arrow_type_of
from rivet_dagster.sources.terms import counted_nulls, no_column, no_cursor, nulls_sql, relation_text, term_sql, top_sql
from rivet_dagster.windows import Cursor, CursorKind, CursorTerm, Noted, Settling

__all__ = ["bound_of", "cursor_of", "note", "only_writer", "value_literal"]

_KINDS: dict[pa.DataType, CursorKind] = {
    pa.int64(): "integer",
    pa.timestamp("us"): "naive",
    pa.date32(): "date",
    pa.string(): "text",
}
_DAY = "[0-9]" * 4 + "-" + "[0-9]" * 2 + "-" + "[0-9]" * 2


def cursor_of(
    query: Query, term: CursorTerm, fetch: Fetch, describe: Callable[[Query], tuple[str, pa.DataType]]
) -> Cursor:
    """Describe a term.

    Args:
        query: whose rows it is over.
        term: the term.
        fetch: runs a small statement.
        describe: the declared and the Arrow type of the only column of a query.

    Raises:
        ConfigError: it is no column, or of a type that no window can be over.
    """
    text = query_text(query, most=2, fold=False)
    unique, nullable, leads = False, True, False
    if query.table is not None and term.column is not None:
        relation = relation_of(query, fetch)
        column = relation.columns.get(term.column)
        if column is None:
            raise no_column(query, term.column, relation.columns)
        unique = relation.is_unique(term.column)
        nullable = column.nullable or relation.obstacle is not None
        leads = relation.obstacle is None and leads_an_index(query, term.column, fetch)
        declared, arrow = column.type_name, arrow_type_of(column.type_name)
        if "text" in declared.lower() and column.obstacle is not None:
            raise no_cursor(query, term, declared, column.obstacle)
    else:
        sql = f"SELECT {term_sql(term)} AS c FROM {relation_text(query, text)}"
        declared, arrow = describe(Query(sql=sql, casts={}))
    if arrow not in _KINDS:
        raise no_cursor(query, term, declared or str(arrow))
    kind = _KINDS[arrow]
    if kind == "text" and term.is_time:
        kind = "naive"
    form = " "
    if kind == "naive":
        top = fetch(top_sql(relation_text(query, text), term_sql(term), term_sql(term)), ())
        form = "T" if top and isinstance(top[0][0], str) and top[0][0][10:11] == "T" else " "
    return Cursor(
        term=term,
        kind=kind,
        type_name=(declared or str(arrow)).lower(),
        # CURRENT_TIMESTAMP writes whole seconds, and no type says so.
        resolution=timedelta(seconds=1),
        unique=unique,
        nullable=nullable,
        finds_nulls=leads,
        form=form,
    )


def value_literal(cursor: Cursor) -> Callable[[Any], str]:
    """What writes values of a cursor as literals."""

    def written(value: Any) -> str:
        bound = bound_of(cursor, value)
        return str(bound) if isinstance(bound, int) else "'" + bound.replace("'", "''") + "'"

    return written


def bound_of(cursor: Cursor, value: Any) -> int | str:
    """A value as SQLite stores it; of a time, the least text of it."""
    if isinstance(value, datetime):
        day, clock = value.date().isoformat(), value.time()
        if clock.microsecond:
            return f"{day}{cursor.form}{clock.isoformat().rstrip('0')}"
        if clock.second:
            return f"{day}{cursor.form}{clock.isoformat()}"
        return f"{day}{cursor.form}{clock.isoformat('minutes')}" if clock != time() else day
    return value.isoformat() if isinstance(value, date) else value


def note(query: Query, cursor: Cursor, asked: Settling, fetch: Fetch) -> Noted:
    """Note clock, greatest value and NULLs.

    Raises:
        ContractError: the values have not one form.
        SourceError: SQLite failed.
    """
    relation, term = relation_text(query, query_text(query, most=2, fold=False)), term_sql(cursor.term)
    _check_form(query, cursor, asked, fetch)
    nulls = None
    if asked.nulls:
        nulls = counted_nulls(int(fetch(nulls_sql(relation, term, asked), ())[0][0]), asked)
    top = None
    if asked.top:
        found = fetch(top_sql(relation, term, term), ())
        top = found[0][0] if found else None
        if top is not None and not isinstance(top, int if cursor.kind == "integer" else str):
            raise _of_another_form(query, cursor, "whole numbers" if cursor.kind == "integer" else "texts", "REAL")
    (now,) = fetch("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')", ())[0]
    clock = datetime.fromisoformat(now).replace(tzinfo=timezone.utc)
    drawn: int | None = None
    said: dict[str, str] = {}
    if asked.top and query.table is not None and cursor.term.column is not None and cursor.kind == "integer":
        drawn, said = _ids(query, cursor.term.column, top, fetch)
    return Noted(clock=clock, top=top, nulls=nulls, drawn=drawn, said=said)


def _ids(query: Query, column: str, top: int | None, fetch: Fetch) -> tuple[int | None, dict[str, str]]:
    """The last id that was drawn, where SQLite draws them, and what is to be said of it."""
    numbered, last = draws_ids(query, column, fetch)
    if not numbered or last is not None:
        return last, {}
    return top or 0, {"note": "SQLite gives the id of a last row that is deleted again, unless it is AUTOINCREMENT"}


def _check_form(query: Query, cursor: Cursor, asked: Settling, fetch: Fetch) -> None:
    """Refuse values that would be compared with others of another form."""
    relation, term = relation_text(query, query_text(query, most=2, fold=False)), term_sql(cursor.term)
    # SQLite sorts numbers before texts before blobs; so an index finds what does not belong.
    if cursor.kind == "integer":
        odd, expected = f"{term} >= ''", "whole numbers"
    else:
        odd, expected = f"({term} < '' OR {term} >= x'')", "texts"
        if cursor.kind in {"naive", "date"}:
            rest = f"substr({term}, 11)"
            form = f"{term} GLOB '{_DAY}*'" if cursor.kind == "naive" else f"{term} GLOB '{_DAY}'"
            if cursor.kind == "naive":
                clock = f"{cursor.form}[0-9][0-9]:[0-9][0-9]*"
                form += f" AND ({rest} = '' OR {rest} GLOB '{clock}' AND {rest} NOT GLOB '?*[^0-9:.]*')"
            since = f"{term} >= '{str(bound_of(cursor, asked.low))[:10]}' AND " if asked.low is not None else ""
            odd += f" OR {since}{term} >= '' AND {term} < x'' AND NOT ({form})"
            expected = (
                f"texts like {'2026-01-31' + cursor.form + '12:00:00' if cursor.kind == 'naive' else '2026-01-31'}"
            )
    found = fetch(f"SELECT typeof({term}) FROM {relation} WHERE {odd} LIMIT 1", ())
    if found:
        raise _of_another_form(query, cursor, expected, str(found[0][0]).upper())


def _of_another_form(query: Query, cursor: Cursor, expected: str, storage: str) -> ContractError:
    return ContractError(
        f"{what_is_read(query)}: {cursor.term.shown}: expected {expected}, all in one form and without a zone, found a "
        f"value of storage class {storage} in another; values of several forms have no one order: bring them to one, "
        "or give a cursor_expression that does"
    )


@contextmanager
def only_writer(connection: sqlite3.Connection, other: sqlite3.Connection, what: str) -> Iterator[None]:
    """Be the only writer, and write nothing, until the context ends.

    Args:
        connection: on a file that may be written to.
        other: on the same file; it waits for nobody.
        what: is read, for messages.

    Raises:
        ConfigError: the file cannot be written to.
        SourceError: transient, another writer did not end in time.
    """
    if not _begin(connection):
        raise SourceError(
            f"{what}: expected to be the only writer, found that another connection is writing; end it, raise "
            "settle_timeout, or choose another settle; nothing was exported, run again",
            transient=True,
        )
    try:
        # Where a file cannot be written to, SQLite only reads, and lets everybody in.
        if _begin(other):
            other.execute("ROLLBACK")
            raise ConfigError(
                f'{what}: settle="writers" needs a file that can be written to, found one that is read-only here; '
                'choose lag="5 minutes" (later commits may be missed) or settle="none"'
            )
        yield
    finally:
        connection.execute("ROLLBACK")


def _begin(connection: sqlite3.Connection) -> bool:
    """Whether nobody else is writing."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        return False
    return True
