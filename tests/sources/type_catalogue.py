"""What each type of each database becomes, line by line: the README's tables, and what their proof exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

Exact = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Types that become one Arrow type.

    Attributes:
        types: as a column is declared; `{p}` and `{s}` stand for each of `sizes`.
        arrow: as the manifest has it; "" where the column is refused whatever it holds.
        parquet: physical and logical type, as `tests.types.tables.parquet_type` writes it.
        exact: declared type → SQL of a value → what a reader finds; `...` where that is the text of the SQL itself.
        refused: declared type → SQL of values that are refused, become NULL with `errors="coerce"`, and can leave as
            text.
        sizes: precision and scale of each column that is tried.
        note: a rule that the values show by example.
    """

    types: Sequence[str]
    arrow: str
    parquet: str = ""
    exact: Exact = field(default_factory=dict)
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sizes: Sequence[tuple[int, int]] = ()
    note: str = ""

    def declared(self) -> dict[str, tuple[str, str]]:
        """Each type that is tried → its Arrow and Parquet types."""
        sizes = [{"p": p, "s": s} for p, s in self.sizes] or [{}]
        return {
            kind.format(**size) if size else kind: (
                self.arrow.format(**size) if size else self.arrow,
                self.parquet.format(**size) if size else self.parquet,
            )
            for size in sizes
            for kind in self.types
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """One database.

    Attributes:
        title: its heading in the README.
        lines: its types.
        setup: what a database needs before the columns can be declared.
    """

    title: str
    lines: Sequence[Line]
    setup: Sequence[str] = ()


UTC = timezone.utc
STRING = "BYTE_ARRAY String"
BYTES = "BYTE_ARRAY"
DECIMAL = "Decimal({p}, {s})"
NINES = "9" * 38
FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)

