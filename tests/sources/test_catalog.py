"""What a schema has: tables, columns, and the columns that an index begins with, asked of every database."""

from __future__ import annotations

import pytest

import rivet_dagster as rd
from rivet_dagster.sources.catalog import ListedTable, tables_of
from tests.sources.databases import Database


def test_tables_are_listed_with_the_columns_that_an_index_begins_with(database: Database) -> None:
    q = database.quoted
    database.execute(
        "create table plain (a integer, b integer)",
        f"create table {q('Odd Name')} (id integer not null primary key, {q('at')} {database.naive}, n integer)",
        f"create index odd_at on {q('Odd Name')} ({q('at')}, n)",
        "create view shown as select a from plain",
    )
    listed = {t.name: t for t in tables_of(database.url, None)}
    assert listed.keys() >= {"plain", "Odd Name"}
    assert "shown" not in listed
    # DuckDB keeps the bounds of every column of every block.
    every = database.kind == "duckdb"
    odd, plain = listed["Odd Name"], listed["plain"]
    assert odd.columns == ("id", "at", "n")
    assert odd.indexed == ({"id", "at", "n"} if every else {"id", "at"})
    assert plain == ListedTable(
        name="plain",
        qualified=plain.qualified,
        columns=("a", "b"),
        indexed=frozenset("ab" if every else ""),
    )
    for table in (odd, plain):
        assert database.read(table=table.qualified).rows == []


@pytest.mark.parametrize("kind", ["pg", "lite"])
def test_a_partial_index_counts_for_nothing(request: pytest.FixtureRequest, kind: str) -> None:
    database: Database = request.getfixturevalue(kind)
    database.execute("create table shown_in_part (a integer)", "create index part_a on shown_in_part (a) where a > 3")
    (table,) = (t for t in tables_of(database.url, database.schema) if t.name == "shown_in_part")
    assert table.indexed == frozenset()


def test_a_schema_without_tables_is_told(database: Database) -> None:
    with pytest.raises(rd.ConfigError, match=r"schema 'nowhere'|the schema 'main'"):
        tables_of(database.url, "nowhere")


def test_a_database_without_a_driver_of_ours_is_told() -> None:
    with pytest.raises(rd.ConfigError, match="oracle:// has no catalog that is read here"):
        tables_of("oracle://me@host/shop", None)
