"""No rows, and many: a delivery says what columns there are, has no empty part, and counts what can be read."""

import json
import sqlite3

import dagster as dg
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from tests import rivet_cli
from tests.faults.kit import read_as_a_reader
from tests.faults.lakes import said, table_of
from tests.servers import postgres

FULL = pa.table({"id": [1, 2], "name": ["a", None]})
NONE = FULL.slice(0, 0)
VALUES = {
    "a frame": NONE.to_pandas,
    "a table": lambda: NONE,
    "a table without chunks": lambda: pa.Table.from_batches([], schema=NONE.schema),
    "a reader": NONE.to_reader,
    "a reader of nothing": lambda: pa.RecordBatchReader.from_batches(NONE.schema, []),
    "batches of nothing": lambda: rd.Batches(iter([]), schema=NONE.schema),
    "empty batches": lambda: rd.Batches(iter([NONE, NONE.to_pandas(), pa.RecordBatch.from_pylist([], NONE.schema)])),
}


def check_nothing(lake, done, names, fmt, tmp_path):
    """A whole delivery of no rows, by every account of it."""
    assert done.success, said(done)
    raw = lake.raw
    manifest = json.loads(raw["orders/manifest.json"])
    assert (manifest["row_count"], manifest["part_count"], manifest["parts"]) == (0, 0, [])
    assert [c["name"] for c in manifest["columns"]] == names
    assert raw.keys() == {
        "orders/manifest.json",
        f"orders/manifest-{manifest['run_id']}.json",
        "orders/_SUCCESS",
    }
    (event,) = done.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    assert metadata["dagster/row_count"].value == 0
    assert [c.name for c in metadata["dagster/column_schema"].schema.columns] == names
    assert [c.passed for c in done.get_asset_check_evaluations()] == [True]
    place = rivet_cli.local(lake.harness.root / "orders")
    opinion = rivet_cli.validate(place, workdir=tmp_path, export_format=fmt)
    assert (opinion.passed, opinion.marker) == (True, True)


@pytest.mark.parametrize(
    ("kind", "fmt", "limit"), [*((kind, "parquet", None) for kind in VALUES), ("a frame", "csv", "1KB")]
)
def test_a_value_without_rows_is_a_delivery_with_its_columns(shelf, tmp_path, kind, fmt, limit):
    assert shelf.export(FULL, format=fmt).success
    done = shelf.export(VALUES[kind], checks=True, format=fmt, max_file_size=limit)
    check_nothing(shelf, done, ["id", "name"], fmt, tmp_path)
    assert shelf.load(pa.Table).equals(NONE) or kind == "a frame"
    assert shelf.export(FULL, format=fmt).success
    assert shelf.rows() == FULL.to_pylist()


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_a_delivery_without_rows_is_read_back_with_its_columns(shelf, fmt):
    assert shelf.export(NONE, format=fmt).success
    receipt, frame = shelf.load(rd.ExportReceipt), shelf.load(pd.DataFrame)
    assert (receipt.row_count, receipt.parts) == (0, ())
    assert ([*frame.columns], len(frame)) == (["id", "name"], 0)
    assert shelf.load(pa.Table).equals(NONE)
    assert shelf.load(pa.RecordBatchReader).read_all().equals(NONE)
    assert shelf.load(ds.Dataset).to_table().equals(NONE)


@pytest.mark.parametrize("dtype", [object, float])
@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_an_empty_frame_among_partitions_is_read_with_them_or_named(shelf, fmt, dtype):
    """pandas gives columns without values a type of its own: none at all is anybody's, a number is not."""
    days = dg.StaticPartitionsDefinition(["a", "b"])
    there = {"io_manager": shelf.io_manager(format=fmt), "memory": dg.mem_io_manager}
    given = []

    @dg.asset(partitions_def=days)
    def orders(context: dg.AssetExecutionContext):
        empty = pd.DataFrame({"id": [], "name": []}, dtype=dtype)
        return FULL.to_pandas() if context.partition_key == "a" else empty

    @dg.asset(io_manager_key="memory")
    def downstream(orders: pa.Table):
        given.append(orders.to_pylist())

    for key in ("a", "b"):
        assert dg.materialize([orders], instance=shelf.instance, resources=there, partition_key=key).success
    done = dg.materialize(
        [orders, downstream],
        selection=[downstream],
        instance=shelf.instance,
        resources=there,
        raise_on_error=False,
    )
    if dtype is object:
        assert done.success, said(done)
        assert given == [FULL.to_pylist()]
    else:
        assert "ReadError" in said(done)
        assert "id has incompatible types: int64 vs double" in said(done)
        assert "dict[str" in said(done)


