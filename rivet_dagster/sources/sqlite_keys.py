"""SQLite keys: which unique indexes its catalog vouches for, and the walk over one. Values travel as parameters.

A key's columns hold integers or text, dates and timestamps among them, which are text to SQLite. A PRIMARY KEY other
than INTEGER PRIMARY KEY and those of WITHOUT ROWID tables may hold NULL: it counts where NOT NULL is declared too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Key, KeyRange, Query
from rivet_dagster.sources.description import quoted, split_name, table_text, what_is_read
from rivet_dagster.sources.ranges import (
    KeyColumn,
    Relation,
    UniqueIndex,
    check_rows,
    compared_as_rows,
    divided,
    no_catalog,
    values_of,
    wrong_value,
)
from rivet_dagster.sources.sqlite_types import arrow_type_of

__all__ = ["boundaries", "draws_ids", "estimated_rows", "leads_an_index", "range_condition", "relation_of"]

Fetch = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
"""All rows of a small statement with parameters."""

_TEXTS = (pa.string(), pa.date32(), pa.timestamp("us"))
_OTHER_COLLATION = re.compile(r"\bCOLLATE\b(?!\s+[\"'`\[]?BINARY\b)", re.IGNORECASE)

# Comments, and what is quoted.
_NOT_SQL = re.compile(r"--[^\n]*|/\*.*?\*/|'[^']*'|\"[^\"]*\"|`[^`]*`|\[[^\]]*\]", re.DOTALL)


def relation_of(query: Query, fetch: Fetch) -> Relation:
    """What the catalog says about the table of a query.

    Raises:
        ConfigError: the query is no table.
        SourceError: permanent, there is no such table.
    """
    schema, table = _named(query)
    declared = fetch(
        f"SELECT type, coalesce(sql, '') FROM {quoted(schema)}.sqlite_master "
        "WHERE type IN ('table', 'view') AND lower(name) = lower(?)",
        (table,),
    )
    described = fetch(
        'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?, ?) WHERE hidden <> 1', (table, schema)
    )
    if not described:
        raise SourceError(f"{what_is_read(query)}: there is no such table; check its name")
    kind, sql = declared[0] if declared else ("table", "")
    indexes = [_index(schema, row, fetch) for row in _listed(schema, table, fetch)]
    row_id = None
    primary = [name for name, _, _, position in described if position]
    if len(primary) == 1 and not any(index.name == "its primary key" for index in indexes):
        # The only primary key without an index of its own is the table itself, in the order of the row's number.
        row_id = primary[0]
        indexes.insert(0, UniqueIndex(name="its primary key", columns=(row_id,)))
    collated = _OTHER_COLLATION.search(sql) is not None
    columns = [
        _column(name, declared_type, nullable=not not_null and name != row_id, collated=collated)
        for name, declared_type, not_null, _ in described
    ]
    obstacle = "it is a view, and nothing vouches for what a view returns" if kind == "view" else None
    if re.match(r"\s*CREATE\s+VIRTUAL\b", sql, re.IGNORECASE):
        obstacle = "it is a virtual table, and nothing vouches for what it returns"
    return Relation(columns={column.name: column for column in columns}, indexes=tuple(indexes), obstacle=obstacle)


def leads_an_index(query: Query, column: str, fetch: Fetch) -> bool:
    """Whether an index of all rows begins with a column of the query's table."""
    schema, table = _named(query)
    first = "SELECT 1 FROM pragma_index_info(l.name, ?) AS i WHERE i.seqno = 0 AND lower(i.name) = lower(?)"
    sql = f"SELECT 1 FROM pragma_index_list(?, ?) AS l WHERE NOT l.partial AND EXISTS ({first}) LIMIT 1"
    return bool(fetch(sql, (table, schema, schema, column)))


def draws_ids(query: Query, column: str, fetch: Fetch) -> tuple[bool, int | None]:
    """Whether SQLite numbers the rows of a table in a column, and the last number that it will never give again.

    Without AUTOINCREMENT, `None`: the next number is that of the last row that is there, and one more.
    """
    schema, table = _named(query)
    numbered = fetch(
        "SELECT count(*) = 1 AND lower(min(name)) = lower(?) AND upper(min(type)) = 'INTEGER' "
        "AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?, ?) WHERE origin = 'pk') "
        "FROM pragma_table_xinfo(?, ?) WHERE pk",
        (column, table, schema, table, schema),
    )
    if not numbered[0][0]:
        return False, None
    catalog = f"SELECT sql FROM {quoted(schema)}.sqlite_master WHERE type = 'table' AND lower(name) = lower(?)"
    declared = fetch(catalog, (table,))
    if not declared or not re.search(r"\bAUTOINCREMENT\b", _NOT_SQL.sub("", declared[0][0]), re.IGNORECASE):
        return True, None
    last = fetch(f"SELECT max(seq) FROM {quoted(schema)}.sqlite_sequence WHERE lower(name) = lower(?)", (table,))
    return True, int(last[0][0] or 0)


