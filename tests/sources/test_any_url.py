"""Databases through SQLAlchemy, with drivers that are not ours: as strict as our own sources."""

from __future__ import annotations

import datetime as dt
import sys
import traceback
import uuid
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from sqlalchemy import types

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.any_url import AnyUrlSource
from rivet_dagster.sources.any_values import column_array, described_type, reflected_type
from rivet_dagster.sources.connect import connect
from rivet_dagster.sources.mysql import MySQLSource
from rivet_dagster.sources.postgresql import PostgresSource
from tests.sources.databases import Database, MySQL, Rows, Sqlite
from tests.sources.relay import relay_to

DRIVERS = {"postgresql": "postgresql+pg8000", "mysql": "mysql+mysqlconnector", "sqlite": "sqlite+pysqlite"}


@dataclass(frozen=True, slots=True)
class Other:
    """A database and the URL that reads it through SQLAlchemy."""

    database: Any
    url: str

    def open(self, *, casts: dict[str, str] | None = None, batch_rows: int = 65_536, **query: str) -> Any:
        return connect(self.url, batch_rows=batch_rows).open(Query(**query, casts=casts or {}))

    def read(self, *, casts: dict[str, str] | None = None, batch_rows: int = 65_536, **query: str) -> Rows:
        stream = self.open(casts=casts, batch_rows=batch_rows, **query)
        types = {column.name: column.arrow_type for column in stream.columns}
        batches = list(stream)
        return Rows(types=types, rows=[row for batch in batches for row in batch.to_pylist()], batches=batches)


@pytest.fixture(params=sorted(DRIVERS))
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Other:
    database: Database
    if request.param == "sqlite":
        database = Sqlite(tmp_path / "shop.sqlite")
    elif request.param == "mysql":
        database = request.getfixturevalue("maria")
    else:
        pg = request.getfixturevalue("pg")
        if pg.server.port is None:
            pytest.skip("this server has a socket alone")
        pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        database = pg
    return Other(database, DRIVERS[request.param] + database.url[len(request.param) :])


def test_the_driver_in_the_url_decides() -> None:
    for url in ("postgresql+pg8000://h/d", "mysql+mysqlconnector://h/d", "sqlite+pysqlite:///f"):
        assert isinstance(connect(url), AnyUrlSource)
    for url in ("postgresql+psycopg2://h/d", "postgresql+psycopg://h/d", "postgresql://h/d"):
        assert isinstance(connect(url), PostgresSource)
    assert isinstance(connect("mysql+pymysql://h/d"), MySQLSource)


def test_the_source_names_itself(other: Other) -> None:
    source = connect(other.url)
    assert source.engine == other.database.kind
    assert source.database == other.database.url.rpartition("/")[2]