POSTGRESQL = Catalogue(
    title="PostgreSQL",
    setup=(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN counted AS int4 CHECK (value > 0)",
        "CREATE DOMAIN tags AS text[]",
    ),
    lines=[
        Line(types=["boolean"], arrow="bool", parquet="BOOLEAN", exact={"boolean": {"true": True, "false": False}}),
        Line(types=["smallint"], arrow="int16", parquet="INT32 Int(16)", exact={"smallint": {"-32768": -32768}}),
        Line(
            types=["integer", "counted"],
            arrow="int32",
            parquet="INT32",
            exact={"integer": {"-2147483648": -(2**31)}, "counted": {"2147483647": 2**31 - 1}},
            note="a domain (`counted`) is what it is made from",
        ),
        Line(
            types=["bigint", "oid"],
            arrow="int64",
            parquet="INT64",
            exact={"bigint": {"9223372036854775807": 2**63 - 1}, "oid": {"4294967295": 2**32 - 1}},
        ),
        Line(
            types=["real"],
            arrow="float",
            parquet="FLOAT",
            exact={"real": {"1.5": 1.5, "'NaN'": float("nan"), "'-Infinity'": float("-inf")}},
        ),
        Line(
            types=["double precision"],
            arrow="double",
            parquet="DOUBLE",
            exact={
                "double precision": {
                    "0.30000000000000004": 0.1 + 0.2,
                    "'NaN'": float("nan"),
                    "'Infinity'": float("inf"),
                }
            },
        ),
        Line(
            types=["numeric({p},{s})"],
            arrow="decimal128({p}, {s})",
            parquet=DECIMAL,
            sizes=[(12, 2), (38, 0), (5, 5)],
            exact={
                "numeric(38,0)": {NINES: Decimal(NINES)},
                "numeric(12,2)": {"-0.10": Decimal("-0.10")},
                "numeric(5,5)": {"0.00001": Decimal("0.00001")},
            },
            refused={"numeric(12,2)": ["'NaN'"]},
            note="to p = 38",
        ),
        Line(
            types=["numeric({p},{s})"],
            arrow="decimal256({p}, {s})",
            parquet=DECIMAL,
            sizes=[(39, 0), (76, 10)],
            exact={"numeric(39,0)": {"9" * 39: Decimal("9" * 39)}},
            refused={"numeric(39,0)": ["'NaN'"]},
            note="to p = 76",
        ),
        Line(
            types=["numeric(3,-2)"],
            arrow="decimal128(5, 0)",
            parquet="Decimal(5, 0)",
            exact={"numeric(3,-2)": {"-99900": Decimal(-99900)}},
            note="a negative scale becomes digits before the point",
        ),
        Line(
            types=["numeric", "numeric(77,2)"],
            arrow="string",
            parquet=STRING,
            exact={
                "numeric": {
                    "725.7720010313259000": ...,
                    "'NaN'": ...,
                    "'-Infinity'": ...,
                    "1e-30": "0." + "0" * 29 + "1",
                },
                "numeric(77,2)": {"1.5": "1.50"},
            },
            note="digit for digit",
        ),
        Line(
            types=["text", "varchar(10)", "char(3)", "name", '"char"'],
            arrow="string",
            parquet=STRING,
            exact={
                "text": {"''": ..., "'é'": ..., "'日本'": ...},
                "varchar(10)": {"' x '": ...},
                "char(3)": {"'x'": "x  "},
                "name": {f"'{'n' * 63}'": ...},
                '"char"': {"'c'": ...},
            },
            note="`char(n)` keeps its blanks",
        ),
        Line(
            types=["bytea"],
            arrow="binary",
            parquet=BYTES,
            exact={"bytea": {r"'\x00ff'": b"\x00\xff", "''": b""}},
        ),
        Line(
            types=["date"],
            arrow="date32[day]",
            parquet="INT32 Date",
            exact={"date": {"'0001-01-01'": date.min, "'9999-12-31'": date.max, "'1969-12-31'": date(1969, 12, 31)}},
            refused={"date": ["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'10000-01-01'"]},
        ),
        Line(
            types=["time"],
            arrow="time64[us]",
            parquet="INT64 Time(us)",
            exact={"time": {"'23:59:59.999999'": time.max}},
            refused={"time": ["'24:00:00'"]},
        ),
        Line(
            types=["timestamp"],
            arrow="timestamp[us]",
            parquet="INT64 Timestamp(us)",
            exact={"timestamp": {"'0001-01-01 00:00:00'": FIRST, "'9999-12-31 23:59:59.999999'": LAST}},
            refused={"timestamp": ["'infinity'", "'-infinity'", "'4713-01-01 00:00:00 BC'", "'294276-12-31 23:59:59'"]},
        ),
        Line(
            types=["timestamptz"],
            arrow="timestamp[us, tz=UTC]",
            parquet="INT64 Timestamp(us, UTC)",
            exact={"timestamptz": {"'2024-01-01 00:00:00.5+05:30'": datetime(2023, 12, 31, 18, 30, 0, 500000, UTC)}},
            refused={
                "timestamptz": ["'infinity'", "'-infinity'", "'0001-12-31 23:59:59+00 BC'", "'10000-01-01 00:00:00+00'"]
            },
        ),
        Line(
            types=["uuid", "mood", "json", "jsonb"],
            arrow="string",
            parquet=STRING,
            exact={
                "uuid": {"'0f8fad5b-d9cb-469f-a165-70867728950e'": ...},
                "mood": {"'sad'": ...},
                "json": {"'null'": ..., "'{\"b\":  1}'": ...},
                "jsonb": {"'null'": ..., "'{}'": ..., "'{\"a\": 1.10}'": ...},
            },
            note="`mood` is an enum; a JSON null is the text `null`, NULL is NULL",
        ),
        Line(
            types=["interval", "timetz", "money", "bit(4)", "varbit(5)", "xml", "tsvector", "regclass", "point"],
            arrow="string",
            parquet=STRING,
            exact={
                "interval": {"'1 year 2 mons -3 days 4:05:06.7'": "P1Y2M-3DT4H5M6.7S", "'1 month'": "P1M"},
                "timetz": {"'24:00:00+05:30'": ...},
                "money": {"'1234.5'": "$1,234.50"},
                "bit(4)": {"'0101'": ...},
                "varbit(5)": {"'01'": ...},
                "xml": {"'<a>é</a>'": ...},
                "tsvector": {"'fat cat'": "'cat' 'fat'"},
                "regclass": {"'pg_class'": ...},
                "point": {"'(1,0.30000000000000004)'": ...},
            },
            note="PostgreSQL's own text, with ISO 8601 intervals: so every type that is not in this table",
        ),
        Line(
            types=["inet", "cidr", "macaddr", "pg_lsn", "xid", "pair", "int4range", "tstzrange", "datemultirange"],
            arrow="string",
            parquet=STRING,
            exact={
                "inet": {"'10.0.0.1'": ..., "'10.0.0.1/8'": ..., "'::1'": ...},
                "cidr": {"'10.0.0.0/8'": ...},
                "macaddr": {"'08:00:2b:01:02:03'": ...},
                "pg_lsn": {"'16/B374D848'": ...},
                "xid": {"'4294967295'": ...},
                "pair": {"'(1,\"x y\")'": ..., "'(,)'": ...},
                "int4range": {"'[1,3]'": "[1,4)", "'empty'": ...},
                "tstzrange": {"'[2024-01-01 00:00+02,infinity)'": '["2023-12-31 22:00:00+00",infinity)'},
                "datemultirange": {"'{[2024-01-01,2024-01-03)}'": ...},
            },
            note="`pair` is a composite type",
        ),
        Line(
            types=["boolean[]"],
            arrow="list<element: bool>",
            parquet="List of BOOLEAN",
            exact={"boolean[]": {"'{t,NULL}'": [True, None]}},
        ),
        Line(
            types=["integer[]"],
            arrow="list<element: int32>",
            parquet="List of INT32",
            exact={"integer[]": {"'{1,NULL,3}'": [1, None, 3], "'{}'": []}},
            refused={"integer[]": ["'{{1,2},{3,4}}'", "'[0:1]={1,2}'"]},
            note="so arrays of every type above that is not text",
        ),
        Line(
            types=["timestamptz[]"],
            arrow="list<element: timestamp[us, tz=UTC]>",
            parquet="List of INT64 Timestamp(us, UTC)",
            exact={"timestamptz[]": {"'{2024-01-01 00:00+00,NULL}'": [datetime(2024, 1, 1, tzinfo=UTC), None]}},
            refused={"timestamptz[]": ["'{2024-01-01 00:00+00,infinity}'"]},
        ),
        Line(
            types=["text[]", "tags", "numeric[]", "numeric(10,2)[]", "uuid[]", "oid[]"],
            arrow="list<element: string>",
            parquet="List of BYTE_ARRAY String",
            exact={
                "text[]": {'\'{a,"",NULL,"b,c"}\'': ["a", "", None, "b,c"]},
                "tags": {"'{x}'": ["x"]},
                "numeric[]": {"'{1.10,NaN}'": ["1.10", "NaN"]},
                "numeric(10,2)[]": {"'{1.1}'": ["1.10"]},
                "uuid[]": {"'{0f8fad5b-d9cb-469f-a165-70867728950e}'": ["0f8fad5b-d9cb-469f-a165-70867728950e"]},
                "oid[]": {"'{4294967295}'": ["4294967295"]},
            },
            refused={"text[]": ["'{{a,b}}'", "'[5:6]={a,b}'"], "numeric[]": ["'{{1.5}}'"]},
        ),
        Line(
            types=["mood[]", "jsonb[]", "int4range[]", "interval[]", "pair[]", "int2vector"],
            arrow="string",
            parquet=STRING,
            exact={
                "mood[]": {"'{sad,ok}'": ...},
                "jsonb[]": {'\'{"{\\"a\\": 1}"}\'': ...},
                "int4range[]": {"'{\"[1,3)\"}'": ...},
                "interval[]": {"'{1 month}'": "{P1M}"},
                "pair[]": {"'{\"(1,x)\"}'": ...},
                "int2vector": {"'1 2'": ...},
            },
            note="arrays of other types",
        ),
    ],
)

