"""PostgreSQL tables that are loaded anew while somebody begins to read: the old rows or the new, and never none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import CountingSource
from rivet_dagster.sources import postgres_session
from rivet_dagster.sources.connect import connect
from tests.sources.databases import Postgres
from tests.sources.ranges import query_of, rows_in, run
from tests.sources.test_postgres_faults import OURS, eventually, sessions

LOADED = "INSERT INTO {} SELECT i + 100 FROM generate_series(1, 3) AS i"
SWAPPED = ["ALTER TABLE t RENAME TO stale", LOADED.format("fresh"), "ALTER TABLE fresh RENAME TO t"]
WAYS = {
    "truncated and loaded": ["TRUNCATE t", LOADED.format("t")],
    "rewritten": ["ALTER TABLE t ALTER id TYPE bigint USING id + 100"],
    "replaced by another": ["DROP TABLE fresh", "CREATE TABLE fresh (id int)", *SWAPPED],
    "changed places": SWAPPED,
    "moved to its schema": ["DROP TABLE t", LOADED.format("stage.t"), "ALTER TABLE stage.t SET SCHEMA public"],
}
PARTED = {
    "truncated": ["TRUNCATE low", "INSERT INTO low VALUES (7)"],
    "replaced": [
        "ALTER TABLE parted DETACH PARTITION low",
        "CREATE TABLE lower PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "INSERT INTO lower VALUES (7)",
        "DROP TABLE low",
    ],
}
OLD, NEW = [1, 2, 3], [101, 102, 103]


@pytest.fixture
def shop(pg: Postgres) -> Iterator[Postgres]:
    pg.execute("DROP SCHEMA IF EXISTS stage CASCADE", "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    pg.execute(
        "CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 3) AS i",
        "CREATE TABLE fresh (id int)",
        "CREATE SCHEMA stage",
        "CREATE TABLE stage.t (id int)",
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


def test_who_waits_for_a_view_reads_what_it_shows_then(shop: Postgres) -> None:
    shop.execute("CREATE VIEW v AS SELECT id FROM t")
    with loading(shop, "CREATE OR REPLACE VIEW v AS SELECT id FROM fresh", LOADED.format("fresh")):
        found = shop.read(table="v")
    assert sorted(row["id"] for row in found.rows) == NEW


@pytest.mark.parametrize("way", WAYS)
def test_a_count_is_of_what_was_loaded(shop: Postgres, way: str) -> None:
    source = connect(shop.url)
    assert isinstance(source, CountingSource)
    with loading(shop, *WAYS[way], "INSERT INTO t VALUES (104)"):
        assert source.count(query_of()) == 4


@pytest.mark.parametrize("way", PARTED)
def test_who_waits_for_a_partition_reads_what_was_loaded(shop: Postgres, way: str) -> None:
    with loading(shop, *PARTED[way]):
        found = shop.read(table="parted")
    assert [row["id"] for row in found.rows] == [7]


def test_a_partitioned_table_beside_another_hides_nothing(shop: Postgres) -> None:
    with loading(shop, *WAYS["replaced by another"]):
        found = shop.read(sql="SELECT t.id FROM t, (SELECT count(*) AS n FROM parted) AS p WHERE p.n = 3")
    assert sorted(row["id"] for row in found.rows) == NEW


@pytest.mark.parametrize("way", WAYS)
def test_all_ranges_of_a_run_are_of_what_was_loaded(shop: Postgres, way: str) -> None:
    with run(shop) as snapshot, loading(shop, *WAYS[way]):
        assert sorted(x for (x,) in rows_in(snapshot, query_of())) == NEW


@pytest.mark.parametrize("way", PARTED)
def test_all_ranges_of_a_run_are_of_what_was_loaded_into_a_partition(shop: Postgres, way: str) -> None:
    with run(shop) as snapshot, loading(shop, *PARTED[way]):
        assert rows_in(snapshot, query_of("parted")) == [(7,)]


def test_nobody_takes_a_table_away_once_a_run_has_begun(shop: Postgres) -> None:
    with run(shop) as snapshot:
        assert snapshot.storage_key(query_of()) is not None
        for statements in WAYS.values():
            with pytest.raises(Exception, match="lock timeout"):
                shop.execute("SET lock_timeout = '100ms'", *statements)
            shop.execute("DROP TABLE IF EXISTS fresh", "CREATE TABLE fresh (id int)")
        assert [x for (x,) in rows_in(snapshot, query_of())] == OLD


def test_a_run_reads_one_table(shop: Postgres) -> None:
    """What else it read was not locked before its snapshot was taken."""
    with run(shop) as snapshot:
        assert rows_in(snapshot, query_of("parted"))
        with pytest.raises(SourceError, match="table t: the run's snapshot was taken for something else"):
            snapshot.open(query_of())


@pytest.mark.parametrize("table", ["parted", "t"])
def test_a_new_partition_and_a_new_index_take_no_row_away(shop: Postgres, table: str) -> None:
    with run(shop) as snapshot:
        snapshot.storage_key(query_of(table))
        shop.execute(
            "CREATE TABLE later (id int)",
            "INSERT INTO later VALUES (250)",
            "ALTER TABLE parted ATTACH PARTITION later FOR VALUES FROM (200) TO (300)",
            "CREATE INDEX ON low (id)",
            "CREATE INDEX i ON t (id)",
            "VACUUM t",
        )
        assert sorted(x for (x,) in rows_in(snapshot, query_of(table))) == OLD


@pytest.mark.parametrize(
    ("table", "joins"),
    [
        ("parted", "ALTER TABLE parted ATTACH PARTITION stage.joining FOR VALUES FROM (200) TO (300)"),
        ("t", "ALTER TABLE stage.joining INHERIT t"),
    ],
)
def test_a_child_that_joins_while_ranges_are_read_is_not_read_in_part(shop: Postgres, table: str, joins: str) -> None:
    shop.execute("CREATE TABLE stage.joining (id int)", "INSERT INTO stage.joining VALUES (201), (202)")
    with run(shop) as snapshot:
        assert [x for (x,) in rows_in(snapshot, query_of(table))] == OLD
        shop.execute(joins)
        with pytest.raises(SourceError, match=r"stage\.joining became a part of it while it was read.*run again") as e:
            rows_in(snapshot, query_of(table))
    assert e.value.transient


def test_a_run_gives_way_to_who_waits_for_it(shop: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind who waits for a run's own lock, its next session would wait for ever."""
    monkeypatch.setattr(postgres_session, "_ADOPTED_LOCK_TIMEOUT_S", 0.5)
    with run(shop) as snapshot:
        assert snapshot.storage_key(query_of()) is not None
        alter = threading.Thread(target=shop.execute, args=("ALTER TABLE t ADD more int",))
        alter.start()
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE t ADD%' AND wait_event_type = 'Lock'"
        )
        eventually(lambda: shop.row(waits)[0] == 1)
        with pytest.raises(SourceError, match="another session holds the lock") as e:
            snapshot.open(query_of())
    alter.join()
    assert e.value.transient