def test_a_tables_types_are_the_catalogs_and_its_values_exact(other: Other) -> None:
    database = other.database
    real, stamp = ("real", "timestamp") if database.kind == "sqlite" else (database.double, database.naive)
    binary = {"postgresql": "bytea", "mysql": "varbinary(9)", "sqlite": "blob"}[database.kind]
    amount = "decimal(12,2)" if database.kind != "sqlite" else "integer"
    database.execute(
        f"CREATE TABLE t (i bigint, n {amount}, f {real}, day date, stamp {stamp}, s varchar(40), b {binary})",
        "INSERT INTO t VALUES (9007199254740993, 12, 0.30000000000000004, '2024-02-29', '2024-02-29 23:59:59.123456', "
        "'é', NULL), (NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    found = other.read(table="t")
    decimal = pa.int64() if database.kind == "sqlite" else pa.decimal128(12, 2)
    kinds = [pa.int64(), decimal, pa.float64(), pa.date32(), pa.timestamp("us"), pa.string(), pa.binary()]
    assert list(found.types.values()) == kinds
    assert found.rows == [
        {
            "i": 9007199254740993,
            "n": Decimal(12),
            "f": 0.1 + 0.2,
            "day": dt.date(2024, 2, 29),
            "stamp": dt.datetime(2024, 2, 29, 23, 59, 59, 123456),
            "s": "é",
            "b": None,
        },
        dict.fromkeys(found.types),
    ]


def test_of_a_mysql_table_nothing_is_changed_by_its_driver(maria: MySQL) -> None:
    """Which makes NULL of a date in no calendar, and is sent six digits of a float."""
    other = Other(maria, DRIVERS["mysql"] + maria.url[len("mysql") :])
    days = {"d": "0000-00-00", "m": "2024-00-10 10:20:30.500000", "z": "0000-00-00 00:00:00"}
    maria.execute(
        "CREATE TABLE t (f float, d date, m datetime(6), z timestamp NULL)",
        "INSERT INTO t VALUES (16777217, NULL, '9999-12-31 23:59:59.999999', '2024-01-31 10:00:00'), "
        "(-0.1, '0001-01-01', NULL, NULL)",
    )
    found = other.read(table="t").rows
    assert found == [dict(row, z=row["z"] and row["z"].replace(tzinfo=None)) for row in maria.read(table="t").rows]
    assert found[0]["f"] == 16777216
    for name, text in days.items():
        maria.execute("DELETE FROM t", f"INSERT INTO t ({name}) VALUES ('{text}')", sql_mode="")
        with pytest.raises(SourceError, match=f"'{name}'"):
            other.read(table="t")
        assert other.read(table="t", casts={name: "text"}).rows[0][name] == text


def test_a_querys_columns_are_text_unless_they_are_cast(other: Other) -> None:
    sql = "SELECT 9007199254740993 AS i, 'é%s' AS s, NULL AS n, CAST('7' AS char(1)) AS c"
    found = other.read(sql=sql)
    assert set(found.types.values()) == {pa.string()}
    assert found.rows == [{"i": "9007199254740993", "s": "é%s", "n": None, "c": "7"}]
    found = other.read(sql=sql, casts={"i": "bigint", "c": "decimal(3,1)", "n": "date"})
    assert list(found.types.values()) == [pa.int64(), pa.string(), pa.date32(), pa.decimal128(3, 1)]
    assert found.rows == [{"i": 9007199254740993, "s": "é%s", "n": None, "c": Decimal("7.0")}]


def test_values_that_do_not_fit_may_be_null_and_are_counted(other: Other) -> None:
    sql = "SELECT '7' AS x, '2024-01-31' AS y UNION ALL SELECT 'seven', NULL UNION ALL SELECT '8', 'soon'"
    casts = {"x": "bigint", "y": "date"}
    with pytest.raises(SourceError, match=r"'x'.*coerce"):
        other.read(sql=sql, casts=casts)
    stream = connect(other.url).open(Query(sql=sql, casts=casts, coerce=frozenset(casts)))
    rows = [row for batch in stream for row in batch.to_pylist()]
    assert sorted((row["x"] or 0, str(row["y"])) for row in rows) == [(0, "None"), (7, "2024-01-31"), (8, "None")]
    assert stream.coerced == {"x": 1, "y": 1}


def test_the_type_does_not_come_from_the_first_rows(other: Other) -> None:
    found = other.read(sql="SELECT NULL AS x UNION ALL SELECT 'text'")
    assert found.types == {"x": pa.string()}
    assert sorted(row["x"] or "" for row in found.rows) == ["", "text"]


@pytest.mark.parametrize("name", ['we"ird', "a.b", "naïve 日本", "select", "ID", "it's"])
def test_any_column_and_table_name_works(other: Other, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    other.database.execute(f"CREATE TABLE {quoted} ({quoted} bigint)", f"INSERT INTO {quoted} VALUES (7)")
    assert other.read(table=quoted).rows == [{name: 7}]


def test_duplicate_names_unknown_casts_and_writing_are_mistakes_in_the_definition(other: Other) -> None:
    other.database.execute("CREATE TABLE t (i bigint)", "INSERT INTO t VALUES (1)")
    with pytest.raises(ConfigError, match=r"'x' \(2 times\)"):
        other.open(sql="SELECT 1 AS x, 2 AS x")
    with pytest.raises(ConfigError, match=r"'y'.*'x'"):
        other.open(sql="SELECT 1 AS x", casts={"y": "text"})
    with pytest.raises(ConfigError, match="no_such_type"):
        other.open(sql="SELECT 1 AS x", casts={"x": "no_such_type"})
    with pytest.raises((ConfigError, SourceError)):
        other.read(sql="DELETE FROM t")
    with pytest.raises(SourceError, match=r"(?i)read.?only|syntax error"):
        other.read(sql="DELETE FROM t RETURNING i")
    assert other.read(table="t").rows == [{"i": 1}]


@pytest.mark.parametrize("query", [{"table": "not_there"}, {"sql": "SELECT * FROM not_there"}])
def test_a_table_that_is_not_there_is_permanent_and_named(other: Other, query: dict[str, str]) -> None:
    with pytest.raises(SourceError, match="not_there") as raised:
        other.read(**query)
    assert not raised.value.transient
    assert "[SQL" not in str(raised.value)
    assert "sqlalche.me" not in str(raised.value)


def test_batches_are_bounded_and_in_order(other: Other) -> None:
    values = ", ".join(f"({position}, '{'x' * 100}')" for position in range(5000))
    other.database.execute("CREATE TABLE t (i bigint, s varchar(100))", f"INSERT INTO t VALUES {values}")
    found = other.read(sql="SELECT i, s FROM t ORDER BY i", casts={"i": "bigint"}, batch_rows=300)
    assert [row["i"] for row in found.rows] == list(range(5000))
    assert all(0 < batch.num_rows <= 300 for batch in found.batches)


def test_a_closed_stream_raises_and_frees_the_connection(other: Other) -> None:
    values = ", ".join(f"({position})" for position in range(5000))
    other.database.execute("CREATE TABLE t (i bigint)", f"INSERT INTO t VALUES {values}")
    stream = other.open(table="t", batch_rows=10)
    rows = iter(stream)
    next(rows)
    stream.close()
    with pytest.raises(SourceError, match="closed"):
        next(rows)
    # Nothing of ours keeps the table.
    other.database.execute("DROP TABLE t")


@pytest.mark.parametrize("after", [30_000, 300_001])
def test_a_cut_connection_is_never_the_end(other: Other, after: int) -> None:
    database = other.database
    if isinstance(database, Sqlite):
        return
    database.execute("CREATE TABLE t (i bigint, s varchar(1000))")
    for first in range(0, 3000, 1000):
        values = ", ".join(f"({i}, '{'x' * 1000}')" for i in range(first, first + 1000))
        database.execute(f"INSERT INTO t VALUES {values}")
    with relay_to(database.server.host, database.server.port) as relay:
        cut = Other(database, other.url.replace(f":{database.server.port}/", f":{relay.port}/"))
        assert len(cut.read(table="t", batch_rows=100).rows) == 3000
        relay.after = after
        with pytest.raises(SourceError):
            cut.read(table="t", batch_rows=100)


@pytest.mark.parametrize("password", ["p@ss/w:rd?#%&=+", "hush-word"])
def test_no_password_is_in_any_message(other: Other, password: str) -> None:
    if isinstance(other.database, Sqlite):
        return
    server = replace(other.database.server, password=quote(password, safe=""))
    url = DRIVERS[other.database.kind] + server.url[len(other.database.kind) :]
    for broken in (url, url.replace(f":{server.port}/", ":1/")):
        with pytest.raises(SourceError) as raised:
            connect(broken).open(Query(sql="SELECT 1 AS x", casts={}))
        shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
        assert password not in shown
        assert quote(password, safe="") not in shown


def test_secrets_among_the_parameters_are_masked() -> None:
    inner = quote("DRIVER={x};UID=me;PWD=hu sh", safe="")
    source = connect(f"sqlite+pysqlite:///x?odbc_connect={inner}&access_token=tik+tok&plain=seen")
    assert isinstance(source, AnyUrlSource)
    assert source._url.redact("<hu sh> <tik+tok> <seen>") == "<***> <***> <seen>"


def test_a_sqlite_file_is_never_created(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="never created"):
        connect(f"sqlite+pysqlite:///{tmp_path}/none.db").open(Query(sql="SELECT 1 AS x", casts={}))
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"oracle://.*pip install oracledb|oracle.*pip install cx_Oracle"):
        connect("oracle://me:hush@host/shop").open(Query(sql="SELECT 1 AS x FROM dual", casts={}))
    with pytest.raises(ConfigError, match=r"s3:// is not supported.*dialect of SQLAlchemy"):
        connect("s3://me:hush@host/shop")
    with pytest.raises(ConfigError, match="asynchronous"):
        connect("sqlite+aiosqlite:///x")
    monkeypatch.setitem(sys.modules, "sqlalchemy.engine", None)
    with pytest.raises(ConfigError, match=r"pip install 'rivet-dagster\[sqlalchemy\]'"):
        connect("oracle://host/shop")


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        (types.Boolean(), pa.bool_()),
        (types.SmallInteger(), pa.int64()),
        (types.Numeric(10, 2), pa.decimal128(10, 2)),
        (types.Numeric(60, 2), pa.decimal256(60, 2)),
        (types.Numeric(), pa.string()),
        (types.Numeric(5, 7), None),
        (types.Float(), pa.float64()),
        (types.Enum("a"), pa.string()),
        (types.Uuid(), pa.string()),
        (types.VARBINARY(), pa.binary()),
        (types.DateTime(timezone=True), pa.timestamp("us", tz="UTC")),
        (types.Time(), pa.time64("us")),
        (types.Interval(), None),
        (types.JSON(), None),
        (types.ARRAY(types.Integer()), None),
        (types.NullType(), None),
    ],
)
def test_reflected_types(kind: Any, arrow: pa.DataType | None) -> None:
    assert reflected_type(kind) == arrow


