"""MySQL when it fails: what may be retried, what is left behind, and what a message may say."""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from rivet_dagster.sources.mysql import MySQLSource
from rivet_dagster.sources.mysql_connection import MySQLConnection
from rivet_dagster.sources.mysql_errors import hint_for, is_transient
from rivet_dagster.sources.mysql_session import MySQLSession
from rivet_dagster.sources.mysql_types import WireColumn
from tests.servers import mariadb, require
from tests.sources.databases import MySQL
from tests.sources.ranges import key_of, query_of, read_in_ranges, rows_in, splittable
from tests.sources.relay import Relay, relay_to

MANY = "SELECT seq AS i, REPEAT('x', 1000) AS s FROM seq_1_to_1000000"


OURS = "FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND id <> CONNECTION_ID()"


def sessions(database: MySQL, where: str = "1 = 1") -> int:
    return database.row(f"SELECT COUNT(*) {OURS} AND {where}")[0]


def eventually(holds: Callable[[], bool], *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.02)


@pytest.fixture
def shop(maria: MySQL) -> Iterator[MySQL]:
    """A database in which no session of ours is left."""
    yield maria
    eventually(lambda: sessions(maria) == 0)


@pytest.fixture
def relay(shop: MySQL) -> Iterator[Relay]:
    with relay_to(shop.server.host, shop.server.port) as relay:
        yield relay


def through(relay: Relay, database: MySQL) -> str:
    return replace(database.server, port=relay.port).url


def user(database: MySQL, name: str, limits: str = "") -> MySQL:
    """Someone who may read alone."""
    database.execute(
        f"CREATE OR REPLACE USER {name}@localhost IDENTIFIED BY '{name}-word' {limits}",
        f"GRANT SELECT ON {database.server.database}.* TO {name}@localhost",
    )
    return MySQL(replace(database.server, user=name, password=f"{name}-word"))


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+pymysql", "MariaDB+pymysql"])
def test_urls_of_every_spelling_are_taken(shop: MySQL, scheme: str) -> None:
    source = connect(shop.url.replace("mysql", scheme, 1))
    assert isinstance(source, MySQLSource)
    assert (source.engine, source.database) == ("mysql", shop.server.database)
    (batch,) = source.open(Query(sql="SELECT DATABASE() AS x", casts={}))
    assert batch.to_pylist() == [{"x": shop.server.database}]


def test_a_read_is_one_read_only_snapshot_in_utc(shop: MySQL) -> None:
    shop.execute("CREATE TABLE t (i int)")
    said = (
        "SELECT @@time_zone AS zone, @@character_set_results AS letters, t.trx_is_read_only AS ro, "
        "t.trx_isolation_level AS level FROM information_schema.INNODB_TRX AS t "
        "WHERE t.trx_mysql_thread_id = CONNECTION_ID()"
    )
    with splittable(shop).snapshot("snapshot") as snapshot:
        assert rows_in(snapshot, query_of()) == []
        assert rows_in(snapshot, Query(sql=said, casts={})) == [("+00:00", "utf8mb4", 1, "REPEATABLE READ")]


LOADED = ["INSERT INTO fresh VALUES (101), (102)", "RENAME TABLE t TO stale, fresh TO t"]
RELOADED = {
    "changed places": LOADED,
    "truncated and loaded": ["TRUNCATE t", "INSERT INTO t VALUES (101), (102)"],
    "shown by its view": [LOADED[0], "CREATE OR REPLACE VIEW v AS SELECT * FROM fresh"],
}
TABLES = [
    "CREATE TABLE t (id int PRIMARY KEY)",
    "INSERT INTO t VALUES (1), (2), (3)",
    "CREATE TABLE fresh LIKE t",
    "CREATE VIEW v AS SELECT * FROM t",
]


