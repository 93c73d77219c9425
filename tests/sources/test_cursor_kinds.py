"""What MySQL, SQLite and DuckDB say of a cursor: its kind, its resolution, and whether its values are unique."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from rivet_dagster.windows import CursorTerm
from tests.sources.databases import Database, DuckDB, MySQL, Sqlite

SECOND, MILLISECOND, MICROSECOND = timedelta(seconds=1), timedelta(milliseconds=1), timedelta(microseconds=1)


def said(database: Database, **term: Any) -> tuple[Any, ...]:
    """Kind, type, resolution, unique and nullable; or that it is refused."""
    source: Any = connect(database.url)
    try:
        found = source.describe_cursor(Query(table="kinds", casts={}), CursorTerm(**term))
    except ConfigError as refused:
        return ("refused",) if "table kinds: " in str(refused) else (str(refused),)
    return found.kind, found.type_name, found.resolution, found.unique, found.nullable


def test_mysql(maria: MySQL) -> None:
    """NOW() gives whole seconds, so no stamp is taken for finer than it may be."""
    maria.execute(
        "CREATE TABLE kinds (i bigint unsigned PRIMARY KEY, n int UNIQUE, d date NOT NULL, t datetime(6), "
        "z timestamp(3) NULL, x varchar(40), p varchar(40), y year, b bit(8), e enum('a','b'), f double, j json, "
        "UNIQUE KEY (x), UNIQUE KEY (p(3)), UNIQUE KEY (d, n))"
    )
    assert said(maria, column="i") == ("integer", "bigint unsigned", SECOND, True, False)
    assert said(maria, column="N") == ("integer", "int", SECOND, True, True)
    assert said(maria, column="d") == ("date", "date", SECOND, False, False)
    assert said(maria, column="t") == ("naive", "datetime", SECOND, False, True)
    assert said(maria, column="z") == ("instant", "timestamp", SECOND, False, True)
    assert said(maria, column="x") == ("text", "char", SECOND, True, True)
    # Of an index over the first letters, many texts may be equal.
    assert said(maria, column="p") == ("text", "char", SECOND, False, True)
    assert said(maria, expression="coalesce(t, '2024-01-01')")[0] in ("naive", "text")
    for column in ("y", "b", "e", "f", "gone"):
        assert said(maria, column=column) == ("refused",)


@pytest.mark.parametrize("twin", ["KINDS", "k\u00efnds"])
def test_an_index_of_a_table_with_almost_the_same_name_vouches_for_nothing(maria: MySQL, twin: str) -> None:
    """Or the rows that come with the greatest value later would never be read."""
    maria.execute("CREATE TABLE kinds (n int NOT NULL)", f"CREATE TABLE {twin} (n int NOT NULL UNIQUE)")
    assert said(maria, column="n")[0::3] == ("integer", False)
    maria.execute(f"RENAME TABLE kinds TO other, {twin} TO kinds, other TO {twin}")
    assert said(maria, column="n")[0::3] == ("integer", True)


def test_sqlite(lite: Sqlite) -> None:
    """CURRENT_TIMESTAMP writes whole seconds, and no type says so."""
    lite.execute(
        "CREATE TABLE kinds (i integer PRIMARY KEY, n bigint UNIQUE, d date, t datetime, x text, r real, b blob, k, "
        "s bigint)",
        "CREATE UNIQUE INDEX some ON kinds (s) WHERE s > 0",
        "INSERT INTO kinds (x) VALUES ('2024-01-01T10:00')",
    )
    assert said(lite, column="i")[0::3] == ("integer", True)
    assert said(lite, column="n")[0::3] == ("integer", True)
    assert said(lite, column="s")[0::3] == ("integer", False)
    assert said(lite, column="d")[0] == "date"
    assert said(lite, column="t")[:3] == ("naive", "datetime", SECOND)
    assert said(lite, column="x")[0] == "text"
    assert said(lite, column="x", is_time=True)[0] == "naive"
    assert said(lite, expression="coalesce(t, x)", is_time=True)[0] == "naive"
    assert said(lite, expression="i * 2")[0] == "integer"
    for column in ("r", "b", "gone"):
        assert said(lite, column=column) == ("refused",)


def test_duckdb(duck: DuckDB) -> None:
    duck.execute(
        "CREATE TABLE kinds (i ubigint PRIMARY KEY, h hugeint, d date, t timestamp, s timestamp_s, ms timestamp_ms, "
        "ns timestamp_ns, z timestamptz, u uuid UNIQUE, x varchar, f double)"
    )
    assert said(duck, expression="s::timestamp")[:3] == ("naive", "TIMESTAMP", SECOND)
    assert said(duck, column="I") == ("integer", "UBIGINT", MICROSECOND, True, False)
    assert said(duck, column="d")[0] == "date"
    assert said(duck, column="t") == ("naive", "TIMESTAMP", MICROSECOND, False, True)
    assert said(duck, column="s")[::2][:2] == ("naive", SECOND)
    assert said(duck, column="ms")[::2][:2] == ("naive", MILLISECOND)
    assert said(duck, column="z")[0] == "instant"
    assert said(duck, column="u")[0::3] == ("uuid", True)
    assert said(duck, expression="greatest(i, 5)")[0] in ("integer", "refused")
    assert said(duck, expression="coalesce(z, now())")[0] == "instant"
    for column in ("h", "ns", "f", "gone"):
        assert said(duck, column=column) == ("refused",)