def test_described_types() -> None:
    def described(code: object, precision: int | None = None, scale: int | None = None) -> pa.DataType:
        return described_type(("x", code, None, None, precision, scale, True))

    assert [described(code) for code in (int, float, bool, str, 25, None)] == [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.string(),
        pa.string(),
    ]
    assert described(Decimal, 10, 2) == pa.decimal128(10, 2)
    assert described(Decimal, 90, 2) == described(Decimal) == pa.string()


UTC_PLUS_2 = dt.timezone(dt.timedelta(hours=2))
NAIVE, AWARE = dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 1, 12, tzinfo=UTC_PLUS_2)


@pytest.mark.parametrize(
    ("values", "arrow", "expected"),
    [
        ([Decimal("1E+3"), Decimal("0.10")], pa.string(), ["1000", "0.10"]),
        ([0.1 + 0.2, True, 2**70], pa.string(), ["0.30000000000000004", "true", str(2**70)]),
        ([NAIVE, AWARE], pa.string(), ["2024-01-01 12:00:00", "2024-01-01 12:00:00+02:00"]),
        ([uuid.UUID(int=1)], pa.string(), ["00000000-0000-0000-0000-000000000001"]),
        ([AWARE], pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, 10, tzinfo=dt.timezone.utc)]),
        (["23:59:59.5", "12:30"], pa.time64("us"), [dt.time(23, 59, 59, 500000), dt.time(12, 30)]),
        ([Decimal(7), 8], pa.int64(), [7, 8]),
        ([2**64 - 1], pa.uint64(), [2**64 - 1]),
        ([memoryview(b"\x00\xff")], pa.binary(), [b"\x00\xff"]),
        ([True, 0, None], pa.bool_(), [True, False, None]),
    ],
)
def test_values_are_taken_exactly(values: list[Any], arrow: pa.DataType, expected: list[Any]) -> None:
    assert column_array("x", values, arrow).to_pylist() == expected


