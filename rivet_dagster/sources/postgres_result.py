"""What is known of the result of a PostgreSQL query before its first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.description import casts_of, check_columns, positions, selected, table_text
from rivet_dagster.sources.postgres_session import PostgresSession
from rivet_dagster.sources.postgres_types import ColumnPlan, plan_column, type_name, unnamed_oid

__all__ = ["Result", "cast", "result_of"]

_CATALOG = """
SELECT a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type,
       a.attnotnull AND c.relkind = 'r' AND NOT c.relhassubclass AND NOT EXISTS (
           SELECT FROM pg_constraint n
           WHERE n.conrelid = c.oid AND n.contype = 'n' AND NOT n.convalidated AND a.attnum = ANY (n.conkey)
       ) AS never_null
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE a.attrelid = to_regclass({relation}) AND a.attnum > 0 AND NOT a.attisdropped
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The columns of a result.

    Attributes:
        plans: how each travels.
        columns: what each is.
    """

    plans: tuple[ColumnPlan, ...]
    columns: tuple[ResultColumn, ...]

    @property
    def names(self) -> list[str]:
        """Of the columns, in order."""
        return [column.name for column in self.columns]


def result_of(session: PostgresSession, query: Query, text: str) -> Result:
    """Describe a result, without running its query.

    Args:
        session: where to ask; what the query names is locked there.
        query: with its casts.
        text: its statement, without them.

    Raises:
        ConfigError: the columns or the casts cannot be.
        SourceError: the server refused.
    """
    fields = session.describe(text)
    check_columns(fields.names, query)
    if query.casts:
        fields = session.describe(cast(text, query, fields.names))
    plans = tuple(map(plan_column, positions(len(fields)), fields))
    return Result(plans=plans, columns=_columns(session, query, fields, plans))


def cast(text: str, query: Query, names: Sequence[str]) -> str:
    """The statement of a query with its casts; `names` are those of its columns."""
    return selected(casts_of(names, query.casts), text, len(names)) if query.casts else text


def _columns(
    session: PostgresSession, query: Query, fields: pa.Schema, plans: tuple[ColumnPlan, ...]
) -> tuple[ResultColumn, ...]:
    declared = {}
    if query.table is not None:
        relation = table_text(query, most=2, fold=True).replace("'", "''")
        declared = {row["name"]: row for row in session.rows(_CATALOG.format(relation=f"'{relation}'"))}
    unnamed = sorted({oid for field in fields if (oid := unnamed_oid(field)) is not None})
    names = {}
    if unnamed:
        listed = ", ".join(f"{oid}::oid" for oid in unnamed)
        found = session.rows(f"SELECT t::int8 AS oid, format_type(t, -1) AS name FROM unnest(ARRAY[{listed}]) AS t")
        names = {row["oid"]: row["name"] for row in found}
    columns = []
    for field, plan in zip(fields, plans, strict=True):
        in_table = declared.get(field.name) if field.name not in query.casts else None
        columns.append(
            ResultColumn(
                name=field.name,
                source_type=in_table["type"] if in_table else names.get(unnamed_oid(field)) or type_name(field),
                nullable=not (in_table and in_table["never_null"]) or field.name in query.coerce,
                arrow_type=plan.arrives_as,
            )
        )
    return tuple(columns)
