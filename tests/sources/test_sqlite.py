"""SQLite: what declared types become, which stored values are refused, and when another connection is in the way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from tests.sources.databases import Sqlite

US = pa.timestamp("us")

DECLARED = [
    ("INTEGER", pa.int64()),
    ("bigint unsigned", pa.int64()),
    ("int", pa.int64()),
    ("TEXT", pa.string()),
    ("VARCHAR(10)", pa.string()),
    ("nchar (5)", pa.string()),
    ("CLOB", pa.string()),
    ("BLOB", pa.binary()),
    ("REAL", pa.float64()),
    ("double precision", pa.float64()),
    ("FLOAT", pa.float64()),
    ("BOOLEAN", pa.bool_()),
    ("bool", pa.bool_()),
    ("DATE", pa.date32()),
    ("DATETIME", US),
    ("timestamp", US),
    ("TIMESTAMP(6)", US),
    ("DECIMAL(10,2)", pa.decimal128(10, 2)),
    ("numeric( 5 )", pa.decimal128(5, 0)),
    ("DECIMAL(50, 10)", pa.decimal256(50, 10)),
    ("DECIMAL(80,2)", pa.string()),
    ("NUMERIC", pa.string()),
    ("JSON", pa.string()),
    ("TIMESTAMP WITH TIME ZONE", pa.string()),
    ("", pa.string()),
]


def table_of(lite: Sqlite, declared: str, *values: Any) -> None:
    """A table `t` with one column `x` of a declared type."""
    with closing(sqlite3.connect(lite.path)) as connection, connection:
        connection.execute(f"CREATE TABLE t (x {declared})")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])


@pytest.mark.parametrize(("declared", "arrow"), DECLARED, ids=[case[0] or "nothing" for case in DECLARED])
def test_a_declared_type_becomes_even_where_all_is_null(lite: Sqlite, declared: str, arrow: pa.DataType) -> None:
    table_of(lite, declared, None, None)
    for query in ({"table": "t"}, {"sql": "SELECT x FROM t"}, {"sql": "SELECT y.x FROM (SELECT * FROM t) AS y"}):
        found = lite.read(**query)
        assert found.types == {"x": arrow}
        assert found.rows == [{"x": None}, {"x": None}]


EXPORTED: list[tuple[str, Any, Any]] = [
    ("BOOLEAN", 1, True),
    ("BOOLEAN", 0, False),
    ("INTEGER", -(2**63), -(2**63)),
    ("REAL", 0.30000000000000004, 0.30000000000000004),
    ("REAL", 3, 3.0),
    ("TEXT", 12, "12"),
    ("TEXT", "a\0b", "a\0b"),
    ("BLOB", b"\x00\xff", b"\x00\xff"),
    ("DATE", "2024-02-29", date(2024, 2, 29)),
    ("DATE", "0001-01-01", date.min),
    ("DATETIME", "2024-01-02 03:04:05.031153", datetime(2024, 1, 2, 3, 4, 5, 31153)),
    ("DATETIME", "2024-01-02T03:04", datetime(2024, 1, 2, 3, 4)),
    ("DATETIME", "2024-01-02", datetime(2024, 1, 2)),
    ("DECIMAL(10,2)", "12.30", Decimal("12.30")),
    ("DECIMAL(10,2)", 12, Decimal("12.00")),
    ("DECIMAL(10,2)", 0.1, Decimal("0.10")),
    ("DECIMAL(10,2)", -99999999.99, Decimal("-99999999.99")),
    ("DECIMAL(15,2)", 9999999999999.99, Decimal("9999999999999.99")),
    ("DECIMAL(30,0)", 1e20, Decimal(10**20)),
    ("DECIMAL(10,2)", None, None),
]


@pytest.mark.parametrize(("declared", "stored", "value"), EXPORTED)
def test_a_stored_value_becomes(lite: Sqlite, declared: str, stored: Any, value: Any) -> None:
    table_of(lite, declared, stored)
    assert lite.read(table="t").rows == [{"x": value}]


REFUSED: list[tuple[str, Any, str]] = [
    ("INTEGER", "abc", "TEXT"),
    ("INTEGER", 1.5, "REAL"),
    ("INTEGER", b"1", "BLOB"),
    ("REAL", "abc", "TEXT"),
    ("TEXT", b"\xff", "BLOB"),
    ("BLOB", "text", "TEXT"),
    ("BLOB", 1, "INTEGER"),
    ("BOOLEAN", 2, "INTEGER"),
    ("BOOLEAN", "true", "TEXT"),
    ("BOOLEAN", 0.5, "REAL"),
    ("DATE", "2024-02-30", "TEXT"),
    ("DATE", "2024-1-2", "TEXT"),
    ("DATE", "2024-01-02 03:04:05", "TEXT"),
    ("DATE", "02.01.2024", "TEXT"),
    ("DATE", 19724, "INTEGER"),
    ("DATE", 2460311.5, "REAL"),
    ("DATE", "", "TEXT"),
    ("DATETIME", "2024-01-02 03:04:05Z", "TEXT"),
    ("DATETIME", "2024-01-02 03:04:05+02:00", "TEXT"),
    ("DATETIME", "2024-01-02 03:04:05.1234567", "TEXT"),
    ("DATETIME", "2024-01-02 24:00:00", "TEXT"),
    ("DATETIME", 1704164645, "INTEGER"),
    ("DATETIME", "now", "TEXT"),
    ("DECIMAL(10,2)", "1.234", "REAL"),
    ("DECIMAL(10,2)", 0.1 + 0.2, "REAL"),
    ("DECIMAL(20,2)", 123456789012345.67, "REAL"),
    ("DECIMAL(4,2)", 123.45, "REAL"),
    ("DECIMAL(10,2)", 10**9, "INTEGER"),
    ("DECIMAL(10,2)", "NaN", "TEXT"),
    ("DECIMAL(10,2)", float("inf"), "REAL"),
    ("DECIMAL(10,2)", "one", "TEXT"),
    ("DECIMAL(10,2)", "1_000", "TEXT"),
    ("DECIMAL(10,2)", "\u0663", "TEXT"),
    ("DECIMAL(10,2)", b"1", "BLOB"),
]


@pytest.mark.parametrize(("declared", "stored", "storage_class"), REFUSED)
def test_a_stored_value_that_does_not_fit_is_refused(
    lite: Sqlite, declared: str, stored: Any, storage_class: str
) -> None:
    fitting = next(value for kind, value, _ in EXPORTED if kind.split("(")[0] == declared.split("(", 1)[0])
    table_of(lite, declared, *[None] * 3000, fitting, stored, fitting)
    with pytest.raises(SourceError, match=rf"'x': row 3002 holds .*{storage_class}.*rd\.cast\(\"text\"\)") as raised:
        lite.read(table="t")
    assert not raised.value.transient
    assert str(stored) not in str(raised.value) or len(str(stored)) < 5


@pytest.mark.parametrize("declared", ["DATE", "DATETIME"])
def test_a_year_without_a_place_in_the_calendar_is_refused(lite: Sqlite, declared: str) -> None:
    table_of(lite, declared, "0000-01-01")
    with pytest.raises(SourceError, match=r"'x'.*year"):
        lite.read(table="t")


@pytest.mark.parametrize(("declared", "stored", "storage_class"), REFUSED)
def test_the_named_remedy_exports_what_was_refused(
    lite: Sqlite, declared: str, stored: Any, storage_class: str
) -> None:
    table_of(lite, declared, stored)
    if stored == b"\xff":
        with pytest.raises(SourceError, match=r"BLOB.*hex"):
            lite.read(table="t", casts={"x": "text"})
        return
    found = lite.read(table="t", casts={"x": "text"})
    assert found.types == {"x": pa.string()}
    text = found.rows[0]["x"]
    match storage_class:
        case "INTEGER":
            assert int(text) == stored
        case "REAL":
            assert float(text) == float(stored)
        case "TEXT":
            assert text == stored
        case _:
            assert text.encode() == stored


@pytest.mark.parametrize(
    ("expressions", "arrow", "values"),
    [
        (("1", "NULL", "2"), pa.int64(), [1, None, 2]),
        (("1.5", "2.5"), pa.float64(), [1.5, 2.5]),
        (("NULL", "1", "2.5"), pa.float64(), [None, 1.0, 2.5]),
        (("NULL", "'a'"), pa.string(), [None, "a"]),
        (("x'00'", "NULL"), pa.binary(), [b"\x00", None]),
        (("NULL", "NULL"), pa.string(), [None, None]),
    ],
)
def test_an_expression_becomes_what_all_its_values_are(
    lite: Sqlite, expressions: tuple[str, ...], arrow: pa.DataType, values: list[Any]
) -> None:
    found = lite.read(sql=" UNION ALL ".join(f"SELECT {expression} AS x" for expression in expressions))
    assert found.types == {"x": arrow}
    assert [row["x"] for row in found.rows] == values


@pytest.mark.parametrize(
    "expressions", [("1", "'a'"), ("1.5", "x'00'"), ("'a'", "x'00'"), ("1", "2.5", "'a'", "x'00'")]
)
def test_an_expression_whose_values_have_no_common_type_is_refused(lite: Sqlite, expressions: tuple[str, ...]) -> None:
    with pytest.raises(SourceError, match=r"'x'.*no common type.*rd\.cast"):
        lite.open(sql=" UNION ALL ".join(f"SELECT {expression} AS x" for expression in expressions))


def test_an_integer_too_large_for_its_neighbours_real_is_refused(lite: Sqlite) -> None:
    with pytest.raises(SourceError, match=r"row 2 holds .*INTEGER"):
        lite.read(sql="SELECT 0.5 AS x UNION ALL SELECT 9007199254740993")


def test_aggregates_and_declared_columns_mix(lite: Sqlite) -> None:
    table_of(lite, "DECIMAL(10,2)", "1.10", "2.20")
    found = lite.read(sql="SELECT x, count(*) AS n, max(x) AS top, 'a' || x AS s FROM t GROUP BY x ORDER BY x")
    assert found.types == {"x": pa.decimal128(10, 2), "n": pa.int64(), "top": pa.float64(), "s": pa.string()}
    assert found.rows[1] == {"x": Decimal("2.20"), "n": 1, "top": 2.2, "s": "a2.2"}


def test_a_cast_replaces_the_declared_type(lite: Sqlite) -> None:
    table_of(lite, "", "12.30", "7.00")
    found = lite.read(table="t", casts={"x": "decimal(10,2)"})
    assert found.types == {"x": pa.decimal128(10, 2)}
    assert [row["x"] for row in found.rows] == [Decimal("12.30"), Decimal("7.00")]
    with pytest.raises(SourceError, match=r"row 1 holds .*TEXT"):
        lite.read(table="t", casts={"x": "integer"})
    with pytest.raises(ConfigError, match=r"'x'.*'numbr'.*text, integer"):
        lite.open(table="t", casts={"x": "numbr"})


def test_text_that_is_no_utf8_is_refused_and_can_leave_as_bytes(lite: Sqlite) -> None:
    lite.execute(
        'CREATE TABLE t (i integer, "x\'y" TEXT)', "INSERT INTO t VALUES (1, 'fine'), (2, CAST(x'ff41' AS TEXT))"
    )
    with pytest.raises(SourceError, match=r"column \"x'y\": .*UTF-8; .*AS BLOB") as raised:
        lite.read(table="t")
    assert not raised.value.transient
    assert "A" not in str(raised.value).replace("CAST(… AS BLOB)", "")
    found = lite.read(sql='SELECT CAST("x\'y" AS BLOB) AS x FROM t ORDER BY i')
    assert found.rows == [{"x": b"fine"}, {"x": b"\xffA"}]


def test_names_that_look_like_a_renamed_twin_are_kept(lite: Sqlite) -> None:
    assert lite.read(sql='SELECT 1 AS id, 2 AS "id:1", 3 AS "a:10"').rows == [{"id": 1, "id:1": 2, "a:10": 3}]


def test_a_misspelt_column_is_an_error_and_not_a_text(lite: Sqlite) -> None:
    table_of(lite, "text", "a")
    with pytest.raises(ConfigError, match=r"nope"):
        lite.open(sql="SELECT x FROM t", casts={"nope": "text"})


def test_a_locked_database_is_transient(lite: Sqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivet_dagster.sources.sqlite._BUSY_SECONDS", 0.05)
    lite.execute("PRAGMA journal_mode = delete", "CREATE TABLE t (i integer)")
    with closing(sqlite3.connect(lite.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SourceError, match=r"locked.*run it again") as raised:
            lite.read(table="t")
        other.execute("ROLLBACK")
    assert raised.value.transient
    assert lite.read(table="t").rows == []


def test_a_file_that_is_no_database_is_permanent(tmp_path: Path) -> None:
    (tmp_path / "no.sqlite").write_bytes(b"this is no database, but a text" * 100)
    with pytest.raises(SourceError, match=r"not a database") as raised:
        connect(f"sqlite:///{tmp_path / 'no.sqlite'}").open(Query(table="t", casts={}))
    assert not raised.value.transient


def test_rows_written_after_the_query_was_opened_are_not_seen(lite: Sqlite) -> None:
    lite.execute("CREATE TABLE t (i integer, x)", "INSERT INTO t VALUES (1, 1)")
    for query in ({"table": "t"}, {"sql": "SELECT i FROM t"}):
        before = lite.read(**query).rows
        stream = lite.open(**query)
        lite.execute("INSERT INTO t VALUES (2, 'text')", "UPDATE t SET i = i + 10")
        assert [row for batch in stream for row in batch.to_pylist()] == before
        lite.execute("DELETE FROM t WHERE x = 'text'")


def test_a_file_that_vanishes_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone.sqlite"
    monkeypatch.setattr("rivet_dagster.sources.sqlite.existing_file", lambda url: gone)
    with pytest.raises(SourceError, match="unable to open"):
        connect(f"sqlite:///{gone}").open(Query(table="t", casts={}))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'missing.sqlite'.*never created"):
        connect(f"sqlite:///{tmp_path / 'missing.sqlite'}").open(Query(table="t", casts={}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["a b.sqlite", "per%cent.sqlite", "question?mark.sqlite", "hash#.sqlite", "dätei.sqlite"]
)
def test_any_file_name_works_relative_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    database = Sqlite(tmp_path / name)
    database.execute("CREATE TABLE t (i integer)", "INSERT INTO t VALUES (1)")
    assert database.read(table="t").rows == [{"i": 1}]
    monkeypatch.chdir(tmp_path)
    source = connect(f"sqlite:///{name}")
    assert source.database == name
    assert [batch.to_pylist() for batch in source.open(Query(table="t", casts={}))] == [[{"i": 1}]]


def test_a_query_cannot_reach_another_file(lite: Sqlite, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        lite.read(sql=f"ATTACH '{tmp_path / 'new.sqlite'}' AS other")
    assert not (tmp_path / "new.sqlite").exists()


def test_after_close_the_file_is_free(lite: Sqlite) -> None:
    lite.execute("PRAGMA journal_mode = delete", "CREATE TABLE t (i integer)", "INSERT INTO t VALUES (1), (2)")
    stream = connect(lite.url, batch_rows=1).open(Query(table="t", casts={}))
    rows = iter(stream)
    next(rows)
    stream.close()
    lite.execute("BEGIN EXCLUSIVE", "INSERT INTO t VALUES (3)", "COMMIT")
    assert len(lite.read(table="t").rows) == 3
