"""How each table of a database could be exported, and why: proposals for a person to read, from the catalog alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import IncrementalSource, Query, Source, SplittableSource
from rivet_dagster.sources.catalog import ListedTable, tables_of
from rivet_dagster.sources.connect import connect
from rivet_dagster.windows import Cursor, CursorTerm

__all__ = ["BIG_ROWS", "Proposal", "proposals"]

BIG_ROWS = 1_000_000
"""From so many rows a table is read in ranges."""

# Names of columns that are set whenever a row changes, the likeliest first.
_STAMPED = re.compile(
    r"(?i)(row_?)?(last_?)?(updated?|modified|modification|changed?)_?(at|on|date|time|ts|datetime|timestamp)?"
)
_COLUMN = re.compile(r"""column (['"])(?P<name>.+?)\1: (?P<why>.+)""", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One table as an export.

    Attributes:
        name: of the export.
        table: as `Export.table` names it.
        why: what the proposal is based on, line by line.
        mode: fields of the mode; empty for all rows by one statement.
        casts: column → the type that it is read as, and why.
        obstacle: why it cannot be exported as a table; `None` where it can.
    """

    name: str
    table: str
    why: tuple[str, ...]
    mode: Mapping[str, Any] = field(default_factory=dict)
    casts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    obstacle: str | None = None


def proposals(url: str, schema: str | None, *, only_whole: bool = False) -> Iterator[Proposal]:
    """Look at each table of a schema; no row leaves the database.

    Args:
        url: of the database.
        schema: whose tables; `None` for the session's own.
        only_whole: propose all rows by one statement, as a stream takes them, which keeps neither parts nor a cursor.

    Raises:
        ConfigError: the database has no catalog that is read here, or no tables in it.
        SourceError: it refused or could not be reached.
    """
    source = connect(url)
    names: set[str] = set()
    for table in tables_of(url, schema):
        name = _name(table.name, names)
        names.add(name)
        yield _proposal(source, table, name, only_whole=only_whole)


def _name(table: str, taken: set[str]) -> str:
    """Of an asset: Dagster wants letters, digits and underscores."""
    plain = name = re.sub(r"\W", "_", table, flags=re.ASCII) or "table"
    number = 1
    while name in taken:
        number += 1
        name = f"{plain}_{number}"
    return name


def _proposal(source: Source, table: ListedTable, name: str, *, only_whole: bool) -> Proposal:
    casts, obstacle = _casts(source, table)
    query = Query(table=table.qualified, casts={column: cast for column, (cast, _) in casts.items()})
    if obstacle is not None:
        return Proposal(name=name, table=table.qualified, why=(), obstacle=obstacle)
    mode, why = _whole(source, query) if only_whole else _mode(source, query, table)
    return Proposal(name=name, table=table.qualified, why=tuple(why), mode=mode, casts=casts)


def _casts(source: Source, table: ListedTable) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Which columns have to be read as text, and why; or what keeps the table from being read at all."""
    casts: dict[str, tuple[str, str]] = {}
    while True:
        query = Query(table=table.qualified, casts={column: cast for column, (cast, _) in casts.items()})
        try:
            source.open(query).close()
        except (ConfigError, SourceError) as e:
            found = _COLUMN.search(str(e))
            if found is None or found["name"] not in table.columns or found["name"] in casts:
                return casts, str(e)
            casts[found["name"]] = ("text", found["why"].partition(";")[0])
        else:
            return casts, None


def _size(source: Source, query: Query) -> tuple[int | None, str]:
    rows = source.estimated_rows(query) if isinstance(source, SplittableSource) else None
    return rows, "no statistics say how many rows" if rows is None else f"about {rows:,} rows"


def _whole(source: Source, query: Query) -> tuple[dict[str, Any], list[str]]:
    return {}, [f"{_size(source, query)[1]}: every run exports all of them, since a stream keeps nothing to add to"]


def _mode(source: Source, query: Query, table: ListedTable) -> tuple[dict[str, Any], list[str]]:
    rows, size = _size(source, query)
    cursor, hint = _cursor(source, query, table)
    if cursor is not None:
        return _incremental(source, cursor, size)
    if rows is not None and rows >= BIG_ROWS and isinstance(source, SplittableSource):
        with source.snapshot("snapshot") as snapshot:
            stored = snapshot.storage_key(query) is not None
        if stored:
            said = f"{size}: read in ranges of the blocks that hold its rows, which needs no key, by short statements"
            return {"kind": "chunked"}, [said, *hint]
        if keys := source.keys(query):
            by = ", ".join(keys[0].columns)
            return {"kind": "chunked"}, [f"{size}: read in ranges of {by}, which is unique, by short statements", *hint]
        return {}, [f"{size}: without a key it is read by one long statement; a primary key would divide it", *hint]
    return {}, [f"{size}: every run exports all of them", *hint]


def _incremental(source: Source, cursor: Cursor, size: str) -> tuple[dict[str, Any], list[str]]:
    column = str(cursor.term.column)
    mode: dict[str, Any] = {"kind": "incremental", "cursor_column": column}
    why = [
        f"{size}: {column} ({cursor.type_name}) says when a row was changed, and rows are found by it without reading",
        "all of them: each run reads what came since the last one; rows that are deleted are not noticed",
    ]
    if cursor.nullable:
        why.append(f"{column} may be NULL: such rows are left out, and counted; see nulls")
    if not (isinstance(source, IncrementalSource) and source.knows_writers):
        mode["lag"] = "5 minutes"
        why.append("nobody can tell here who is still writing: rows that are committed later than lag are missed")
    return mode, why


def _cursor(source: Source, query: Query, table: ListedTable) -> tuple[Cursor | None, list[str]]:
    """What says which rows are new; or why a column that looks like it is not proposed."""
    hint: list[str] = []
    if not isinstance(source, IncrementalSource):
        return None, hint
    for column in table.columns:
        if not _STAMPED.fullmatch(column) or column in query.casts:
            continue
        try:
            cursor = source.describe_cursor(query, CursorTerm(column=column))
        except (ConfigError, SourceError):
            continue
        only = f"{column} could tell which rows are new (mode: incremental)"
        if cursor.kind == "naive":
            hint.append(f"{only}, if you know by which clock it is written: it has no time zone, so set time_zone")
        elif cursor.kind not in {"instant", "date"}:
            hint.append(f"{only}, if it is a time: set unit")
        elif column not in table.indexed:
            hint.append(f"{only}; an index on it would keep each run from reading all rows")
        else:
            return cursor, []
    return None, hint
