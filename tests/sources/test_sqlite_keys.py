"""SQLite: which columns are a key, and that a walk follows the index."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.sources.sqlite_keys import boundaries, relation_of
from tests.sources.databases import Sqlite
from tests.sources.ranges import assert_cut, key_of, query_of, read_in_ranges, run, splittable

KEYS = {
    "id INTEGER PRIMARY KEY": ("id",),
    "id integer primary key autoincrement": ("id",),
    "x TEXT, id INTEGER, PRIMARY KEY (id)": ("id",),
    "id TEXT PRIMARY KEY NOT NULL": ("id",),
    "a INT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (b, a)": ("b", "a"),
    "day DATE NOT NULL UNIQUE": ("day",),
    "x TEXT COLLATE BINARY NOT NULL UNIQUE": ("x",),
    "id INT NOT NULL UNIQUE, x TEXT COLLATE NOCASE": ("id",),
    "g INT NOT NULL, id INT NOT NULL GENERATED ALWAYS AS (g * 2) STORED UNIQUE": ("id",),
}
REFUSED = {
    "id TEXT PRIMARY KEY": "column 'id' may be NULL",
    "id INTEGER PRIMARY KEY DESC": "column 'id' may be NULL",
    "id BIGINT PRIMARY KEY": "column 'id' may be NULL",
    "id TEXT COLLATE NOCASE NOT NULL UNIQUE": "declares a collation",
    "x TEXT COLLATE /* why */ RTRIM, id TEXT NOT NULL UNIQUE": "declares a collation",
    "id REAL NOT NULL UNIQUE": "compared exactly",
    "id NOT NULL UNIQUE": "compared exactly",
    "id BLOB NOT NULL UNIQUE": "compared exactly",
    "id DECIMAL(5, 2) NOT NULL UNIQUE": "compared exactly",
}


@pytest.mark.parametrize("columns", KEYS)
def test_the_catalog_vouches_for_a_key(lite: Sqlite, columns: str) -> None:
    lite.execute(f"CREATE TABLE t ({columns})")
    assert splittable(lite).keys(query_of()) == (key_of(*KEYS[columns]),)
    assert splittable(lite).keys(query_of("main.T")) == (key_of(*KEYS[columns]),)


@pytest.mark.parametrize("columns", REFUSED)
def test_the_catalog_does_not_vouch_for_it(lite: Sqlite, columns: str) -> None:
    lite.execute(f"CREATE TABLE t ({columns})")
    assert splittable(lite).keys(query_of()) == ()
    with pytest.raises(ConfigError, match=REFUSED[columns]):
        splittable(lite).check_key(query_of(), ["id"])


def test_the_primary_key_of_a_table_without_row_numbers_is_never_null(lite: Sqlite) -> None:
    lite.execute("CREATE TABLE t (a TEXT, b INT, PRIMARY KEY (a, b)) WITHOUT ROWID")
    assert splittable(lite).keys(query_of()) == (key_of("a", "b"),)


INDEXES = {
    "(x) WHERE x > 0": "is partial",
    "(abs(x))": "nothing makes these columns",
    "(s COLLATE NOCASE)": "is in the order of another collation",
    "(x, y DESC)": "is not in one direction",
}


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_that_is_no_full_one_is_no_key(lite: Sqlite, index: str) -> None:
    lite.execute(
        "CREATE TABLE t (x INT NOT NULL, y INT NOT NULL, s TEXT NOT NULL)", f"CREATE UNIQUE INDEX i ON t {index}"
    )
    assert splittable(lite).keys(query_of()) == ()
    columns = {"(x, y DESC)": ["x", "y"], "(s COLLATE NOCASE)": ["s"]}.get(index, ["x"])
    with pytest.raises(ConfigError, match=INDEXES[index]):
        splittable(lite).check_key(query_of(), columns)


def test_an_index_that_is_not_unique_is_no_key(lite: Sqlite) -> None:
    lite.execute("CREATE TABLE t (x INT NOT NULL)", "CREATE INDEX i ON t (x)")
    with pytest.raises(ConfigError, match="nothing makes these columns"):
        splittable(lite).check_key(query_of(), ["x"])


def test_a_virtual_table_has_no_key(lite: Sqlite) -> None:
    lite.execute("CREATE VIRTUAL TABLE t USING rtree(id, low, high)")
    assert splittable(lite).keys(query_of()) == ()
    with pytest.raises(ConfigError, match="virtual table"):
        splittable(lite).check_key(query_of(), ["id"])


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("id INTEGER PRIMARY KEY, x TEXT", ("id",)),
        ("s TEXT NOT NULL, i INT NOT NULL, x TEXT, UNIQUE (s, i)", ("s", "i")),
        ("a INT, b INT, c TEXT, x TEXT, PRIMARY KEY (a, b, c)) WITHOUT ROWID; --", ("a", "b", "c")),
    ],
)
def test_each_step_of_a_walk_is_a_search_in_the_index(lite: Sqlite, columns: str, key: tuple[str, ...]) -> None:
    lite.execute(f"CREATE TABLE t ({columns})")
    insert = "INSERT INTO t (" + ", ".join(key) + ") VALUES (" + ", ".join("?" * len(key)) + ")"
    with closing(sqlite3.connect(lite.path)) as connection:
        connection.executemany(insert, [tuple(str(i) if name in "sc" else i for name in key) for i in range(100, 200)])
        connection.commit()
        plans: list[str] = []

        def fetch(sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            if sql.startswith("SELECT r."):
                plans.extend(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters))
            return connection.execute(sql, parameters).fetchall()

        relation = relation_of(query_of(), fetch)
        assert len(list(boundaries(query_of(), relation, key_of(*key), rows=30, fetch=fetch))) == 3
    assert len(plans) == 4
    wanted = "rowid>?" if key == ("id",) else f"({','.join(key)})>"
    assert all(plan.startswith("SEARCH") and wanted in plan for plan in plans[1:]), plans


MIXED: dict[str, tuple[str, list[Any]]] = {
    "a number among texts": ("s TEXT NOT NULL UNIQUE", ["a", b"\x00", "b"]),
    "a text among numbers": ("s INT NOT NULL UNIQUE", [1, "x", 2]),
    "a fraction among numbers": ("s INT NOT NULL UNIQUE", [1, 1.5, 2]),
}


@pytest.mark.parametrize("mixed", MIXED)
def test_a_boundary_of_another_storage_class_is_refused(lite: Sqlite, mixed: str) -> None:
    declared, values = MIXED[mixed]
    lite.execute(f"CREATE TABLE t ({declared})")
    with closing(sqlite3.connect(lite.path)) as connection, connection:
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    with run(lite) as snapshot, pytest.raises(SourceError, match="of another storage class") as raised:
        list(snapshot.boundaries(query_of(), key_of("s"), rows=1))
    assert not raised.value.transient


@pytest.mark.parametrize("consistency", ["snapshot", "statement"])
def test_all_ranges_have_the_types_of_the_whole_table(lite: Sqlite, consistency: Any) -> None:
    lite.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, x)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 2.5), (4, NULL)"
    )
    with run(lite, consistency) as snapshot:
        parts = read_in_ranges(snapshot, key_of("id"), rows=2)
    assert_cut(parts, rows=2, expected=[(1, 1.0), (2, 2.0), (3, 2.5), (4, None)])  # type: ignore[list-item]
    assert [type(row[1]) for row in parts[0]] == [float, float]


def test_text_that_a_collation_calls_equal_is_in_one_order(lite: Sqlite) -> None:
    lite.execute("CREATE TABLE t (s TEXT NOT NULL UNIQUE)", "INSERT INTO t VALUES ('B'), ('a'), ('b'), ('A'), ('a ')")
    with run(lite) as snapshot:
        assert read_in_ranges(snapshot, key_of("s"), rows=1) == [[(value,)] for value in ["A", "B", "a", "a ", "b"]]


def test_the_estimate_is_analyzes(lite: Sqlite) -> None:
    lite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x INT)", "CREATE INDEX i ON t (x)")
    ask: Callable[[], int | None] = lambda: splittable(lite).estimated_rows(query_of())  # noqa: E731
    assert ask() is None
    lite.execute("INSERT INTO t VALUES (1, 1), (2, 1), (3, 2)", "ANALYZE")
    assert ask() == 3