def test_what_has_neither_rows_nor_columns_is_refused(shelf):
    assert shelf.export(FULL).success
    before = shelf.raw
    for nothing in (pd.DataFrame(), pa.table({}), rd.Batches(iter([]))):
        done = shelf.export(nothing)
        assert not done.success
        assert "column" in said(done)
    assert shelf.raw == before


TABLES = {
    "sqlite": "create table orders (id integer primary key, name text, price decimal(10, 2), paid_at timestamp)",
    "duckdb": "create table orders (id bigint primary key, name text, price decimal(10, 2), paid_at timestamptz)",
    "postgresql": "create table orders (id bigint primary key, name text, price numeric(10, 2), paid_at timestamptz)",
}
QUERY = "select id, upper(name) as name, 1 as one from orders where 1 = 0"
READ = {
    "a table": ("parquet", None, {"table": "orders"}, ["id", "name", "price", "paid_at"]),
    "a query": ("csv", "1KB", {"query": QUERY}, ["id", "name", "one"]),
    "ranges": (
        "csv",
        None,
        {"table": "orders", "mode": rd.Chunked(key="id", rows_per_part=10)},
        ["id", "name", "price", "paid_at"],
    ),
}


@pytest.fixture(params=TABLES)
def database(request, servers, tmp_path):
    """Each database with an empty table."""
    path = tmp_path / "shop.db"
    match request.param:
        case "sqlite":
            with sqlite3.connect(path) as connection:
                connection.execute(TABLES["sqlite"])
            connection.close()
            yield f"sqlite:///{path}"
        case "duckdb":
            with duckdb.connect(path) as connection:
                connection.execute(TABLES["duckdb"])
            yield f"duckdb:///{path}"
        case _:
            server = servers(postgres)
            server.execute(TABLES["postgresql"])
            yield server.url
            server.execute("drop table orders")


@pytest.mark.parametrize("what", READ)
def test_a_database_without_rows_is_a_delivery_with_its_columns(shelf, tmp_path, database, what):
    fmt, limit, given, names = READ[what]
    asset = rd.build_export_asset(rd.Export(name="orders", **given))
    there = {
        "io_manager": shelf.io_manager(format=fmt, max_file_size=limit),
        "source": rd.DatabaseResource(url=database),
    }
    done = dg.materialize(
        [asset, *rd.build_manifest_checks(asset)],
        instance=shelf.instance,
        resources=there,
        raise_on_error=False,
    )
    check_nothing(shelf, done, names, fmt, tmp_path)


def test_no_rows_leave_no_object_for_them_in_any_store(cloud):
    assert cloud.export(NONE).success
    assert cloud.rows() == []
    assert not [name for name in cloud.raw if "/data/" in name]
    assert cloud.litter() == []


def test_what_is_counted_is_what_is_there(lake):
    """Over many parts, each with a name of its own."""
    _counted(lake, "csv", "100KB")


def test_what_is_counted_is_what_is_there_as_parquet(shelf):
    _counted(shelf, "parquet", "20KB")


def _counted(lake, fmt, limit):
    rows = pa.table({"id": range(40_000), "half": [n / 2 for n in range(40_000)]})
    done = lake.export(lambda: rd.Batches(rows.to_batches(max_chunksize=999)), format=fmt, max_file_size=limit)
    assert done.success, said(done)
    raw = lake.raw
    manifest = json.loads(raw["orders/manifest.json"])
    parts = [table_of(body) for body in read_as_a_reader(raw)]
    assert len(parts) > 3
    assert len({p["path"] for p in manifest["parts"]}) == len(parts)
    assert [p["rows"] for p in manifest["parts"]] == [p.num_rows for p in parts]
    assert all(p.num_rows for p in parts)
    assert pa.concat_tables(parts).equals(rows)
    (event,) = done.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    assert metadata["dagster/row_count"].value == manifest["row_count"] == 40_000
    assert metadata["rivet/bytes"].value == sum(len(raw[f"orders/{p['path']}"]) for p in manifest["parts"])


@pytest.mark.parametrize("rows", [1, 2, 8, 100])
def test_no_row_group_and_no_last_part_is_empty(shelf, rows):
    """Where a row fills a part, and a batch ends where a part does."""
    table = pa.table({"id": range(rows)})
    batches = [NONE.select(["id"]), *table.to_batches(max_chunksize=1), NONE.select(["id"])]
    assert shelf.export(lambda: rd.Batches(iter(batches)), max_file_size="1B").success
    parts = [*(shelf.harness.root / "orders/data").iterdir()]
    counts = [pq.ParquetFile(p).metadata for p in parts]
    assert len(parts) == rows
    assert all(m.row_group(n).num_rows for m in counts for n in range(m.num_row_groups))
    assert [r["id"] for r in shelf.rows()] == [*range(rows)]
