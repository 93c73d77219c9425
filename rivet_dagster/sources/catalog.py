"""Which tables a schema has, and along which columns they can be read without looking at every row."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rivet_dagster.errors import ConfigError
from rivet_dagster.sources.connect import connect, is_ours
from rivet_dagster.sources.description import quoted
from rivet_dagster.sources.url import parse_url

__all__ = ["ListedTable", "tables_of"]

_WHAT = "the catalog"
_SIMPLE = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTable:
    """A table as the catalog lists it.

    Attributes:
        name: its own, without the schema.
        qualified: as a query's `table` names it.
        columns: their names, in order.
        indexed: those that an index of all rows begins with.
    """

    name: str
    qualified: str
    columns: tuple[str, ...]
    indexed: frozenset[str]


def tables_of(url: str, schema: str | None) -> tuple[ListedTable, ...]:
    """List the tables of a schema that may be read, by name; views and the database's own tables are left out.

    Args:
        url: of the database.
        schema: in MySQL and MariaDB, a database; the session's own without it.

    Raises:
        ConfigError: the URL is of no database that we have a driver for, or there is no such table.
        SourceError: the database refused or could not be reached.
    """
    parsed = parse_url(url)
    if not is_ours(url):
        raise ConfigError(
            f"{parsed.scheme}:// has no catalog that is read here; supported are postgresql://, mysql://, mariadb://, "
            "sqlite:/// and duckdb:///"
        )
    listed: dict[str, tuple[str, dict[str, None], set[str]]] = {}
    for space, table, column, is_first in _LISTING[parsed.scheme](url, schema):
        qualified = ".".join(map(_named, (space, table)))
        _, columns, indexed = listed.setdefault(table, (qualified, {}, set()))
        columns[column] = None
        if is_first:
            indexed.add(column)
    if not listed:
        found = f"schema {schema!r}" if schema is not None else "the session's schema"
        raise ConfigError(f"expected tables in {found}, found none that may be read; check its name and the grants")
    return tuple(
        ListedTable(name=name, qualified=qualified, columns=tuple(columns), indexed=frozenset(indexed))
        for name, (qualified, columns, indexed) in sorted(listed.items())
    )


def _named(name: str) -> str:
    return name if _SIMPLE.fullmatch(name) else quoted(name)


_Row = tuple[str, str, str, bool]
"""Schema, table, column, and whether an index begins with it."""

_POSTGRES = """
SELECT n.nspname::text AS space, c.relname::text AS name, a.attname::text AS column_name, EXISTS (
           SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
           WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS NULL
                 AND m.amname = 'btree'
       ) AS is_first
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = {schema} AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
      AND a.attnum > 0 AND NOT a.attisdropped AND has_table_privilege(c.oid, 'SELECT')
ORDER BY c.relname, a.attnum
"""
_MYSQL = """
SELECT t.TABLE_SCHEMA, t.TABLE_NAME, c.COLUMN_NAME, EXISTS (
           SELECT 1 FROM information_schema.STATISTICS AS s
           WHERE s.TABLE_SCHEMA = t.TABLE_SCHEMA AND s.TABLE_NAME = t.TABLE_NAME AND s.SEQ_IN_INDEX = 1
                 AND s.COLUMN_NAME = c.COLUMN_NAME AND s.SUB_PART IS NULL AND s.INDEX_TYPE = 'BTREE'
       )
FROM information_schema.TABLES AS t
JOIN information_schema.COLUMNS AS c ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME
WHERE t.TABLE_SCHEMA = {schema} AND t.TABLE_TYPE = 'BASE TABLE'
ORDER BY t.TABLE_NAME, c.ORDINAL_POSITION
"""
_SQLITE = """
SELECT 'main', t.name, c.name, (c.pk = 1 AND c.type = 'INTEGER' COLLATE NOCASE) OR EXISTS (
           SELECT 1 FROM pragma_index_list(t.name) AS l JOIN pragma_index_info(l.name) AS i
           WHERE i.seqno = 0 AND i.name = c.name AND NOT l.partial
       )
FROM sqlite_master AS t JOIN pragma_table_xinfo(t.name) AS c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite~_%' ESCAPE '~' AND c.hidden <> 1
ORDER BY t.name, c.cid
"""
# Of every column DuckDB keeps the least and the greatest value of each block of rows, which does what an index would.
_DUCKDB = """
SELECT c.schema_name AS space, c.table_name AS name, c.column_name, true AS is_first
FROM duckdb_columns() AS c JOIN duckdb_tables() AS t USING (database_name, schema_name, table_name)
WHERE c.database_name = current_database() AND c.schema_name = {schema} AND NOT t.internal AND NOT t.temporary
ORDER BY c.table_name, c.column_index
"""


def _postgres(url: str, schema: str | None) -> Iterator[_Row]:
    from rivet_dagster.sources.postgres_database import PostgresDatabase
    from rivet_dagster.sources.postgres_keys import text_literal
    from rivet_dagster.sources.postgres_session import PostgresSession

    named = "current_schema()" if schema is None else text_literal(schema)
    database = PostgresDatabase(parse_url(url))
    with contextlib.closing(PostgresSession(database, what=_WHAT, snapshot=None)) as session:
        found = session.rows(_POSTGRES.format(schema=named))
        session.end()
    yield from ((r["space"], r["name"], r["column_name"], r["is_first"]) for r in found)


def _mysql(url: str, schema: str | None) -> Iterator[_Row]:
    from rivet_dagster.sources.mysql_catalog import utf8_literal

    named = "DATABASE()" if schema is None else utf8_literal(schema)
    source: Any = connect(url)
    with contextlib.closing(source.session(_WHAT)) as session:
        found = session.rows(_MYSQL.format(schema=named))
    yield from ((str(space), str(table), str(column), bool(first)) for space, table, column, first in found)


def _sqlite(url: str, schema: str | None) -> Iterator[_Row]:
    if schema not in {None, "main"}:
        raise ConfigError(f"expected the schema 'main', the only one of a SQLite file, found {schema!r}")
    source: Any = connect(url)
    with contextlib.closing(source.begin(_WHAT)) as connection:
        found = source.fetch_on(connection, _WHAT)(_SQLITE, ())
    yield from ((space, table, column, bool(first)) for space, table, column, first in found)


def _duckdb(url: str, schema: str | None) -> Iterator[_Row]:
    source: Any = connect(url)
    with contextlib.closing(source.connect(_WHAT)) as connection:
        named = "current_schema()" if schema is None else "'" + schema.replace("'", "''") + "'"
        found = source.rows_on(connection, _WHAT)(_DUCKDB.format(schema=named))
    yield from ((r["space"], r["name"], r["column_name"], r["is_first"]) for r in found)


_LISTING: dict[str, Callable[[str, str | None], Iterable[_Row]]] = {
    "postgresql": _postgres,
    "postgres": _postgres,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite": _sqlite,
    "duckdb": _duckdb,
}
