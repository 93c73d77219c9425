"""Transactions that commit late on PostgreSQL: `settle="writers"` leaves none of their rows behind, whoever looks."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.rows import Query
from rivet_dagster.sources import postgres_writers
from rivet_dagster.sources.connect import connect
from rivet_dagster.sources.postgresql import PostgresSource
from tests.servers import PostgresServer
from tests.servers.databases import _server_binaries, started
from tests.servers.process import scratch
from tests.sources.databases import Postgres
from tests.sources.incremental import Incrementally

BY_CLOCK = Incremental(cursor_column="at", settle_timeout="20s")
BY_ID = Incremental(cursor_column="id", settle_timeout="20s")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a run has noted who has a transaction open."""
    happened, look = threading.Event(), postgres_writers._Writers.prepared

    def looked(writers: Any) -> Any:
        found = look(writers)
        happened.set()
        return found

    monkeypatch.setattr(postgres_writers._Writers, "prepared", looked)
    return happened


@pytest.fixture
def events(pg: Postgres, tmp_path: Path) -> Iterator[Incrementally]:
    """A table whose rows are stamped by the server, and one row of it."""
    pg.execute(
        "DROP TABLE IF EXISTS events",
        "CREATE TABLE events (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), note text)",
        "INSERT INTO events (note) VALUES ('first')",
    )
    yield Incrementally(pg.url, tmp_path / "lake", BY_CLOCK)
    # Its locks outlive the connection that prepared it.
    while found := pg.row("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        pg.execute(f"ROLLBACK PREPARED '{found[0]}'")


class Transaction:
    """One that another client has begun."""

    def __init__(self, url: str, *statements: str) -> None:
        from adbc_driver_postgresql import dbapi

        self._connection = dbapi.connect(url)
        for statement in statements:
            self.execute(statement)

    def execute(self, statement: str) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @property
    def process(self) -> int:
        return int(self.execute("SELECT pg_backend_pid() AS p")[0][0])

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def begun(url: str, *statements: str) -> Iterator[Transaction]:
    with closing(Transaction(url, *statements)) as found:
        yield found


LATE = "INSERT INTO events (note) VALUES ('late')"


@pytest.mark.parametrize("mode", [BY_CLOCK, BY_ID], ids=["clock", "id"])
def test_a_row_that_is_committed_late_is_lost_with_none(pg: Postgres, events: Incrementally, mode: Incremental) -> None:
    """What the tests below are about: it does happen."""
    events.mode = mode.model_copy(update={"settle": "none"})
    with begun(pg.url, LATE) as late:
        pg.execute("INSERT INTO events (note) VALUES ('early')")
        events.run()
        late.commit()
    events.run()
    assert events.rows("note") == ["early", "first"]


def test_a_clock_is_held_back_to_the_oldest_transaction_that_is_open(pg: Postgres, events: Incrementally) -> None:
    with begun(pg.url, LATE) as late:
        pg.execute("INSERT INTO events (note) VALUES ('early')")
        receipt = events.run()
        assert events.rows("note") == ["first"]
        (since,) = pg.row("SELECT min(xact_start)::text FROM pg_stat_activity WHERE query LIKE 'INSERT INTO events%'")
        assert datetime.fromisoformat(since) == datetime.fromisoformat(receipt.window["high"].replace("Z", "+00:00"))
        assert receipt.counters["rivet/settle"]["open"] == 1
        late.commit()
    events.run()
    assert events.rows("note") == ["early", "first", "late"]


def test_ids_wait_for_who_may_still_commit_a_lower_one(
    pg: Postgres, events: Incrementally, noted: threading.Event
) -> None:
    events.mode = BY_ID
    with begun(pg.url, LATE) as late, ThreadPoolExecutor(1) as pool:
        pg.execute("INSERT INTO events (note) VALUES ('early')")
        run = pool.submit(events.run)
        assert noted.wait(60)
        # Whoever begins after the end was noted is not waited for: what it writes is left to the next run, and so is
        # what is committed before it with a higher id.
        with begun(pg.url, "INSERT INTO events (note) VALUES ('later')") as later:
            pg.execute("INSERT INTO events (note) VALUES ('latest')")
            assert not run.done()
            late.commit()
            run.result(timeout=60)
            later.commit()
    assert events.rows("note") == ["early", "first", "late"]
    events.run()
    assert events.rows("note") == ["early", "first", "late", "later", "latest"]


def wait_for(pg: Postgres, sql: str, count: int) -> None:
    for _ in range(1200):
        if pg.row(sql)[0] >= count:
            return
        threading.Event().wait(0.05)
    raise AssertionError(sql)


def test_when_the_time_is_up_the_blocker_is_named_and_nothing_moves(pg: Postgres, events: Incrementally) -> None:
    events.mode = BY_ID.model_copy(update={"settle_timeout": "300ms"})
    events.url = limited(pg)
    with begun(pg.url, "SET application_name = 'checkout'", LATE) as late:
        with pytest.raises(
            SourceError, match=rf"process {late.process} of postgres \(checkout\).*settle_timeout"
        ) as told:
            events.run()
        assert told.value.transient
        assert not (events.lake / "events" / "manifest.json").exists()
    events.run()
    assert events.rows("note") == ["first"]


def limited(pg: Postgres) -> str:
    """The database as a role sees it that may read the table and nothing else."""
    pg.execute(
        "DO $$ BEGIN CREATE ROLE reader LOGIN PASSWORD 'reader'; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "GRANT SELECT ON events TO reader",
    )
    server = replace(pg.server, user="reader", password="reader")
    return server.url


@pytest.mark.parametrize("mode", [BY_CLOCK, BY_ID], ids=["clock", "id"])
def test_a_role_that_sees_no_start_times_waits(
    pg: Postgres, events: Incrementally, noted: threading.Event, mode: Incremental
) -> None:
    events.url, events.mode = limited(pg), mode
    with begun(pg.url, LATE) as late, ThreadPoolExecutor(1) as pool:
        pg.execute("INSERT INTO events (note) VALUES ('early')")
        run = pool.submit(events.run)
        assert noted.wait(60)
        late.commit()
        settle = run.result(timeout=60).counters["rivet/settle"]
    assert events.rows("note") == ["early", "first", "late"]
    assert "held_back_to" not in settle
    # Between two transactions of one message nothing says to it that there is a message.
    assert ("GRANT pg_read_all_stats TO reader" in settle.get("note", "")) == (mode is BY_CLOCK)


def test_a_role_that_sees_start_times_goes_by_them(pg: Postgres, events: Incrementally) -> None:
    events.url = limited(pg)
    pg.execute("GRANT pg_read_all_stats TO reader")
    try:
        with begun(pg.url, LATE):
            settle = events.run().counters["rivet/settle"]
    finally:
        pg.execute("REVOKE pg_read_all_stats FROM reader")
    assert "held_back_to" in settle
    assert "note" not in settle


def test_a_clock_is_held_back_to_the_statement_that_is_running_not_to_its_newest_transaction(
    pg: Postgres, events: Incrementally
) -> None:
    """A procedure that commits: each of its rows has the time of the statement that called it."""
    pg.execute(
        "ALTER TABLE events ALTER at SET DEFAULT statement_timestamp()",
        "CREATE OR REPLACE PROCEDURE two() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO events (note) VALUES ('one'); "
        "COMMIT; PERFORM pg_advisory_xact_lock(7); INSERT INTO events (note) VALUES ('two'); END $$",
    )
    with begun(pg.url, "SELECT pg_advisory_lock(7)") as gate, ThreadPoolExecutor(1) as pool:
        gate.commit()
        called = pool.submit(in_one_message, pg, "CALL two()")
        wait_for(pg, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1)
        events.run()
        gate.execute("SELECT pg_advisory_unlock(7)")
        called.result(timeout=60)
    events.run()
    assert events.rows("note") == ["first", "one", "two"]


def test_a_clock_is_held_back_also_between_two_transactions_of_one_message(pg: Postgres, events: Incrementally) -> None:
    """All of them have the time at which the message came, and nothing is open when one has ended."""
    with pg.server.client() as looking, looking.cursor() as cursor, ThreadPoolExecutor(1) as pool:

        def rows(sql: str) -> list[dict[str, Any]]:
            cursor.execute(sql)
            found: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
            looking.commit()
            return found

        look = postgres_writers._Writers(rows=rows, by_clock=True).running
        came = pool.submit(in_one_message, pg, "BEGIN; INSERT INTO events (note) VALUES ('x'); COMMIT;" * 20_000)
        wait_for(pg, "SELECT count(*) FROM events", 2)
        seen = []
        while found := look():
            seen += [writer["since"] for writer in found.values()]
        assert rows("SELECT DISTINCT at, count(*) AS n FROM events WHERE note = 'x' GROUP BY at") == [
            {"at": seen[0], "n": 20_000}
        ]
        came.result()
    assert set(seen) == {seen[0]}


def in_one_message(pg: Postgres, sql: str) -> None:
    with closing(simply(pg)) as client:
        client.run(sql)


def simply(pg: Postgres, **more: str) -> Any:
    """A client of the simple query protocol, by which a message may have several statements, and transactions."""
    from pg8000.native import Connection

    server = pg.server
    return Connection(server.user, server.host, server.database, server.port, server.password, **more)  # type: ignore[arg-type]


def test_a_wal_sender_that_writes_is_a_writer_and_one_that_streams_is_none(pg: Postgres, events: Incrementally) -> None:
    by_id = BY_ID.model_copy(update={"settle_timeout": "300ms"})
    with closing(simply(pg, replication="database")) as sender:
        sender.run("BEGIN")
        sender.run(LATE)
        pg.execute("INSERT INTO events (note) VALUES ('early')")
        with pytest.raises(SourceError, match="found still open: process"):
            events.run(by_id)
        assert events.run().counters["rivet/settle"]["open"] == 1
        sender.run("COMMIT")
        (found,) = sender.run("IDENTIFY_SYSTEM")
        with pytest.raises(KeyError, match="W"):
            # It has begun; this client does not know how it goes on.
            sender.run(f"START_REPLICATION {found[2]}")
        wait_for(pg, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", 1)
        assert events.run().counters["rivet/settle"]["open"] == 0
    assert events.rows("note") == ["early", "first", "late"]


def test_a_prepared_transaction_is_waited_for_also_one_that_becomes_it_meanwhile(
    pg: Postgres, events: Incrementally, noted: threading.Event
) -> None:
    if int(pg.row("SELECT current_setting('max_prepared_transactions')")[0]) == 0:
        pytest.skip("this server prepares no transactions")
    events.mode = BY_CLOCK.model_copy(update={"settle_timeout": "300ms"})
    with begun(pg.url, LATE) as late:
        late.execute("PREPARE TRANSACTION 'two phases'")
    with pytest.raises(SourceError, match=r"prepared transaction 'two phases' of postgres"):
        events.run()
    pg.execute("COMMIT PREPARED 'two phases'")
    noted.clear()
    events.mode = BY_ID
    with begun(pg.url, "INSERT INTO events (note) VALUES ('later')") as late, ThreadPoolExecutor(1) as pool:
        pg.execute("INSERT INTO events (note) VALUES ('early')")
        run = pool.submit(events.run)
        assert noted.wait(60)
        late.execute("PREPARE TRANSACTION 'two phases'")
        threading.Event().wait(0.5)
        assert not run.done()
        pg.execute("COMMIT PREPARED 'two phases'")
        run.result(timeout=60)
    assert events.rows("note") == ["early", "first", "late", "later"]


def test_a_transaction_that_is_prepared_between_two_looks_is_waited_for(
    pg: Postgres, events: Incrementally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen running, and a moment later prepared, within one round: it is one transaction, and still open."""
    events.mode = BY_ID.model_copy(update={"settle_timeout": "300ms"})
    look, looks = postgres_writers._Writers.running, iter(range(99))
    with begun(pg.url, LATE) as late:

        def looked(writers: Any) -> Any:
            found = look(writers)
            if next(looks) == 1:
                late.execute("PREPARE TRANSACTION 'between'")
            return found

        monkeypatch.setattr(postgres_writers._Writers, "running", looked)
        with pytest.raises(SourceError, match=r"prepared transaction 'between' of postgres"):
            events.run()
    pg.execute("COMMIT PREPARED 'between'")
    events.run()
    assert events.rows("note") == ["first", "late"]


def test_what_was_prepared_while_all_others_ran_is_not_waited_for(
    pg: Postgres, events: Incrementally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began after the end of the window was noted, and is none of those that were open then."""
    events.mode = BY_ID
    look, looks = postgres_writers._Writers.prepared, iter(range(99))
    with begun(pg.url, LATE) as late:
        pg.execute("INSERT INTO events (note) VALUES ('early')")

        def looked(writers: Any) -> Any:
            found, number = look(writers), next(looks)
            if number == 0:
                with begun(pg.url, "INSERT INTO events (note) VALUES ('later')") as later:
                    later.execute("PREPARE TRANSACTION 'later'")
            elif number == 2:
                late.commit()
            return found

        monkeypatch.setattr(postgres_writers._Writers, "prepared", looked)
        events.run()
    pg.execute("COMMIT PREPARED 'later'")
    assert events.rows("note") == ["early", "first", "late"]


def test_who_only_reads_for_an_export_is_not_waited_for_and_who_bears_its_name_is(
    pg: Postgres, events: Incrementally
) -> None:
    events.mode = BY_ID.model_copy(update={"settle_timeout": "300ms"})
    other = connect(pg.url)
    with closing(other.open(Query(table="events", casts={}))), other.snapshot("snapshot"):  # type: ignore[attr-defined]
        events.run()
    with (
        begun(pg.url, "SET application_name = 'rivet_dagster'", LATE),
        pytest.raises(SourceError, match=r"\(rivet_dagster\)"),
    ):
        events.run()


def test_who_writes_to_another_database_is_not_waited_for(pg: Postgres, events: Incrementally) -> None:
    events.mode = BY_ID.model_copy(update={"settle_timeout": "300ms"})
    elsewhere = pg.server.new_database()
    elsewhere.execute("CREATE TABLE other (id integer)")
    with begun(elsewhere.url, "INSERT INTO other VALUES (1)"):
        events.run()
    assert events.rows("note") == ["first"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ALTER SEQUENCE events_id_seq CACHE 10", "events_id_seq hands out 10 values"),
        ("ALTER SEQUENCE events_id_seq CYCLE", "events_id_seq does not only rise"),
        ("ALTER SEQUENCE events_id_seq OWNED BY NONE CACHE 10", "hands out 10"),
        (
            "ALTER TABLE events ALTER id DROP DEFAULT, ALTER id ADD GENERATED ALWAYS AS IDENTITY (CACHE 20)",
            "hands out 20",
        ),
    ],
)
def test_ids_that_are_not_drawn_in_order_are_refused(
    pg: Postgres, events: Incrementally, change: str, expected: str
) -> None:
    events.mode = BY_ID
    pg.execute(change)
    with pytest.raises(ConfigError, match=rf'{expected}.*settle="none"'):
        events.run()
    # A clock asks no sequence.
    events.run(BY_CLOCK)
    pg.execute("DROP SEQUENCE IF EXISTS events_id_seq CASCADE")


CHILD = "CREATE TABLE child () INHERITS (events)"
ITS_OWN = "ALTER TABLE child ALTER id DROP DEFAULT, ALTER id ADD GENERATED ALWAYS AS IDENTITY (CACHE {})"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ([CHILD, ITS_OWN.format(20)], "child_id_seq hands out 20"),
        ([CHILD, ITS_OWN.format(1)], "child_id_seq, events_id_seq"),
        (["ALTER SEQUENCE events_id_seq CACHE 9", "CREATE VIEW child AS TABLE events"], "events_id_seq hands out 9"),
    ],
    ids=["child", "two", "view"],
)
def test_ids_are_drawn_in_order_by_children_and_below_views_too(
    pg: Postgres, events: Incrementally, made: list[str], expected: str
) -> None:
    pg.execute(*made)
    try:
        events.relation = {"table": "child" if "VIEW" in made[-1] else "events"}
        with pytest.raises(ConfigError, match=rf'{expected}.*settle="none"'):
            events.run(BY_ID)
        events.run()
    finally:
        pg.execute("DROP TABLE events CASCADE")


