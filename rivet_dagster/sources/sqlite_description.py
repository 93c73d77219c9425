"""What SQLite says about the columns of a statement before its first row."""

from __future__ import annotations

import re
import sqlite3

from rivet_dagster.errors import ConfigError
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.description import check_columns, positions
from rivet_dagster.sources.sqlite_types import arrow_type_of, type_of_values

__all__ = ["described", "names_of"]


def described(connection: sqlite3.Connection, text: str, query: Query) -> tuple[ResultColumn, ...]:
    """The columns of a query's statement; what only values can tell costs a run of it.

    Raises:
        ConfigError: the columns or casts cannot be.
        SourceError: permanent, values have no common type.
        sqlite3.Error: SQLite refused.
    """
    # A view takes a select statement alone, and its columns carry the declared types of what they come from.
    connection.execute(f"CREATE TEMP VIEW rivet_described AS {text}")
    declared = [row[2] for row in connection.execute("PRAGMA temp.table_xinfo(rivet_described)")]
    names = names_of(connection.execute("SELECT * FROM temp.rivet_described LIMIT 0"))
    connection.execute("DROP VIEW temp.rivet_described")
    if any(re.search(r":\d+$", name) for name in names):
        # Perhaps SQLite's mark on a twin, which it keeps apart in a view: only the first row of the query itself tells.
        names = names_of(connection.execute(text))
    check_columns(names, query)
    for name, cast in query.casts.items():
        if arrow_type_of(cast) is None:
            raise ConfigError(
                f"column {name!r}: cast to {cast!r}: expected text, integer, real, decimal(p, s), boolean, date, "
                "timestamp or blob"
            )
    declared = [query.casts.get(name, kind) for name, kind in zip(names, declared, strict=True)]
    # A newer SQLite calls an expression of a query that has no type of its own BLOB.
    arrows = [
        None if query.sql is not None and kind == "BLOB" and name not in query.casts else arrow_type_of(kind)
        for name, kind in zip(names, declared, strict=True)
    ]
    unknown = [position for position, arrow in enumerate(arrows) if arrow is None]
    if unknown:
        classes = _classes(connection, text, len(names), unknown)
        for position in unknown:
            arrows[position] = type_of_values(names[position], classes[position], declared[position])
    return tuple(
        ResultColumn(name=name, source_type=kind or str(arrow), nullable=True, arrow_type=arrow)
        for name, kind, arrow in zip(names, declared, arrows, strict=True)
    )


def names_of(cursor: sqlite3.Cursor) -> list[str]:
    """Of the columns of a result."""
    return [described[0] for described in cursor.description]


def _classes(connection: sqlite3.Connection, text: str, width: int, wanted: list[int]) -> dict[int, set[str]]:
    """The storage classes of all values of the wanted columns, in one run of the query."""
    kinds = ("integer", "real", "text", "blob")
    names = positions(width)
    seen = [f"max(typeof({names[position]}) = '{kind}')" for position in wanted for kind in kinds]
    found = connection.execute(f"WITH q({', '.join(names)}) AS (\n{text}\n) SELECT {', '.join(seen)} FROM q").fetchone()
    return {
        position: {kind for offset, kind in enumerate(kinds) if found[len(kinds) * place + offset]}
        for place, position in enumerate(wanted)
    }
