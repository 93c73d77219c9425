"""What holds for every source; each test runs on PostgreSQL, MariaDB, SQLite and DuckDB."""

from __future__ import annotations

import subprocess
import sys
import threading
from decimal import Decimal

import pyarrow as pa
import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from tests.sources.databases import Database


def test_the_source_names_itself(database: Database) -> None:
    source = connect(database.url)
    assert source.engine == database.kind
    assert "/" not in source.database
    assert source.database in database.url


def test_the_schema_is_the_databases_and_known_before_the_first_row(database: Database) -> None:
    database.execute(
        f"CREATE TABLE t (i {database.bigint}, d {database.decimal}(12,2), f {database.double}, b boolean, day date, "
        f"stamp {database.naive}, s text)"
    )
    stream = database.open(table="t")
    assert {column.name: column.arrow_type for column in stream.columns} == {
        "i": pa.int64(),
        "d": pa.decimal128(12, 2),
        "f": pa.float64(),
        "b": database.boolean,
        "day": pa.date32(),
        "stamp": pa.timestamp("us"),
        "s": pa.string(),
    }
    assert all(column.source_type for column in stream.columns)
    stream.close()


def test_an_empty_result_has_its_schema_and_no_batch(database: Database) -> None:
    database.execute(f"CREATE TABLE t (i {database.bigint}, s text)", "INSERT INTO t VALUES (1, 'x')")
    found = database.read(sql="SELECT i, s FROM t WHERE 1 = 0")
    assert found.types == {"i": pa.int64(), "s": pa.string()}
    assert found.batches == []


def test_a_column_that_begins_with_nulls_keeps_its_type_and_its_values(database: Database) -> None:
    nulls = ", ".join(["(NULL, NULL)"] * 5000)
    database.execute(
        f"CREATE TABLE t (s text, d {database.decimal}(10,2))",
        f"INSERT INTO t VALUES {nulls}",
        "INSERT INTO t VALUES ('late', 1.25)",
    )
    found = database.read(table="t")
    assert found.types == {"s": pa.string(), "d": pa.decimal128(10, 2)}
    assert [row for row in found.rows if row["s"] is not None] == [{"s": "late", "d": Decimal("1.25")}]
    assert len(found.rows) == 5001


def test_a_column_of_nulls_alone_keeps_its_type(database: Database) -> None:
    database.execute(f"CREATE TABLE t (i {database.bigint}, day date)", "INSERT INTO t VALUES (NULL, NULL)")
    found = database.read(table="t")
    assert found.types == {"i": pa.int64(), "day": pa.date32()}
    assert found.rows == [{"i": None, "day": None}]


def test_integers_beside_nulls_keep_every_digit(database: Database) -> None:
    database.execute(
        f"CREATE TABLE t (i {database.bigint})",
        "INSERT INTO t VALUES (9007199254740993), (NULL), (-9223372036854775808), (9223372036854775807)",
    )
    found = database.read(table="t")
    assert found.types == {"i": pa.int64()}
    assert [row["i"] for row in found.rows] == [9007199254740993, None, -(2**63), 2**63 - 1]


def test_decimals_keep_every_digit(database: Database) -> None:
    # SQLite itself makes a real of a number with more digits, before anyone can read it.
    digits = "1234567.12345678" if database.kind == "sqlite" else "123456789012345678901234567890.12345678"
    database.execute(
        f"CREATE TABLE t (i {database.bigint}, d {database.decimal}(38,8))",
        f"INSERT INTO t VALUES (1, {digits}), (2, 0.10), (3, NULL), (4, -0.00000001), (5, 7)",
    )
    found = database.read(sql="SELECT d FROM t ORDER BY i")
    assert found.types == {"d": pa.decimal128(38, 8)}
    expected = [Decimal(digits), Decimal("0.10"), None, Decimal("-0.00000001"), Decimal(7)]
    assert [row["d"] for row in found.rows] == expected


