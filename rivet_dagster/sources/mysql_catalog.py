"""What the catalog of MySQL and MariaDB says about a table: which of its unique indexes may divide it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.description import query_text, quoted, split_name, what_is_read
from rivet_dagster.sources.ranges import KeyColumn, Relation, UniqueIndex, no_catalog

__all__ = [
    "BYTES",
    "INTEGERS",
    "TEXTS",
    "Rows",
    "Table",
    "backquoted",
    "from_clause",
    "of_table",
    "table_of",
    "utf8_literal",
]

Rows = Callable[[str], list[tuple[Any, ...]]]
"""All rows of a small statement."""

_COLUMNS = """
SELECT c.COLUMN_NAME, LOWER(c.DATA_TYPE), c.COLUMN_TYPE, c.IS_NULLABLE = 'YES', c.CHARACTER_SET_NAME, c.COLLATION_NAME,
       t.TABLE_TYPE, t.ENGINE, t.TABLE_ROWS
FROM information_schema.TABLES AS t
JOIN information_schema.COLUMNS AS c ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME
WHERE {of_table}
ORDER BY c.ORDINAL_POSITION
"""
_INDEXES = """
SELECT s.INDEX_NAME, s.COLUMN_NAME, s.SUB_PART, s.COLLATION, s.INDEX_TYPE, {hidden}
FROM information_schema.STATISTICS AS s
WHERE {of_table} AND s.NON_UNIQUE = 0
ORDER BY s.INDEX_NAME, s.SEQ_IN_INDEX
"""
# How the two servers say that an index is kept but not used.
_HIDDEN = {"IGNORED": "s.IGNORED = 'YES'", "IS_VISIBLE": "s.IS_VISIBLE = 'NO'"}
_ASK_HIDDEN = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = 'information_schema' AND TABLE_NAME = 'STATISTICS' AND COLUMN_NAME IN ('IGNORED', 'IS_VISIBLE')
"""
_TRANSACTIONS = "SELECT TRANSACTIONS FROM information_schema.ENGINES WHERE ENGINE = {engine}"

INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BYTES = frozenset({"binary", "varbinary"})
_EXACT = frozenset({*INTEGERS, *TEXTS, *BYTES, "decimal", "date", "datetime", "timestamp", "uuid"})
# Text in these becomes UTF-8 and back without a change.
_WHOLE = frozenset({"ascii", "latin1", "ucs2", "utf8", "utf8mb3", "utf8mb4", "utf16", "utf16le", "utf32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the catalog says about the table of a query.

    Attributes:
        relation: its columns and unique indexes.
        indexes: by the columns of a key, the name of the index to walk.
        collations: of text columns: character set and collation.
        unsigned: integer columns without a sign.
        engine: what stores it.
        transactional: whether that has snapshots.
        rows: about how many there are; `None` where the catalog does not say.
    """

    relation: Relation
    indexes: Mapping[tuple[str | None, ...], str]
    collations: Mapping[str, tuple[str, str]]
    unsigned: frozenset[str]
    engine: str
    transactional: bool
    rows: int | None


def table_of(query: Query, rows: Rows) -> Table:
    """Ask the catalog.

    Raises:
        ConfigError: the query is no table.
        SourceError: permanent, there is no such table.
    """
    if query.table is None:
        raise no_catalog(query)
    described = rows(_COLUMNS.format(of_table=of_table(query, "t", "c")))
    if not described:
        raise SourceError(f"{what_is_read(query)}: there is no such table; check database and name")
    hidden = [_HIDDEN[column] for (column,) in rows(_ASK_HIDDEN)]
    parts = rows(_INDEXES.format(of_table=of_table(query, "s"), hidden=hidden[0] if hidden else "FALSE"))
    indexes = _unique_indexes(parts)
    kind, engine, estimate = described[0][6:]
    engine = str(engine or "")
    return Table(
        relation=Relation(
            columns={c.name: c for c in map(_column, described)},
            indexes=tuple(index for _, index in indexes),
            obstacle=None if kind == "BASE TABLE" else _no_table(str(kind)),
        ),
        indexes={index.columns: name for name, index in reversed(indexes) if index.obstacle is None},
        collations={row[0]: (row[4], row[5]) for row in described if row[4]},
        unsigned=frozenset(row[0] for row in described if "unsigned" in str(row[2])),
        engine=engine,
        transactional=rows(_TRANSACTIONS.format(engine=utf8_literal(engine))) == [("YES",)],
        rows=None if estimate is None else int(estimate),
    )


def _no_table(kind: str) -> str:
    if kind == "VIEW":
        return "it is a view, and nothing vouches for what a view returns"
    return f"it is a {kind.lower()}, of which the catalog vouches for nothing"


def _column(row: tuple[Any, ...]) -> KeyColumn:
    name, kind, declared, nullable, charset, collation = row[:6]
    obstacle = None
    if kind not in _EXACT:
        obstacle = "a key is of integers, decimals, text, bytes, uuid, dates or timestamps, which are compared exactly"
    elif kind in TEXTS and charset not in _WHOLE:
        obstacle = f"text in the character set {charset} does not become UTF-8 and back without a change"
    elif kind == "char" and "_nopad_" in collation:
        # Stored with blanks behind it, and compared without them: 'a' and 'a\t' change places.
        obstacle = f"MariaDB's indexes have char in {collation} in another order than its comparisons; use varchar"
    return KeyColumn(
        name=name, type_name=f"{kind}" if kind in _EXACT else declared, nullable=nullable, obstacle=obstacle
    )


def _unique_indexes(parts: list[tuple[Any, ...]]) -> list[tuple[str, UniqueIndex]]:
    by_name: dict[str, list[tuple[Any, ...]]] = {}
    for part in parts:
        by_name.setdefault(part[0], []).append(part[1:])
    in_order = sorted(by_name.items(), key=lambda one: (one[0] != "PRIMARY", len(one[1]), one[0]))
    return [(name, _unique_index(name, found)) for name, found in in_order]


def _unique_index(name: str, parts: list[tuple[Any, ...]]) -> UniqueIndex:
    obstacle = None
    if any(hidden for *_, hidden in parts):
        obstacle = "is ignored by the server"
    elif any(part[0] is None for part in parts):
        obstacle = "is over an expression"
    elif any(part[1] is not None for part in parts):
        obstacle = "is over the beginnings of values only"
    elif any(part[3] != "BTREE" for part in parts):
        obstacle = "is not a btree"
    elif len({part[2] for part in parts}) > 1:
        obstacle = "is not in one direction"
    return UniqueIndex(
        name="its primary key" if name == "PRIMARY" else f"index {name!r}",
        columns=tuple(part[0] for part in parts),
        obstacle=obstacle,
    )


def names_of(query: Query) -> tuple[str, ...]:
    """The names of a table, database first where it is given, in MySQL's quotes or in those of SQL.

    Raises:
        ConfigError: it is no name, or a cast cannot be.
    """
    table = query.table or ""
    if '"' not in table:
        table = re.sub(r"`((?:[^`]|``)+)`", lambda name: quoted(name.group(1).replace("``", "`")), table)
    # It checks the casts, too.
    query_text(Query(table=table, casts=query.casts), most=2, fold=False)
    return split_name(table, most=2, fold=False)


def of_table(query: Query, *rows: str) -> str:
    """SQL that is true for those of a catalog's rows, by their aliases, that are about the table of a query."""
    *schema, table = names_of(query)
    database = utf8_literal(schema[0]) if schema else "DATABASE()"
    # The catalog's own comparison finds them fast, and takes twins in case or in accents for one another.
    return " AND ".join(
        f"{row}.{column} = {name} AND {_exact(f'{row}.{column}')} = {_exact(name)}"
        for row in rows
        for column, name in (("TABLE_SCHEMA", database), ("TABLE_NAME", utf8_literal(table)))
    )


def _exact(name: str) -> str:
    as_compared = f"IF(@@lower_case_table_names, LOWER({name}), {name})"
    return f"CONVERT({as_compared} USING utf8mb4) COLLATE utf8mb4_bin"


def from_clause(query: Query, index: str | None = None) -> str:
    """A table as a statement names it, read along an index where one is named."""
    table = ".".join(map(backquoted, names_of(query)))
    return table if index is None else f"{table} AS r FORCE INDEX ({backquoted(index)})"


def utf8_literal(text: str) -> str:
    """Text in hexadecimal, which no sql_mode reads in another way."""
    return f"CONVERT(0x{text.encode().hex()} USING utf8mb4)" if text else "''"


def backquoted(name: str) -> str:
    """A name as MySQL and MariaDB quote it, whatever `sql_mode` says."""
    return "`" + name.replace("`", "``") + "`"
