"""PostgreSQL runs of several statements: what holds the snapshot, how gentle the sessions are, and poolers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.postgres_session import PostgresSession
from rivet_dagster.sources.postgres_statistics import estimated_rows, sample_clause
from rivet_dagster.sources.url import parse_url
from tests.servers import PostgresServer, require
from tests.servers.pooler import pgbouncer
from tests.sources.databases import Postgres
from tests.sources.ranges import (
    CONSISTENCIES,
    assert_cut,
    between,
    key_of,
    query_of,
    read_in_ranges,
    rows_in,
    run,
    splittable,
)
from tests.sources.test_postgres_faults import OURS, eventually, sessions

KEY = key_of("id")
ROWS = [(i,) for i in range(1, 21)]
SETTINGS = {"statement_timeout": 61.5, "lock_timeout": 7, "application_name": "gentle"}


@pytest.fixture
def shop(pg: Postgres) -> Iterator[Postgres]:
    pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    pg.execute("CREATE TABLE t (id bigint PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 20)")
    eventually(lambda: sessions(pg) == 0)
    yield pg
    eventually(lambda: sessions(pg) == 0)


def ours(database: Postgres, column: str) -> Any:
    """One column of the only session of ours."""
    return database.row(f"SELECT array_agg({column}) FROM pg_stat_activity WHERE {OURS}")[0]


def test_one_session_holds_the_snapshot_until_the_run_ends(shop: Postgres) -> None:
    with run(shop) as snapshot:
        assert snapshot.storage_key(query_of()) is not None
        eventually(lambda: ours(shop, "state") == ["idle in transaction"])
        held = shop.row(f"SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE {OURS}")
        assert held == (True,)
        assert rows_in(snapshot, query_of()) == ROWS
        # One that has read waits for the next range.
        assert sessions(shop) == 2
    eventually(lambda: sessions(shop) == 0)


def test_a_session_reads_range_after_range(shop: Postgres) -> None:
    with run(shop) as snapshot:
        bounds = list(snapshot.boundaries(query_of(), KEY, rows=2))
        assert len(bounds) == 9
        eventually(lambda: sessions(shop) == 1)
        ranges = list(between(bounds, KEY))
        assert rows_in(snapshot, query_of(within=ranges[0])) == ROWS[:2]
        reader = set(ours(shop, "pid"))
        for place, within in enumerate(ranges[1:], 1):
            assert rows_in(snapshot, query_of(within=within)) == ROWS[2 * place : 2 * place + 2]
            assert set(ours(shop, "pid")) == reader


def test_a_session_that_failed_or_was_stopped_reads_no_other_range(shop: Postgres) -> None:
    shop.execute("CREATE VIEW seen AS SELECT i AS id, 10 / (i - 3) AS x FROM generate_series(1, 9) AS i")
    with run(shop) as snapshot:
        query = query_of("seen")
        for _ in range(2):
            with pytest.raises(SourceError, match="division by zero"):
                rows_in(snapshot, query)
            eventually(lambda: sessions(shop) == 1)
        stopped = snapshot.open(query)
        stopped.close()
        eventually(lambda: sessions(shop) == 1)


def test_a_lost_holder_is_worth_another_run(shop: Postgres) -> None:
    with run(shop) as snapshot:
        assert snapshot.storage_key(query_of()) is not None
        eventually(lambda: sessions(shop) == 1)
        (holder,) = ours(shop, "pid")
        before = snapshot.open(query_of())
        assert shop.row(f"SELECT pg_terminate_backend({holder}, 20000)") == (True,)
        with pytest.raises(SourceError) as walked:
            list(snapshot.boundaries(query_of(), KEY, rows=5))
        with pytest.raises(SourceError, match="holds this run's snapshot was lost; run again") as opened:
            snapshot.open(query_of())
        assert (walked.value.transient, opened.value.transient) == (True, True)
        # Who has the snapshot keeps it.
        assert [row["id"] for batch in before for row in batch.to_pylist()] == list(range(1, 21))


def test_the_server_does_not_end_a_holder_for_waiting(shop: Postgres) -> None:
    name = shop.row("SELECT current_database()")[0]
    shop.execute(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '2s'")
    try:
        with run(shop) as snapshot:
            assert snapshot.storage_key(query_of()) is not None
            shop.row("SELECT pg_sleep(3)")
            assert_cut(read_in_ranges(snapshot, KEY, rows=8), rows=8, expected=ROWS)
    finally:
        shop.execute(f"ALTER DATABASE {name} RESET ALL")


def test_between_statements_no_transaction_is_open(shop: Postgres) -> None:
    with run(shop, "statement") as snapshot:
        assert sessions(shop) == 0
        bounds = snapshot.boundaries(query_of(), KEY, rows=5)
        for bound in ((6,), (11,), (16,)):
            assert next(bounds) == bound
            eventually(lambda: ours(shop, "state") == ["idle"])
            assert ours(shop, "backend_xmin") == [None]
        assert next(bounds, None) is None
    eventually(lambda: sessions(shop) == 0)


def test_a_walk_that_is_left_frees_its_session(shop: Postgres) -> None:
    with run(shop, "statement") as snapshot:
        bounds = snapshot.boundaries(query_of(), KEY, rows=5)
        next(bounds)
        with contextlib.closing(bounds):  # type: ignore[type-var]
            pass
        eventually(lambda: sessions(shop) == 0)


def test_the_estimate_is_what_the_planner_knows(shop: Postgres) -> None:
    source = splittable(shop)
    shop.execute("CREATE TABLE big (id int, p int) PARTITION BY LIST (p)", "CREATE TABLE one PARTITION OF big DEFAULT")
    assert source.estimated_rows(query_of("big")) is None
    shop.execute("INSERT INTO big SELECT i, 1 FROM generate_series(1, 5000) AS i", "ANALYZE big, one")
    assert source.estimated_rows(query_of("big")) == 5000
    # Grown since: what there is now, as densely as before.
    shop.execute("INSERT INTO big SELECT i, 1 FROM generate_series(1, 5000) AS i")
    assert 9000 < (source.estimated_rows(query_of("big")) or 0) < 11000


def test_a_table_that_goes_while_its_size_is_asked_has_none() -> None:
    # What the server says of one that is in the statement's snapshot, and not in the catalog any more.
    gone = [{"unknown": 0, "rows": None, "pages": None, "sampled": True}]
    assert estimated_rows(query_of(), lambda _sql: gone) is None
    assert not sample_clause(query_of(), lambda _sql: gone)


def test_the_size_of_a_row_is_taken_from_all_over_the_table(shop: Postgres) -> None:
    shop.execute(
        "CREATE TABLE grown (id int PRIMARY KEY, s text)",
        "INSERT INTO grown SELECT i, CASE WHEN i > 20000 THEN repeat('x', 1000) END FROM generate_series(1, 40000) i",
    )
    # Of the pages, most are of the long half; of the first rows, none.
    assert splittable(shop).row_bytes(query_of("grown")) > 300


def current(source: Any, *names: str) -> list[Any]:
    query = Query(sql="SELECT " + ", ".join(f"current_setting('{n}') AS {n}" for n in names), casts={})
    return list(next(iter(source.open(query))).to_pylist()[0].values())


def test_sessions_are_as_gentle_as_they_are_told(shop: Postgres) -> None:
    source = splittable(shop, **SETTINGS)
    assert current(source, *SETTINGS) == ["61500ms", "7s", "gentle"]
    for consistency in CONSISTENCIES:
        with source.snapshot(consistency) as snapshot:
            assert current(snapshot, *SETTINGS) == ["61500ms", "7s", "gentle"]
    usual = shop.row("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
    assert current(connect(shop.url), *SETTINGS) == [*usual, "rivet_dagster"]
    named = connect(shop.url + "?application_name=url", application_name="setting")
    assert current(named, "application_name") == ["setting"]


def test_a_statement_that_takes_too_long_is_ended_for_good(shop: Postgres) -> None:
    stream = connect(shop.url, statement_timeout=0.2).open(Query(sql=shop.endless, casts={}))
    with pytest.raises(SourceError, match="raise statement_timeout") as raised:
        list(stream)
    assert not raised.value.transient


def test_a_lock_that_takes_too_long_may_be_free_later(shop: Postgres) -> None:
    with shop.server.client() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceError, match="another session holds the lock") as raised:
            rows_in(splittable(shop, lock_timeout=0.2), query_of())
    assert raised.value.transient


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
@pytest.mark.parametrize("seconds", [0, -1, 0.0001, 3_000_000])
def test_a_timeout_is_one_that_the_server_knows(setting: str, seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: expected 0.001 to 2147483 seconds"):
        connect("postgresql://user@host/db", **{setting: seconds})  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["sqlite:///shop.db", "duckdb:///shop.duckdb", "postgresql+pg8000://user@host/shop"])
def test_settings_of_sessions_are_refused_where_we_make_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"statement_timeout, application_name: for postgresql://, .* only"):
        connect(url, statement_timeout=5, application_name="x")


@pytest.fixture
def pooled(shop: Postgres) -> Iterator[Postgres]:
    """The same database behind a pooler that gives its two connections to one transaction after another."""
    server: PostgresServer = shop.server
    with require(lambda: pgbouncer(server, connections=2)) as behind:
        yield Postgres(behind)


@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_a_run_goes_through_a_pooler(shop: Postgres, pooled: Postgres, consistency: Any) -> None:
    with splittable(pooled, **SETTINGS).snapshot(consistency) as snapshot:
        snapshot.storage_key(query_of())
        shop.execute("INSERT INTO t VALUES (999)")
        parts = read_in_ranges(snapshot, KEY, rows=5)
    assert_cut(parts, rows=5, expected=ROWS if consistency == "snapshot" else [*ROWS, (999,)])


def left_behind(pooled: Postgres) -> dict[int, tuple[Any, ...]]:
    """What another client finds set on each connection of the pooler, by the server's process."""
    from adbc_driver_postgresql import dbapi

    names = ["statement_timeout", "lock_timeout", "IntervalStyle", "TimeZone", "DateStyle", "bytea_output"]
    names += ["extra_float_digits", "enable_sort", "enable_seqscan", "idle_in_transaction_session_timeout"]
    found: dict[int, tuple[Any, ...]] = {}
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(dbapi.connect(pooled.url))
            # One that is closed within a transaction costs the pooler its connection.
            stack.callback(connection.rollback)
            cursor = stack.enter_context(connection.cursor())
            cursor.execute("SELECT pg_backend_pid(), " + ", ".join(f"current_setting('{n}')" for n in names))
            pid, *values = cursor.fetchone()
            found[pid] = tuple(values)
    return found