def test_a_view_of_what_comes_from_elsewhere_is_refused_and_one_of_tables_is_not(
    pg: Postgres, events: Incrementally
) -> None:
    pg.execute(
        "CREATE MATERIALIZED VIEW kept AS SELECT * FROM events",
        "CREATE VIEW seen AS SELECT * FROM kept",
        "CREATE TABLE names (id bigserial, name text)",
        "CREATE VIEW joined AS SELECT e.*, name FROM events e LEFT JOIN names USING (id)",
    )
    try:
        for table in ("kept", "seen"):
            events.relation = {"table": table}
            with pytest.raises(ConfigError, match=r'refreshed.*lag="5 minutes"'):
                events.run()
        events.relation = {"table": "joined"}
        events.run(BY_ID)
    finally:
        pg.execute("DROP TABLE events, names CASCADE")


def test_rows_that_come_by_logical_replication_are_refused(pg: Postgres, events: Incrementally) -> None:
    """Into a table or a partition of it: their stamps are another server's."""
    pg.execute(
        "CREATE TABLE parted (id bigint, at timestamptz) PARTITION BY RANGE (id)",
        "CREATE TABLE one PARTITION OF parted FOR VALUES FROM (0) TO (9)",
    )
    pg.execute("CREATE SUBSCRIPTION of_events CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false)")
    with pg.server.client() as connection, connection.cursor() as cursor:
        cursor.execute("SET allow_system_table_mods = on")
        cursor.execute(
            "INSERT INTO pg_subscription_rel SELECT s.oid, t.oid, 'r', NULL FROM pg_subscription s, pg_class t "
            "WHERE subname = 'of_events' AND relname IN ('events', 'one')"
        )
    try:
        for table in ("events", "parted"):
            events.relation = {"table": table}
            with pytest.raises(ConfigError, match=r'logical replication.*lag="5 minutes"'):
                events.run()
    finally:
        pg.execute("ALTER SUBSCRIPTION of_events SET (slot_name = NONE)", "DROP SUBSCRIPTION of_events")


