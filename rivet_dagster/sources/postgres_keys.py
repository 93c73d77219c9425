"""PostgreSQL keys: what the catalog vouches for, key values as literals, and the walk over an index.

A key's columns are integers, text (of a deterministic collation), uuid, date, timestamp, timestamptz or numeric, or a
domain over one of them. COPY takes no parameters, so values travel as literals, each quoted and cast to its column's
own type; instants in UTC, whatever the session's zone is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Key, KeyRange, Query
from rivet_dagster.sources.description import quoted, table_text, what_is_read
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

__all__ = ["WALK_SETTINGS", "Rows", "boundaries", "literal", "range_condition", "relation_of", "text_literal"]

Rows = Callable[[str], list[dict[str, Any]]]
"""All rows of a small statement."""

# A walk must follow the index from where it stands, also where statistics are missing or old. What cannot do without a
# way that is off counts as very dear, and small statements on the catalog would be compiled each time they are asked.
WALK_SETTINGS = {
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "max_parallel_workers_per_gather": "0",
}

_INTEGERS = frozenset({"int2", "int4", "int8"})
_TEXTS = frozenset({"text", "varchar", "bpchar"})
_OTHERS = frozenset({"uuid", "date", "timestamp", "timestamptz", "numeric"})
_EXACT = _INTEGERS | _TEXTS | _OTHERS
# How a boundary is selected. Instants that the driver would change, or that have no date in the calendar, as NULL.
_SENT = {
    "uuid": "{0}::text",
    "numeric": "{0}::text",
    **{
        kind: f"CASE WHEN {{0}} >= '0001-01-01'::{kind} AND {{0}} < '10000-01-01'::{kind} THEN {{0}} END"
        for kind in ("date", "timestamp", "timestamptz")
    },
}

_COLUMNS = """
SELECT a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS declared, c.relkind::text AS kind,
       b.typname::text AS base, b.typnamespace = 'pg_catalog'::regnamespace AS builtin,
       coalesce(l.collisdeterministic, true) AS deterministic,
       c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid) AS has_children,
       a.attnotnull AND NOT EXISTS (
           SELECT FROM pg_constraint n
           WHERE n.conrelid = c.oid AND n.contype = 'n' AND NOT n.convalidated AND a.attnum = ANY (n.conkey)
       ) AS never_null
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
     JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
     LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.oid = to_regclass({relation}) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_INDEXES = """
SELECT i.indexrelid::int8 AS id, n.relname::text AS name, a.attname::text AS column,
       CASE WHEN NOT (i.indisvalid AND i.indisready AND i.indislive) THEN 'is not valid'
            WHEN NOT i.indimmediate THEN 'is deferrable'
            WHEN i.indpred IS NOT NULL THEN 'is partial'
            WHEN m.amname <> 'btree' THEN 'is not a btree'
            WHEN a.attname IS NULL THEN 'is over an expression'
            WHEN NOT o.opcdefault THEN 'has an operator class of its own'
            WHEN i.indcollation[k.i - 1] NOT IN (0, a.attcollation) THEN 'has another collation than its column'
            WHEN i.indoption[k.i - 1] NOT IN (0, 3) OR i.indoption[k.i - 1] <> i.indoption[0]
            THEN 'is not in one direction'
       END AS obstacle
FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid JOIN pg_am m ON m.oid = n.relam
     CROSS JOIN LATERAL generate_series(1, i.indnkeyatts) AS k(i)
     LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.i - 1]
     LEFT JOIN pg_opclass o ON o.oid = i.indclass[k.i - 1]
WHERE i.indrelid = to_regclass({relation}) AND i.indisunique
ORDER BY NOT i.indisprimary, i.indnkeyatts, i.indexrelid, k.i
"""
_NO_TABLES = {
    "v": "it is a view, and nothing vouches for what a view returns",
    "m": None,
    "f": "it is a foreign table, and its constraints are not enforced",
    "r": None,
    "p": None,
}


def relation_of(query: Query, rows: Rows) -> Relation:
    """What the catalog says about the table of a query.

    Raises:
        ConfigError: the query is no table.
        SourceError: permanent, there is no such table.
    """
    if query.table is None:
        raise no_catalog(query)
    name = text_literal(table_text(query, most=2, fold=True))
    columns = rows(_COLUMNS.format(relation=name))
    if not columns:
        raise SourceError(f"{what_is_read(query)}: there is no such table; check schema and name")
    indexes: dict[int, list[dict[str, Any]]] = {}
    for row in rows(_INDEXES.format(relation=name)):
        indexes.setdefault(row["id"], []).append(row)
    obstacle = _NO_TABLES.get(columns[0]["kind"], "it is no table")
    if columns[0]["has_children"]:
        obstacle = "other tables inherit from it, and may repeat its keys"
    return Relation(
        columns={row["name"]: _column(row) for row in columns},
        indexes=tuple(
            UniqueIndex(
                name=f"index {parts[0]['name']!r}",
                columns=tuple(part["column"] for part in parts),
                obstacle=next((part["obstacle"] for part in parts if part["obstacle"]), None),
            )
            for parts in indexes.values()
        ),
        obstacle=obstacle,
    )


