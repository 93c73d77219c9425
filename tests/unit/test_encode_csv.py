"""CSV after RFC 4180, read by readers that are not ours."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import math
import struct
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.exports.csv import writable_as_text
from rivet_dagster.exports.formats import Csv
from rivet_dagster.exports.timestamps import iso_text
from tests.unit.arrow_rows import SCALARS, tables
from tests.unit.encoded import body, encoded


def written(table: pa.Table, fmt: Csv | None = None) -> bytes:
    (part,) = encoded(table, fmt or Csv())
    return body(part)


def column(values: Any, kind: pa.DataType | None = None) -> list[str]:
    """The fields of a column, as they are written, beside a column that keeps lines apart."""
    text = written(pa.table({"v": pa.array(values, kind), "end": ["x"] * len(values)})).decode()
    header, *lines = text.split(',"x"\r\n')[:-1]
    head, first = header.split("\r\n", 1)
    assert head == '"v","end"'
    return [first, *lines]


def fields(text: str) -> list[list[str | None]]:
    """RFC 4180, letter by letter; a bare empty field is None."""
    records: list[list[str | None]] = [[]]
    at = 0
    while at < len(text):
        if text[at] == '"':
            value, at = "", at + 1
            while not (text[at] == '"' and text[at + 1] != '"'):
                at += text[at] == '"'
                value, at = value + text[at], at + 1
            at += 1
            records[-1].append(value)
        else:
            end = min(i for i in (text.find(",", at), text.find("\r\n", at)) if i >= 0)
            assert '"' not in text[at:end]
            records[-1].append(text[at:end] or None)
            at = end
        if text[at] == ",":
            at += 1
        else:
            assert text[at : at + 2] == "\r\n"
            at += 2
            records.append([])
    assert records.pop() == []
    return records


class TestDialect:
    def test_null_is_a_bare_empty_field_and_the_empty_text_is_not(self) -> None:
        assert column(["", None, "x"]) == ['""', "", '"x"']

    def test_text_that_looks_like_something_else_stays_text(self) -> None:
        assert column(["NULL", "1", "true", " a ", "=1+1"]) == ['"NULL"', '"1"', '"true"', '" a "', '"=1+1"']

    def test_separators_quotes_and_line_ends_stay_within_their_cell(self) -> None:
        values = ["a,b", 'say "hi"', "two\nlines", "dos\r\nlines", "\r", '"', '""', ","]
        assert [fields(f + ",\r\n")[0][0] for f in column(values)] == values

    def test_the_header_is_quoted_like_text(self) -> None:
        names = ["Amount, USD", 'the "id"', "two\nlines", "plain", "ä"]
        text = written(pa.table([[1]] * 5, names=names)).decode()
        assert fields(text)[0] == names
        assert text.startswith('"Amount, USD","the ""id""","two\nlines","plain","ä"\r\n1,1,1,1,1\r\n')

    def test_each_part_begins_with_the_header(self) -> None:
        parts = encoded(pa.table({"a": range(3000)}), Csv(), max_file_size=3_000)
        assert len(parts) > 2
        assert all(body(p).startswith(b'"a"\r\n') for p in parts)
        assert [int(n) for p in parts for n in body(p).decode().split("\r\n")[1:-1]] == list(range(3000))

    def test_null_in_the_only_column_is_an_empty_line(self, tmp_path: Path) -> None:
        assert written(pa.table({"a": ["x", None, "y"]})) == b'"a"\r\n"x"\r\n\r\n"y"\r\n'
        (tmp_path / "a.csv").write_bytes(b'"a"\r\n"x"\r\n\r\n"y"\r\n')
        assert duckdb.sql(f"from '{tmp_path}/a.csv'").fetchall() == [("x",), (None,), ("y",)]

    def test_utf8_without_a_byte_order_mark(self) -> None:
        assert written(pa.table({"ä": ["€𝄞"]})) == '"ä"\r\n"€𝄞"\r\n'.encode()


