"""What all sources share about cursors: the SQL of a term and of a window, and what no window can be over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from rivet_dagster.errors import ConfigError
from rivet_dagster.rows import Query
from rivet_dagster.sources.description import quoted, what_is_read
from rivet_dagster.windows import CursorTerm, Settling, Window

__all__ = [
    "COARSEST",
    "condition",
    "counted_nulls",
    "no_column",
    "no_cursor",
    "nulls_sql",
    "relation_text",
    "term_sql",
    "top_sql",
    "windowed",
]

# How far apart the times of a cursor may be where nothing says it: there are columns of whole seconds, and what a view
# or a query makes of them does not tell.
COARSEST = timedelta(seconds=1)


def term_sql(term: CursorTerm, quote: Callable[[str], str] = quoted) -> str:
    """A term over the rows of `relation_text`."""
    if term.expression is None:
        return f"r.{quote(str(term.column))}"
    # On lines of its own, so that a comment at its end swallows nothing.
    return f"(\n{term.expression}\n)"


def relation_text(query: Query, text: str) -> str:
    """What stands behind FROM to name the rows of a query's whole statement as `r`."""
    if query.table is not None:
        return f"{text.removeprefix('SELECT * FROM ')} AS r"
    return f"(\n{text}\n) AS r"


def windowed(query: Query, text: str, term: str, literal: Callable[[Any], str], *, exact: str) -> str:
    """The query's statement, restricted to its window, where it has one.

    Args:
        query: with its window.
        text: its statement.
        term: SQL of the window's cursor.
        literal: writes a value in the database's own type.
        exact: makes of the SQL of a text, `{0}`, what is equal for equal texts alone.
    """
    window = query.window
    if window is None:
        return text
    found = f"SELECT * FROM {relation_text(query, text)} WHERE {condition(window, term, literal)}"
    if window.is_one_value and window.cursor.kind == "text":
        # A collation may call other texts equal, too.
        found += f" AND {exact.format(term)} = {exact.format(literal(window.low))}"
    return found


def condition(window: Window, term: str, literal: Callable[[Any], str]) -> str:
    """SQL that is true for the rows of a window.

    Args:
        window: the window.
        term: SQL of its cursor.
        literal: writes a value in the database's own type.
    """
    bounds = []
    if window.low is not None:
        bounds.append(f"{term} {'>' if window.low_open else '>='} {literal(window.low)}")
    if window.high is not None:
        bounds.append(f"{term} {'<' if window.high_open else '<='} {literal(window.high)}")
    elif not window.endless:
        bounds = ["1 = 0"]
    within = " AND ".join(bounds)
    return f"({within}) OR {term} IS NULL" if window.nulls else within


def top_sql(relation: str, term: str, sent: str) -> str:
    """A statement that gives the greatest value of a term as `top`; no row where there is none. It follows an index."""
    return f"SELECT {sent} AS top FROM {relation} WHERE {term} IS NOT NULL ORDER BY {term} DESC LIMIT 1"


def nulls_sql(relation: str, term: str, asked: Settling) -> str:
    """A statement that counts the rows without a value as `n`; no further than it is asked to."""
    if asked.nulls_below is None:
        return f"SELECT count(*) AS n FROM {relation} WHERE {term} IS NULL"
    some = f"SELECT 1 AS one FROM {relation} WHERE {term} IS NULL LIMIT {asked.nulls_below}"
    return f"SELECT count(*) AS n FROM ({some}) AS found"


def counted_nulls(found: int, asked: Settling) -> int | None:
    """What `nulls_sql` has counted, where it counted all."""
    return found if asked.nulls_below is None or found < asked.nulls_below else None


def no_column(query: Query, column: str, known: Iterable[str]) -> ConfigError:
    """The refusal of a column that is not there."""
    names = ", ".join(map(repr, known))
    return ConfigError(f"{what_is_read(query)}: no column {column!r}; the columns are {names}")


def no_cursor(query: Query, term: CursorTerm, type_name: str, why: str = "") -> ConfigError:
    """The refusal of a type that no window can be over."""
    return ConfigError(
        f"{what_is_read(query)}: {term.shown} is {type_name}{f': {why}' if why else ''}: expected a timestamp, "
        "a date, a whole number, a text or a UUID; choose another column, or an expression that is one"
    )
