"""What a run in ranges sees of rows that come and go meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import KeyRange, Query, Snapshot
from tests.sources.databases import Database, DuckDB, Postgres, Sqlite
from tests.sources.ranges import assert_cut, between, key_of, query_of, read_in_ranges, rows_in, run

KEY = key_of("id")
BEFORE = [(i * 10,) for i in range(1, 21)]

others_write = pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)


def fill(database: Database) -> None:
    values = ", ".join(f"({row[0]})" for row in BEFORE)
    database.execute("CREATE TABLE t (id bigint NOT NULL PRIMARY KEY)", f"INSERT INTO t VALUES {values}")


def read_while_rows_move(database: Database, snapshot: Snapshot, *, rows: int) -> Iterator[list[tuple[int]]]:
    """Read range by range; before each, someone removes and adds rows on both sides of it."""
    low = None
    bounds = snapshot.boundaries(query_of(), KEY, rows=rows)
    for step in range(100):
        high = next(bounds, None)
        database.execute(
            f"DELETE FROM t WHERE id = {10 * (step + 1)} OR id = {200 - 20 * step}",
            f"INSERT INTO t VALUES ({step - 1000}), ({10 * step + 15}), ({step + 1000})",
        )
        yield rows_in(snapshot, query_of(within=KeyRange(key=KEY, low=low, high=high)))
        if high is None:
            return
        low = high


@others_write
def test_a_snapshot_stays_as_it_was(database: Database) -> None:
    fill(database)
    with run(database) as snapshot:
        # PostgreSQL takes it with the first use, and SQLite when the run begins: before any row is read.
        snapshot.storage_key(query_of())
        database.execute("INSERT INTO t VALUES (5), (195), (1005)", "DELETE FROM t WHERE id = 100")
        parts = list(read_while_rows_move(database, snapshot, rows=6))
    assert_cut(parts, rows=6, expected=BEFORE)


@others_write
def test_with_statements_what_was_there_all_along_is_there_once(database: Database) -> None:
    fill(database)
    with run(database, "statement") as snapshot:
        parts = list(read_while_rows_move(database, snapshot, rows=6))
    found = [row[0] for part in parts for row in part]
    assert len(found) == len(set(found))
    with run(database, "statement") as snapshot:
        after = {row[0] for part in read_in_ranges(snapshot, KEY, rows=50) for row in part}
    throughout = {row[0] for row in BEFORE} & after
    assert throughout <= set(found)
    assert len(throughout) > 5
    # Each statement saw what had come before it.
    assert 1000 in found


@others_write
def test_a_run_of_statements_sees_a_new_row_and_a_snapshot_does_not(database: Database) -> None:
    fill(database)
    for consistency, expected in (("snapshot", BEFORE), ("statement", [*BEFORE, (999,)])):
        with run(database, consistency) as snapshot:
            first = rows_in(snapshot, query_of())
            database.execute("INSERT INTO t VALUES (999)")
            assert sorted(rows_in(snapshot, query_of())) == sorted(expected)
        assert sorted(first) == BEFORE
        database.execute("DELETE FROM t WHERE id = 999")


def test_connections_of_a_postgresql_run_share_one_snapshot(pg: Postgres) -> None:
    pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    fill(pg)
    which = Query(sql="SELECT pg_current_snapshot()::text AS s, pg_backend_pid() AS pid", casts={})
    with run(pg) as snapshot:
        first = snapshot.open(which)
        pg.execute("INSERT INTO t VALUES (1)")
        second = snapshot.open(which)
        seen = [next(iter(stream)).to_pylist()[0] for stream in (first, second)]
    assert seen[0]["s"] == seen[1]["s"]
    assert seen[0]["pid"] != seen[1]["pid"]


def open_for_writing(duck: DuckDB) -> str:
    """What another process is told that opens the file for writing."""
    code = "import sys, duckdb\nduckdb.connect(sys.argv[1]).execute('INSERT INTO t VALUES (1)')"
    return subprocess.run(
        [sys.executable, "-c", code, str(duck.path)], check=False, capture_output=True, text=True
    ).stderr


def test_nobody_writes_to_duckdb_while_a_snapshot_is_read(duck: DuckDB) -> None:
    fill(duck)
    with run(duck) as snapshot:
        parts = []
        for within in between(list(snapshot.boundaries(query_of(), KEY, rows=15)), KEY):
            assert "lock" in open_for_writing(duck)
            parts.append(rows_in(snapshot, query_of(within=within)))
        assert_cut(parts, rows=15, expected=BEFORE)
    assert open_for_writing(duck) == ""


def test_between_statements_duckdb_is_free(duck: DuckDB) -> None:
    fill(duck)
    with run(duck, "statement") as snapshot:
        bounds = snapshot.boundaries(query_of(), KEY, rows=10)
        assert next(bounds) == (110,)
        assert open_for_writing(duck) == ""
        assert len(rows_in(snapshot, query_of())) == len(BEFORE) + 1


def test_a_snapshot_of_sqlite_has_one_stream_at_a_time(lite: Sqlite) -> None:
    fill(lite)
    with run(lite) as snapshot:
        first = snapshot.open(query_of())
        with pytest.raises(SourceError, match="one stream at a time"):
            snapshot.open(query_of())
        # A walk may go on while a stream is open.
        assert next(snapshot.boundaries(query_of(), KEY, rows=10)) == (110,)
        first.close()
        assert len(rows_in(snapshot, query_of())) == len(BEFORE)


def test_a_snapshot_of_sqlite_frees_the_file(lite: Sqlite) -> None:
    lite.execute("PRAGMA journal_mode = delete")
    fill(lite)
    with run(lite) as snapshot:
        stream = snapshot.open(query_of())
        next(iter(stream))
    lite.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(SourceError):
        list(stream)
