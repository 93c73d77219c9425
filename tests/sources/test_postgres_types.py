"""PostgreSQL: what each type becomes, value by value, and which values are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.sources.postgres_types import plan_column
from tests.sources.databases import Postgres

US = pa.timestamp("us")
UTC_US = pa.timestamp("us", tz="UTC")

EXPORTED: list[tuple[str, pa.DataType, Any]] = [
    ("true", pa.bool_(), True),
    ("(-32768)::int2", pa.int16(), -32768),
    ("2147483647::int4", pa.int32(), 2147483647),
    ("(-9223372036854775808)::int8", pa.int64(), -(2**63)),
    ("4294967295::oid", pa.int64(), 4294967295),
    ("1.5::float4", pa.float32(), 1.5),
    ("0.30000000000000004::float8", pa.float64(), 0.30000000000000004),
    ("'Infinity'::float8", pa.float64(), float("inf")),
    ("12.3::numeric(12,2)", pa.decimal128(12, 2), Decimal("12.30")),
    ("repeat('9', 38)::numeric(38,0)", pa.decimal128(38, 0), Decimal("9" * 38)),
    ("('-' || repeat('9', 39))::numeric(39,0)", pa.decimal256(39, 0), Decimal("-" + "9" * 39)),
    ("repeat('9', 76)::numeric(76,0)", pa.decimal256(76, 0), Decimal("9" * 76)),
    ("1.5::numeric(77,2)", pa.string(), "1.50"),
    ("12345::numeric(3,-2)", pa.decimal128(5, 0), Decimal(12300)),
    ("0.00999::numeric(3,5)", pa.decimal128(5, 5), Decimal("0.00999")),
    ("725.7720010313259000::numeric", pa.string(), "725.7720010313259000"),
    ("'NaN'::numeric", pa.string(), "NaN"),
    ("'-Infinity'::numeric", pa.string(), "-Infinity"),
    ("'é'::text", pa.string(), "é"),
    ("'x'::varchar(10)", pa.string(), "x"),
    ("'x'::char(3)", pa.string(), "x  "),
    ("'x'::name", pa.string(), "x"),
    ("''::\"char\"", pa.string(), ""),
    (r"'\x00ff'::bytea", pa.binary(), b"\x00\xff"),
    ("'2024-02-29'::date", pa.date32(), date(2024, 2, 29)),
    ("'0001-01-01'::date", pa.date32(), date.min),
    ("'9999-12-31'::date", pa.date32(), date.max),
    ("'23:59:59.999999'::time", pa.time64("us"), time(23, 59, 59, 999999)),
    ("'2024-01-02 03:04:05.031153'::timestamp", US, datetime(2024, 1, 2, 3, 4, 5, 31153)),
    ("'0001-01-01'::timestamp", US, datetime(1, 1, 1)),
    ("'9999-12-31 23:59:59.999999'::timestamp", US, datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ("'2024-01-02 03:04:05.5+05:30'::timestamptz", UTC_US, datetime(2024, 1, 1, 21, 34, 5, 500000, timezone.utc)),
    ("'0f8fad5b-d9cb-469f-a165-70867728950e'::uuid", pa.string(), "0f8fad5b-d9cb-469f-a165-70867728950e"),
    ("'{\"b\":  1}'::json", pa.string(), '{"b":  1}'),
    ("'{\"a\": 1.10}'::jsonb", pa.string(), '{"a": 1.10}'),
    ("'null'::jsonb", pa.string(), "null"),
    ("'sad'::mood", pa.string(), "sad"),
    ("7.5::positive", pa.decimal128(10, 2), Decimal("7.50")),
    ("7::counted", pa.int32(), 7),
    ("interval '1 year 2 mons -3 days 4:05:06.789'", pa.string(), "P1Y2M-3DT4H5M6.789S"),
    ("'1234.5'::money", pa.string(), "$1,234.50"),
    ("'10.0.0.1/8'::inet", pa.string(), "10.0.0.1/8"),
    ("'10.0.0.1'::inet", pa.string(), "10.0.0.1"),
    ("ARRAY['10.0.0.1']::inet[]", pa.string(), "{10.0.0.1}"),
    ("'10.0.0.0/8'::cidr", pa.string(), "10.0.0.0/8"),
    ("'08:00:2b:01:02:03'::macaddr", pa.string(), "08:00:2b:01:02:03"),
    ("B'0101'", pa.string(), "0101"),
    ("B'01'::varbit(5)", pa.string(), "01"),
    ("'12:00:00.5+05:30'::timetz", pa.string(), "12:00:00.5+05:30"),
    ("int4range(1, 3)", pa.string(), "[1,3)"),
    ("tstzrange('2024-01-01 00:00+02', NULL)", pa.string(), '["2023-12-31 22:00:00+00",)'),
    ("'<a>é</a>'::xml", pa.string(), "<a>é</a>"),
    ("'fat cat'::tsvector", pa.string(), "'cat' 'fat'"),
    ("ROW(1, 'x y')::pair", pa.string(), '(1,"x y")'),
    ("point(1, 0.30000000000000004)", pa.string(), "(1,0.30000000000000004)"),
    ("'pg_class'::regclass", pa.string(), "pg_class"),
    ("'a=>1'::text::hstore_like", pa.string(), "a=>1"),
    ("'{1,NULL,3}'::int4[]", pa.list_(pa.int32()), [1, None, 3]),
    ("'{}'::int8[]", pa.list_(pa.int64()), []),
    ("ARRAY['a', '', NULL, 'b,c']", pa.list_(pa.string()), ["a", "", None, "b,c"]),
    ("ARRAY[1.10, 'NaN']::numeric[]", pa.list_(pa.string()), ["1.10", "NaN"]),
    ("ARRAY[4294967295::oid]", pa.list_(pa.string()), ["4294967295"]),
    ("ARRAY['2024-01-01'::date]", pa.list_(pa.date32()), [date(2024, 1, 1)]),
    ("ARRAY['sad'::mood]", pa.string(), "{sad}"),
    ("ARRAY['{\"a\": 1}'::jsonb]", pa.string(), '{"{\\"a\\": 1}"}'),
    ("ARRAY[int4range(1, 3)]", pa.string(), '{"[1,3)"}'),
]


@pytest.fixture(scope="module")
def typed(pg: Postgres) -> Postgres:
    pg.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN positive AS numeric(10,2) CHECK (value > 0)",
        "CREATE DOMAIN counted AS int4",
        "CREATE DOMAIN hstore_like AS text",
    )
    return pg


@pytest.mark.parametrize(("expression", "arrow", "value"), EXPORTED, ids=[case[0] for case in EXPORTED])
def test_a_value_becomes(typed: Postgres, expression: str, arrow: pa.DataType, value: Any) -> None:
    assert typed.value(expression) == (arrow, value)


def test_nulls_have_the_types_of_the_values_they_stand_for(typed: Postgres) -> None:
    none = ", ".join(
        f"(SELECT e FROM (SELECT {expression} AS e) AS q WHERE random() < 0) AS x{position}"
        for position, (expression, _, _) in enumerate(EXPORTED)
    )
    found = typed.read(sql=f"SELECT {none}")
    assert list(found.types.values()) == [arrow for _, arrow, _ in EXPORTED]
    assert found.rows == [dict.fromkeys(found.types)]


def test_every_type_of_the_server_has_a_place(typed: Postgres) -> None:
    """Those that no table names, too, and arrays of all of them."""
    typed.execute(
        "CREATE TABLE types AS SELECT oid::regtype::text AS name FROM pg_type WHERE typtype IN ('b', 'r', 'm')"
    )
    names = [row["name"] for row in typed.read(sql="SELECT name FROM types WHERE name NOT LIKE 'pg_toast%'").rows]
    assert len(names) > 150
    selected = ", ".join(f"NULL::{name} AS x{position}" for position, name in enumerate(names))
    found = typed.read(sql=f"SELECT {selected}")
    assert set(found.rows[0].values()) == {None}
    places = {name: str(arrow) for name, arrow in zip(names, found.types.values(), strict=True)}
    exact = {name for name, arrow in places.items() if arrow not in {"string", "list<item: string>"}}
    numbers = {"boolean", "smallint", "integer", "bigint", "real", "double precision"}
    moments = {"date", "time without time zone", "timestamp without time zone", "timestamp with time zone"}
    natives = {*numbers, *moments, "bytea"}
    assert exact == {"oid", *natives, *(f"{name}[]" for name in natives)}


REFUSED = [
    ("'infinity'::date", "infinity"),
    ("'-infinity'::date", "infinity"),
    ("'0044-03-15 BC'::date", "year"),
    ("'10000-01-01'::date", "year"),
    ("'5874897-12-31'::date", "year"),
    ("'infinity'::timestamp", "infinity"),
    ("'-infinity'::timestamp", "infinity"),
    ("'infinity'::timestamptz", "infinity"),
    ("'-infinity'::timestamptz", "infinity"),
    ("'4713-01-01 BC'::timestamp", "year"),
    ("'0001-12-31 23:59:59.999999 BC'::timestamp", "year"),
    ("'10000-01-01'::timestamptz", "year"),
    ("'294276-12-31 23:59:59.999999'::timestamp", "year"),
    ("'24:00:00'::time", "24:00:00"),
    ("'NaN'::numeric(10,2)", "NaN"),
    ("'{{1,2},{3,4}}'::int4[]", "dimensions"),
    ("'{{a,b}}'::text[]", "dimensions"),
    ("'{{1.5}}'::numeric[]", "dimensions"),
    ("'[5:6]={1,2}'::int4[]", "counted from 1"),
    ("'[0:1]={1,2}'::int4[]", "counted from 1"),
    ("ARRAY['2024-01-01', 'infinity']::date[]", "infinity"),
    ("ARRAY['-infinity', NULL]::timestamptz[]", "infinity"),
    ("ARRAY['24:00:00']::time[]", "24:00:00"),
]


@pytest.mark.parametrize(("expression", "why"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_value_that_would_change_is_refused(typed: Postgres, expression: str, why: str) -> None:
    with pytest.raises(SourceError, match=f"'x'.*{why}.*rd.cast") as raised:
        typed.value(expression)
    assert not raised.value.transient


def test_the_named_remedy_exports_what_is_refused(typed: Postgres) -> None:
    values = ", ".join(f"{expression} AS x{position}" for position, (expression, _) in enumerate(REFUSED))
    texts = ", ".join(f"({expression})::text" for expression, _ in REFUSED)
    found = typed.read(sql=f"SELECT {values}", casts={f"x{position}": "text" for position in range(len(REFUSED))})
    assert set(found.types.values()) == {pa.string()}
    assert list(found.rows[0].values()) == list(typed.row(f"SELECT {texts}"))


def test_a_refused_value_far_into_a_table_is_found(typed: Postgres) -> None:
    typed.execute(
        "CREATE TABLE late (i int, day date, many int[])",
        "INSERT INTO late SELECT i, date '2024-01-01', ARRAY[i] FROM generate_series(1, 200000) AS i",
    )
    assert sum(batch.num_rows for batch in typed.open(table="late")) == 200_000
    typed.execute("INSERT INTO late VALUES (0, 'infinity', NULL)")
    with pytest.raises(SourceError, match="'day'"):
        typed.read(table="late")
    typed.execute("UPDATE late SET day = NULL, many = '{{1}}' WHERE i = 0")
    with pytest.raises(SourceError, match="'many'"):
        typed.read(table="late")


def test_a_table_says_what_is_declared_and_what_is_never_null(typed: Postgres) -> None:
    typed.execute(
        "CREATE TABLE declared (i int8 PRIMARY KEY, n numeric(12,2) NOT NULL, s varchar(10), c char(3), m mood, "
        "p positive, a int4[] NOT NULL)"
    )
    columns = typed.open(table="declared").columns
    assert [(column.name, column.source_type, column.nullable) for column in columns] == [
        ("i", "bigint", False),
        ("n", "numeric(12,2)", False),
        ("s", "character varying(10)", True),
        ("c", "character(3)", True),
        ("m", "mood", True),
        ("p", "positive", True),
        ("a", "integer[]", False),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE parent (i int NOT NULL) PARTITION BY RANGE (i)",
        "CREATE TABLE parent (i int NOT NULL); CREATE TABLE child () INHERITS (parent)",
        "CREATE VIEW parent AS SELECT 1 AS i",
    ],
)
def test_only_a_table_of_its_own_promises_that_nothing_is_null(postgres_server, sql: str) -> None:
    database = Postgres(postgres_server.new_database())
    database.execute(*sql.split(";"))
    (column,) = database.open(table="parent").columns
    assert column.nullable


def test_a_cast_column_is_what_it_is_cast_to(typed: Postgres) -> None:
    typed.execute("CREATE TABLE casted (n numeric NOT NULL, day date)", "INSERT INTO casted VALUES (1.5, '-infinity')")
    stream = typed.open(table="casted", casts={"n": "numeric(20, 4)", "day": "text"})
    assert [(c.name, c.source_type, c.arrow_type, c.nullable) for c in stream.columns] == [
        ("n", "numeric(20,4)", pa.decimal128(20, 4), True),
        ("day", "text", pa.string(), True),
    ]
    assert [batch.to_pylist() for batch in stream] == [[{"n": Decimal("1.5000"), "day": "-infinity"}]]


def test_unquoted_table_names_are_lower_case_and_quoted_ones_are_not(typed: Postgres) -> None:
    typed.execute('CREATE TABLE "Upper" (i int)', "CREATE TABLE lower (i int)", "INSERT INTO lower VALUES (1)")
    assert typed.read(table="LOWER").rows == [{"i": 1}]
    assert typed.read(table='"Upper"').rows == []
    with pytest.raises(SourceError, match="lower case"):
        typed.open(table="Upper")


def test_a_table_without_columns_is_refused(typed: Postgres) -> None:
    typed.execute("CREATE TABLE nothing ()")
    with pytest.raises(ConfigError, match="no columns"):
        typed.open(table="nothing")


def test_types_of_another_schema_that_borrow_a_name_are_text(typed: Postgres) -> None:
    typed.execute(
        "CREATE SCHEMA other",
        "CREATE TYPE other.int4 AS (a int)",
        "CREATE TYPE other.numeric AS ENUM ('one')",
        "CREATE TYPE other.oid AS (a int)",
    )
    assert typed.value("ROW(7)::other.int4") == (pa.string(), "(7)")
    assert typed.value("'one'::other.numeric") == (pa.string(), "one")
    assert typed.value("ROW(7)::other.oid") == (pa.string(), "(7)")


@pytest.mark.parametrize("client_encoding", [None, "LATIN1", "SQL_ASCII"])
def test_text_of_a_database_in_another_encoding_arrives_as_utf8(
    typed: Postgres, monkeypatch: pytest.MonkeyPatch, client_encoding: str | None
) -> None:
    name = f"latin_{client_encoding}".lower()
    typed.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    latin = Postgres(replace(typed.server, database=name))
    latin.execute("CREATE TABLE t AS SELECT 'caf' || chr(233) AS x")
    if client_encoding:
        monkeypatch.setenv("PGCLIENTENCODING", client_encoding)
    assert latin.read(table="t").rows == [{"x": "café"}]


def test_bytes_that_are_no_text_are_refused_and_can_leave_as_bytes(typed: Postgres) -> None:
    typed.execute("CREATE DATABASE anything ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    raw = Postgres(replace(typed.server, database="anything"))
    raw.execute(r"CREATE TABLE t AS SELECT convert_from('\x636166e9', 'SQL_ASCII') AS x")
    with pytest.raises(SourceError, match="SQLSTATE 22021"):
        raw.read(table="t")
    assert raw.read(table="t", casts={"x": "bytea"}).rows == [{"x": b"caf\xe9"}]


def test_what_text_forms_depend_on_is_fixed_whatever_the_role_prefers(typed: Postgres) -> None:
    typed.execute(
        "CREATE ROLE picky LOGIN SUPERUSER PASSWORD 'picky'",
        "ALTER ROLE picky SET DateStyle = 'German, DMY'",
        "ALTER ROLE picky SET IntervalStyle = 'sql_standard'",
        "ALTER ROLE picky SET TimeZone = 'America/New_York'",
        "ALTER ROLE picky SET extra_float_digits = -10",
        "ALTER ROLE picky SET bytea_output = 'escape'",
        "ALTER ROLE picky SET quote_all_identifiers = on",
    )
    picky = Postgres(replace(typed.server, user="picky", password="picky"))
    for expression in (
        "daterange('2024-02-03', '2024-02-05')",
        "tstzrange('2024-01-01 00:00+02', NULL)",
        "interval '1 day 2 hours'",
        "point(0.1, 0.30000000000000004)",
        r"ROW(1, '\x00ff'::bytea)",
        "'pg_class'::regclass",
        # Of types that the driver could not find, all values would be text.
        "7::int2",
        "ARRAY[1.5::float8]",
    ):
        assert picky.value(expression) == typed.value(expression)
    assert picky.value("'2024-07-01 12:00+00'::timestamptz")[1] == datetime(2024, 7, 1, 12, tzinfo=timezone.utc)


def test_a_driver_that_names_no_type_is_refused() -> None:
    """Drivers before 1.13: every column would be taken for one of a type that is not built in, and become text."""
    with pytest.raises(SourceError, match=r"column 'n': expected the driver to name its type.*1\.13 or newer"):
        plan_column("c1", pa.field("n", pa.int64()))
