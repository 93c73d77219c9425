"""Columns that are not those of the dataset: what becomes of a run, and how the rows that were there are read."""

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import rivet_dagster as rd
from rivet_dagster.manifest import Column, schema_fingerprint
from tests.orchestration.kit import failure, lines, materialization, on_disk, plain, run

FULL, CHUNKED = rd.Full(), rd.Chunked(rows_per_part=40)
ADDING = rd.Incremental(cursor_column="id")
ANEW = {"ops": {"orders": {"config": {"full_refresh": True}}}}


class Orders:
    """A table whose columns change, and the dataset that it is exported to."""

    def __init__(self, file: Path, lake: Path, instance: dg.DagsterInstance) -> None:
        self.file, self.lake, self.instance = file, lake, instance
        self.io_manager = rd.LocalIOManager(path=str(lake))

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def export(self, *, run_config: Any = None, **settings: Any) -> dg.ExecuteInProcessResult:
        orders = rd.build_export_asset(rd.Export(name="orders", table="orders", **settings))
        source = rd.DatabaseResource(url=f"sqlite:///{self.file}")
        return run([orders], self.io_manager, self.instance, resources={"source": source}, run_config=run_config)

    def done(self, **settings: Any) -> dict[str, Any]:
        result = self.export(**settings)
        assert result.success
        return plain(materialization(result, "orders").metadata)

    def refused(self, **settings: Any) -> str:
        """What a run that must fail says; nothing that can be read has changed."""
        before = {k: v for k, v in on_disk(self.lake).items() if "manifest-" not in k}
        result = self.export(**settings)
        assert not result.success
        assert {k: v for k, v in on_disk(self.lake).items() if "manifest-" not in k} == before
        return str(failure(result, "orders").user_failure_data.description)

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.lake / "orders" / "manifest.json").read_bytes())

    def loaded(self, annotation: Any) -> Any:
        """What a downstream asset gets."""
        found = []

        @dg.asset(io_manager_key="nowhere")
        def after(orders: annotation) -> None:
            found.append(orders.to_table() if annotation is ds.Dataset else orders)

        result = run(
            [dg.AssetSpec("orders").with_io_manager_key("io_manager"), after],
            self.io_manager,
            self.instance,
            resources={"nowhere": dg.mem_io_manager},
        )
        assert result.success
        return found[0]


@pytest.fixture
def orders(shop_file: Path, lake: Path, instance: dg.DagsterInstance) -> Orders:
    return Orders(shop_file, lake, instance)


DRIFT = {
    "added": [{"name": "more", "type": "int64"}],
    "removed": [{"name": "note", "type": "string"}],
    "retyped": [{"name": "price", "was": "double", "is": "int64"}],
}


def drift(orders: Orders) -> None:
    orders.sql(
        "drop table orders",
        "create table orders (id integer primary key, price integer not null, more integer)",
        "insert into orders values (1, 2, 3)",
    )


@pytest.mark.parametrize("mode", [FULL, CHUNKED])
def test_a_snapshot_is_replaced_with_a_warning(orders: Orders, mode: Any) -> None:
    assert "rivet/schema_drift" not in orders.done(mode=mode)
    drift(orders)
    result = orders.export(mode=mode)
    assert result.success
    assert plain(materialization(result, "orders").metadata)["rivet/schema_drift"] == DRIFT
    (said,) = [x for x in lines(orders.instance, result.run_id, level=logging.WARNING) if "columns" in x]
    assert said == (
        "export 'orders': the columns are not those of the dataset that is there: column 'more' (int64) is new, "
        "column 'note' (string) is gone, column 'price' was double and is int64"
    )
    assert "rivet/schema_drift" not in orders.done(mode=mode, on_schema_drift="fail")


def test_a_snapshot_is_replaced_without_a_word_or_not_at_all(orders: Orders) -> None:
    orders.done()
    drift(orders)
    said = orders.refused(on_schema_drift="fail")
    assert "is new, column 'note' (string) is gone, column 'price' was double and is int64; set them back, set" in said
    assert "rivet/schema_drift" not in orders.done(on_schema_drift="fail", run_config=ANEW)
    orders.sql("alter table orders add column yet_more text")
    result = orders.export(on_schema_drift="allow")
    assert "rivet/schema_drift" not in materialization(result, "orders").metadata
    assert not [x for x in lines(orders.instance, result.run_id, level=logging.WARNING) if "columns" in x]


