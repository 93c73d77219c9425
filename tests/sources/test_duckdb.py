"""DuckDB: what each type becomes, which values are refused, and who else may have the file open."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from tests.sources.databases import DuckDB

US = pa.timestamp("us")
HUGE = pa.decimal128(38, 0)

EXPORTED: list[tuple[str, pa.DataType, Any]] = [
    ("true", pa.bool_(), True),
    ("(-128)::tinyint", pa.int8(), -128),
    ("255::utinyint", pa.uint8(), 255),
    ("65535::usmallint", pa.uint16(), 65535),
    ("4294967295::uinteger", pa.uint32(), 4294967295),
    ("18446744073709551615::ubigint", pa.uint64(), 2**64 - 1),
    ("(-99999999999999999999999999999999999999)::hugeint", HUGE, Decimal("-" + "9" * 38)),
    ("99999999999999999999999999999999999999::uhugeint", HUGE, Decimal("9" * 38)),
    ("sum(7::integer)", HUGE, Decimal(7)),
    ("1.5::float", pa.float32(), 1.5),
    ("0.30000000000000004::double", pa.float64(), 0.30000000000000004),
    ("1.5::decimal(10,2)", pa.decimal128(10, 2), Decimal("1.50")),
    (
        "9999999999999999999999999999.9999999999::decimal(38,10)",
        pa.decimal128(38, 10),
        Decimal("9" * 28 + "." + "9" * 10),
    ),
    ("'é'::varchar(3)", pa.string(), "é"),
    (r"'\x00\xFF'::blob", pa.binary(), b"\x00\xff"),
    ("date '2024-02-29'", pa.date32(), date(2024, 2, 29)),
    ("date '0001-01-01'", pa.date32(), date.min),
    ("time '23:59:59.999999'", pa.time64("us"), time(23, 59, 59, 999999)),
    ("timestamp '9999-12-31 23:59:59.999999'", US, datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ("'2024-01-01 00:00:01'::timestamp_s", US, datetime(2024, 1, 1, 0, 0, 1)),
    ("'2024-01-01 00:00:00.123'::timestamp_ms", pa.timestamp("ms"), datetime(2024, 1, 1, 0, 0, 0, 123000)),
    (
        "timestamptz '2024-01-01 00:00:00+02'",
        pa.timestamp("us", tz="UTC"),
        datetime(2023, 12, 31, 22, tzinfo=timezone.utc),
    ),
    ("'0f8fad5b-d9cb-469f-a165-70867728950e'::uuid", pa.string(), "0f8fad5b-d9cb-469f-a165-70867728950e"),
    ("'sad'::enum('sad', 'ok')", pa.string(), "sad"),
    ("'0101'::bit", pa.string(), "0101"),
    ("'12:00:00+02'::timetz", pa.string(), "12:00:00+02"),
    ("interval '1 month 2 days'", pa.string(), "1 month 2 days"),
    ("'{\"a\":  1}'::json", pa.string(), '{"a":  1}'),
    ("'null'::json", pa.string(), "null"),
    ("123456789012345678901234567890123456789012::bignum", pa.string(), "123456789012345678901234567890123456789012"),
    ("union_value(num := 2)", pa.string(), "2"),
    ("NULL", pa.string(), None),
    ("[1, NULL, 3]", pa.list_(pa.int32()), [1, None, 3]),
    ("[[1::hugeint]]", pa.list_(pa.list_(HUGE)), [[Decimal(1)]]),
    ("array_value(1::hugeint, 2)", pa.list_(HUGE, 2), [Decimal(1), Decimal(2)]),
    ("{'a': 1, 'b c': 'x'}", pa.struct({"a": pa.int32(), "b c": pa.string()}), {"a": 1, "b c": "x"}),
    ("{'h': 1::uhugeint, 'l': [uuid_nil()]}", pa.struct({"h": HUGE, "l": pa.list_(pa.string())}), None),
    ("MAP {'a': 1::hugeint}", pa.map_(pa.string(), HUGE), [("a", Decimal(1))]),
    ("MAP {'a': [1]}", pa.map_(pa.string(), pa.list_(pa.int32())), [("a", [1])]),
]
# A newer DuckDB has no function for it.
EXPORTED = [
    (expression.replace("uuid_nil()", "'00000000-0000-0000-0000-000000000000'::uuid"), arrow, value)
    for expression, arrow, value in EXPORTED
]
NIL = {"h": Decimal(1), "l": ["00000000-0000-0000-0000-000000000000"]}


@pytest.mark.parametrize(("expression", "arrow", "value"), EXPORTED, ids=[case[0] for case in EXPORTED])
def test_a_value_becomes(duck: DuckDB, expression: str, arrow: pa.DataType, value: Any) -> None:
    expected = NIL if "'h'" in expression else value
    assert duck.value(expression) == (arrow, expected)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("'infinity'::date", "infinity"),
        ("'-infinity'::timestamp", "infinity"),
        ("'infinity'::timestamptz", "infinity"),
        ("'infinity'::timestamp_ns", "infinity"),
        ("'-infinity'::timestamp_ns", "infinity"),
        ("'infinity'::timestamp::timestamp_ms", "infinity"),
        ("'0044-03-15 (BC)'::date", "year"),
        ("'10000-01-01'::timestamp", "year"),
        ("'290309-12-22 (BC)'::timestamp", "year"),
        ("'24:00:00'::time", "24:00:00"),
        ("[date '2024-01-01', 'infinity'::date]", "infinity"),
        ("{'a': [{'b': 'infinity'::timestamp}]}", "infinity"),
        ("MAP {'a': 'infinity'::timestamp}", "infinity"),
        ("array_value('infinity'::date)", "infinity"),
    ],
)
def test_a_value_that_no_reader_could_hold_is_refused(duck: DuckDB, expression: str, why: str) -> None:
    with pytest.raises(SourceError, match=rf"'x'.*{why}.*rd\.cast") as raised:
        duck.value(expression)
    assert not raised.value.transient
    arrow, value = duck.value(expression, cast="text")
    assert arrow == pa.string()
    assert value


@pytest.mark.parametrize(
    "expression",
    [
        "170141183460469231731687303715884105727::hugeint",
        "340282366920938463463374607431768211455::uhugeint",
        "[340282366920938463463374607431768211455::uhugeint]",
        "{'a': 340282366920938463463374607431768211455::uhugeint}",
    ],
)
def test_an_integer_of_39_digits_is_refused_and_can_leave_as_text(duck: DuckDB, expression: str) -> None:
    with pytest.raises(SourceError, match=r"(?i)decimal|out of range"):
        duck.value(expression)
    assert "0141183460469231731687303715884105727" in (text := duck.value(expression, cast="text")[1]) or (
        "340282366920938463463374607431768211455" in text
    )


def test_a_table_says_its_types(duck: DuckDB) -> None:
    duck.execute("CREATE TABLE t (i bigint NOT NULL, h hugeint, s struct(a integer, b varchar[]))")
    columns = duck.open(table="t").columns
    assert [(column.name, column.source_type) for column in columns] == [
        ("i", "BIGINT"),
        ("h", "HUGEINT"),
        ("s", "STRUCT(a INTEGER, b VARCHAR[])"),
    ]


def test_names_of_elements_are_arrows_own(duck: DuckDB) -> None:
    found = duck.read(sql="SELECT [1] AS a, [{'x': [1]}] AS b, array_value(1) AS c")
    assert [str(arrow) for arrow in found.types.values()] == [
        "list<item: int32>",
        "list<item: struct<x: list<item: int32>>>",
        "fixed_size_list<item: int32>[1]",
    ]
    assert found.batches[0].schema.field("a").type.field(0).name == "item"


def test_three_dotted_names_are_taken(duck: DuckDB) -> None:
    duck.execute("CREATE SCHEMA sales", "CREATE TABLE sales.t (i integer)", "INSERT INTO sales.t VALUES (1)")
    assert duck.read(table="shop.sales.t").rows == [{"i": 1}]
    assert duck.read(table="sales.t").rows == [{"i": 1}]


@pytest.mark.parametrize("statement", ["COPY (SELECT 1) TO '{}'", "ATTACH '{}' AS other", "EXPORT DATABASE '{}'"])
def test_only_a_select_statement_is_run(duck: DuckDB, tmp_path: Path, statement: str) -> None:
    with pytest.raises(ConfigError, match=r"one select statement"):
        duck.read(sql=statement.format(tmp_path / "written"))
    assert not (tmp_path / "written").exists()


def test_the_zone_of_the_machine_does_not_matter(duck: DuckDB, monkeypatch: pytest.MonkeyPatch) -> None:
    duck.execute("CREATE TABLE t AS SELECT timestamptz '2024-07-01 12:00:00+00' AS x")
    script = (
        "import sys; from rivet_dagster.sources.connect import connect; from rivet_dagster.rows import Query\n"
        f"(batch,) = connect({duck.url!r}).open(Query(table='t', casts={{}}))\n"
        "assert str(batch.schema.field('x').type) == 'timestamp[us, tz=UTC]'\n"
        "assert batch.column(0)[0].value == 1719835200000000\n"
    )
    monkeypatch.setenv("TZ", "America/New_York")
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_file_that_another_process_writes_to_is_transient(duck: DuckDB) -> None:
    script = f"import duckdb; c = duckdb.connect({str(duck.path)!r}); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(SourceError, match=r"(?i)lock.*run it again") as raised:
            duck.read(sql="SELECT 1 AS x")
        writer.communicate("\n")
    assert raised.value.transient
    assert str(duck.path.parent) not in str(raised.value)
    assert duck.read(sql="SELECT 1 AS x").rows == [{"x": 1}]


def test_a_file_that_is_no_database_is_permanent(tmp_path: Path) -> None:
    (tmp_path / "no.duckdb").write_bytes(b"this is no database" * 1000)
    with pytest.raises(SourceError, match=r"not a valid DuckDB") as raised:
        connect(f"duckdb:///{tmp_path / 'no.duckdb'}").open(Query(table="t", casts={}))
    assert not raised.value.transient


def test_a_file_that_vanishes_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone.duckdb"
    monkeypatch.setattr("rivet_dagster.sources.duckdb.existing_file", lambda url: gone)
    with pytest.raises(SourceError, match="does not exist"):
        connect(f"duckdb:///{gone}").open(Query(table="t", casts={}))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'missing.duckdb'.*never created"):
        connect(f"duckdb:///{tmp_path / 'missing.duckdb'}").open(Query(table="t", casts={}))
    assert list(tmp_path.iterdir()) == []


def test_after_close_the_file_can_be_written_to(duck: DuckDB) -> None:
    duck.execute("CREATE TABLE t AS SELECT i FROM range(100000) AS r(i)")
    stream = duck.open(table="t")
    rows = iter(stream)
    next(rows)
    stream.close()
    duck.execute("DELETE FROM t")
    assert duck.read(table="t").rows == []
