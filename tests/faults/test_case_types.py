"""Values that are lost elsewhere, through a whole run of a database: digit for digit, or refused and nothing moves."""

import csv
import io
from decimal import Decimal

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from rivet_dagster.rows import SplittableSource
from rivet_dagster.sources.connect import connect
from tests.faults.kit import read_as_a_reader
from tests.faults.lakes import NO_WAIT, materialized, said
from tests.sources.databases import KINDS, MySQL, Sqlite, new_database

LONG = "1234567890123456789012345678901234567890.0123456789"
LARGE = 2**64 - 1
MODES = [rd.Full(), rd.Chunked(rows_per_part=100, parallel=2)]


@pytest.fixture(params=KINDS)
def database(request, servers, tmp_path):
    """An empty database of each kind."""
    return new_database(request.param, servers, tmp_path)


def export(lake, database, *, io_manager=None, settings=None, **of_export):
    asset = rd.build_export_asset(rd.Export(name="orders", **{"table": "t", **of_export}), retry_policy=NO_WAIT)
    there = {
        "io_manager": io_manager or lake.io_manager(**(settings or {})),
        "source": rd.DatabaseResource(url=database.url),
    }
    return dg.materialize([asset], instance=lake.instance, resources=there, raise_on_error=False)


def in_ranges(database, mode):
    if isinstance(mode, rd.Chunked) and not isinstance(connect(database.url), SplittableSource):
        pytest.skip(f"{database.kind} is not read in ranges")


def by_id(lake):
    return sorted(lake.rows(), key=lambda row: row["id"])


def metadata(done):
    (event,) = done.get_asset_materialization_events()
    return event.step_materialization_data.materialization.metadata


# Of each kind: type, values in SQL, as a reader of Parquet finds them, as CSV has them.
WHOLE = ("bigint", ["9007199254740993", "NULL", "-9223372036854775808"], [2**53 + 1, None, -(2**63)], None)
EDGES = {
    "postgresql": {
        "whole": WHOLE,
        "large": ("numeric(20,0)", [str(LARGE), "NULL", "0"], [Decimal(LARGE), None, Decimal(0)], None),
        "wide": ("numeric(50,10)", [LONG, "NULL", "0.1"], [Decimal(LONG), None, Decimal("0.1000000000")], None),
        "free": ("numeric", [LONG, "'NaN'", "NULL"], [LONG, "NaN", None], [f'"{LONG}"', '"NaN"', ""]),
        "json": ("jsonb", ["'null'", "NULL", "'{}'"], ["null", None, "{}"], ['"null"', "", '"{}"']),
    },
    "mysql": {
        "whole": WHOLE,
        "large": ("bigint unsigned", [str(LARGE), "NULL", "0"], [LARGE, None, 0], None),
        "wide": ("decimal(50,10)", [LONG, "NULL", "0.1"], [Decimal(LONG), None, Decimal("0.1000000000")], None),
        "json": ("json", ["'null'", "NULL", "'{}'"], ["null", None, "{}"], ['"null"', "", '"{}"']),
    },
    "sqlite": {
        "whole": WHOLE,
        "wide": (
            "decimal(50,10)",
            ["12345.6789012345", "NULL", "'0.1'"],
            [Decimal("12345.6789012345"), None, Decimal("0.1000000000")],
            None,
        ),
        "json": ("json", ["'null'", "NULL", "'{}'"], ["null", None, "{}"], ['"null"', "", '"{}"']),
    },
    "duckdb": {
        "whole": WHOLE,
        "large": ("ubigint", [str(LARGE), "NULL", "0"], [LARGE, None, 0], None),
        "wide": (
            "hugeint",
            ["9" * 38, "NULL", f"-{'9' * 38}"],
            [Decimal("9" * 38), None, Decimal(f"-{'9' * 38}")],
            None,
        ),
        "json": ("json", ["'null'", "NULL", "'{}'"], ["null", None, "{}"], ['"null"', "", '"{}"']),
    },
}


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_values_at_the_edge_arrive_digit_for_digit_beside_nulls(shelf, database, fmt):
    columns = EDGES[database.kind]
    declared = ", ".join(f"{name} {kind}" for name, (kind, *_) in columns.items())
    rows = [f"({n}, {', '.join(sql[n] for _, sql, *_ in columns.values())})" for n in range(3)]
    database.execute(f"CREATE TABLE t (id int, {declared})", f"INSERT INTO t VALUES {', '.join(rows)}")
    done = export(shelf, database, settings={"format": fmt})
    assert done.success, said(done)
    (body,) = read_as_a_reader(shelf.raw)
    if fmt == "parquet":
        found = pq.read_table(io.BytesIO(body)).sort_by("id")
        assert {name: found[name].to_pylist() for name in columns} == {
            n: expected for n, (_, _, expected, _) in columns.items()
        }
        return
    _, *lines = body.decode().split("\r\n")[:-1]
    shown = [text or ["" if v is None else str(v) for v in values] for _, _, values, text in columns.values()]
    assert sorted(lines) == [",".join([str(n), *(texts[n] for texts in shown)]) for n in range(3)]
    assert len({len(row) for row in csv.reader(io.StringIO(body.decode(), newline=""))}) == 1


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.kind)
def test_a_column_that_begins_with_parts_of_nulls_has_one_type_in_all_of_them(shelf, database, mode):
    in_ranges(database, mode)
    nulls = ", ".join(f"({n}, NULL, NULL, NULL)" for n in range(450))
    database.execute(
        f"CREATE TABLE t (id {database.bigint} NOT NULL PRIMARY KEY, note {database.text}, day date, "
        f"price {database.decimal}(10,2))",
        f"INSERT INTO t VALUES {nulls}",
        "INSERT INTO t VALUES (450, 'late', '2024-02-29', 1.25)",
    )
    done = export(shelf, database, mode=mode, settings={"max_file_size": "1kB"})
    assert done.success, said(done)
    parts = [pq.read_table(io.BytesIO(body)) for body in read_as_a_reader(shelf.raw)]
    assert len(parts) > 1
    assert {str(part.schema.remove_metadata()) for part in parts} == {str(parts[0].schema.remove_metadata())}
    assert [parts[0].schema.field(n).type for n in range(1, 4)] == [pa.string(), pa.date32(), pa.decimal128(10, 2)]
    rows = pa.concat_tables(parts).to_pylist()
    assert [row["id"] for row in rows if row["note"] is None] == [*range(450)]
    assert [(r["note"], str(r["day"]), r["price"]) for r in rows if r["id"] == 450] == [
        ("late", "2024-02-29", Decimal("1.25"))
    ]


