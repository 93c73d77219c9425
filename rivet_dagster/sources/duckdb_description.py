"""What DuckDB says of a result before its first row, and what is selected for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivet_dagster.errors import ConfigError
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.description import (
    casts_of,
    check_columns,
    positions,
    quoted,
    selected,
    what_is_read,
)
from rivet_dagster.sources.duckdb_types import exported_as, may_fail, plain

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["described"]


def described(
    connection: DuckDBPyConnection, text: str, query: Query
) -> tuple[tuple[ResultColumn, ...], str, tuple[str, ...]]:
    """The result, what is selected for it, and the columns of which it is said behind them where a value was lost."""
    statements = connection.extract_statements(text)
    if [statement.type.name for statement in statements] != ["SELECT"]:
        raise ConfigError(f"{what_is_read(query)}: one select statement was expected")
    relation = connection.sql(text)
    names = relation.columns
    check_columns(names, query)
    if query.casts:
        relation = connection.sql(selected(casts_of(names, query.casts), text, len(names)))
    kinds = relation.types
    sent, lost = [], {}
    for place, name, kind in zip(positions(len(names)), names, kinds, strict=True):
        own, coerced = exported_as(kind), name in query.coerce
        value = _cast(place, query.casts.get(name), trying=coerced)
        value = _cast(value, own, trying=coerced or may_fail(own))
        sent.append(f"{value} AS {quoted(name)}")
        if coerced or may_fail(own):
            lost[name] = f"{place} IS NOT NULL AND {value} IS NULL"
    sql = (
        selected([*sent, *lost.values()], text, len(names))
        if query.casts or lost or any(map(exported_as, kinds))
        else text
    )
    described = list(connection.sql(sql).limit(0).to_arrow_table().schema)[: len(names)]
    columns = tuple(
        ResultColumn(name=name, source_type=str(kind), nullable=True, arrow_type=plain(field.type))
        for name, kind, field in zip(names, kinds, described, strict=True)
    )
    return columns, sql, tuple(lost)


def _cast(value: str, kind: str | None, *, trying: bool) -> str:
    if kind is None:
        return value
    return f"TRY(CAST({value} AS {kind}))" if trying else f"CAST({value} AS {kind})"