MYSQL = Catalogue(
    title="MySQL and MariaDB",
    lines=[
        Line(
            types=["tinyint", "tinyint(1)", "boolean"],
            arrow="int8",
            parquet="INT32 Int(8)",
            exact={"tinyint": {"-128": -128}, "tinyint(1)": {"127": 127}, "boolean": {"true": 1}},
        ),
        Line(types=["smallint"], arrow="int16", parquet="INT32 Int(16)", exact={"smallint": {"-32768": -32768}}),
        Line(
            types=["mediumint", "int"],
            arrow="int32",
            parquet="INT32",
            exact={"mediumint": {"-8388608": -8388608}, "int": {"2147483647": 2**31 - 1}},
        ),
        Line(types=["bigint"], arrow="int64", parquet="INT64", exact={"bigint": {"9007199254740993": 2**53 + 1}}),
        Line(
            types=["tinyint unsigned"],
            arrow="uint8",
            parquet="INT32 UInt(8)",
            exact={"tinyint unsigned": {"255": 255}},
        ),
        Line(
            types=["smallint unsigned", "year"],
            arrow="uint16",
            parquet="INT32 UInt(16)",
            exact={"smallint unsigned": {"65535": 65535}, "year": {"1901": 1901, "2155": 2155, "0": 0}},
        ),
        Line(
            types=["mediumint unsigned", "int unsigned"],
            arrow="uint32",
            parquet="INT32 UInt(32)",
            exact={"mediumint unsigned": {"16777215": 2**24 - 1}, "int unsigned": {"4294967295": 2**32 - 1}},
        ),
        Line(
            types=["bigint unsigned", "bit(1)", "bit(64)"],
            arrow="uint64",
            parquet="INT64 UInt(64)",
            exact={
                "bigint unsigned": {"18446744073709551615": 2**64 - 1},
                "bit(1)": {"b'1'": 1},
                "bit(64)": {"0xFFFFFFFFFFFFFFFF": 2**64 - 1},
            },
        ),
        Line(types=["float"], arrow="float", parquet="FLOAT", exact={"float": {"16777216": 2.0**24}}),
        Line(
            types=["double"],
            arrow="double",
            parquet="DOUBLE",
            exact={"double": {"0.30000000000000004": 0.1 + 0.2, "5e-324": 5e-324}},
            note="as stored, not as printed",
        ),
        Line(
            types=["decimal({p},{s})"],
            arrow="decimal128({p}, {s})",
            parquet=DECIMAL,
            sizes=[(12, 2), (38, 0)],
            exact={"decimal(38,0)": {NINES: Decimal(NINES)}, "decimal(12,2)": {"-0.10": Decimal("-0.10")}},
            note="to p = 38",
        ),
        Line(
            types=["decimal({p},{s})"],
            arrow="decimal256({p}, {s})",
            parquet=DECIMAL,
            sizes=[(39, 0), (65, 30)],
            exact={"decimal(65,30)": {f"-{'9' * 35}.{'1' * 30}": Decimal(f"-{'9' * 35}.{'1' * 30}")}},
        ),
        Line(
            types=["date"],
            arrow="date32[day]",
            parquet="INT32 Date",
            exact={"date": {"'0001-01-01'": date.min, "'9999-12-31'": date.max}},
            refused={"date": ["'0000-00-00'", "'2024-00-10'", "'2024-01-00'", "'2023-02-30'"]},
        ),
        Line(
            types=["datetime", "datetime(6)"],
            arrow="timestamp[us]",
            parquet="INT64 Timestamp(us)",
            exact={
                "datetime": {"'0001-01-01 00:00:00'": FIRST},
                "datetime(6)": {"'9999-12-31 23:59:59.999999'": LAST},
            },
            refused={"datetime(6)": ["'0000-00-00 00:00:00'", "'2024-00-10 10:20:30.5'"]},
        ),
        Line(
            types=["timestamp(6) NULL"],
            arrow="timestamp[us, tz=UTC]",
            parquet="INT64 Timestamp(us, UTC)",
            exact={"timestamp(6) NULL": {"'2038-01-19 03:14:07.999999'": datetime(2038, 1, 19, 3, 14, 7, 999999, UTC)}},
            refused={"timestamp(6) NULL": ["'0000-00-00 00:00:00'"]},
        ),
        Line(
            types=["time(6)"],
            arrow="time64[us]",
            parquet="INT64 Time(us)",
            exact={"time(6)": {"'23:59:59.999999'": time.max}},
            refused={"time(6)": ["'24:00:00'", "'-00:00:01'", "'838:59:59'"]},
        ),
        Line(
            types=["char(5)", "varchar(20)", "varchar(20) character set latin1", "tinytext", "longtext"],
            arrow="string",
            parquet=STRING,
            exact={
                "char(5)": {"'a'": ...},
                "varchar(20)": {"'😀'": ..., "''": ...},
                "varchar(20) character set latin1": {"'€'": ...},
                "tinytext": {"'t'": ...},
                "longtext": {"'é'": ...},
            },
            note="characters without a form in UTF-8 (of sjis, gbk, cp1251, …) are refused",
        ),
        Line(
            types=["enum('a','é')", "set('x','y','z')", "json", "uuid", "inet6"],
            arrow="string",
            parquet=STRING,
            exact={
                "enum('a','é')": {"'é'": ...},
                "set('x','y','z')": {"'z,x'": "x,z", "''": ...},
                "json": {"'null'": ..., "'{\"a\": 1.10}'": ...},
                "uuid": {"'123e4567-e89b-12d3-a456-426655440000'": ...},
                "inet6": {"'::ffff:1.2.3.4'": ...},
            },
            note="a JSON null is the text `null`",
        ),
        Line(
            types=["binary(3)", "varbinary(10)", "longblob"],
            arrow="binary",
            parquet=BYTES,
            exact={"binary(3)": {"0x00FF": b"\x00\xff\x00"}, "varbinary(10)": {"0x00FF0A": b"\x00\xff\n"}},
        ),
        Line(types=["geometry"], arrow="", note="select `ST_AsText(…)` or `ST_AsBinary(…)`"),
    ],
)