SPECIAL = {"postgresql": "'infinity'", "duckdb": "'-infinity'", "mysql": "'0000-00-00'", "sqlite": "'2024-02-30'"}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.kind)
def test_a_value_without_a_place_moves_nothing_until_a_policy_says_what_becomes_of_it(shelf, database, mode):
    in_ranges(database, mode)
    days = ", ".join(f"({n}, '2024-01-31')" for n in range(450))
    database.execute(
        f"CREATE TABLE t (id {database.bigint} NOT NULL PRIMARY KEY, day date)", f"INSERT INTO t VALUES {days}"
    )
    settings = {"max_file_size": "2kB"}
    assert export(shelf, database, mode=mode, settings=settings).success
    before = by_id(shelf)
    head = {name: body for name, body in shelf.raw.items() if "manifest-" not in name}
    # In the second part and in the last one.
    update = f"UPDATE t SET day = {SPECIAL[database.kind]} WHERE id IN (150, 449)"
    database.execute(update, **({"sql_mode": ""} if isinstance(database, MySQL) else {}))
    done = export(shelf, database, mode=mode, settings=settings)
    assert not done.success
    assert "column 'day'" in said(done)
    assert 'rd.cast("text")' in said(done)
    assert 'rd.cast(errors="coerce")' in said(done)
    assert not any(e.is_step_restarted for e in done.all_events), "it would be refused again"
    assert materialized(done) == 0
    assert {name: body for name, body in shelf.raw.items() if "manifest-" not in name} == head

    done = export(shelf, database, mode=mode, settings=settings, columns={"day": rd.cast(errors="coerce")})
    assert metadata(done)["rivet/coerced"].value == {"day": 2}
    assert by_id(shelf) == [{**row, "day": None} if row["id"] in (150, 449) else row for row in before]

    done = export(shelf, database, mode=mode, settings=settings, columns={"day": "text"})
    shown = SPECIAL[database.kind].strip("'")
    assert [row["day"] for row in by_id(shelf)] == [shown if n in (150, 449) else "2024-01-31" for n in range(450)]
    assert "rivet/coerced" not in metadata(done)


def test_a_stream_says_what_it_coerced(shelf, tmp_path, capfd):
    database = Sqlite(tmp_path / "shop.sqlite")
    database.execute("CREATE TABLE t (id integer, day date)", "INSERT INTO t VALUES (1, 'soon'), (2, '2024-01-31')")
    done = export(shelf, database, io_manager=rd.StdoutIOManager(), columns={"day": rd.cast(errors="coerce")})
    assert metadata(done)["rivet/coerced"].value == {"day": 1}
    assert '"id","day"\r\n1,\r\n2,2024-01-31\r\n' in capfd.readouterr().out


def test_rows_whose_key_is_null_are_never_left_out(shelf, database):
    """A key that may be NULL divides nothing; one that is found instead leaves no row out."""
    in_ranges(database, MODES[1])
    rows = ", ".join(f"({n}, {'NULL' if n % 5 == 0 else n})" for n in range(1, 451))
    database.execute(
        f"CREATE TABLE t (id {database.bigint} NOT NULL PRIMARY KEY, place {database.bigint} UNIQUE)",
        f"INSERT INTO t VALUES {rows}",
    )
    done = export(shelf, database, mode=rd.Chunked(key="place", rows_per_part=100))
    assert not done.success
    assert "'place' may be NULL" in said(done)
    assert not any(e.is_step_restarted for e in done.all_events)
    assert shelf.raw == {}
    assert export(shelf, database, mode=MODES[1]).success
    assert [(row["id"], row["place"]) for row in by_id(shelf)] == [(n, n if n % 5 else None) for n in range(1, 451)]