def test_text_arrives_as_it_is(database: Database) -> None:
    texts = [
        "",
        " ",
        "é",
        "e\u0301",
        "日本語",
        "😀",
        "שלום",
        "a'b\"c",
        "line\nbreak\r\n",
        "\\N",
        "NULL",
        "\t",
        "x" * 5_000_000,
    ]
    database.execute(f"CREATE TABLE t (i {database.bigint}, s {database.text})")
    for position, text in enumerate(texts):
        quoted = text.replace("'", "''")
        database.execute(f"INSERT INTO t VALUES ({position}, '{quoted}')")
    database.execute("INSERT INTO t VALUES (99, NULL)")
    found = database.read(sql="SELECT s FROM t ORDER BY i")
    assert [row["s"] for row in found.rows] == [*texts, None]


@pytest.mark.parametrize(
    "name", ['we"ird', "a.b", "naïve 日本", "select", "ID", " lead", "semi;colon", "it's", "%s", "c1"]
)
def test_any_column_and_table_name_works(database: Database, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    database.execute(
        f"CREATE TABLE {quoted} ({quoted} {database.bigint}, other text)", f"INSERT INTO {quoted} VALUES (7, 'x')"
    )
    assert database.read(table=quoted).rows == [{name: 7, "other": "x"}]
    own = database.quoted(name)
    assert database.read(sql=f"SELECT {own} FROM {own}", casts={name: "text"}).rows == [{name: "7"}]


def test_a_qualified_table_name_works(database: Database) -> None:
    database.execute(f"CREATE TABLE orders (i {database.bigint})", "INSERT INTO orders VALUES (1)")
    assert database.read(table=f"{database.schema}.orders").rows == [{"i": 1}]
    assert database.read(table=f'"{database.schema}"."orders"').rows == [{"i": 1}]


@pytest.mark.parametrize("table", ["", "a.b.c.d", "a b", "t; drop table t", 'open"quote', "a..b", "a.", '""', "t--"])
def test_what_is_no_table_name_is_a_mistake_in_the_definition(database: Database, table: str) -> None:
    with pytest.raises(ConfigError, match="double quotes"):
        database.open(table=table)


@pytest.mark.parametrize("query", [{}, {"table": "t", "sql": "SELECT 1"}])
def test_exactly_one_of_table_and_query_is_read(database: Database, query: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        database.open(**query)


def test_columns_of_one_name_are_refused_by_name(database: Database) -> None:
    with pytest.raises(ConfigError, match=r"'id' \(3 times\), 'x' \(2 times\).* AS"):
        database.open(sql="SELECT 1 AS id, 2 AS id, 3 AS id, 4 AS x, 5 AS x, 6 AS y")


def test_columns_that_differ_in_case_alone_stay_apart(database: Database) -> None:
    sql = 'SELECT 1 AS "id", \'two\' AS "Id", 3 AS "ID"'
    assert database.read(sql=sql).rows == [{"id": 1, "Id": "two", "ID": 3}]
    assert database.read(sql=sql, casts={"ID": "text"}).rows == [{"id": 1, "Id": "two", "ID": "3"}]


def test_a_cast_to_text_is_exact(database: Database) -> None:
    database.execute(
        f"CREATE TABLE t (i {database.bigint}, f {database.double}, s text)",
        "INSERT INTO t VALUES (9007199254740993, 0.30000000000000004, 'x'), (NULL, NULL, NULL)",
    )
    found = database.read(table="t", casts={"i": "text", "f": "text", "s": "text"})
    assert set(found.types.values()) == {pa.string()}
    assert found.rows == [
        {"i": "9007199254740993", "f": "0.30000000000000004", "s": "x"},
        {"i": None, "f": None, "s": None},
    ]


def test_a_cast_that_fails_is_permanent_and_its_column_named(database: Database) -> None:
    """By the database or here."""
    with pytest.raises(SourceError, match="'amount'") as raised:
        database.read(sql="SELECT 'seven' AS amount, 1 AS other", casts={"amount": "decimal(5,2)"})
    assert not raised.value.transient


def test_a_cast_of_a_column_that_is_not_there_names_those_that_are(database: Database) -> None:
    with pytest.raises(ConfigError, match=r"'amuont'.*'amount', 'other'"):
        database.open(sql="SELECT 1 AS amount, 2 AS other", casts={"amuont": "text"})


def test_a_cast_is_a_type_name_and_nothing_else(database: Database) -> None:
    with pytest.raises(ConfigError, match="name of a type"):
        database.open(sql="SELECT 1 AS x", casts={"x": "text) AS x, (SELECT 2"})


def test_the_order_of_a_query_is_kept(database: Database) -> None:
    values = ", ".join(f"({(position * 7919) % 5003}, 'x')" for position in range(5003))
    database.execute(f"CREATE TABLE t (i {database.bigint}, s text)", f"INSERT INTO t VALUES {values}")
    found = database.read(sql="SELECT i, s FROM t ORDER BY i DESC", casts={"i": "text"})
    assert [row["i"] for row in found.rows] == [str(i) for i in reversed(range(5003))]


@pytest.mark.parametrize("ending", [";", " ; \n", " -- a comment", "; ;"])
def test_a_query_may_end_in_a_semicolon_or_a_comment(database: Database, ending: str) -> None:
    assert database.read(sql=f"SELECT 1 AS x{ending}", casts={"x": "text"}).rows == [{"x": "1"}]


@pytest.mark.parametrize(
    "sql", ["DELETE FROM t RETURNING i", "SELECT 1 AS x; DELETE FROM t", "DROP TABLE t", "INSERT INTO t VALUES (2)"]
)
def test_a_query_cannot_write(database: Database, sql: str) -> None:
    database.execute(f"CREATE TABLE t (i {database.bigint})", "INSERT INTO t VALUES (1)")
    with pytest.raises((SourceError, ConfigError)) as raised:
        database.read(sql=sql)
    assert not getattr(raised.value, "transient", False)
    assert database.read(table="t").rows == [{"i": 1}]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"table": "not_there"}, "not_there"),
        ({"sql": "SELECT no_such_column FROM t"}, "no_such_column"),
        ({"sql": "SELEC 1"}, "(?i)selec"),
        ({"sql": "SELECT i FROM t", "casts": {"i": "no_such_type"}}, "no_such_type"),
    ],
)
def test_a_mistake_in_the_query_is_permanent_and_named(database: Database, query: dict, names: str) -> None:
    database.execute(f"CREATE TABLE t (i {database.bigint})")
    with pytest.raises((SourceError, ConfigError), match=names) as raised:
        database.read(**query)
    assert not getattr(raised.value, "transient", False)