SQLITE = Catalogue(
    title="SQLite",
    lines=[
        Line(
            types=["BOOLEAN"],
            arrow="bool",
            parquet="BOOLEAN",
            exact={"BOOLEAN": {"1": True, "0": False}},
            refused={"BOOLEAN": ["2", "'true'"]},
        ),
        Line(
            types=["INTEGER", "BIGINT UNSIGNED"],
            arrow="int64",
            parquet="INT64",
            exact={"INTEGER": {"-9223372036854775808": -(2**63)}, "BIGINT UNSIGNED": {"9007199254740993": 2**53 + 1}},
            refused={"INTEGER": ["1.5", "'abc'", "x'31'"]},
            note="a name with INT",
        ),
        Line(
            types=["REAL", "DOUBLE PRECISION", "FLOAT"],
            arrow="double",
            parquet="DOUBLE",
            exact={"REAL": {"0.30000000000000004": 0.1 + 0.2, "3": 3.0, "9e999": float("inf")}},
            refused={"REAL": ["'abc'"]},
            note="a name with REAL, FLOA or DOUB",
        ),
        Line(
            types=["DECIMAL({p},{s})", "NUMERIC({p},{s})"],
            arrow="decimal128({p}, {s})",
            parquet=DECIMAL,
            sizes=[(10, 2), (38, 8)],
            exact={"DECIMAL(10,2)": {"12.3": Decimal("12.30"), "'0.10'": Decimal("0.10"), "7": Decimal("7.00")}},
            refused={"DECIMAL(10,2)": ["1.239", "0.30000000000000004", "9e999", "'one'"]},
            note="reals of at most 15 digits; decimal256 to p = 76",
        ),
        Line(
            types=["TEXT", "VARCHAR(10)", "CLOB"],
            arrow="string",
            parquet=STRING,
            exact={"TEXT": {"'é'": "é", "''": "", "12": "12"}},
            refused={"TEXT": ["x'61'"]},
            note="a name with CHAR, CLOB or TEXT",
        ),
        Line(
            types=["BLOB"],
            arrow="binary",
            parquet=BYTES,
            exact={"BLOB": {"x'00ff'": b"\x00\xff"}},
            note="of a table; text and numbers in it are refused",
        ),
        Line(
            types=["DATE"],
            arrow="date32[day]",
            parquet="INT32 Date",
            exact={"DATE": {"'0001-01-01'": date.min, "'9999-12-31'": date.max}},
            refused={"DATE": ["'2024-02-30'", "'2024-1-2'", "'0000-01-01'", "''", "19724", "2460311.5"]},
        ),
        Line(
            types=["DATETIME", "TIMESTAMP"],
            arrow="timestamp[us]",
            parquet="INT64 Timestamp(us)",
            exact={
                "DATETIME": {
                    "'2024-01-02 03:04:05.031153'": datetime(2024, 1, 2, 3, 4, 5, 31153),
                    "'2024-01-02T03:04'": datetime(2024, 1, 2, 3, 4),
                    "'2024-01-02'": datetime(2024, 1, 2),
                }
            },
            refused={"DATETIME": ["'2024-01-02 03:04:05Z'", "'2024-01-02 24:00:00'", "1704164645"]},
        ),
        Line(
            types=["NUMERIC"],
            arrow="int64",
            parquet="INT64",
            exact={"NUMERIC": {"7": 7, "-1": -1}},
            note="any other type, and none, is what all of its values are: integers",
        ),
        Line(
            types=["NUMBER"],
            arrow="double",
            parquet="DOUBLE",
            exact={"NUMBER": {"7": 7.0, "2.5": 2.5}},
            note="likewise reals, also with integers",
        ),
        Line(
            types=["JSON", "UUID"],
            arrow="string",
            parquet=STRING,
            exact={"JSON": {"'null'": "null", "'{\"a\": 1.10}'": '{"a": 1.10}'}},
            note="likewise texts, or no value at all",
        ),
        Line(
            types=["ANY"],
            arrow="binary",
            parquet=BYTES,
            exact={"ANY": {"x'00'": b"\x00"}},
            note="likewise blobs; any other mixture is refused",
        ),
    ],
)