def _column(row: dict[str, Any]) -> KeyColumn:
    kind, obstacle = row["base"], None
    if not row["builtin"] or kind not in _EXACT:
        kind = row["declared"]
        obstacle = "a key is of integers, text, uuid, date, timestamp or numeric, which are compared exactly"
    elif not row["deterministic"]:
        obstacle = "its collation calls different texts equal"
    return KeyColumn(name=row["name"], type_name=kind, nullable=not row["never_null"], obstacle=obstacle)


def text_literal(value: str) -> str:
    """Text as a literal, whatever `standard_conforming_strings` is."""
    doubled = value.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in value else f"'{doubled}'"


def literal(column: KeyColumn, value: object) -> str:
    """A key value as a literal of its column's own type.

    Raises:
        ConfigError: the value is not of the column's kind.
    """
    kind = column.type_name
    text: str | None = None
    if kind in _INTEGERS:
        expected = "int"
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else None
    elif kind in _TEXTS:
        expected = "str without NUL"
        text = value if isinstance(value, str) and "\0" not in value else None
    elif kind == "uuid":
        expected = "a uuid as str"
        text = _uuid(value)
    elif kind == "numeric":
        expected = "a finite Decimal"
        text = str(value) if isinstance(value, Decimal) and value.is_finite() else None
    elif kind == "date":
        expected = "date"
        text = value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else None
    elif kind == "timestamp":
        expected = "datetime without zone"
        text = value.isoformat(sep=" ") if isinstance(value, datetime) and value.tzinfo is None else None
    else:
        expected = "datetime with zone"
        aware = isinstance(value, datetime) and value.tzinfo is not None
        text = value.astimezone(timezone.utc).isoformat(sep=" ") if aware and isinstance(value, datetime) else None
    if text is None:
        raise wrong_value(column, value, expected)
    return f"{text_literal(text)}::pg_catalog.{kind}"


def _uuid(value: object) -> str | None:
    try:
        return str(uuid.UUID(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def range_condition(relation: Relation, within: KeyRange, *, alias: str) -> str:
    """SQL that is true for the rows of a range; empty for the range of all rows.

    Args:
        relation: it vouches for the range's key.
        within: the range.
        alias: how the statement names the table.

    Raises:
        ConfigError: a value is not of its column's kind.
    """
    columns = [f"{alias}.{quoted(name)}" for name in within.key.columns]
    conditions = []
    for operator, bound in ((">=", within.low), ("<", within.high)):
        if bound is not None:
            pairs = zip(within.key.columns, values_of(within, bound), strict=True)
            values = [literal(relation.columns[name], value) for name, value in pairs]
            conditions.append(compared_as_rows(columns, operator, values))
    return " AND ".join(conditions)


def boundaries(query: Query, relation: Relation, key: Key, *, rows: int, run: Rows) -> Iterator[tuple[Any, ...]]:
    """The first key of the second range, of the third, and so on, each by one statement.

    Args:
        query: its table is walked.
        relation: it vouches for the key.
        key: what to walk along.
        rows: how many rows are between two boundaries.
        run: runs a statement, with `WALK_SETTINGS`.

    Raises:
        ConfigError: `rows` is less than one.
        SourceError: a boundary has no exact literal, or the server failed.
    """
    check_rows(rows)
    columns = [relation.columns[name] for name in key.columns]
    # Qualified, so that no name in ORDER BY means a result column.
    names = [f"r.{quoted(column.name)}" for column in columns]
    sent = ", ".join(
        f"{_SENT.get(column.type_name, '{0}').format(name)} AS k{i}"
        for i, (column, name) in enumerate(zip(columns, names, strict=True))
    )
    table = table_text(query, most=2, fold=True)
    inside = divided(query, key)
    last = inside.low
    while True:
        condition = range_condition(relation, replace(inside, low=last), alias="r")
        where = f" WHERE {condition}" if condition else ""
        found = run(f"SELECT {sent} FROM {table} AS r{where} ORDER BY {', '.join(names)} OFFSET {rows} LIMIT 1")
        if not found:
            return
        last = tuple(_value(column, found[0][f"k{i}"]) for i, column in enumerate(columns))
        yield last


def _value(column: KeyColumn, value: Any) -> Any:
    found = Decimal(value) if column.type_name == "numeric" else value
    try:
        literal(column, found)
    except ConfigError:
        raise SourceError(
            f"key column {column.name!r}: a value between two ranges is infinite, no number, or outside the years "
            "1 to 9999; choose another key"
        ) from None
    return found