def estimated_rows(query: Query, fetch: Fetch) -> int | None:
    """How many rows the last ANALYZE counted; `None` where there was none."""
    schema, table = _named(query)
    catalog = f"{quoted(schema)}.sqlite_master"
    if not fetch(f"SELECT 1 FROM {catalog} WHERE name = 'sqlite_stat1'", ()):
        return None
    found = fetch(f"SELECT stat FROM {quoted(schema)}.sqlite_stat1 WHERE lower(tbl) = lower(?)", (table,))
    counts = [int(match.group()) for (stat,) in found if (match := re.match(r"\d+", str(stat)))]
    # A partial index counts fewer.
    return max(counts, default=None)


def range_condition(relation: Relation, within: KeyRange, *, alias: str) -> tuple[str, tuple[Any, ...]]:
    """SQL with parameters that is true for the rows of a range; empty for the range of all rows.

    Raises:
        ConfigError: a value is not of its column's kind.
    """
    columns = [f"{alias}.{quoted(name)}" for name in within.key.columns]
    conditions: list[str] = []
    parameters: list[Any] = []
    for operator, bound in ((">=", within.low), ("<", within.high)):
        if bound is not None:
            pairs = zip(within.key.columns, values_of(within, bound), strict=True)
            parameters += [_checked(relation.columns[name], value) for name, value in pairs]
            conditions.append(compared_as_rows(columns, operator, ["?"] * len(columns)))
    return " AND ".join(conditions), tuple(parameters)


def boundaries(query: Query, relation: Relation, key: Key, *, rows: int, fetch: Fetch) -> Iterator[tuple[Any, ...]]:
    """The first key of the second range, of the third, and so on, each by one statement over the key's index.

    Raises:
        ConfigError: `rows` is less than one.
        SourceError: a boundary is of another storage class than its column, or SQLite failed.
    """
    check_rows(rows)
    # Qualified: a quoted name that is no column would be text, and one in ORDER BY could mean a result column.
    names = ", ".join(f"r.{quoted(name)}" for name in key.columns)
    table = table_text(query, most=2, fold=False)
    inside = divided(query, key)
    last = inside.low
    while True:
        condition, parameters = range_condition(relation, replace(inside, low=last), alias="r")
        where = f" WHERE {condition}" if condition else ""
        found = fetch(f"SELECT {names} FROM {table} AS r{where} ORDER BY {names} LIMIT 1 OFFSET {rows}", parameters)
        if not found:
            return
        last = found[0]
        for name, value in zip(key.columns, last, strict=True):
            if not _fits(relation.columns[name], value):
                kind = relation.columns[name].type_name
                raise SourceError(
                    f"key column {name!r} ({kind}): a value between two ranges is of another storage class; repair it "
                    "or choose another key"
                )
        yield last


def _named(query: Query) -> tuple[str, str]:
    if query.table is None:
        raise no_catalog(query)
    parts = split_name(query.table, most=2, fold=False)
    return (parts[0], parts[1]) if len(parts) > 1 else ("main", parts[0])


def _listed(schema: str, table: str, fetch: Fetch) -> list[tuple[Any, ...]]:
    return fetch(
        'SELECT l.name, l.origin, l.partial FROM pragma_index_list(?, ?) AS l WHERE l."unique" '
        "ORDER BY l.origin <> 'pk', (SELECT count(*) FROM pragma_index_info(l.name, ?)), l.name",
        (table, schema, schema),
    )


def _index(schema: str, listed: tuple[Any, ...], fetch: Fetch) -> UniqueIndex:
    name, origin, partial = listed
    parts = fetch('SELECT name, "desc", coll FROM pragma_index_xinfo(?, ?) WHERE key ORDER BY seqno', (name, schema))
    obstacle = None
    if partial:
        obstacle = "is partial"
    elif any(part[0] is None for part in parts):
        obstacle = "is over an expression"
    elif any(part[2].upper() != "BINARY" for part in parts):
        obstacle = "is in the order of another collation than BINARY"
    elif len({part[1] for part in parts}) > 1:
        obstacle = "is not in one direction"
    return UniqueIndex(
        name="its primary key" if origin == "pk" else f"index {name!r}",
        columns=tuple(part[0] for part in parts),
        obstacle=obstacle,
    )


def _column(name: str, declared: str, *, nullable: bool, collated: bool) -> KeyColumn:
    arrow, obstacle = arrow_type_of(declared), None
    if arrow != pa.int64() and arrow not in _TEXTS:
        obstacle = "a key is of integers, text, dates or timestamps, which are compared exactly"
    elif arrow != pa.int64() and collated:
        # The catalog does not say which column it is of.
        obstacle = "its table declares a collation, which may call different texts equal"
    return KeyColumn(name=name, type_name=declared or "without a type", nullable=nullable, obstacle=obstacle)


def _fits(column: KeyColumn, value: object) -> bool:
    if arrow_type_of(column.type_name) == pa.int64():
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, str)


def _checked(column: KeyColumn, value: object) -> object:
    if not _fits(column, value):
        integers = arrow_type_of(column.type_name) == pa.int64()
        raise wrong_value(column, value, "int of 64 bits" if integers else "str, as SQLite stores it")
    return value