@pytest.mark.parametrize("query", [{"table": "t"}, {"sql": "SELECT id FROM (SELECT id FROM t) AS x"}, {"table": "v"}])
@pytest.mark.parametrize("way", RELOADED)
def test_a_table_that_is_loaded_while_a_read_begins_is_not_read_as_empty(
    shop: MySQL, way: str, query: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the transaction has begun, and before anything of it has looked at the table."""
    shop.execute(*TABLES)
    describe = MySQLSession.describe

    def meanwhile(self: MySQLSession, sql: str) -> tuple[WireColumn, ...]:
        shop.execute(*RELOADED[way])
        return describe(self, sql)

    monkeypatch.setattr(MySQLSession, "describe", meanwhile)
    untouched = way == "shown by its view" and query != {"table": "v"}
    assert [row["id"] for row in shop.read(**query).rows] == ([1, 2, 3] if untouched else [101, 102])


@pytest.mark.parametrize("ranges", [False, True])
def test_who_waits_for_a_table_to_be_loaded_reads_what_was_loaded(shop: MySQL, ranges: bool) -> None:
    shop.execute(*TABLES)

    def read() -> list[int]:
        if not ranges:
            return [row["id"] for row in shop.read(table="t").rows]
        with splittable(shop).snapshot("snapshot") as snapshot:
            return [row[0] for part in read_in_ranges(snapshot, key_of("id"), rows=1) for row in part]

    # The loader's locks end first, so that a failure here waits for nobody.
    with ThreadPoolExecutor(1) as reader, shop.server.client() as loader, loader.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        reading = reader.submit(read)
        eventually(lambda: sessions(shop, "state LIKE 'Waiting for table%'") > 0)
        for statement in (*RELOADED["truncated and loaded"], "COMMIT", "UNLOCK TABLES"):
            cursor.execute(statement)
        assert reading.result(60) == [101, 102]


def test_all_that_a_run_reads_is_as_it_was_when_it_first_read(shop: MySQL) -> None:
    shop.execute(*TABLES)
    with splittable(shop).snapshot("snapshot") as snapshot:
        shop.execute(*LOADED)
        assert rows_in(snapshot, query_of()) == [(101,), (102,)]
        shop.execute("INSERT INTO t VALUES (103)", "INSERT INTO stale VALUES (4)")
        assert rows_in(snapshot, query_of()) == [(101,), (102,)]
        assert rows_in(snapshot, query_of("stale")) == [(1,), (2,), (3,)]


def test_at_the_end_of_the_rows_the_connection_is_free(shop: MySQL) -> None:
    stream = shop.open(sql="SELECT 1 AS x")
    assert sessions(shop) == 1
    rows = iter(stream)
    next(rows)
    assert list(rows) == []
    eventually(lambda: sessions(shop) == 0)


def test_close_in_the_middle_frees_the_connection(shop: MySQL) -> None:
    stream = shop.open(sql=MANY)
    rows = iter(stream)
    next(rows)
    assert sessions(shop) == 1
    stream.close()
    eventually(lambda: sessions(shop) == 0)
    with pytest.raises(SourceError, match="closed"):
        next(rows)


def test_leaving_the_loop_frees_the_connection(shop: MySQL) -> None:
    for _ in shop.open(sql=MANY):
        break
    eventually(lambda: sessions(shop) == 0)


def test_close_before_the_first_row_frees_the_connection(shop: MySQL) -> None:
    shop.open(sql=MANY).close()
    eventually(lambda: sessions(shop) == 0)


def test_close_stops_a_statement_that_has_not_answered_on_the_server(shop: MySQL) -> None:
    stream = shop.open(sql=shop.endless)
    raised: list[SourceError] = []

    def read() -> None:
        try:
            list(stream)
        except SourceError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: sessions(shop, "command = 'Execute'") == 1)
    stream.close()
    reader.join(20)
    assert "closed" in str(raised[0])
    eventually(lambda: sessions(shop) == 0)


@pytest.mark.parametrize("query", [{"table": "not_there"}, {"sql": "SELECT 1 AS x, 2 AS x"}, {"sql": "SELEC"}])
def test_a_query_that_cannot_be_opened_leaves_no_connection(shop: MySQL, query: dict[str, str]) -> None:
    with pytest.raises(Exception, match=r"not_there|'x'|SELEC"):
        shop.open(**query)
    eventually(lambda: sessions(shop) == 0)


def test_an_error_between_two_batches_is_raised_with_its_code_and_leaves_no_connection(shop: MySQL) -> None:
    rows = 0
    with pytest.raises(SourceError, match=r"\(error 1690\)") as raised:  # noqa: PT012
        for batch in shop.open(sql="SELECT seq AS i, 18446744073709051615 + seq AS y FROM seq_1_to_1000000"):
            rows += batch.num_rows
    assert 0 < rows <= 500_000
    assert not raised.value.transient


@pytest.mark.parametrize("kind", ["CONNECTION", "HARD CONNECTION"])
def test_a_killed_connection_is_a_transient_error_and_never_the_end(shop: MySQL, kind: str) -> None:
    rows = 0
    with pytest.raises(SourceError, match=r"error (1927|2013)") as raised:  # noqa: PT012
        for batch in shop.open(sql=MANY):
            if not rows:
                (number,) = shop.row(f"SELECT id {OURS}")
                shop.execute(f"KILL {kind} {number}")
            rows += batch.num_rows
    assert 0 < rows < 1_000_000
    assert raised.value.transient
    assert "run it again" in str(raised.value)


def test_a_killed_query_is_an_error_and_never_the_end(shop: MySQL) -> None:
    rows = 0
    with pytest.raises(SourceError, match="error 1317"):  # noqa: PT012
        for batch in shop.open(sql=MANY):
            if not rows:
                (number,) = shop.row(f"SELECT id {OURS}")
                shop.execute(f"KILL QUERY {number}")
            rows += batch.num_rows
    assert 0 < rows < 1_000_000


def test_a_reader_that_is_too_slow_gets_an_error_and_never_the_end(
    shop: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivet_dagster.sources.mysql_session._NET_WRITE_SECONDS", 1)
    rows = iter(shop.open(sql=MANY))
    read = next(rows).num_rows
    eventually(lambda: sessions(shop) == 0)
    with pytest.raises(SourceError, match=r"error (1161|1160|2013).*net_write_timeout") as raised:  # noqa: PT012
        for batch in rows:
            read += batch.num_rows
    assert 0 < read < 1_000_000
    assert raised.value.transient


def test_the_server_waits_long_for_a_reader_that_is_busy(shop: MySQL) -> None:
    """Between two ranges, too, where a server that ends idle sessions soon would end every attempt."""
    assert shop.value("@@net_write_timeout")[1] == 600
    assert shop.value("@@wait_timeout")[1] > 600
    shop.execute("SET GLOBAL wait_timeout = 1")
    try:
        assert shop.value("@@wait_timeout")[1] == 600
    finally:
        shop.execute("SET GLOBAL wait_timeout = DEFAULT")


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("after", [400_000, 5_000_003])
def test_a_cut_connection_is_a_transient_error_and_never_the_end(
    shop: MySQL, relay: Relay, then: str, after: int
) -> None:
    relay.after, relay.then = after, then
    rows = 0
    with pytest.raises(SourceError, match="error 2013") as raised:  # noqa: PT012
        for batch in connect(through(relay, shop)).open(Query(sql=MANY, casts={})):
            rows += batch.num_rows
    assert rows * 1000 < after
    assert raised.value.transient


def test_wherever_the_connection_is_cut_all_rows_arrive_or_an_error(shop: MySQL, relay: Relay) -> None:
    query = Query(sql="SELECT seq AS i FROM seq_1_to_50", casts={})
    source = connect(through(relay, shop))
    assert sum(batch.num_rows for batch in source.open(query)) == 50
    whole = relay.passed
    failed = []
    # The number of the connection is among the bytes that come, and may have got one more digit.
    for after in [*range(0, whole - 60, 53), *range(whole - 60, whole + 2)]:
        relay.after = after
        try:
            batches = list(source.open(query))
        except SourceError as error:
            failed.append(error)
            continue
        assert sum(batch.num_rows for batch in batches) == 50
        break
    else:
        pytest.fail("no result came whole")
    assert all(error.transient for error in failed)
    # The last byte is the result's end: whoever misses it has no result.
    assert after >= whole


def test_close_does_not_wait_for_a_network_that_is_dead(shop: MySQL, relay: Relay) -> None:
    # Less than is decoded at a time, so that the reader can only wait for more.
    relay.after, relay.then = 300_000, "stall"
    stream = connect(through(relay, shop)).open(Query(sql=MANY, casts={}))
    raised: list[SourceError] = []

    def read() -> None:
        try:
            list(stream)
        except SourceError as error:
            raised.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    # The relay passes at most so much at once; what it keeps back then stops the server.
    eventually(lambda: relay.passed > relay.after - 65_536)
    eventually(lambda: sessions(shop, "state LIKE '%net%' OR state LIKE 'Sending%'") == 1)
    reader.join(0.3)
    assert reader.is_alive()
    closer = threading.Thread(target=stream.close)
    closer.start()
    reader.join(20)
    closer.join(20)
    assert not closer.is_alive()
    assert "closed" in str(raised[0])
    relay.stop()


def test_a_statement_timeout_is_permanent_and_says_what_to_do(shop: MySQL) -> None:
    hasty = user(shop, "hasty", "WITH MAX_STATEMENT_TIME 0.4")
    with pytest.raises(SourceError, match=r"error 1969.*raise max_statement_time") as raised:
        hasty.read(sql=shop.endless)
    assert not raised.value.transient


def test_too_many_connections_are_transient(shop: MySQL) -> None:
    lonely = user(shop, "lonely", "WITH MAX_USER_CONNECTIONS 1")
    stream = lonely.open(sql="SELECT 1 AS x")
    with pytest.raises(SourceError, match="error 1226") as raised:
        lonely.open(sql="SELECT 1 AS x")
    assert raised.value.transient
    stream.close()


def test_what_a_user_may_not_read_is_permanent(shop: MySQL) -> None:
    shop.execute("CREATE TABLE t (i int)")
    reader = user(shop, "reader")
    reader.open(table="t").close()
    for query, code in [({"table": "mysql.user"}, 1142), ({"sql": "SELECT * FROM mysql.global_priv"}, 1142)]:
        with pytest.raises(SourceError, match=rf"error {code}\); grant") as raised:
            reader.open(**query)
        assert not raised.value.transient


@pytest.mark.parametrize("password", ["p@ss/w:rd?#%&=+ é", "hush", "%41", "a'b\"c\\d"])
def test_no_password_is_in_any_message(shop: MySQL, password: str) -> None:
    literal = password.replace("'", "''")
    shop.execute(
        f"CREATE OR REPLACE USER secretive@localhost IDENTIFIED BY '{literal}'",
        f"GRANT SELECT ON {shop.server.database}.* TO secretive@localhost",
    )
    address = f"{shop.server.host}:{shop.server.port}/{shop.server.database}"
    url = f"mysql://secretive:{quote(password, safe='')}@{address}"
    assert next(iter(connect(url).open(Query(sql="SELECT 1 AS x", casts={})))).num_rows == 1

    shop.execute("ALTER USER secretive@localhost IDENTIFIED BY 'another'")
    closed = url.replace(f":{shop.server.port}/", ":1/")
    unknown = url.replace("127.0.0.1", "no-such-host.invalid")
    for broken, code, transient in [(url, 1045, False), (closed, 2003, True), (unknown, 2003, True)]:
        with pytest.raises(SourceError, match=f"error {code}") as raised:
            connect(broken).open(Query(sql="SELECT 1 AS x", casts={}))
        assert raised.value.transient is transient
        shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
        for spelling in {password, quote(password, safe=""), quote(password), quote_plus(password)}:
            assert spelling not in shown
        assert "mysql://" not in shown


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("colour=red", "'colour'.*ssl-mode"),
        ("charset=latin1", "utf8mb4"),
        ("connect-timeout=soon", "whole number"),
        ("ssl-mode=maybe", "VERIFY_IDENTITY"),
        ("ssl_ca=/no/such/file", "No such file"),
    ],
)
def test_a_parameter_that_cannot_be_is_a_mistake_in_the_definition(parameters: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        connect(f"mysql://me@host/shop?{parameters}")


def test_encryption_that_the_server_does_not_have_is_refused(shop: MySQL) -> None:
    for given in ("ssl-mode=REQUIRED", "ssl_mode=verify-identity"):
        with pytest.raises(SourceError, match="error 2026") as raised:
            connect(f"{shop.url}?{given}").open(Query(sql="SELECT 1 AS x", casts={}))
        assert not raised.value.transient
    for given in ("ssl-mode=DISABLED", "ssl-mode=preferred", "connect_timeout=3&charset=utf8mb4"):
        assert len(list(connect(f"{shop.url}?{given}").open(Query(sql="SELECT 1 AS x", casts={})))) == 1


def certified(name: str) -> bytes:
    """A certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.timezone.utc)
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM) + secret


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MySQL, Path]]:
    """A database whose server speaks TLS, and its certificate."""
    certificate = tmp_path_factory.mktemp("tls") / "certificate.pem"
    certificate.write_bytes(certified("localhost"))
    with require(lambda: mariadb(certificate=certificate)) as server:
        yield MySQL(server.new_database()), certificate


