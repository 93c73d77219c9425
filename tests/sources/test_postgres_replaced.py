"""PostgreSQL tables that are loaded anew while somebody begins to read: the old rows or the new, and never none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import CountingSource
from rivet_dagster.sources.connect import connect
from tests.sources.databases import Postgres
from tests.sources.ranges import query_of, rows_in, run
from tests.sources.test_postgres_faults import OURS, eventually, sessions

LOADED = "INSERT INTO {} SELECT i + 100 FROM generate_series(1, 3) AS i"
WAYS = {
    "truncated and loaded": ["TRUNCATE t", LOADED.format("t")],
    "rewritten": ["ALTER TABLE t ALTER id TYPE bigint USING id + 100"],
    "replaced by another": [
        "CREATE TABLE fresh (id int)",
        LOADED.format("fresh"),
        "ALTER TABLE t RENAME TO stale",
        "ALTER TABLE fresh RENAME TO t",
    ],
}
OLD, NEW = [1, 2, 3], [101, 102, 103]


@pytest.fixture
def shop(pg: Postgres) -> Iterator[Postgres]:
    pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    pg.execute(
        "CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 3) AS i",
        "CREATE TABLE parted (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (100) TO (200)",
        "INSERT INTO parted SELECT i FROM generate_series(1, 3) AS i",
    )
    eventually(lambda: sessions(pg) == 0)
    yield pg
    eventually(lambda: sessions(pg) == 0)


@contextmanager
def loading(database: Postgres, *statements: str) -> Iterator[None]:
    """A transaction that commits once a session of ours waits for it."""

    def commit() -> None:
        waits = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND wait_event_type = 'Lock'"
        eventually(lambda: database.row(waits)[0] > 0)
        cursor.execute("COMMIT")

    with database.server.client() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for statement in statements:
            cursor.execute(statement)
        committing = threading.Thread(target=commit)
        committing.start()
        try:
            yield
        finally:
            committing.join()


@pytest.mark.parametrize("query", [{"table": "t"}, {"sql": "SELECT id FROM (SELECT id FROM t) AS x"}])
@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_a_table_to_be_loaded_reads_what_was_loaded(
    shop: Postgres, way: str, query: dict[str, Any]
) -> None:
    with loading(shop, *WAYS[way]):
        found = shop.read(**query)
    assert sorted(row["id"] for row in found.rows) == NEW


def test_a_count_is_of_what_was_loaded_or_fails(shop: Postgres) -> None:
    source = connect(shop.url)
    assert isinstance(source, CountingSource)
    with loading(shop, *WAYS["truncated and loaded"]), pytest.raises(SourceError, match=r"t was truncated.*again") as e:
        source.count(query_of())
    assert e.value.transient


def test_a_partition_that_is_loaded_anew_is_not_read_as_empty(shop: Postgres) -> None:
    with loading(shop, "TRUNCATE low", LOADED.format("low").replace("+ 100", "+ 10")):
        stream = shop.open(table="parted")
        with pytest.raises(SourceError, match=r"low was truncated.*run again") as e:
            list(stream)
    assert e.value.transient


@pytest.mark.parametrize("way", WAYS)
def test_ranges_of_a_snapshot_are_refused_once_a_table_has_none_of_its_rows(shop: Postgres, way: str) -> None:
    with run(shop) as snapshot:
        shop.execute(*WAYS[way])
        with pytest.raises(SourceError, match=r"t was truncated") as e:
            rows_in(snapshot, query_of())
    assert e.value.transient


def test_a_new_partition_and_a_new_index_take_no_row_away(shop: Postgres) -> None:
    with run(shop) as snapshot:
        shop.execute(
            "CREATE TABLE later PARTITION OF parted FOR VALUES FROM (200) TO (300)",
            "INSERT INTO parted VALUES (250)",
            "CREATE INDEX ON low (id)",
            "CREATE INDEX i ON t (id)",
            "VACUUM t",
        )
        assert [sorted(x for (x,) in rows_in(snapshot, query_of(table))) for table in ("parted", "t")] == [OLD, OLD]
