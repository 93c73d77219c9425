"""MySQL's types: each exact, or text by a declared rule, or refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from rivet_dagster.errors import ConfigError, SourceError
from tests.sources.databases import MySQL
from tests.sources.ranges import query_of, rows_in, run

UTC = dt.timezone.utc
LOOSE = "NO_BACKSLASH_ESCAPES,ALLOW_INVALID_DATES"

EDGES = [
    ("tinyint", "-128, 127", pa.int8(), [-128, 127]),
    ("tinyint(1)", "0, 1, 2, 127", pa.int8(), [0, 1, 2, 127]),
    ("boolean", "true, false", pa.int8(), [1, 0]),
    ("tinyint unsigned", "0, 255", pa.uint8(), [0, 255]),
    ("smallint", "-32768, 32767", pa.int16(), [-(2**15), 2**15 - 1]),
    ("smallint unsigned", "0, 65535", pa.uint16(), [0, 2**16 - 1]),
    ("mediumint", "-8388608, 8388607", pa.int32(), [-(2**23), 2**23 - 1]),
    ("mediumint unsigned", "0, 16777215", pa.uint32(), [0, 2**24 - 1]),
    ("int", "-2147483648, 2147483647", pa.int32(), [-(2**31), 2**31 - 1]),
    ("int unsigned zerofill", "7, 4294967295", pa.uint32(), [7, 2**32 - 1]),
    (
        "bigint",
        "-9223372036854775808, 9223372036854775807, 9007199254740993",
        pa.int64(),
        [-(2**63), 2**63 - 1, 2**53 + 1],
    ),
    ("bigint unsigned", "0, 9223372036854775808, 18446744073709551615", pa.uint64(), [0, 2**63, 2**64 - 1]),
    ("bit(1)", "b'0', b'1'", pa.uint64(), [0, 1]),
    ("bit(9)", "b'100000001', b'1'", pa.uint64(), [257, 1]),
    ("bit(64)", "0xFFFFFFFFFFFFFFFF, b'1'", pa.uint64(), [2**64 - 1, 1]),
    ("float", "16777216, 1234567, 0.1, -3.4028234e38, 1.4e-45", pa.float32(), None),
    ("float(7,3)", "1234.567", pa.float32(), None),
    (
        "double",
        "0.30000000000000004, -1.7976931348623157e308, 5e-324, 0.1",
        pa.float64(),
        [0.1 + 0.2, -1.7976931348623157e308, 5e-324, 0.1],
    ),
    ("double(10,2)", "12345678.91", pa.float64(), [12345678.91]),
    ("decimal(12,2)", "-1234567890.12, 0.10", pa.decimal128(12, 2), [Decimal("-1234567890.12"), Decimal("0.10")]),
    ("decimal(12,2) unsigned", "1234567890.12", pa.decimal128(12, 2), [Decimal("1234567890.12")]),
    ("decimal(5,5)", "-0.12345", pa.decimal128(5, 5), [Decimal("-0.12345")]),
    ("decimal(38,0)", "9" * 38, pa.decimal128(38, 0), [Decimal("9" * 38)]),
    ("decimal(39,0)", "9" * 39, pa.decimal256(39, 0), [Decimal("9" * 39)]),
    (
        "decimal(65,30)",
        f"{'9' * 35}.{'9' * 30}, -{'9' * 35}.{'1' * 30}",
        pa.decimal256(65, 30),
        [Decimal(f"{'9' * 35}.{'9' * 30}"), Decimal(f"-{'9' * 35}.{'1' * 30}")],
    ),
    ("year", "1901, 2155, 0", pa.uint16(), [1901, 2155, 0]),
    ("date", "'0001-01-01', '9999-12-31', '2024-02-29', '1969-12-31'", pa.date32(), None),
    (
        "datetime",
        "'0001-01-01 00:00:00', '9999-12-31 23:59:59'",
        pa.timestamp("us"),
        [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)],
    ),
    (
        "datetime(6)",
        "'2024-02-29 23:59:59.999999', '1969-12-31 23:59:59.000001'",
        pa.timestamp("us"),
        [dt.datetime(2024, 2, 29, 23, 59, 59, 999999), dt.datetime(1969, 12, 31, 23, 59, 59, 1)],
    ),
    (
        "timestamp(6) NULL",
        "'1970-01-01 00:00:01', '2038-01-19 03:14:07.999999'",
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), dt.datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=UTC)],
    ),
    (
        "time(6)",
        "'00:00:00', '23:59:59.999999', '12:00:00.000001'",
        pa.time64("us"),
        [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(12, 0, 0, 1)],
    ),
    ("char(5)", "'a', ''", pa.string(), ["a", ""]),
    ("varchar(20) character set latin1", "'é', 'ÿ', '€'", pa.string(), ["é", "ÿ", "€"]),
    ("varchar(20) character set utf8mb3", "'日本'", pa.string(), ["日本"]),
    ("varchar(20) character set utf16", "'😀'", pa.string(), ["😀"]),
    ("varchar(20) collate utf8mb4_bin", "'Ä'", pa.string(), ["Ä"]),
    ("enum('a','é','')", "'é', 'a', ''", pa.string(), ["é", "a", ""]),
    ("set('x','y','z')", "'z,x', '', 'y'", pa.string(), ["x,z", "", "y"]),
    ("json", "'null', '{\"a\": 1.10}', '[]'", pa.string(), ["null", '{"a": 1.10}', "[]"]),
    ("uuid", "'123E4567-e89b-12d3-a456-426655440000'", pa.string(), ["123e4567-e89b-12d3-a456-426655440000"]),
    ("inet6", "'::ffff:1.2.3.4'", pa.string(), ["::ffff:1.2.3.4"]),
    ("binary(3)", "0x00FF, 0x616263", pa.binary(), [b"\x00\xff\x00", b"abc"]),
    ("varbinary(10)", "0x00FF0A, ''", pa.binary(), [b"\x00\xff\n", b""]),
    ("longblob", "0xFE, repeat(0xFB, 70000)", pa.binary(), [b"\xfe", b"\xfb" * 70000]),
    ("tinytext", "'t'", pa.string(), ["t"]),
    ("mediumtext", "repeat('é', 70000)", pa.string(), ["é" * 70000]),
]


def insert(database: MySQL, kind: str, values: list[str], *, sql_mode: str | None = None) -> None:
    rows = ", ".join(f"({position}, {value})" for position, value in enumerate(values))
    mode = {"sql_mode": sql_mode} if sql_mode is not None else {}
    database.execute(f"CREATE TABLE t (i int, x {kind})", f"INSERT INTO t VALUES {rows}", **mode)


def split(values: str) -> list[str]:
    """Values at commas outside quotes and parentheses."""
    pieces, depth, inside, piece = [], 0, False, ""
    for letter in values:
        inside ^= letter == "'"
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not inside and not depth:
            pieces.append(piece.strip())
            piece = ""
        else:
            piece += letter
    return [*pieces, piece.strip()]


@pytest.mark.parametrize(("kind", "values", "arrow", "expected"), EDGES, ids=[edge[0] for edge in EDGES])
def test_every_type_is_exact_to_its_edges_beside_nulls(
    maria: MySQL, kind: str, values: str, arrow: pa.DataType, expected: list | None
) -> None:
    insert(maria, kind, ["NULL", *split(values), "NULL"])
    if expected is None and pa.types.is_date(arrow):
        expected = [dt.date.fromisoformat(text.strip("'")) for text in split(values)]
    elif expected is None:
        expected = pa.array([float(text) for text in split(values)], arrow).to_pylist()
    for query in ({"table": "t"}, {"sql": "SELECT i, x FROM t"}):
        found = maria.read(**query)
        assert found.types["x"] == arrow
        assert [row["x"] for row in sorted(found.rows, key=lambda row: row["i"])] == [None, *expected, None]


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("date", "'0000-00-00'", "0000-00-00"),
        ("date", "'2024-00-10'", "2024-00-10"),
        ("date", "'2024-01-00'", "2024-01-00"),
        ("date", "'2023-02-30'", "2023-02-30"),
        ("date", "'0000-01-01'", "0000-01-01"),
        ("datetime(3)", "'0000-00-00 00:00:00'", "0000-00-00"),
        ("datetime(3)", "'2024-00-10 10:20:30.405'", "2024-00-10"),
        ("timestamp NULL", "'0000-00-00 00:00:00'", "0000-00-00"),
    ],
)
def test_a_date_in_no_calendar_is_refused_and_its_text_is_the_databases(
    maria: MySQL, kind: str, value: str, shown: str
) -> None:
    insert(maria, kind, ["'2024-05-06'", value, "NULL"], sql_mode=LOOSE)
    with pytest.raises(SourceError, match=rf"'x'.*{shown}.*rd\.cast\(\"text\"\)") as raised:
        maria.read(table="t")
    assert not raised.value.transient
    read = [row["x"] for row in maria.read(sql="SELECT x FROM t ORDER BY i", casts={"x": "text"}).rows]
    assert read == [maria.row(f"SELECT CAST(x AS CHAR) FROM t WHERE i = {i}")[0] for i in range(3)]


@pytest.mark.parametrize("value", ["'24:00:00'", "'-00:00:01'", "'838:59:59.999999'", "'-838:59:59.5'", "'100:00:00'"])
def test_a_time_beyond_a_day_is_refused_and_its_text_is_the_databases(maria: MySQL, value: str) -> None:
    insert(maria, "time(6)", [value, "'01:02:03.000004'", "NULL"])
    with pytest.raises(SourceError, match=r"'x'.*the time .*rd\.cast\(\"text\"\)"):
        maria.read(table="t")
    read = [row["x"] for row in maria.read(sql="SELECT x FROM t ORDER BY i", casts={"x": "text"}).rows]
    assert read == [maria.row(f"SELECT CAST(x AS CHAR) FROM t WHERE i = {i}")[0] for i in range(3)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint unsigned", ["18446744073709551615", "0"]),
        ("decimal(65,30)", ["-0.000000000000000000000000000001", "12"]),
        ("double", ["0.30000000000000004", "-5"]),
        ("date", ["'0001-01-01'", "'2024-12-31'"]),
        ("datetime", ["'2024-12-31 01:02:03'"]),
        ("datetime(2)", ["'2024-12-31 01:02:03.05'"]),
        ("timestamp(6) NULL", ["'2024-12-31 01:02:03.000005'"]),
        ("time", ["'00:00:00'", "'-01:02:03'"]),
        ("time(1)", ["'00:00:00.1'"]),
        ("year", ["2024", "0"]),
        ("int(10) unsigned zerofill", ["7", "4294967295"]),
        ("enum('a','b')", ["'b'"]),
        ("json", ["'{\"a\":  1}'"]),
        ("varbinary(10)", ["'é'"]),
    ],
)
def test_a_cast_to_text_is_what_the_database_shows(maria: MySQL, kind: str, values: list[str]) -> None:
    insert(maria, kind, [*values, "NULL"])
    found = maria.read(sql="SELECT x FROM t ORDER BY i", casts={"x": "text"})
    assert found.types == {"x": pa.string()}
    with maria.server.client(init_command="SET time_zone = '+00:00'") as client, client.cursor() as cursor:
        cursor.execute("SELECT CAST(x AS CHAR) FROM t ORDER BY i")
        shown = [row[0] for row in cursor.fetchall()]
    assert [row["x"] for row in found.rows] == shown


def test_a_float_is_exact_where_the_database_prints_six_digits(maria: MySQL) -> None:
    insert(maria, "float", ["1234567", "16777215", "0.1"])
    assert maria.row("SELECT CAST(x AS CHAR) FROM t WHERE i = 0")[0] == "1234570"
    assert [row["x"] for row in maria.read(sql="SELECT x FROM t ORDER BY i").rows][:2] == [1234567.0, 16777215.0]
    texts = [row["x"] for row in maria.read(sql="SELECT x FROM t ORDER BY i", casts={"x": "text"}).rows]
    assert texts == ["1234567", "16777215", "0.1"]


@pytest.mark.parametrize(
    ("expression", "cast", "arrow", "value"),
    [
        ("'12'", "bigint", pa.int64(), 12),
        ("18446744073709551615", "bigint unsigned", pa.uint64(), 2**64 - 1),
        ("CAST(1.50 AS DECIMAL(5,2))", "decimal(10,3)", pa.decimal128(10, 3), Decimal("1.500")),
        ("7", "decimal(3,1)", pa.decimal128(3, 1), Decimal("7.0")),
        ("'0.1'", "double", pa.float64(), 0.1),
        ("1", "boolean", pa.bool_(), True),
        ("'2024-02-29'", "date", pa.date32(), dt.date(2024, 2, 29)),
        ("'2024-02-29 10:11:12.5'", "datetime(6)", pa.timestamp("us"), dt.datetime(2024, 2, 29, 10, 11, 12, 500000)),
        ("'23:59:59.999999'", "time", pa.time64("us"), dt.time(23, 59, 59, 999999)),
        ("'é'", "binary", pa.binary(), "é".encode()),
        ("POINT(1, 2)", "binary", pa.binary(), bytes.fromhex("000000000101000000000000000000f03f0000000000000040")),
    ],
)
def test_a_cast_is_made_exactly(maria: MySQL, expression: str, cast: str, arrow: pa.DataType, value: object) -> None:
    assert maria.value(expression, cast=cast) == (arrow, value)


@pytest.mark.parametrize(
    ("expression", "cast"),
    [
        ("'12x'", "bigint"),
        ("'0x10'", "bigint"),
        ("'-0X10'", "bigint"),
        ("'1e400'", "double"),
        ("'24:00:00'", "time"),
        ("'noon'", "time"),
        ("-1", "bigint unsigned"),
        ("9223372036854775808", "bigint"),
        ("9007199254740993", "double"),
        ("'1.239'", "decimal(5,2)"),
        ("CAST(1.239 AS DECIMAL(5,3))", "decimal(5,2)"),
        ("1000", "decimal(3,0)"),
        ("2", "boolean"),
        ("'2023-02-30'", "date"),
        ("'0000-00-00'", "date"),
        ("0xFF", "text"),
    ],
)
def test_a_cast_that_would_change_a_value_is_refused(maria: MySQL, expression: str, cast: str) -> None:
    with pytest.raises(SourceError, match="'x'") as raised:
        maria.value(expression, cast=cast)
    assert not raised.value.transient


@pytest.mark.parametrize(
    ("expression", "cast"),
    [("NOW()", "date"), ("1.5e0", "bigint"), ("POINT(1, 2)", "text"), ("0x41", "bigint"), ("CURTIME()", "datetime")],
)
def test_a_cast_that_cannot_be_exact_is_a_mistake_in_the_definition(maria: MySQL, expression: str, cast: str) -> None:
    with pytest.raises(ConfigError, match=r"'x'.*cast"):
        maria.value(expression, cast=cast)


def test_a_geometry_is_refused_with_what_to_select_instead(maria: MySQL) -> None:
    maria.execute("CREATE TABLE t (i int, place point)", "INSERT INTO t VALUES (1, POINT(1, 2))")
    with pytest.raises(SourceError, match=r"'place'.*ST_AsText") as raised:
        maria.open(table="t")
    assert not raised.value.transient
    assert maria.read(sql="SELECT ST_AsText(place) AS place FROM t").rows == [{"place": "POINT(1 2)"}]


def test_the_source_type_is_the_catalogs_and_columns_that_are_never_null_are_known(maria: MySQL) -> None:
    maria.execute(
        "CREATE TABLE t (id bigint unsigned NOT NULL PRIMARY KEY, e enum('a','b'), n decimal(5,1) NOT NULL)",
        "CREATE VIEW v AS SELECT * FROM t",
    )
    stream = maria.open(table="t")
    stream.close()
    assert [(column.source_type, column.nullable) for column in stream.columns] == [
        ("bigint(20) unsigned", False),
        ("enum('a','b')", True),
        ("decimal(5,1)", False),
    ]
    for query in ({"table": "v"}, {"sql": "SELECT * FROM t"}):
        stream = maria.open(**query)
        stream.close()
        assert all(column.nullable for column in stream.columns)


def test_null_without_a_type_is_text(maria: MySQL) -> None:
    assert maria.value("NULL") == (pa.string(), None)


def test_expressions_have_the_servers_types(maria: MySQL) -> None:
    maria.execute("CREATE TABLE t (i int, n decimal(30,10))", "INSERT INTO t VALUES (1, 1.5), (2, 2.5), (3, NULL)")
    found = maria.read(
        sql="SELECT SUM(i) AS a, AVG(n) AS b, COUNT(*) AS c, MAX(n) AS d, CONCAT(i, 'x') AS e, i / 3 AS f, i > 1 AS g "
        "FROM t GROUP BY i ORDER BY i"
    )
    assert [pa.types.is_decimal(found.types[name]) for name in "abdf"] == [True] * 4
    assert [found.types[name] for name in "ceg"] == [pa.int64(), pa.string(), pa.int32()]
    assert found.rows[1]["b"] == Decimal("2.5")
    assert found.rows[2]["b"] is None


def test_many_columns_have_their_nulls_in_place(maria: MySQL) -> None:
    width = 300
    expressions = ", ".join(f"IF(seq % {i + 2} = 0, NULL, seq * {i}) AS c{i}" for i in range(width))
    found = maria.read(sql=f"SELECT {expressions} FROM seq_1_to_500")
    assert found.rows == [
        {f"c{i}": None if seq % (i + 2) == 0 else seq * i for i in range(width)} for seq in range(1, 501)
    ]


def test_a_row_of_several_packets_is_one_row(maria: MySQL) -> None:
    sizes = [2**24 - 20, 2**24 - 1, 2**24, 2**25 + 17, 3]
    query = " UNION ALL ".join(f"SELECT {i} AS i, REPEAT('{chr(65 + i)}', {size}) AS s" for i, size in enumerate(sizes))
    maria.server.execute("SET GLOBAL max_allowed_packet = 67108864")
    found = maria.read(sql=query)
    assert [(row["i"], len(row["s"]), set(row["s"])) for row in found.rows] == [
        (i, size, {chr(65 + i)}) for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("name", ["`", "a`b", "ta.ble", "é`\"'"])
def test_tables_are_named_in_either_quotes(maria: MySQL, name: str) -> None:
    back = "`" + name.replace("`", "``") + "`"
    maria.execute(f"CREATE TABLE {back} ({back} int)", f"INSERT INTO {back} VALUES (5)")
    double = '"' + name.replace('"', '""') + '"'
    assert maria.read(table=double).rows == [{name: 5}]
    if '"' not in name:
        assert maria.read(table=f"{maria.server.database}.{back}").rows == [{name: 5}]


def test_the_servers_quotes_stay_as_they_are(maria: MySQL) -> None:
    assert maria.read(sql='SELECT "text" AS x').rows == [{"x": "text"}]
    assert maria.read(sql=r"SELECT 'a\'b' AS x").rows == [{"x": "a'b"}]


def test_a_placeholder_is_a_mistake_in_the_definition(maria: MySQL) -> None:
    with pytest.raises(ConfigError, match=r"\?"):
        maria.open(sql="SELECT ? AS x")
    assert maria.read(sql="SELECT '?' AS x, '%s' AS y").rows == [{"x": "?", "y": "%s"}]


@pytest.mark.parametrize(
    ("letters", "code"),
    [("sjis", "81AD"), ("gbk", "FE50"), ("euckr", "A2E8"), ("cp1251", "98"), ("hebrew", "FF"), ("tis620", "DB")],
)
def test_characters_without_a_form_in_utf_8_are_refused_and_never_a_question_mark(
    maria: MySQL, letters: str, code: str
) -> None:
    maria.execute(f"CREATE TABLE t (i int, x varchar(9) character set {letters}, y varchar(9) character set {letters})")
    maria.execute("INSERT INTO t VALUES (1, 'why?', 'a'), (2, NULL, NULL)")
    assert maria.read(table="t").rows == [{"i": 1, "x": "why?", "y": "a"}, {"i": 2, "x": None, "y": None}]
    maria.execute(f"INSERT INTO t VALUES (3, 'ok', _{letters} 0x3F{code})")
    for query in ({"table": "t"}, {"sql": "SELECT y FROM t ORDER BY i"}):
        with pytest.raises(SourceError, match=rf"'y'.*{letters}.*UTF-8") as raised:
            maria.open(**query)
        assert not raised.value.transient
    assert maria.read(sql="SELECT CAST(y AS BINARY) AS y FROM t WHERE i = 3").rows == [
        {"y": b"?" + bytes.fromhex(code)}
    ]


def test_bytes_that_are_no_ascii_are_refused_once_they_have_come(maria: MySQL) -> None:
    maria.execute(
        "CREATE TABLE t (i int, y varchar(9) character set ascii)", "INSERT INTO t VALUES (1, 'why?'), (2, NULL)"
    )
    assert maria.read(table="t").rows == [{"i": 1, "y": "why?"}, {"i": 2, "y": None}]
    maria.execute("INSERT INTO t VALUES (3, _ascii 0xE9)", sql_mode="")
    for query in ({"table": "t"}, {"sql": "SELECT y FROM t"}):
        with pytest.raises(SourceError, match=r"'y'.*ascii.*UTF-8"):
            maria.read(**query)
    with pytest.raises(SourceError, match=r"'y'.*ascii.*UTF-8"), run(maria) as snapshot:
        rows_in(snapshot, query_of())
    assert maria.read(sql="SELECT CAST(y AS BINARY) AS y FROM t WHERE i = 3").rows == [{"y": b"\xe9"}]


def test_no_mode_of_the_server_hides_characters_that_are_lost(maria: MySQL) -> None:
    maria.execute(
        "CREATE TABLE t (y varchar(9) character set cp1251)", "INSERT INTO t VALUES (_cp1251 0x98), ('?'), ('')"
    )
    try:
        for mode in ("ORACLE", "EMPTY_STRING_IS_NULL"):
            maria.execute(f"SET GLOBAL sql_mode = '{mode}'")
            with pytest.raises(SourceError, match=r"'y'.*UTF-8"):
                maria.open(table="t")
            assert maria.read(sql="SELECT y FROM t WHERE y < 'a' AND y <> _cp1251 0x98").rows == [{"y": "?"}, {"y": ""}]
    finally:
        maria.execute("SET GLOBAL sql_mode = DEFAULT")


@pytest.mark.parametrize(
    ("letters", "text"),
    [
        ("cp1251", "Привет?"),
        ("sjis", "日本語?"),
        ("gbk", "中文?"),
        ("greek", "Ελλάδα"),
        ("koi8r", "Привет"),
        ("big5", "中文"),
    ],
)
def test_text_in_older_character_sets_is_exact(maria: MySQL, letters: str, text: str) -> None:
    maria.execute(f"CREATE TABLE t (x varchar(20) character set {letters})", f"INSERT INTO t VALUES ('{text}')")
    assert maria.read(table="t").rows == [{"x": text}]