def test_an_encrypted_connection_reads_is_verified_and_can_be_closed(encrypted: tuple[MySQL, Path]) -> None:
    database, certificate = encrypted
    own = f"ssl-ca={certificate}"
    named = database.url.replace("127.0.0.1", "localhost")
    cipher = "SELECT VARIABLE_VALUE AS x FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'Ssl_cipher'"
    good = [
        f"{database.url}?ssl-mode=REQUIRED",
        f"{database.url}?{own}",
        f"{named}?{own}&ssl-mode=VERIFY_IDENTITY",
    ]
    for url in good:
        (batch,) = connect(url).open(Query(sql=cipher, casts={}))
        assert batch.to_pylist()[0]["x"]
    bad = [f"{database.url}?{own}&ssl-mode=VERIFY_IDENTITY", f"{database.url}?ssl-mode=VERIFY_CA"]
    for url in bad:
        with pytest.raises(SourceError, match=r"certificate is not accepted.*error 2026") as raised:
            connect(url).open(Query(sql=cipher, casts={}))
        assert not raised.value.transient
    assert sum(batch.num_rows for batch in connect(good[0]).open(Query(sql=MANY + " LIMIT 20000", casts={}))) == 20_000
    stream = connect(good[0]).open(Query(sql=database.endless, casts={}))

    def read() -> None:
        with pytest.raises(SourceError, match="closed"):
            list(stream)

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: sessions(database, "command = 'Execute'") == 1)
    stream.close()
    reader.join(20)
    assert not reader.is_alive()
    eventually(lambda: sessions(database) == 0)