class TestTypes:
    def test_instants_are_utc_with_z_and_naive_times_are_bare(self) -> None:
        noon = dt.datetime(2024, 2, 29, 12, 0, 0, 1)
        berlin = pa.array([noon], pa.timestamp("us")).cast(pa.timestamp("us", "Europe/Berlin"))
        text = written(pa.table({"naive": pa.array([noon]), "berlin": berlin}))
        assert text.split(b"\r\n")[1] == b"2024-02-29T12:00:00.000001,2024-02-29T12:00:00.000001Z"

    def test_units_keep_their_digits(self) -> None:
        assert column([0], pa.timestamp("s", "UTC")) == ["1970-01-01T00:00:00Z"]
        assert column([-1], pa.timestamp("ms", "UTC")) == ["1969-12-31T23:59:59.999Z"]
        assert column([-1], pa.timestamp("us")) == ["1969-12-31T23:59:59.999999"]
        assert column([-1], pa.timestamp("ns")) == ["1969-12-31T23:59:59.999999999"]

    def test_years_before_1_and_after_9999(self) -> None:
        far = [-62_135_596_801, -62_135_596_800, 253_402_300_799, 253_402_300_800]
        said = ["0000-12-31T23:59:59", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "10000-01-01T00:00:00"]
        assert column(far, pa.timestamp("s")) == said
        assert [column([t], pa.timestamp("s"))[0] for t in far] == said

    def test_dates_and_times(self) -> None:
        assert column([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]) == ["0001-01-01", "9999-12-31", ""]
        assert column([dt.time(23, 59, 59, 999999), None]) == ["23:59:59.999999", ""]

    def test_decimals_are_plain(self) -> None:
        values = ["0.0000001", "-0.0000001", "0.0000000", "123456789.1234567", "-1.0000000", None]
        given_ = [None if v is None else Decimal(v) for v in values]
        for kind in (pa.decimal128(30, 7), pa.decimal256(60, 7)):
            assert column(given_, kind) == [v or "" for v in values]
        assert column([Decimal(-1200), Decimal(0), None], pa.decimal128(6, -2)) == ["-1200", "0", ""]
        assert column([Decimal("0.1"), Decimal("-0.1")], pa.decimal128(1, 1)) == ["0.1", "-0.1"]
        assert column([Decimal("1E-38")], pa.decimal128(38, 38)) == ["0." + "0" * 37 + "1"]

    def test_floats_and_what_is_no_number(self) -> None:
        values = [1.0, -0.0, 0.1, 1e300, 5e-324, math.nan, math.inf, -math.inf, None]
        assert column(values) == ["1.0", "-0.0", "0.1", "1e+300", "5e-324", "NaN", "inf", "-inf", ""]
        assert column([0.1, 16777216.0], pa.float32()) == ["0.1", "16777216.0"]

    def test_binary_is_lower_case_hex_and_empty_is_not_null(self) -> None:
        assert column([b"\x00\xff", b"", None]) == ['"00ff"', '""', ""]
        assert column([b"\xab\xcd", None], pa.binary(2)) == ['"abcd"', ""]

    def test_uuid_has_hyphens(self) -> None:
        assert column([bytes(range(16)), None], pa.uuid()) == ["00010203-0405-0607-0809-0a0b0c0d0e0f", ""]

    def test_json_is_its_text(self) -> None:
        assert column(['{"a": null}', "null", None], pa.json_()) == ['"{""a"": null}"', '"null"', ""]

    def test_booleans_and_the_largest_integers(self) -> None:
        assert column([True, False, None]) == ["true", "false", ""]
        assert column([2**64 - 1, 0, None], pa.uint64()) == ["18446744073709551615", "0", ""]
        assert column([-(2**63), 9007199254740993]) == ["-9223372036854775808", "9007199254740993"]

    @pytest.mark.parametrize(
        ("kind", "holds"),
        [
            *((kind, True) for kind in SCALARS),
            (pa.list_(pa.int64()), False),
            (pa.large_list(pa.int64()), False),
            (pa.struct([("a", pa.int64())]), False),
            (pa.map_(pa.string(), pa.int64()), False),
            (pa.duration("us"), False),
            (pa.month_day_nano_interval(), False),
            (pa.opaque(pa.binary(), "inet", "postgresql"), False),
            (pa.uuid(), True),
            (pa.json_(), True),
        ],
    )
    def test_what_has_a_text_is_known_beforehand(self, kind: pa.DataType, holds: bool) -> None:
        assert writable_as_text(kind) is holds


DUCKDB = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float64(): "DOUBLE",
    pa.decimal128(12, 2): "DECIMAL(12,2)",
    pa.decimal128(28, 10): "DECIMAL(28,10)",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.string(): "VARCHAR",
}


