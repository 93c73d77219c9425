"""PostgreSQL when it fails: what may be retried, what is left behind, and what a message may say."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import quote, quote_plus

import pyarrow as pa
import pytest

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.postgres_session import PostgresSession
from rivet_dagster.sources.url import parse_url
from tests.sources.databases import Postgres
from tests.sources.ranges import query_of, run
from tests.sources.relay import Relay, relay_to

MANY = "SELECT i, repeat('x', 1000) AS s FROM generate_series(1, 1000000) AS i"
OURS = "pid <> pg_backend_pid() AND datname = current_database() AND application_name = 'rivet_dagster'"


def sessions(database: Postgres) -> int:
    return database.row(f"SELECT count(*) FROM pg_stat_activity WHERE {OURS}")[0]


def eventually(holds: Callable[[], bool], *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.02)


@pytest.fixture
def shop(pg: Postgres) -> Iterator[Postgres]:
    """A database in which no session of ours was left, and none is left."""
    eventually(lambda: sessions(pg) == 0)
    yield pg
    eventually(lambda: sessions(pg) == 0)


@pytest.fixture
def relay(pg: Postgres) -> Iterator[Relay]:
    if pg.server.port is None:
        pytest.skip("this server has a socket alone")
    with relay_to(pg.server.host, pg.server.port) as relay:
        yield relay


def through(relay: Relay, database: Postgres) -> str:
    return replace(database.server, port=relay.port).url


def test_a_read_is_one_read_only_snapshot_of_a_named_application(shop: Postgres) -> None:
    names = ("transaction_read_only", "transaction_isolation", "application_name")
    found = shop.read(sql="SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in names))
    assert list(found.rows[0].values()) == ["on", "read committed", "rivet_dagster"]


def test_rows_written_after_reading_began_are_not_seen(shop: Postgres) -> None:
    shop.execute("CREATE TABLE moving (i int)", "INSERT INTO moving SELECT generate_series(1, 500000)")
    batches = iter(shop.open(table="moving"))
    found = next(batches).to_pylist()
    assert len(found) < 100_000
    shop.execute("INSERT INTO moving VALUES (0)", "UPDATE moving SET i = -i")
    found += [row for batch in batches for row in batch.to_pylist()]
    assert [row["i"] for row in found] == list(range(1, 500001))


def test_a_snapshot_of_a_run_that_cannot_be_held_leaves_no_session(
    shop: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.execute("CREATE TABLE t (x int PRIMARY KEY)")
    locking: list[PostgresSession] = []
    lock = PostgresSession.lock

    def fail_at_the_second(self: PostgresSession, text: str) -> None:
        # Listed, since a session that nothing refers to any more is closed by that.
        locking.append(self)
        if len(locking) == 2:
            raise SourceError("it is locked by somebody else")
        lock(self, text)

    monkeypatch.setattr(PostgresSession, "lock", fail_at_the_second)
    with run(shop) as snapshot, pytest.raises(SourceError, match="somebody else"):
        snapshot.open(query_of())
    assert len(locking) == 2
    eventually(lambda: sessions(shop) == 0)


def test_an_application_name_in_the_url_wins(shop: Postgres) -> None:
    source = connect(shop.url + "?application_name=mine")
    (batch,) = source.open(Query(sql="SELECT current_setting('application_name') AS x", casts={}))
    assert batch.to_pylist() == [{"x": "mine"}]


def test_settings_end_with_the_transaction(shop: Postgres) -> None:
    session = PostgresSession(PostgresDatabase(parse_url(shop.url)), what="query")
    setting = "SELECT current_setting('IntervalStyle') AS x, current_setting('TimeZone') AS y"
    before = session.rows(setting)
    session._run("COMMIT")
    after = session.rows(setting)
    session.close()
    assert before == [{"x": "iso_8601", "y": "UTC"}]
    assert after[0]["x"] == "postgres"


def test_at_the_end_of_the_rows_the_connection_is_free(shop: Postgres) -> None:
    stream = shop.open(sql="SELECT 1 AS x")
    assert sessions(shop) == 1
    rows = iter(stream)
    next(rows)
    assert list(rows) == []
    eventually(lambda: sessions(shop) == 0)


def test_close_in_the_middle_frees_the_connection(shop: Postgres) -> None:
    stream = shop.open(sql=MANY)
    rows = iter(stream)
    next(rows)
    assert sessions(shop) == 1
    stream.close()
    eventually(lambda: sessions(shop) == 0)
    with pytest.raises(SourceError, match="closed"):
        next(rows)


def test_leaving_the_loop_frees_the_connection(shop: Postgres) -> None:
    for _ in shop.open(sql=MANY):
        break
    eventually(lambda: sessions(shop) == 0)


def test_close_before_the_first_row_frees_the_connection(shop: Postgres) -> None:
    shop.open(sql=MANY).close()
    eventually(lambda: sessions(shop) == 0)


def test_close_cancels_a_statement_that_has_not_answered(shop: Postgres) -> None:
    stream = shop.open(sql=shop.endless)
    raised: list[SourceError] = []

    def read() -> None:
        try:
            list(stream)
        except SourceError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    active = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND state = 'active' AND query LIKE 'COPY%'"
    eventually(lambda: shop.row(active)[0] == 1)
    stream.close()
    reader.join(20)
    assert "closed" in str(raised[0])
    eventually(lambda: sessions(shop) == 0)


@pytest.mark.parametrize("query", [{"table": "not_there"}, {"sql": "SELECT 1 AS x, 2 AS x"}, {"sql": "SELEC"}])
def test_a_query_that_cannot_be_opened_leaves_no_connection(shop: Postgres, query: dict[str, str]) -> None:
    with pytest.raises(Exception, match=r"not_there|'x'|SELEC"):
        shop.open(**query)
    eventually(lambda: sessions(shop) == 0)


def test_an_error_between_two_batches_is_raised_with_its_state_and_leaves_no_connection(shop: Postgres) -> None:
    rows = 0
    with pytest.raises(SourceError, match=r"division by zero \(SQLSTATE 22012\)") as raised:  # noqa: PT012
        for batch in shop.open(sql="SELECT i, 1 / (500000 - i) AS y FROM generate_series(1, 1000000) AS i"):
            rows += batch.num_rows
    assert 0 < rows < 500_000
    assert not raised.value.transient


def test_a_killed_backend_is_a_transient_error_and_never_the_end(shop: Postgres) -> None:
    rows = 0
    killed = False
    with pytest.raises(SourceError, match=r"57P01|08006") as raised:  # noqa: PT012
        for batch in shop.open(sql=MANY):
            rows += batch.num_rows
            if not killed:
                killed = shop.row(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")[0]
    assert killed
    assert 0 < rows < 1_000_000
    assert raised.value.transient
    assert "run it again" in str(raised.value)


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("after", [400_000, 5_000_003])
def test_a_cut_connection_is_a_transient_error_and_never_the_end(
    shop: Postgres, relay: Relay, then: str, after: int
) -> None:
    relay.after, relay.then = after, then
    rows = 0
    with pytest.raises(SourceError, match="SQLSTATE 08006") as raised:  # noqa: PT012
        for batch in connect(through(relay, shop)).open(Query(sql=MANY, casts={})):
            rows += batch.num_rows
    assert rows * 1000 < after
    assert raised.value.transient


def test_wherever_the_connection_is_cut_all_rows_arrive_or_an_error(shop: Postgres, relay: Relay) -> None:
    query = Query(sql="SELECT i FROM generate_series(1, 50) AS i", casts={})
    source = connect(through(relay, shop))
    assert sum(batch.num_rows for batch in source.open(query)) == 50
    whole = relay.passed
    outcomes = []
    # From within the last rows to the last byte of the answer to COMMIT.
    for after in range(whole - 300, whole + 1, 7):
        relay.after = after
        found: list[pa.RecordBatch | SourceError] = []
        try:
            found += source.open(query)
        except SourceError as error:
            found = [error]
        outcomes.append(found)
    failed = [found[0] for found in outcomes if isinstance(found[0], SourceError)]
    complete = [found for found in outcomes if not isinstance(found[0], SourceError)]
    assert len(failed) > 10
    assert all(error.transient for error in failed)
    assert len(complete) > 3
    assert all(sum(batch.num_rows for batch in batches) == 50 for batches in complete)


def test_the_driver_reads_the_catalog_of_types_once_for_all_connections(shop: Postgres, relay: Relay) -> None:
    source = connect(through(relay, shop))
    for read in range(1, 4):
        assert sum(batch.num_rows for batch in source.open(Query(sql="SELECT 1 AS i", casts={}))) == 1
        # One more than there were reads: that of the types, which takes ten times as long as to connect.
        assert relay.accepted == read + 1


def test_a_type_made_after_that_travels_as_text(shop: Postgres) -> None:
    source = connect(shop.url)
    list(source.open(Query(sql="SELECT 1 AS i", casts={})))
    shop.execute("CREATE TYPE mood AS ENUM ('fine')", "CREATE TABLE later (one mood, more mood[])")
    shop.execute("INSERT INTO later VALUES ('fine', '{fine}')")
    (batch,) = source.open(Query(table="later", casts={}))
    assert batch.to_pylist() == [{"one": "fine", "more": "{fine}"}]


def test_close_does_not_wait_for_a_network_that_is_dead(
    shop: Postgres, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivet_dagster.sources.stream._CLOSE_SECONDS", 0.2)
    relay.after, relay.then = 3_000_000, "stall"
    stream = connect(through(relay, shop)).open(Query(sql=MANY, casts={}))
    raised: list[SourceError] = []

    def read() -> None:
        try:
            list(stream)
        except SourceError as error:
            raised.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    blocked = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND wait_event = 'ClientWrite'"
    eventually(lambda: shop.row(blocked)[0] == 1)
    closer = threading.Thread(target=stream.close)
    closer.start()
    closer.join(20)
    assert not closer.is_alive()
    relay.stop()
    reader.join(20)
    assert "closed" in str(raised[0])


def test_a_statement_timeout_is_permanent_and_says_what_to_do(shop: Postgres) -> None:
    shop.execute(
        "DROP ROLE IF EXISTS hasty",
        "CREATE ROLE hasty LOGIN PASSWORD 'hasty-word'",
        "ALTER ROLE hasty SET statement_timeout = 400",
    )
    hasty = Postgres(replace(shop.server, user="hasty", password="hasty-word"))
    with pytest.raises(SourceError, match=r"57014.*raise statement_timeout") as raised:
        hasty.read(sql="SELECT i, pg_sleep(0.001)::text AS s FROM generate_series(1, 1000000) AS i")
    assert not raised.value.transient


def test_a_lock_that_is_not_had_in_time_is_transient(shop: Postgres) -> None:
    shop.execute(
        "CREATE TABLE locked (i int)",
        "DROP ROLE IF EXISTS waiting",
        "CREATE ROLE waiting LOGIN SUPERUSER PASSWORD 'waiting-word'",
        "ALTER ROLE waiting SET lock_timeout = 50",
    )
    waiting = Postgres(replace(shop.server, user="waiting", password="waiting-word"))
    with shop.server.client() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE locked")
        with pytest.raises(SourceError, match="55P03") as raised:
            waiting.read(table="locked")
        cursor.execute("ROLLBACK")
    assert raised.value.transient
    assert waiting.read(table="locked").rows == []


def test_a_missing_grant_is_permanent(shop: Postgres) -> None:
    shop.execute(
        "CREATE TABLE private (i int)", "DROP ROLE IF EXISTS poor", "CREATE ROLE poor LOGIN PASSWORD 'poor-word'"
    )
    poor = Postgres(replace(shop.server, user="poor", password="poor-word"))
    with pytest.raises(SourceError, match=r"table private: permission denied.*42501.*grant") as raised:
        poor.read(table="private")
    assert not raised.value.transient


def test_a_full_server_is_transient(shop: Postgres) -> None:
    shop.execute("DROP ROLE IF EXISTS crowd", "CREATE ROLE crowd LOGIN CONNECTION LIMIT 1 PASSWORD 'crowd-word'")
    crowd = Postgres(replace(shop.server, user="crowd", password="crowd-word"))
    stream = crowd.open(sql="SELECT 1 AS x")
    with pytest.raises(SourceError, match="53300") as raised:
        crowd.open(sql="SELECT 1 AS x")
    stream.close()
    assert raised.value.transient


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid"])
def test_a_server_that_cannot_be_reached_is_transient(host: str) -> None:
    with pytest.raises(SourceError, match="08001") as raised:
        connect(f"postgresql://me@{host}/shop").open(Query(sql="SELECT 1 AS x", casts={}))
    assert raised.value.transient


@pytest.mark.parametrize("password", ["p@ss/w:rd%1?#&=", "hush'hush\" hush\\", "пароль 密码", "%40", "a+b c"])
def test_a_password_works_with_every_character_and_never_shows(shop: Postgres, password: str) -> None:
    if shop.server.port is None:
        pytest.skip("this server trusts its users")
    doubled = password.replace("'", "''")
    shop.execute("DROP ROLE IF EXISTS secretive", f"CREATE ROLE secretive LOGIN PASSWORD '{doubled}'")
    address = f"{shop.server.host}:{shop.server.port}/{shop.server.database}"
    url = f"postgresql://secretive:{quote(password, safe='')}@{address}"
    assert next(iter(connect(url).open(Query(sql="SELECT 1 AS x", casts={})))).num_rows == 1

    shop.execute("ALTER ROLE secretive PASSWORD 'another'")
    closed = url.replace(f":{shop.server.port}/", ":1/")
    nowhere = url.replace(f"/{shop.server.database}", "/nowhere").replace("secretive:", f"{shop.server.user}:")
    for broken, state in [(url, "28P01"), (closed, "08001"), (nowhere, "28P01")]:
        with pytest.raises(SourceError, match=state) as raised:
            connect(broken).open(Query(sql="SELECT 1 AS x", casts={}))
        shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
        for spelling in {password, quote(password, safe=""), quote(password), quote_plus(password)}:
            assert spelling not in shown
        assert "postgresql://" not in shown


def test_a_wrong_password_is_permanent_and_a_missing_database_too(shop: Postgres) -> None:
    if shop.server.port is None:
        pytest.skip("this server trusts its users")
    wrong = replace(shop.server, password="wrong").url
    missing = replace(shop.server, database="nowhere").url
    for url, state in [(wrong, "28P01"), (missing, "3D000")]:
        with pytest.raises(SourceError, match=state) as raised:
            connect(url).open(Query(sql="SELECT 1 AS x", casts={}))
        assert not raised.value.transient


def test_a_message_does_not_repeat_the_query(shop: Postgres) -> None:
    # In two pieces, because a traceback shows this line.
    word = "confid" + "ential"
    failing = f"SELECT 1 / (length('{word}') - 12) AS x"
    endless = f"SELECT '{word}' AS x FROM generate_series(1, 2000000000000)"
    for sql, killed, state in [(failing, False, "22012"), (endless, True, "57P01|08006")]:
        stream = shop.open(sql=sql)
        if killed:
            shop.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
            eventually(lambda: sessions(shop) == 0)
        with pytest.raises(SourceError, match=state) as raised:
            list(stream)
        assert raised.value.transient == killed
        assert word not in "".join(traceback.format_exception(raised.value))
