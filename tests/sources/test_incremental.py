"""Windows over a cursor on each database: every row version that a window can see is in the dataset once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError, ContractError, SourceError
from rivet_dagster.exports import incremental, reading
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.sources.stream import BatchStream
from tests.sources.databases import Database, Sqlite
from tests.sources.incremental import Incrementally


def settle(database: Database) -> dict[str, Any]:
    """MySQL promises nothing by itself: one has to choose."""
    return {"settle": "none"} if database.kind == "mysql" else {}


def ago(**more: float) -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(**more)


def test_a_number_with_a_unique_index_is_read_up_to_the_greatest(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id {database.bigint} NOT NULL PRIMARY KEY)", "INSERT INTO events VALUES (-3), (5), (9)"
    )
    events = Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="id", **settle(database)))
    assert events.run().row_count == 3
    assert events.manifest["dataset"] == "snapshot"
    again = events.run()
    assert (again.row_count, again.unchanged) == (0, True)
    assert again.window == {"low": 9, "low_open": True, "high": 9, "high_open": False, "nulls": False}
    database.execute("INSERT INTO events VALUES (10), (9007199254740993)")
    events.run()
    assert events.manifest["dataset"] == "append"
    assert events.manifest["cursor"] == {
        "column": "id",
        "type": events.manifest["identity"]["cursor_type"],
        "kind": "integer",
        "value": 9007199254740993,
        "included": True,
    }
    assert events.manifest["source"]["extraction"] == {
        "strategy": "incremental",
        "cursor_column": "id",
        "cursor_type": events.manifest["cursor"]["type"],
        "cursor_low": "9",
        "cursor_high": "9007199254740993",
    }
    assert events.rows() == [-3, 5, 9, 10, 9007199254740993]


def test_a_reading_that_is_begun_again_reads_the_same_window(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
    database.execute(
        f"CREATE TABLE events (id {database.bigint} NOT NULL PRIMARY KEY)", "INSERT INTO events VALUES (1)"
    )
    events = Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="id", **settle(database)))
    events.run()
    database.execute("INSERT INTO events VALUES (2), (3)")
    cuts, read = iter([True]), BatchStream._next

    def cut_once(stream: BatchStream) -> Any:
        if next(cuts, False):
            raise SourceError("the connection is cut", transient=True)
        return read(stream)

    monkeypatch.setattr(BatchStream, "_next", cut_once)
    again = events.run()
    assert again.counters["rivet/source_retries"]["count"] == 1
    assert again.row_count == 2
    assert events.rows() == [1, 2, 3]


def test_of_a_number_without_a_unique_index_the_greatest_waits(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id integer, n {database.bigint} NOT NULL)",
        "INSERT INTO events VALUES (1, 5), (2, 7), (3, 7)",
    )
    events = Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="n", **settle(database)))
    events.run()
    assert events.rows() == [1]
    # A tie that comes later is not lost.
    database.execute("INSERT INTO events VALUES (4, 7)")
    assert events.run().row_count == 0
    database.execute("INSERT INTO events VALUES (5, 8)")
    events.run()
    assert events.rows() == [1, 2, 3, 4]


def test_a_timestamp_without_a_zone_is_read_up_to_the_clock(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id integer, seen {database.naive})",
        f"INSERT INTO events VALUES (1, '{ago(days=400)}'), (2, '{ago(minutes=1)}'), (3, '{ago(hours=-1)}'), (4, NULL)",
    )
    mode = Incremental(cursor_column="seen", time_zone="UTC", **settle(database))
    events = Incrementally(database.url, tmp_path / "lake", mode)
    first = events.run()
    assert events.rows() == [1, 2]
    assert first.counters["rivet/nulls_excluded"] == 1
    database.execute(f"INSERT INTO events VALUES (5, '{events.manifest['cursor']['value'].replace('T', ' ')}')")
    database.execute("UPDATE events SET seen = NULL WHERE id = 1")
    time.sleep(1.1)
    second = events.run()
    assert events.rows() == [1, 2, 5]
    # Without an index they are not looked for in each run.
    said = second.counters["rivet/settle"].get("nulls")
    counted = second.counters.get("rivet/nulls_excluded")
    assert (counted, said) == ((2, None) if database.kind == "duckdb" else (None, "not counted: no index finds them"))
    assert second.window["low"] == first.window["high"]


def test_a_count_of_time_is_read_up_to_the_clock(database: Database, tmp_path: Path) -> None:
    now = int(datetime.now(timezone.utc).timestamp() * 1000)
    database.execute(
        f"CREATE TABLE events (id integer, seen {database.bigint})",
        f"INSERT INTO events VALUES (1, 5), (2, {now - 60_000}), (3, {now + 3_600_000})",
    )
    events = Incrementally(
        database.url, tmp_path / "lake", Incremental(cursor_column="seen", unit="ms", **settle(database))
    )
    events.run()
    assert events.rows() == [1, 2]
    assert events.manifest["cursor"]["type"].endswith("in ms since 1970")
    assert now - 5_000 <= events.manifest["cursor"]["value"] < now + 3_600_000


def test_an_expression_of_a_query_is_a_cursor(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id integer, made {database.bigint}, changed {database.bigint})",
        "INSERT INTO events VALUES (1, 1, NULL), (2, 2, 5), (3, 3, NULL)",
    )
    mode = Incremental(cursor_expression="coalesce(changed, made) -- of both", **settle(database))
    sql = "SELECT id, made, changed FROM events -- all"
    events = Incrementally(database.url, tmp_path / "lake", mode, relation={"query": sql})
    events.run()
    assert events.rows() == [1, 3]
    assert events.manifest["cursor"]["column"].startswith("expression:xxh3:")
    assert "coalesce" not in str(events.manifest)
    database.execute("INSERT INTO events VALUES (4, 4, 9)")
    events.run()
    assert events.rows() == [1, 2, 3]


def test_a_table_of_nothing_but_nulls_and_an_empty_one_can_be_continued(database: Database, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE events (id integer, n {database.bigint} UNIQUE)")
    events = Incrementally(
        database.url, tmp_path, Incremental(cursor_column="n", nulls="first_run", **settle(database))
    )
    assert events.run().row_count == 0
    assert events.manifest["cursor"]["value"] is None
    database.execute("INSERT INTO events VALUES (1, NULL), (2, 4)")
    events.run()
    assert events.rows() == [2]


def test_a_cursor_that_says_nothing_about_when_is_refused(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id {database.bigint}, name varchar(20), seen {database.naive}, x double precision)"
    )
    given = settle(database)
    for more, expected in (
        ({"cursor_column": "name"}, "monotonic=True"),
        ({"cursor_column": "seen"}, 'time_zone="UTC"'),
        ({"cursor_column": "seen", "time_zone": "Europe/Berlin"}, 'lag="60 minutes"'),
        ({"cursor_column": "x"}, "choose another column"),
        ({"cursor_column": "gone"}, "no column 'gone'.*'id', 'name'"),
        ({"cursor_column": "id", "lag": "5 minutes"}, "this cursor is none"),
        ({"cursor_column": "id", "time_zone": "UTC"}, "leave it out"),
        ({"cursor_column": "seen", "unit": "s", "time_zone": "UTC"}, "leave it out"),
    ):
        with pytest.raises(ConfigError, match=expected):
            Incrementally(database.url, tmp_path / "lake", Incremental(**more, **given)).run()
    Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="name", monotonic=True, **given)).run()


def test_columns_that_changed_are_refused_before_the_first_part(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id {database.bigint} NOT NULL PRIMARY KEY, note varchar(9))",
        "INSERT INTO events VALUES (1, 'a')",
    )
    mode = Incremental(cursor_column="id", **settle(database))
    events = Incrementally(database.url, tmp_path / "lake", mode)
    events.run()
    before = {p: p.read_bytes() for p in (tmp_path / "lake").rglob("*") if p.is_file()}
    database.execute("INSERT INTO events VALUES (2, 'b')", "ALTER TABLE events ADD COLUMN more integer")
    with pytest.raises(ContractError, match=r"column 'more' .* is new; .*full_refresh"):
        events.run()
    database.execute("ALTER TABLE events DROP COLUMN more")
    with pytest.raises(ContractError, match=r"parts are parquet.*csv.*full_refresh"):
        events.run(format="csv")
    assert {p: p.read_bytes() for p in (tmp_path / "lake").rglob("*") if p.is_file()} == before
    events.run()
    assert events.rows("id, note") == [(1, "a"), (2, "b")]


def test_columns_may_come_that_can_be_null(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id {database.bigint} NOT NULL PRIMARY KEY, note varchar(9))",
        "INSERT INTO events VALUES (1, 'a')",
    )
    events = Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="id", **settle(database)))
    events.run()
    if database.kind in {"postgresql", "mysql"}:  # the others describe no column as never NULL
        database.execute("ALTER TABLE events ADD COLUMN late integer NOT NULL DEFAULT 1")
        with pytest.raises(
            ContractError, match=r"column 'late' .* is new, and 'late' can be NULL in none.*full_refresh"
        ):
            events.run(on_schema_drift="allow")
        database.execute("ALTER TABLE events DROP COLUMN late")
    database.execute("ALTER TABLE events ADD COLUMN more integer", "INSERT INTO events VALUES (2, 'b', 7)")
    events.run(on_schema_drift="allow")
    database.execute("INSERT INTO events VALUES (3, 'c', NULL)")
    events.run()
    assert events.rows("id, note, more") == [(1, "a", None), (2, "b", 7), (3, "c", None)]


def test_a_dataset_of_another_cursor_is_not_continued(database: Database, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE events (id {database.bigint} NOT NULL PRIMARY KEY, n {database.bigint})",
        "INSERT INTO events VALUES (1, 1)",
    )
    given = settle(database)
    events = Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="id", **given))
    events.run()
    with pytest.raises(ContractError, match=r"cursor_column is 'n', there it is 'id'.*full_refresh"):
        events.run(Incremental(cursor_column="n", **given))
    with pytest.raises(ContractError, match=r"cursor_type is '\w+ in s since 1970'"):
        events.run(Incremental(cursor_column="id", unit="s", **given))


def test_the_right_thing_is_said_where_nothing_can_be_promised(database: Database, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE events (id integer, seen {database.naive})")
    clock = {"cursor_column": "seen", "time_zone": "UTC"}
    if database.kind == "mysql":
        for more in ({}, {"settle": "writers"}):
            with pytest.raises(ConfigError, match=r'lag="5 minutes".*settle="none"'):
                Incrementally(database.url, tmp_path / "lake", Incremental(**clock, **more)).run()
    else:
        said = Incrementally(database.url, tmp_path / "w", Incremental(**clock)).run().counters["rivet/settle"]
        assert said["settle"] == "writers"
        assert "note" not in said
    said = Incrementally(database.url, tmp_path / "l", Incremental(**clock, lag="5 minutes")).run()
    assert said.counters["rivet/settle"] == {
        "settle": "lag",
        "lag_seconds": 300.0,
        "note": "later commits may be missed",
    }
    end = datetime.fromisoformat(said.window["high"])
    assert timedelta(seconds=-5) < ago(minutes=5) - end < timedelta(minutes=10)
    said = Incrementally(database.url, tmp_path / "n", Incremental(**clock, settle="none")).run()
    assert said.counters["rivet/settle"]["settle"] == "none"
    assert "missed" in said.counters["rivet/settle"]["note"]


def test_an_index_that_does_not_vouch_for_the_column_alone_counts_for_nothing(
    database: Database, tmp_path: Path
) -> None:
    """Neither one over two columns nor, where there is one, a partial one: the greatest value waits."""
    database.execute(
        f"CREATE TABLE events (id integer NOT NULL, n {database.bigint} NOT NULL, PRIMARY KEY (id, n))",
        "INSERT INTO events VALUES (1, 1), (2, 2)",
    )
    if database.kind in {"postgresql", "sqlite"}:
        database.execute("CREATE UNIQUE INDEX in_part ON events (n) WHERE id > 1")
    events = Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="n", **settle(database)))
    events.run()
    assert events.rows() == [1]
    # An index that comes meanwhile is used: what had waited is in the next window.
    database.execute("CREATE UNIQUE INDEX of_all ON events (n)")
    events.run()
    expected = [1] if database.kind == "duckdb" else [1, 2]
    assert events.rows() == expected


def test_what_comes_between_the_noting_and_the_reading_is_left_to_the_next_run(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an empty table, too, whose window has no end."""
    if not database.others_write:
        pytest.skip("nobody can write to it meanwhile")
    database.execute(f"CREATE TABLE events (id {database.bigint} NOT NULL PRIMARY KEY)")
    events = Incrementally(database.url, tmp_path / "lake", Incremental(cursor_column="id", settle="none"))
    fix, ids = incremental.fixed_window, count(1)

    @contextmanager
    def late(*args: Any, **more: Any) -> Iterator[Any]:
        with fix(*args, **more) as fixed:
            database.execute(f"INSERT INTO events VALUES ({next(ids)})")
            yield fixed

    monkeypatch.setattr(incremental, "fixed_window", late)
    for n in range(3):
        assert events.run().row_count == min(n, 1)
        assert events.rows() == list(range(1, n + 1))


def test_texts_are_compared_by_the_database(database: Database, tmp_path: Path) -> None:
    """And written into its statements so that no character ends them."""
    hostile = ["a'b", 'a"c', "a\\d", "b\\' OR 1 = 1 -- "]
    database.execute("CREATE TABLE events (id integer, name varchar(40) PRIMARY KEY)")
    events = Incrementally(
        database.url, tmp_path / "lake", Incremental(cursor_column="name", monotonic=True, **settle(database))
    )
    for n, name in enumerate(sorted(hostile)):
        text = name.replace("'", "''")
        database.execute(f"INSERT INTO events VALUES ({n}, '{text}')")
        events.run()
        assert events.rows() == list(range(n + 1))
        assert events.manifest["cursor"]["value"] == name


def test_a_database_behind_sqlalchemy_is_refused(lite: Sqlite, tmp_path: Path) -> None:
    lite.execute("CREATE TABLE events (id integer primary key)")
    url = lite.url.replace("sqlite:", "sqlite+pysqlite:")
    with pytest.raises(ConfigError, match=r"windows for Incremental, found sqlite; read it by the URL of its own kind"):
        Incrementally(url, tmp_path / "lake", Incremental(cursor_column="id")).run()
