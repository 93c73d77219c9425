"""Text in CSV: NULL, the empty string and everything that looks like something else, in cells and in headers."""

import csv
import io
import sqlite3

import dagster as dg
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pytest

import rivet_dagster as rd
from tests.faults.kit import read_as_a_reader
from tests.faults.lakes import said
from tests.servers import postgres

CELLS = ["", None, "x", "NULL", "null", "\\N", "NA", "nan", "None", "-", "007", "1.0", "1e5", "true", "2024-01-31"]
CELLS += [
    "  first",
    "last  ",
    " ",
    "\t",
    "a,b",
    ",",
    '"',
    '""',
    '"quoted"',
    'a"b',
    "a'b",
    "a\\",
    '\\"',
    "a;b",
    "a|b",
    "#",
]
CELLS += ["\n", "\r", "\r\n", "a\nb", "a\rb", "a\r\nb", "\n\n", "=1+1", "@x", "\x0b", "\x0c", "\x1c", "\x1a", "\x7f"]
CELLS += ["\x85", "\u2028", "\u2029", "\u00a0", "\u200b", "\ufeff", "é", "e\u0301", "😀", "漢", "x" * 5000]
HEADERS = ["Amount, USD", 'a"b', '"', "a\nb", "a\rb", "a\r\nb", " x ", "NULL", "1", "#", "\u2028", "\ufeff", "'", "é"]


def by_csv(body):
    """Python's own module cannot tell NULL from the empty string."""
    header, *rows = csv.reader(io.StringIO(body.decode(), newline=""), strict=True)
    # Of one column alone, NULL is an empty line.
    return header[0], [row[0] if row else "" for row in rows]


def by_duckdb(body, path):
    path.write_bytes(body)
    query = """
        select * from read_csv(
            ?, auto_detect = false, header = true, delim = ',', quote = '"', escape = '"', new_line = '\\r\\n',
            nullstr = '', allow_quoted_nulls = false, columns = {'cell': 'VARCHAR', 'row': 'BIGINT'}
        ) order by "row"
    """
    return [cell for cell, _ in duckdb.execute(query, [str(path)]).fetchall()]


def by_arrow(body):
    convert = pacsv.ConvertOptions(
        column_types={"row": pa.int64()}, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = pacsv.ParseOptions(newlines_in_values=True)
    found = pacsv.read_csv(io.BytesIO(body), parse_options=parse, convert_options=convert)
    return found.schema.names[0], found.column(0).to_pylist()


def by_pandas(body):
    """It cannot tell NULL from the empty string either."""
    frame = pd.read_csv(io.BytesIO(body), keep_default_na=False, dtype={0: str})
    return frame.columns[0], frame.iloc[:, 0].tolist()


def check(lake, header, path):
    plain = [cell or "" for cell in CELLS]
    (body,) = read_as_a_reader(lake.raw)
    assert by_csv(body) == (header, plain)
    assert by_pandas(body) == (header, plain)
    assert by_arrow(body) == (header, CELLS)
    assert by_duckdb(body, path) == CELLS
    table = lake.load(pa.Table)
    assert (table.schema.names[0], table.column(0).to_pylist()) == (header, CELLS)


@pytest.mark.parametrize("header", HEADERS, ids=ascii)
def test_every_text_arrives_as_it_is_under_every_header(shelf, tmp_path, header):
    rows = pa.table({header: pa.array(CELLS), "row": range(len(CELLS))})
    done = shelf.export(rows, format="csv")
    assert done.success, said(done)
    check(shelf, header, tmp_path / "copy.csv")


def test_every_text_of_a_frame_arrives_as_it_is(shelf, tmp_path):
    done = shelf.export(pd.DataFrame({"cell": CELLS, "row": range(len(CELLS))}), format="csv")
    assert done.success, said(done)
    check(shelf, "cell", tmp_path / "copy.csv")
    frame = shelf.load(pd.DataFrame)
    assert [None if pd.isna(x) else x for x in frame["cell"]] == CELLS
    assert shelf.load(ds.Dataset).to_table()["cell"].to_pylist() == CELLS


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def database(request, servers, tmp_path):
    """Each database with these cells in a table."""
    path, make = tmp_path / "shop.db", "create table cells (cell text, row_number bigint)"
    rows = [(cell, n) for n, cell in enumerate(CELLS)]
    match request.param:
        case "sqlite":
            with sqlite3.connect(path) as connection:
                connection.execute(make)
                connection.executemany("insert into cells values (?, ?)", rows)
            connection.close()
            yield f"sqlite:///{path}"
        case "duckdb":
            with duckdb.connect(path) as connection:
                connection.execute(make)
                connection.executemany("insert into cells values (?, ?)", rows)
            yield f"duckdb:///{path}"
        case _:
            server = servers(postgres)
            with server.client() as connection, connection.cursor() as cursor:
                cursor.execute(make)
                cursor.executemany("insert into cells values ($1, $2)", rows)
            yield server.url
            server.execute("drop table cells")


@pytest.mark.parametrize("limit", [None, "300B"])
def test_every_text_of_a_database_arrives_as_it_is(shelf, tmp_path, database, limit):
    export = rd.Export(name="orders", query='select cell, row_number as "row" from cells order by row_number')
    there = {
        "io_manager": shelf.io_manager(format="csv", max_file_size=limit),
        "source": rd.DatabaseResource(url=database),
    }
    done = dg.materialize([rd.build_export_asset(export)], instance=shelf.instance, resources=there)
    assert done.success
    if limit is None:
        check(shelf, "cell", tmp_path / "copy.csv")
    parts = read_as_a_reader(shelf.raw)
    assert (len(parts) > 1) == (limit is not None)
    assert [cell for part in parts for cell in by_arrow(part)[1]] == CELLS
    assert shelf.load(pa.Table)["cell"].to_pylist() == CELLS


def test_null_and_the_empty_string_differ_in_every_type(shelf):
    """Only text is ever quoted, and NULL never is."""
    rows = pa.table(
        {
            "text": ["", None, "x"],
            "binary": [b"", None, b"\x00,"],
            "number": [0, None, 1],
            "yes": [False, None, True],
            "day": pa.array([0, None, 1], pa.date32()),
        }
    )
    assert shelf.export(rows, format="csv").success
    (body,) = read_as_a_reader(shelf.raw)
    assert body.decode().split("\r\n") == [
        '"text","binary","number","yes","day"',
        '"","",0,false,1970-01-01',
        ",,,,",
        '"x","002c",1,true,1970-01-02',
        "",
    ]
    assert shelf.load(pa.Table).equals(rows)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_text_is_the_same_text(shelf, tmp_path, compression):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table cells (cell text)")
        connection.executemany("insert into cells values (?)", [(cell,) for cell in CELLS])
    connection.close()
    export = rd.Export(name="orders", table="cells", format=rd.Csv(compression=compression))
    there = {"io_manager": shelf.io_manager(), "source": rd.DatabaseResource(url=f"sqlite:///{path}")}
    assert dg.materialize([rd.build_export_asset(export)], instance=shelf.instance, resources=there).success
    (body,) = read_as_a_reader(shelf.raw)
    with pa.input_stream(pa.BufferReader(body), compression=compression) as stream:
        assert by_csv(stream.read()) == ("cell", [cell or "" for cell in CELLS])
    assert shelf.load(pa.Table)["cell"].to_pylist() == CELLS