def test_an_empty_query_is_a_mistake_in_the_definition(database: Database) -> None:
    with pytest.raises(ConfigError, match="select statement"):
        database.open(sql=" ; ")


def test_batches_are_bounded_by_rows_and_by_bytes_and_never_empty(database: Database) -> None:
    values = ", ".join(f"({position}, '{'x' * 1000}')" for position in range(3000))
    database.execute(f"CREATE TABLE t (i {database.bigint}, s text)", f"INSERT INTO t VALUES {values}")
    for rows, size in [(100, 2**30), (10**9, 100_000)]:
        batches = list(connect(database.url, batch_rows=rows, batch_bytes=size).open(Query(table="t", casts={})))
        assert [i for batch in batches for i in batch.column(0).to_pylist()] == list(range(3000))
        assert all(0 < batch.num_rows <= rows for batch in batches)
        assert all(sum(len(text) for text in batch.column(1).to_pylist()) <= size for batch in batches)
    (one, *_) = list(connect(database.url, batch_rows=1, batch_bytes=1).open(Query(table="t", casts={})))
    assert one.num_rows == 1


def test_every_batch_has_exactly_the_declared_schema(database: Database) -> None:
    values = ", ".join(f"({position}, '{position}')" for position in range(5000))
    database.execute(f"CREATE TABLE t (i {database.bigint}, s text)", f"INSERT INTO t VALUES {values}")
    stream = connect(database.url, batch_rows=700).open(Query(table="t", casts={}))
    declared = pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in stream.columns])
    batches = list(stream)
    assert len(batches) >= 8
    assert all(batch.schema.equals(declared, check_metadata=True) for batch in batches)