DUCKDB = Catalogue(
    title="DuckDB",
    setup=("CREATE TYPE mood AS ENUM ('sad', 'ok')",),
    lines=[
        Line(types=["BOOLEAN"], arrow="bool", parquet="BOOLEAN", exact={"BOOLEAN": {"true": True}}),
        Line(types=["TINYINT"], arrow="int8", parquet="INT32 Int(8)", exact={"TINYINT": {"-128": -128}}),
        Line(types=["SMALLINT"], arrow="int16", parquet="INT32 Int(16)", exact={"SMALLINT": {"-32768": -32768}}),
        Line(types=["INTEGER"], arrow="int32", parquet="INT32", exact={"INTEGER": {"-2147483648": -(2**31)}}),
        Line(types=["BIGINT"], arrow="int64", parquet="INT64", exact={"BIGINT": {"9007199254740993": 2**53 + 1}}),
        Line(types=["UTINYINT"], arrow="uint8", parquet="INT32 UInt(8)", exact={"UTINYINT": {"255": 255}}),
        Line(types=["USMALLINT"], arrow="uint16", parquet="INT32 UInt(16)", exact={"USMALLINT": {"65535": 65535}}),
        Line(
            types=["UINTEGER"], arrow="uint32", parquet="INT32 UInt(32)", exact={"UINTEGER": {"4294967295": 2**32 - 1}}
        ),
        Line(
            types=["UBIGINT"],
            arrow="uint64",
            parquet="INT64 UInt(64)",
            exact={"UBIGINT": {"18446744073709551615": 2**64 - 1}},
        ),
        Line(
            types=["HUGEINT", "UHUGEINT"],
            arrow="decimal128(38, 0)",
            parquet="Decimal(38, 0)",
            exact={"HUGEINT": {f"-{NINES}": Decimal(f"-{NINES}")}, "UHUGEINT": {NINES: Decimal(NINES)}},
            refused={
                "HUGEINT": ["170141183460469231731687303715884105727"],
                "UHUGEINT": ["340282366920938463463374607431768211455"],
            },
        ),
        Line(
            types=["FLOAT"],
            arrow="float",
            parquet="FLOAT",
            exact={"FLOAT": {"1.5": 1.5, "'nan'": float("nan"), "'-inf'": float("-inf")}},
        ),
        Line(
            types=["DOUBLE"],
            arrow="double",
            parquet="DOUBLE",
            exact={"DOUBLE": {"0.30000000000000004": 0.1 + 0.2, "'nan'": float("nan")}},
        ),
        Line(
            types=["DECIMAL({p},{s})"],
            arrow="decimal128({p}, {s})",
            parquet=DECIMAL,
            sizes=[(10, 2), (38, 10)],
            exact={"DECIMAL(38,10)": {f"{'9' * 28}.{'9' * 10}": Decimal(f"{'9' * 28}.{'9' * 10}")}},
        ),
        Line(
            types=[
                "VARCHAR",
                "UUID",
                "mood",
                "JSON",
                "BIT",
                "TIMETZ",
                "INTERVAL",
                "BIGNUM",
                "UNION(a INTEGER, b VARCHAR)",
            ],
            arrow="string",
            parquet=STRING,
            exact={
                "VARCHAR": {"'é'": ..., "''": ...},
                "UUID": {"'0f8fad5b-d9cb-469f-a165-70867728950e'": ...},
                "mood": {"'sad'": ...},
                "JSON": {"'null'": ..., "'{\"a\":  1.10}'": ...},
                "BIT": {"'0101'": ...},
                "TIMETZ": {"'12:00:00+02'": ...},
                "INTERVAL": {"'1 month 2 days'": ...},
                "BIGNUM": {"'123456789012345678901234567890123456789012'": ...},
                "UNION(a INTEGER, b VARCHAR)": {"union_value(a := 2)": "2"},
            },
            note="`mood` is an enum; DuckDB's own text",
        ),
        Line(types=["BLOB"], arrow="binary", parquet=BYTES, exact={"BLOB": {r"'\x00\xFF'::BLOB": b"\x00\xff"}}),
        Line(
            types=["DATE"],
            arrow="date32[day]",
            parquet="INT32 Date",
            exact={"DATE": {"'0001-01-01'": date.min, "'9999-12-31'": date.max}},
            refused={"DATE": ["'infinity'", "'0044-03-15 (BC)'", "'10000-01-01'"]},
        ),
        Line(
            types=["TIME"],
            arrow="time64[us]",
            parquet="INT64 Time(us)",
            exact={"TIME": {"'23:59:59.999999'": time.max}},
            refused={"TIME": ["'24:00:00'"]},
        ),
        Line(
            types=["TIMESTAMP", "TIMESTAMP_S"],
            arrow="timestamp[us]",
            parquet="INT64 Timestamp(us)",
            exact={
                "TIMESTAMP": {"'9999-12-31 23:59:59.999999'": LAST},
                "TIMESTAMP_S": {"'1969-12-31 23:59:59'": datetime(1969, 12, 31, 23, 59, 59)},
            },
            refused={"TIMESTAMP": ["'infinity'", "'-infinity'", "'290309-12-22 (BC)'"]},
        ),
        Line(
            types=["TIMESTAMP_MS"],
            arrow="timestamp[ms]",
            parquet="INT64 Timestamp(ms)",
            exact={"TIMESTAMP_MS": {"'2024-01-01 00:00:00.123'": datetime(2024, 1, 1, 0, 0, 0, 123000)}},
            refused={"TIMESTAMP_MS": ["'infinity'"]},
        ),
        Line(
            types=["TIMESTAMP_NS"],
            arrow="timestamp[ns]",
            parquet="INT64 Timestamp(ns)",
            exact={"TIMESTAMP_NS": {"'2024-01-01 00:00:00.000001'": datetime(2024, 1, 1, 0, 0, 0, 1)}},
            refused={"TIMESTAMP_NS": ["'infinity'"]},
        ),
        Line(
            types=["TIMESTAMPTZ"],
            arrow="timestamp[us, tz=UTC]",
            parquet="INT64 Timestamp(us, UTC)",
            exact={"TIMESTAMPTZ": {"'2024-01-01 00:00:00+02'": datetime(2023, 12, 31, 22, tzinfo=UTC)}},
            refused={"TIMESTAMPTZ": ["'infinity'"]},
        ),
        Line(
            types=["INTEGER[]"],
            arrow="list<element: int32>",
            parquet="List of INT32",
            exact={"INTEGER[]": {"[1, NULL, 3]": [1, None, 3], "[]": []}},
        ),
        Line(
            types=["DATE[]"],
            arrow="list<element: date32[day]>",
            parquet="List of INT32 Date",
            exact={"DATE[]": {"['2024-02-29']": [date(2024, 2, 29)]}},
            refused={"DATE[]": ["['2024-02-29', 'infinity']"]},
            note="nested types keep their form, at any depth",
        ),
        Line(
            types=["HUGEINT[2]"],
            arrow="fixed_size_list<element: decimal128(38, 0)>[2]",
            parquet="List of Decimal(38, 0)",
            exact={"HUGEINT[2]": {"[1, NULL]": [Decimal(1), None]}},
            refused={"HUGEINT[2]": ["[1, 170141183460469231731687303715884105727]"]},
        ),
        Line(
            types=["STRUCT(a INTEGER, b UUID)"],
            arrow="struct<a: int32, b: string>",
            parquet="a: INT32, b: BYTE_ARRAY String",
            exact={
                "STRUCT(a INTEGER, b UUID)": {
                    "{'a': 1, 'b': NULL}": {"a": 1, "b": None},
                }
            },
        ),
        Line(
            types=["MAP(VARCHAR, TIMESTAMP)"],
            arrow="map<string, timestamp[us]>",
            parquet="Map of BYTE_ARRAY String to INT64 Timestamp(us)",
            exact={"MAP(VARCHAR, TIMESTAMP)": {"MAP {'k': '2024-01-01'::TIMESTAMP}": [("k", datetime(2024, 1, 1))]}},
            refused={"MAP(VARCHAR, TIMESTAMP)": ["MAP {'k': 'infinity'::TIMESTAMP}"]},
        ),
    ],
)

CATALOGUES = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE, "duckdb": DUCKDB}
