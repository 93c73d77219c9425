"""Sessions of MySQL and MariaDB are as gentle as they are told."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from tests.sources.databases import MySQL
from tests.sources.ranges import key_of, read_in_ranges, run

VARIABLES = ("max_statement_time", "lock_wait_timeout", "innodb_lock_wait_timeout")


def variables(maria: MySQL, **settings: Any) -> list[float]:
    sql = "SELECT " + ", ".join(f"CAST(@@{name} AS DOUBLE) AS {name}" for name in VARIABLES)
    (batch,) = connect(maria.url, **settings).open(Query(sql=sql, casts={}))
    return [*batch.to_pylist()[0].values()]


def test_timeouts_are_the_session_s_own(maria: MySQL) -> None:
    usual = variables(maria)
    # Locks are waited for in whole seconds.
    assert variables(maria, statement_timeout=61.5, lock_timeout=0.3) == [61.5, 1, 1]
    assert variables(maria, lock_timeout=7) == [usual[0], 7, 7]
    assert variables(maria) == usual


def test_a_limit_of_the_server_cuts_no_result(maria: MySQL) -> None:
    """Which comes without a warning: whoever wants fewer rows says so in the query."""
    maria.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_9")
    maria.execute("SET GLOBAL sql_select_limit = 2")
    try:
        assert maria.row("SELECT COUNT(*) FROM (SELECT @@sql_select_limit AS n) AS x WHERE n = 2") == (1,)
        assert len(maria.read(table="t").rows) == 9
        with run(maria) as snapshot:
            assert [len(part) for part in read_in_ranges(snapshot, key_of("id"), rows=4)] == [4, 4, 1]
    finally:
        maria.execute("SET GLOBAL sql_select_limit = DEFAULT")


def test_mysql_itself_counts_milliseconds(maria: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which there is no server here: what is sent to one, and MariaDB does not know it."""
    execute = pymysql.cursors.Cursor.execute

    def mysql(cursor: Any, sql: str, args: Any = None) -> int:
        return execute(cursor, "SELECT '8.4.2'" if sql == "SELECT VERSION()" else sql, args)

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", mysql)
    with pytest.raises(SourceError, match="Unknown system variable 'max_execution_time'"):
        variables(maria, statement_timeout=1.5)


def test_a_statement_that_takes_too_long_is_ended_for_good(maria: MySQL) -> None:
    stream = connect(maria.url, statement_timeout=0.2).open(Query(sql=maria.endless, casts={}))
    with pytest.raises(SourceError, match="or statement_timeout if it is set here") as raised:
        list(stream)
    assert not raised.value.transient


def test_a_lock_that_takes_too_long_may_be_free_later(maria: MySQL) -> None:
    maria.execute("CREATE TABLE t (id int)")
    with maria.server.client() as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        with pytest.raises(SourceError, match="another session holds the lock") as raised:
            list(connect(maria.url, lock_timeout=0.2).open(Query(table="t", casts={})))
    assert raised.value.transient


def test_the_administrator_sees_the_name(maria: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    opened = pymysql.connections.Connection._request_authentication

    def seen(connection: Any) -> None:
        sent.append(connection._connect_attrs["program_name"])
        opened(connection)

    monkeypatch.setattr(pymysql.connections.Connection, "_request_authentication", seen)
    list(connect(maria.url, application_name="nightly").open(Query(sql="SELECT 1 AS x", casts={})))
    list(connect(maria.url).open(Query(sql="SELECT 1 AS x", casts={})))
    assert sent == ["nightly", "rivet_dagster"]