class TestRoundTrip:
    @given(tables(SCALARS))
    @settings(max_examples=200)
    def test_every_value_comes_back_by_the_letter_of_the_rfc(self, table: pa.Table) -> None:
        header, *records = fields(written(table).decode())
        assert header == table.column_names
        assert len(records) == table.num_rows
        for i, name in enumerate(table.column_names):
            kind = table.schema.field(name).type
            back = [None if r[i] is None else parsed(r[i] or "", kind) for r in records]
            values = table[name]
            if pa.types.is_timestamp(kind):
                values = values.cast(pa.timestamp("us", "UTC" if kind.tz else None))
            for found, value in zip(back, values.to_pylist(), strict=True):
                assert same(found, value), (kind, found, value)

    @given(tables({k: v for k, v in SCALARS.items() if k in DUCKDB}))
    @settings(max_examples=60)
    def test_duckdb_reads_it_back_equal(self, tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> None:
        at = tmp_path_factory.mktemp("csv") / "a.csv"
        # Two columns at least, so that DuckDB does not guess about empty lines.
        table = table.append_column("end", pa.array(["x"] * table.num_rows))
        at.write_bytes(written(table))
        types = {f.name: DUCKDB[f.type] for f in table.schema}
        found = duckdb.execute(
            "select * from read_csv(?, header = true, auto_detect = false, delim = ',', quote = '\"', escape = '\"', "
            f"new_line = '\\r\\n', allow_quoted_nulls = false, columns = {types})",
            [str(at)],
        ).fetchall()
        for record, expected in zip(found, zip(*(c.to_pylist() for c in table.columns), strict=True), strict=True):
            assert all(same(a, b) for a, b in zip(record, expected, strict=True)), (record, expected)

    @given(tables({pa.string(): SCALARS[pa.string()]}))
    @settings(max_examples=60)
    def test_pythons_csv_module_reads_the_same_text(self, table: pa.Table) -> None:
        found = list(csv.reader(io.StringIO(written(table).decode(), newline=""), strict=True))
        expected = [table.column_names, *([v or "" for v in row.values()] for row in table.to_pylist())]
        # A single NULL is an empty line, for which the module has no field.
        assert [r or [""] for r in found] == expected


def parsed(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        assert text.endswith("Z") == (kind.tz is not None)
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if pa.types.is_decimal(kind):
        assert "E" not in text.upper()
    readers = (
        (pa.types.is_boolean, {"true": True, "false": False}.get),
        (pa.types.is_decimal, Decimal),
        (pa.types.is_date, dt.date.fromisoformat),
        (pa.types.is_time, dt.time.fromisoformat),
        (pa.types.is_float32, lambda t: float(np.float32(t))),
        (pa.types.is_floating, float),
        (pa.types.is_integer, int),
        (lambda k: pa.types.is_binary(k) or pa.types.is_fixed_size_binary(k), bytes.fromhex),
    )
    return next((read for matches, read in readers if matches(kind)), str)(text)


def same(a: Any, b: Any) -> bool:
    """Equal, with one NaN and two zeros."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dt.datetime) and isinstance(b, dt.datetime):
        return a == b and (a.tzinfo is None) == (b.tzinfo is None)
    return type(a) is type(b) and bool(a == b)


class TestCodecs:
    ROWS = pa.table({"a": range(2_000), "b": ["x,y"] * 2_000})

    def test_gzip_has_no_time_and_no_name(self) -> None:
        found = written(self.ROWS, Csv(compression="gzip"))
        assert found[:4] == b"\x1f\x8b\x08\x00"
        assert found[4:8] == b"\0\0\0\0"
        assert gzip.decompress(found) == written(self.ROWS)

    def test_gzip_is_one_member(self) -> None:
        """Many readers stop after the first."""
        found = written(pa.concat_tables([self.ROWS] * 200), Csv(compression="gzip"))
        reader = zlib.decompressobj(wbits=31)
        reader.decompress(found)
        assert reader.eof
        assert reader.unused_data == b""

    def test_the_level_of_gzip_counts(self) -> None:
        sizes = [len(written(self.ROWS, Csv(compression="gzip", level=level))) for level in (1, 9)]
        assert sizes[0] > sizes[1]
        assert written(self.ROWS, Csv(compression="gzip")) == written(self.ROWS, Csv(compression="gzip", level=6))

    def test_zstd_is_one_frame(self, tmp_path: Path) -> None:
        """Many readers stop after the first."""
        rows = pa.concat_tables([self.ROWS] * 300)
        found = written(rows, Csv(compression="zstd"))
        assert found[:4] == b"\x28\xb5\x2f\xfd"
        # pyarrow decompresses one frame at a time into a buffer of the size that is expected of it.
        expected = written(rows)
        assert pa.Codec("zstd").decompress(found, len(expected)).to_pybytes() == expected
        (tmp_path / "a.csv.zst").write_bytes(found)
        assert duckdb.sql(f"select count(*), sum(a) from '{tmp_path}/a.csv.zst'").fetchall() == [
            (600_000, 300 * sum(range(2_000)))
        ]


class TestIsoText:
    @given(
        st.sampled_from(["s", "ms", "us", "ns"]),
        st.sampled_from([None, "UTC", "Asia/Kathmandu"]),
        st.lists(st.none() | st.integers(-(2**62), 2**62) | st.integers(-(10**12), 10**12), max_size=20),
        st.integers(0, 3),
    )
    @settings(max_examples=300)
    def test_it_says_what_arrow_says(self, unit: str, zone: str | None, ticks: list[int | None], start: int) -> None:
        # What fits the years of Arrow's own cast.
        top = 10**11 * 1000 ** ["s", "ms", "us", "ns"].index(unit)
        ticks = [None if t is None else max(-top, min(t, top)) for t in ticks]
        ticks = [None if t is None else max(-(2**62), min(t, 2**62)) for t in ticks]
        array = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone)).slice(start)
        found = iso_text(array)
        found.validate(full=True)
        arrows = array.cast(pa.timestamp(unit, "UTC" if zone else None)).cast(pa.string()).to_pylist()
        assert found.to_pylist() == [t and t.replace(" ", "T", 1) for t in arrows]