def test_rows_that_an_extension_replicates_are_refused(pg: Postgres, events: Incrementally) -> None:
    """pglogical, spock and BDR write with origins of their own, from servers that write at the same time."""
    pg.execute("SELECT pg_replication_origin_create('pgl_events_other_node')")
    try:
        with pytest.raises(ConfigError, match=r"logical replication"):
            events.run()
    finally:
        pg.execute("SELECT pg_replication_origin_drop('pgl_events_other_node')")


def test_rows_of_another_server_are_refused(pg: Postgres, events: Incrementally) -> None:
    pg.execute(
        "DROP TABLE events",
        "CREATE FOREIGN DATA WRAPPER nothing",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
        "CREATE TABLE events (id bigint, at timestamptz) PARTITION BY RANGE (id)",
        "CREATE FOREIGN TABLE far PARTITION OF events FOR VALUES FROM (0) TO (9) SERVER elsewhere",
    )
    try:
        for table in ("far", "events"):
            events.relation = {"table": table}
            with pytest.raises(ConfigError, match=r'foreign.*lag="5 minutes"'):
                events.run()
    finally:
        pg.execute("DROP FOREIGN DATA WRAPPER nothing CASCADE")


@contextmanager
def replica(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A hot standby of a server over TCP."""
    binaries = _server_binaries()
    assert binaries is not None
    user = "postgres" if os.geteuid() == 0 else None
    with scratch(user=user) as directory:
        data, home = directory / "replica", {"PGPASSWORD": primary.password, "PATH": os.environ["PATH"]}
        copy = [str(binaries / "pg_basebackup"), "-h", primary.host, "-p", str(primary.port), "-U", primary.user]
        subprocess.run(
            [*copy, "-D", str(data), "-R", "-X", "stream", "-c", "fast", "--no-sync"],
            check=True,
            cwd=directory,
            env=home,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        with started(binaries, data, directory=directory, user=user) as port:
            yield replace(primary, port=port)


def test_a_replica_cannot_know_its_writers_and_never_passes_what_it_has_replayed(
    pg: Postgres, events: Incrementally, monkeypatch: pytest.MonkeyPatch
) -> None:
    if _server_binaries() is None:
        pytest.skip("pg_basebackup is not installed")
    with replica(pg.server) as standby:
        # A URL of several hosts may lead to the primary first, and then to its replica.
        opened = PostgresSource.open
        with monkeypatch.context() as patched:
            patched.setattr(PostgresSource, "open", lambda _, query: opened(connect(standby.url), query))  # type: ignore[arg-type]
            with pytest.raises(SourceError, match=r"found the replica.*target_session_attrs=read-write") as told:
                events.run()
        assert told.value.transient
        assert not (events.lake / "events" / "manifest.json").exists()
        events.url = standby.url
        with pytest.raises(ConfigError, match=r'needs the primary.*lag="5 minutes"'):
            events.run()
        pg.execute("INSERT INTO events (note) VALUES ('second')")
        copied = Postgres(standby)
        wait_for(copied, "SELECT count(*) FROM events", 2)
        receipt = events.run(Incremental(cursor_column="at", settle="none"))
        (replayed,) = copied.row("SELECT pg_last_xact_replay_timestamp()::text")
        assert datetime.fromisoformat(receipt.window["high"].replace("Z", "+00:00")) <= datetime.fromisoformat(replayed)
        assert events.rows("note") in (["first"], ["first", "second"])
        assert quote(standby.password) not in str(receipt)