@pytest.mark.parametrize(
    ("value", "arrow"),
    [
        (b"bytes", pa.string()),
        ({"a": 1}, pa.string()),
        ([1, 2], pa.string()),
        (dt.timedelta(1), pa.string()),
        (2**63, pa.int64()),
        (-1, pa.uint64()),
        (Decimal("1.5"), pa.int64()),
        (True, pa.int64()),
        (1.5, pa.decimal128(5, 2)),
        (Decimal("NaN"), pa.decimal128(5, 2)),
        (Decimal("1.239"), pa.decimal128(5, 2)),
        (2**53 + 1, pa.float64()),
        (Decimal("0.1"), pa.float64()),
        (2, pa.bool_()),
        ("yes", pa.bool_()),
        (NAIVE, pa.date32()),
        (NAIVE, pa.timestamp("us", tz="UTC")),
        (AWARE, pa.timestamp("us")),
        ("0000-00-00", pa.date32()),
        ("1_000", pa.int64()),
        ("\u0663", pa.int64()),
        ("1_0.5", pa.float64()),
        ("1_000", pa.decimal128(10, 2)),
        (dt.timedelta(hours=30), pa.time64("us")),
        ("30:00:00", pa.time64("us")),
        ("text", pa.binary()),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(value: Any, arrow: pa.DataType) -> None:
    with pytest.raises(SourceError, match="'x'") as raised:
        column_array("x", [None, value], arrow)
    assert not raised.value.transient