def test_each_partition_is_compared_with_its_own_dataset(orders: Orders, instance: Any, lake: Path) -> None:
    asset = rd.build_export_asset(
        rd.Export(name="orders", table="orders", partition_by="id", on_schema_drift="fail"),
        partitions_def=dg.StaticPartitionsDefinition(["1", "2"]),
    )
    source = {"source": rd.DatabaseResource(url=f"sqlite:///{orders.file}")}
    assert run([asset], orders.io_manager, instance, resources=source, partition_key="1").success
    orders.sql("alter table orders add column more integer")
    assert run([asset], orders.io_manager, instance, resources=source, partition_key="2").success
    result = run([asset], orders.io_manager, instance, resources=source, partition_key="1")
    assert "column 'more' (int64) is new" in failure(result, "orders").user_failure_data.description


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_what_is_added_to_may_get_columns_that_are_null_before(orders: Orders, fmt: Any) -> None:
    """Three deliveries, each with a column more, in every way that they can be read."""
    settings = {"mode": ADDING, "format": fmt, "max_file_size": "1kB"}
    first = orders.done(**settings)
    orders.sql("alter table orders add column more integer", "insert into orders values (101, 'n', 1.5, 7)")
    said = orders.refused(**settings)
    assert "column 'more' (int64) is new; set on_schema_drift=\"allow\" to add them, NULL in the rows that are" in said
    assert orders.refused(**settings, on_schema_drift="fail") == said
    warned = orders.done(**settings, on_schema_drift="warn")
    assert warned["rivet/schema_drift"] == {"added": [{"name": "more", "type": "int64"}]}
    orders.sql("alter table orders add column raw blob", "insert into orders values (102, 'n', 1.5, 8, x'00ff')")
    allowed = orders.done(**settings, on_schema_drift="allow")
    assert "rivet/schema_drift" not in allowed
    # Another run without new columns, and one without rows.
    orders.sql("insert into orders values (103, 'n', 1.5, null, null)")
    orders.done(**settings)
    orders.done(**settings)

    columns = [Column(name=c["name"], type=c["type"]) for c in orders.manifest["columns"]]
    assert [c.name for c in columns] == ["id", "note", "price", "more", "raw"]
    assert orders.manifest["schema_fingerprint"] == schema_fingerprint(columns)
    assert len({m["rivet/data_version"] for m in (first, warned, allowed)}) == 3

    def check(table: pa.Table) -> None:
        assert table.schema.names == ["id", "note", "price", "more", "raw"]
        table = table.sort_by("id")
        assert table["id"].to_pylist() == list(range(1, 104))
        assert table["more"].to_pylist() == [None] * 100 + [7, 8, None]
        assert [str(v) for v in table["raw"].to_pylist()][100:] == ["None", raw, "None"]
        assert table["raw"].null_count == 102

    raw = str(b"\x00\xff")
    check(orders.loaded(pa.Table))
    frame = orders.loaded(pd.DataFrame).sort_values("id")
    assert [*frame.columns] == ["id", "note", "price", "more", "raw"]
    assert frame["more"].dtype == pd.Int64Dtype()
    assert frame["more"].isna().sum() == 101
    assert frame["more"].tolist()[100:102] == [7, 8]
    raw = str(b"\x00\xff") if fmt == "parquet" else "00ff"
    check(orders.loaded(ds.Dataset))
    chain = [orders.manifest]
    while chain[-1]["dataset"] == "append":
        side = orders.lake / "orders" / f"manifest-{chain[-1]['previous']['run_id']}.json"
        chain.append(json.loads(side.read_bytes()))
    parts = [str(orders.lake / "orders" / p["path"]) for m in chain for p in m["parts"]]
    read = "read_parquet" if fmt == "parquet" else "read_csv"
    found = duckdb.sql(f"select count(*), count(more), sum(more) from {read}({parts}, union_by_name = true)").fetchall()
    assert found == [(103, 2, 15)]


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_a_new_column_may_stand_anywhere(orders: Orders, fmt: Any) -> None:
    """The rows of all deliveries come under the columns of the newest one, in its order."""
    orders.done(mode=ADDING, format=fmt)
    orders.sql(
        "alter table orders rename to before",
        "create table orders (id integer primary key, more integer, note text, price real not null)",
        "insert into orders select id, null, note, price from before union all select 101, 7, 'n', 1.5",
    )
    orders.done(mode=ADDING, format=fmt, on_schema_drift="allow")
    for annotation in (pa.Table, ds.Dataset):
        table = orders.loaded(annotation)
        assert table.schema.names == ["id", "more", "note", "price"]
        assert table.sort_by("id").slice(99).to_pylist() == [
            {"id": 100, "more": None, "note": "note 100", "price": 25.0},
            {"id": 101, "more": 7, "note": "n", "price": 1.5},
        ]


def test_an_empty_dataset_may_grow_too(orders: Orders) -> None:
    orders.sql("delete from orders")
    orders.done(mode=ADDING)
    orders.sql("alter table orders add column more integer", "insert into orders values (101, 'n', 1.5, 7)")
    orders.done(mode=ADDING, on_schema_drift="allow")
    for annotation in (pa.Table, ds.Dataset):
        assert orders.loaded(annotation).to_pylist() == [{"id": 101, "note": "n", "price": 1.5, "more": 7}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["alter table orders drop column note"], "column 'note' (string) is gone"),
        (["alter table orders rename column note to memo"], "column 'memo' (string) is new, column 'note' (string) is"),
        (
            [
                "drop table orders",
                "create table orders (id integer primary key, note text, price integer not null)",
                "insert into orders values (101, 'n', 1)",
            ],
            "column 'price' was double and is int64",
        ),
        (
            [
                "drop table orders",
                "create table orders (id integer primary key, price real not null, note text)",
                "insert into orders values (101, 1.5, 'n')",
            ],
            "their order was id, note, price and is id, price, note",
        ),
    ],
)
def test_what_the_rows_before_cannot_have_is_refused_whatever_is_set(
    orders: Orders, changes: list[str], said: str
) -> None:
    orders.done(mode=ADDING)
    orders.sql(*changes)
    for policy in (None, "warn", "allow"):
        found = orders.refused(mode=ADDING, on_schema_drift=policy)
        assert said in found
        assert "on_schema_drift" not in found
        assert "full_refresh: true" in found
    orders.done(mode=ADDING, run_config=ANEW)