def test_a_closed_stream_raises_when_it_is_read(database: Database) -> None:
    stream = database.open(sql="SELECT 1 AS x")
    stream.close()
    stream.close()
    with pytest.raises(SourceError, match="closed"):
        list(stream)


def test_a_stream_closed_between_two_batches_does_not_look_like_the_end(database: Database) -> None:
    values = ", ".join(f"({position})" for position in range(5000))
    database.execute(f"CREATE TABLE t (i {database.bigint})", f"INSERT INTO t VALUES {values}")
    stream = connect(database.url, batch_rows=10).open(Query(table="t", casts={}))
    with pytest.raises(SourceError, match="closed"):  # noqa: PT012
        for position, _ in enumerate(stream):
            if position == 2:
                stream.close()


def test_rows_are_read_once(database: Database) -> None:
    stream = database.open(sql="SELECT 1 AS x")
    assert len(list(stream)) == 1
    with pytest.raises(SourceError, match="once"):
        list(stream)


def test_close_stops_a_query_that_another_thread_waits_for(database: Database) -> None:
    stream = database.open(sql=database.endless)
    outcome: list[BaseException] = []
    reading = threading.Event()

    def read() -> None:
        reading.set()
        try:
            list(stream)
        except SourceError as error:
            outcome.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait()
    # The query runs until it is stopped, whether the reader is in it yet or not.
    reader.join(0.3)
    assert reader.is_alive()
    stream.close()
    reader.join(30)
    assert not reader.is_alive()
    assert "closed" in str(outcome[0])


def test_rows_written_after_the_first_batch_are_not_seen(database: Database) -> None:
    values = ", ".join(f"({position}, '{'x' * 100}')" for position in range(20_000))
    database.execute(f"CREATE TABLE t (i {database.bigint}, s text)", f"INSERT INTO t VALUES {values}")
    stream = connect(database.url, batch_rows=100, batch_bytes=10_000).open(Query(table="t", casts={}))
    rows = iter(stream)
    first = next(rows)
    changes = ("INSERT INTO t VALUES (-1, 'new')", "UPDATE t SET i = i + 1000000", "DELETE FROM t WHERE i % 2 = 0")
    if database.others_write:
        database.execute(*changes)
    else:
        with pytest.raises(Exception, match="different configuration"):
            database.execute(*changes)
    seen = [i for batch in [first, *rows] for i in batch.column(0).to_pylist()]
    assert seen == list(range(20_000))


def test_a_database_that_is_not_there_is_an_error_and_stays_so(database: Database) -> None:
    missing = database.url + "_missing"
    with pytest.raises(SourceError, match="_missing") as raised:
        connect(missing).open(Query(sql="SELECT 1 AS x", casts={}))
    assert not raised.value.transient
    with pytest.raises(SourceError):
        connect(missing).open(Query(sql="SELECT 1 AS x", casts={}))


def test_no_driver_is_imported_before_a_source_is_opened() -> None:
    script = (
        "import sys, rivet_dagster.sources.connect as c\n"
        "assert not {'duckdb', 'pyarrow', 'adbc_driver_manager', 'pandas', 'sqlite3'} & set(sys.modules)\n"
        "c.connect('postgresql://u@h/d')\n"
        "assert not {'duckdb', 'adbc_driver_manager', 'pandas', 'polars'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