def test_rows_that_are_not_as_described_are_refused(shop: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MySQLConnection.execute

    def changed(self: MySQLConnection, statement: int) -> tuple[WireColumn, ...]:
        return tuple(replace(column, code=3) for column in run(self, statement))

    monkeypatch.setattr(MySQLConnection, "execute", changed)
    with pytest.raises(SourceError, match="described the result in one way"):
        shop.read(sql="SELECT CAST(1 AS SIGNED) * 5000000000 AS x")


def test_a_missing_driver_is_named_with_the_command(shop: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigError, match=r"pip install 'rivet-dagster\[mysql\]'"):
        connect(shop.url).open(Query(sql="SELECT 1 AS x", casts={}))


@pytest.mark.parametrize("code", [1213, 1205, 1040, 1203, 1226, 1053, 1927, 2003, 2006, 2013, 1158, 1159, 1160, 1161])
def test_what_may_pass_is_transient(code: int) -> None:
    assert is_transient(code)
    assert hint_for(code)


@pytest.mark.parametrize("code", [3024, 1969, 1317, 1045, 1044, 1049, 1146, 1064, 1054, 1142, 1792, 9999, 0, None])
def test_what_stays_is_permanent(code: int | None) -> None:
    assert not is_transient(code)
    assert bool(hint_for(code)) == (code not in {9999, 0, None})
