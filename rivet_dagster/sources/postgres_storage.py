"""Ranges over where PostgreSQL keeps rows: blocks of a table, which need no index and no walk to be found.

A row version has one `ctid` for as long as a snapshot sees it, since no VACUUM takes it away and the run's own lock
keeps out what rewrites a table. So blocks divide the rows of one snapshot, and say nothing about any other.
"""

from __future__ import annotations

from collections.abc import Iterator

from rivet_dagster.rows import Key, KeyRange, Query
from rivet_dagster.sources.description import table_text
from rivet_dagster.sources.postgres_keys import Rows, text_literal
from rivet_dagster.sources.ranges import check_rows, divided, values_of

__all__ = ["block_boundaries", "block_condition", "blocks_of"]

_BLOCKS = Key(columns=("ctid",), storage=True)
# Before 14 a range of ctid is found by reading the whole table. Views, foreign tables and other access methods have no
# blocks; those of a table with children say nothing about where rows of the children are.
_STORED = """
SELECT current_setting('server_version_num')::int4 >= 140000 AND c.relkind IN ('r', 'm') AND m.amname = 'heap'
       AND NOT c.relhassubclass AS stored
FROM pg_class c LEFT JOIN pg_am m ON m.oid = c.relam WHERE c.oid = to_regclass({relation})
"""
_DENSITY = """
SELECT (pg_relation_size(c.oid) / current_setting('block_size')::int8)::int8 AS blocks,
       CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples::float8 / c.relpages END AS rows
FROM pg_class c WHERE c.oid = to_regclass({relation})
"""
_SAMPLED_BLOCKS = 64


def blocks_of(query: Query, rows: Rows) -> Key | None:
    """The blocks of the query's table as a key; `None` where it has none.

    Args:
        query: what is read.
        rows: runs a statement in a transaction that has locked the table, so that nothing rewrites it.
    """
    if query.table is None:
        return None
    name = table_text(query, most=2, fold=True)
    found = rows(_STORED.format(relation=text_literal(name)))
    if not found or not found[0]["stored"]:
        return None
    return _BLOCKS


def block_boundaries(query: Query, key: Key, *, rows: int, run: Rows) -> Iterator[tuple[int, ...]]:
    """The first block of the second range, of the third, and so on; about `rows` rows are between two of them.

    Args:
        query: its table is divided.
        key: what `blocks_of` said.
        rows: how many, by the statistics; where there are none, by the first blocks.
        run: runs a statement.

    Raises:
        ConfigError: `rows` is less than one.
        SourceError: the server failed.
    """
    check_rows(rows)
    name = table_text(query, most=2, fold=True)
    found = run(_DENSITY.format(relation=text_literal(name)))[0]
    density = found["rows"]
    if density is None:
        counted = run(f"SELECT count(*)::int8 AS rows FROM {name} WHERE ctid < '({_SAMPLED_BLOCKS},0)'::tid")
        density = counted[0]["rows"] / _SAMPLED_BLOCKS
    step = max(1, round(rows / max(density, 1)))
    inside = divided(query, key)
    first = inside.low[0] if inside.low else 0
    end = min(found["blocks"], inside.high[0]) if inside.high else found["blocks"]
    for block in range(first + step, end, step):
        yield (block,)


def block_condition(within: KeyRange, *, alias: str) -> str:
    """SQL that is true for the rows of a range of blocks; empty for the range of all rows."""
    return " AND ".join(
        f"{alias}.ctid {operator} '({values_of(within, bound)[0]:d},0)'::pg_catalog.tid"
        for operator, bound in ((">=", within.low), ("<", within.high))
        if bound is not None
    )
