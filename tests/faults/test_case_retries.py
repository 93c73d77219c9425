"""A server that ends what is read: a limit is told once and never tried again, a cut is read again from its part."""

import threading
from dataclasses import replace

import dagster as dg
import pytest

import rivet_dagster as rd
from rivet_dagster.exports import memory, reading
from tests.faults.kit import read_as_a_reader
from tests.faults.lakes import materialized, said, table_of
from tests.servers import mariadb, postgres
from tests.sources.databases import MySQL, Postgres

# More than what waits on the way, so that rows are still to come when the part is begun.
ROWS = 16_000
FILL = {
    "postgresql": "INSERT INTO orders SELECT i, repeat(md5(i::text), 40) FROM generate_series(1, {rows}) AS i",
    "mysql": "INSERT INTO orders SELECT seq, repeat(md5(seq), 40) FROM seq_1_to_{rows}",
}
SLOW = {
    "postgresql": "SELECT i AS id, pg_sleep(0.01)::text AS note FROM generate_series(1, 100000) AS i",
    "mysql": "SELECT seq AS id, sleep(0.01) AS note FROM seq_1_to_100000",
}
CUT = {
    "postgresql": "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = 'rivet_dagster' AND state = 'active'",
    "mysql": "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()",
}


@pytest.fixture(params=["postgresql", "mysql"])
def database(request, servers, monkeypatch):
    """A server with an empty table, read with little ahead and no pauses."""
    monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
    monkeypatch.setattr(memory, "_AHEAD_BYTES", 2**20)
    found = (
        Postgres(servers(postgres).new_database())
        if request.param == "postgresql"
        else MySQL(servers(mariadb).new_database())
    )
    found.execute(
        "CREATE TABLE orders (id bigint NOT NULL PRIMARY KEY, note text)", "INSERT INTO orders VALUES (0, 'old')"
    )
    return found


def hasty(database):
    """The same for someone whose statements may last 0.4 s."""
    server = database.server
    if isinstance(database, MySQL):
        database.execute(
            "CREATE OR REPLACE USER hasty@localhost IDENTIFIED BY 'word' WITH MAX_STATEMENT_TIME 0.4",
            f"GRANT SELECT ON {server.database}.* TO hasty@localhost",
        )
        return MySQL(replace(server, user="hasty", password="word"))
    database.execute(f"ALTER DATABASE {server.database} SET statement_timeout = 400")
    return database


def export(lake, database, *, before_part=lambda _n: None, query=None):
    """One run that a policy may repeat twice; `before_part` is called when a part is begun."""
    begun = []

    def opened(io_manager_class):
        class Telling(io_manager_class):
            def open_destination(self, clients):
                found = super().open_destination(clients)
                stage = found.stage

                def staged(key):
                    begun.append(key)
                    before_part(len(begun))
                    return stage(key)

                found.stage = staged
                return found

        return Telling

    relation = {"query": query} if query else {"table": "orders"}
    asset = rd.build_export_asset(
        rd.Export(name="orders", format="csv", **relation), retry_policy=dg.RetryPolicy(max_retries=2)
    )
    there = {
        "io_manager": opened(rd.LocalIOManager)(path=str(lake.harness.root)),
        "source": rd.DatabaseResource(url=database.url),
    }
    return dg.materialize([asset], instance=lake.instance, resources=there, raise_on_error=False)


def cut(database):
    """End all that is read."""
    if isinstance(database, MySQL):
        with database.server.client() as connection, connection.cursor() as cursor:
            cursor.execute(CUT["mysql"])
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL CONNECTION {number}")
    else:
        assert database.row(CUT["postgresql"]) != (0,)


def visible(lake):
    return {name: body for name, body in lake.raw.items() if "manifest-" not in name}


def attempts(done):
    return 1 + sum(e.is_step_restarted for e in done.all_events)


def test_a_statement_that_lasts_too_long_is_told_once_and_not_tried_again(shelf, database):
    assert export(shelf, database).success
    before = visible(shelf)
    done = export(shelf, hasty(database), query=SLOW[database.kind])
    assert (done.success, materialized(done), attempts(done)) == (False, 0, 1)
    hint = "raise statement_timeout" if database.kind == "postgresql" else "raise max_statement_time"
    assert hint in said(done)
    assert visible(shelf) == before


def test_a_reading_that_is_cut_once_is_read_again_and_each_row_is_there_once(shelf, database):
    database.execute(FILL[database.kind].format(rows=ROWS))
    done = export(shelf, database, before_part=lambda n: cut(database) if n == 1 else None)
    assert done.success, said(done)
    assert attempts(done) == 1
    (event,) = done.get_asset_materialization_events()
    retried = event.step_materialization_data.materialization.metadata["rivet/source_retries"].value
    assert retried["count"] == 1
    rows = [row for body in read_as_a_reader(shelf.raw) for row in table_of(body)["id"].to_pylist()]
    assert sorted(rows) == [*range(ROWS + 1)]
    assert shelf.litter() == []


def test_a_reading_that_is_always_cut_fails_as_often_as_the_policy_says_and_moves_nothing(shelf, database):
    assert export(shelf, database).success
    before = visible(shelf)
    database.execute(FILL[database.kind].format(rows=ROWS))
    waiting = threading.Event()
    done = export(shelf, database, before_part=lambda _n: (cut(database), waiting.wait(0.05)))
    assert (done.success, materialized(done), attempts(done)) == (False, 0, 3)
    assert "run it again" in said(done)
    assert visible(shelf) == before
