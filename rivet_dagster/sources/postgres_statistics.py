"""What PostgreSQL's statistics say about the size of a table, and where to look when they say nothing."""

from __future__ import annotations

from typing import Any

from rivet_dagster.rows import Query
from rivet_dagster.sources.description import table_text
from rivet_dagster.sources.postgres_keys import Rows, text_literal

__all__ = ["estimated_rows", "sample_clause"]

_SAMPLE_PAGES = 64
# Of a partitioned table or one that others inherit from, all of them. As the planner does: the density of the last
# ANALYZE, times what the table has grown to.
_SIZES = """
WITH RECURSIVE t(oid) AS (
    SELECT to_regclass({relation})::oid UNION SELECT h.inhrelid FROM pg_inherits h JOIN t ON t.oid = h.inhparent
)
SELECT count(*) FILTER (WHERE c.reltuples < 0 OR (c.relpages = 0 AND s.pages > 0))::int8 AS unknown,
       sum(CASE WHEN c.relpages > 0 THEN c.reltuples::float8 / c.relpages * s.pages ELSE 0 END)::float8 AS rows,
       sum(s.pages)::float8 AS pages, bool_and(c.relkind IN ('r', 'm', 'p')) AS sampled
FROM t JOIN pg_class c ON c.oid = t.oid
     CROSS JOIN LATERAL (
         SELECT CASE WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) ELSE 0 END
                / current_setting('block_size')::int8
     ) AS s(pages)
"""


def estimated_rows(query: Query, rows: Rows) -> int | None:
    """How many rows the table of a query has by the statistics; `None` where a part of it has none."""
    found = _sizes(query, rows)
    known = found["sampled"] and not found["unknown"] and found["rows"] is not None
    return round(found["rows"]) if known else None


def sample_clause(query: Query, rows: Rows) -> str:
    """SQL to put behind a select of the whole table, that leaves the rows of some pages all over it."""
    found = _sizes(query, rows)
    # A table that is dropped meanwhile, as for another of its name, has no size.
    if not found["sampled"] or (found["pages"] or 0) <= _SAMPLE_PAGES:
        return ""
    return f" TABLESAMPLE SYSTEM ({100 * _SAMPLE_PAGES / found['pages']:.6f})"


def _sizes(query: Query, rows: Rows) -> dict[str, Any]:
    name = text_literal(table_text(query, most=2, fold=True))
    return rows(_SIZES.format(relation=name))[0]