@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_a_pooler_keeps_its_connections_and_finds_nothing_on_them(pooled: Postgres, consistency: Any) -> None:
    before = left_behind(pooled)
    assert len(before) == 2
    source = splittable(pooled, **SETTINGS)
    assert source.keys(query_of()) == (KEY,)
    assert source.estimated_rows(query_of()) is None
    with source.snapshot(consistency) as snapshot:
        assert_cut(read_in_ranges(snapshot, KEY, rows=7), rows=7, expected=ROWS)
    assert left_behind(pooled) == before


def test_a_stream_that_is_left_costs_the_pooler_one_connection_and_no_more(pooled: Postgres) -> None:
    before = left_behind(pooled)
    stream = splittable(pooled, **SETTINGS).open(query_of())
    next(iter(stream))
    stream.close()
    after = left_behind(pooled)
    assert len(set(before) & set(after)) == 1
    assert set(after.values()) == set(before.values())


def test_the_transactions_of_a_session_may_be_on_several_connections(pooled: Postgres) -> None:
    both = set(left_behind(pooled))
    session = PostgresSession(PostgresDatabase(parse_url(pooled.url)), what="test")
    with contextlib.closing(session):
        seen = set()
        for _ in range(12):
            seen.add(session.rows("SELECT pg_backend_pid() AS pid")[0]["pid"])
            session.end()
            session.begin()
    assert seen == both
