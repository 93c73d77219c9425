"""Exports of a source, planned: everything is known before the first row, and the source is always free again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from rivet_dagster.errors import ConfigError, ContractError, PlanRejected, SourceError
from rivet_dagster.exports.extraction import Extraction, plan_export
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.modes import TimeWindow
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.partitions import Partition
from rivet_dagster.exports.spec import Export, cast
from rivet_dagster.manifest import Column, Content, Dataset, Identity
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.connect import connect
from tests.unit.encoded import Shelf, bodies, read_back


def column(name: str, kind: pa.DataType, *, nullable: bool = True, source_type: str = "whatever") -> ResultColumn:
    return ResultColumn(name=name, source_type=source_type, nullable=nullable, arrow_type=kind)


class FakeSource:
    """A source and its one stream, that say what was asked of them."""

    engine = "postgresql"
    database = "shop"

    def __init__(self, columns: list[ResultColumn], batches: Any = (), error: Exception | None = None) -> None:
        self.columns = tuple(columns)
        self.batches = batches
        self.error = error
        self.asked: list[Query] = []
        self.read = 0
        self.closed = 0

    def open(self, query: Query) -> FakeSource:
        self.asked.append(query)
        if self.error:
            raise self.error
        return self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            self.read += 1
            yield batch

    def close(self) -> None:
        self.closed += 1


ID = column("id", pa.int64(), nullable=False, source_type="bigint")
AT = column("at", pa.timestamp("us", "UTC"), source_type="timestamptz")
ORDERS = Export(name="orders", table="public.orders")


def plan(source: Any, export: Export = ORDERS, **settings: Any) -> Extraction:
    return plan_export(
        export, export_name="shop/orders", source=source, output=resolve_output(export=export, **settings), head=None
    )


def test_the_content_says_what_is_known_and_no_row_is_read() -> None:
    source = FakeSource([ID, AT], [pa.RecordBatch.from_pylist([{"id": 1, "at": None}])])
    planned = plan(source)
    assert planned.content == Content(
        export_name="shop/orders",
        identity=Identity(export="shop/orders", database="postgresql:shop", relation="public.orders"),
        dataset=Dataset.SNAPSHOT,
        strategy="full",
        engine="postgresql",
        database_schema="public",
        table="orders",
        format="parquet",
        compression="zstd",
        columns=(
            Column(name="id", type="int64", source_type="bigint", nullable=False),
            Column(name="at", type="timestamp[us, tz=UTC]", source_type="timestamptz", nullable=True),
        ),
    )
    assert (source.read, source.closed) == (0, 0)
    assert source.asked == [Query(table="public.orders", sql=None, casts={})]


def test_the_content_holds_no_sql() -> None:
    export = Export(name="orders", query="select id from secret_table", columns={"id": cast("text")})
    source = FakeSource([ID])
    planned = plan(source, export)
    assert source.asked == [Query(table=None, sql="select id from secret_table", casts={"id": "text"})]
    assert "secret_table" not in str(planned.content)
    assert planned.content.identity.relation == export.relation
    assert (planned.content.database_schema, planned.content.table) == (None, None)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("orders", (None, "orders")),
        ("public.orders", ("public", "orders")),
        ('"a.b"', (None, '"a.b"')),
        ('public."a.b"', (None, 'public."a.b"')),
    ],
)
def test_a_dot_in_quotes_divides_nothing(table: str, named: tuple[str | None, str]) -> None:
    content = plan(FakeSource([ID]), Export(name="orders", table=table)).content
    assert (content.database_schema, content.table) == named


def test_the_settings_of_the_export_win() -> None:
    export = Export(name="orders", table="t", format=Csv(compression="gzip"), skip_empty=True)
    planned = plan(FakeSource([ID]), export, format="parquet")
    assert (planned.suffix, planned.skip_empty) == (".csv.gz", True)
    assert (planned.content.format, planned.content.compression) == ("csv", "gzip")


def test_rows_become_parts_of_the_declared_schema() -> None:
    batches = [pa.RecordBatch.from_pydict({"id": [i], "at": pa.array([None], AT.arrow_type)}) for i in range(5)]
    source = FakeSource([ID, AT], batches)
    planned = plan(source)
    found = read_back(list(planned.parts(Shelf().stage)))
    assert found["id"].to_pylist() == [0, 1, 2, 3, 4]
    assert found.schema == pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", AT.arrow_type)])
    planned.close()
    planned.close()
    assert source.closed >= 2


class TestRefusals:
    """Nothing was read, and the source is free."""

    @pytest.mark.parametrize(
        ("columns", "export", "settings", "said"),
        [
            ([ID, ID], ORDERS, {}, "shop/orders.*'id'"),
            ([], ORDERS, {}, "shop/orders.*at least one column"),
            ([ID], Export(name="orders", table="t", columns={"ID": cast("text")}), {}, r"\['id'\].*\['ID'\]"),
            ([ID, column("tags", pa.list_(pa.string()))], ORDERS, {"format": "csv"}, "csv-column-type.*'tags'"),
            ([ID, column("span", pa.month_day_nano_interval())], ORDERS, {}, "parquet-column-type.*'span'"),
            ([ID], ORDERS, {"format": Parquet(level=40)}, "codec-level"),
        ],
    )
    def test_before_the_first_row(self, columns: list[ResultColumn], export: Export, settings: Any, said: str) -> None:
        source = FakeSource(columns)
        with pytest.raises(ConfigError, match=said):
            plan(source, export, **settings)
        assert (source.read, source.closed) == (0, 1)

    def test_all_columns_that_a_format_cannot_hold_at_once(self) -> None:
        source = FakeSource([column(n, pa.list_(pa.int64())) for n in "abc"])
        with pytest.raises(PlanRejected) as e:
            plan(source, format="csv")
        assert [d.message.split(" is ")[0] for d in e.value.diagnostics] == [f"column {n!r}" for n in "abc"]

    def test_an_error_of_the_source_is_told_as_it_is(self) -> None:
        with pytest.raises(SourceError, match="no such table"):
            plan(FakeSource([ID], error=SourceError("no such table")))


class TestWhatIsNotAsDescribed:
    def parts(self, columns: list[ResultColumn], *batches: pa.RecordBatch) -> Shelf:
        shelf = Shelf()
        list(plan(FakeSource(columns, batches)).parts(shelf.stage))
        return shelf

    def test_null_in_a_column_that_has_none(self) -> None:
        fine, bad = (pa.RecordBatch.from_pydict({"id": pa.array([v], pa.int64())}) for v in (1, None))
        with pytest.raises(ContractError, match=r"shop/orders.*'id'.*NULL"):
            self.parts([ID], fine, bad)

    @pytest.mark.parametrize("other", [pa.int32(), pa.string(), pa.null()])
    def test_another_type(self, other: pa.DataType) -> None:
        with pytest.raises(ContractError, match=f"shop/orders.*'id'.*int64.*{other}"):
            self.parts([ID], pa.RecordBatch.from_arrays([pa.nulls(1, other)], ["id"]))

    def test_other_columns(self) -> None:
        with pytest.raises(ContractError, match=r"shop/orders.*\['id'\].*\['no'\]"):
            self.parts([ID], pa.RecordBatch.from_pydict({"no": [1]}))


@pytest.mark.parametrize("fmt", [Parquet(), Csv(), Csv(compression="zstd")])
def test_a_real_database_whatever_its_batches(tmp_path: Path, fmt: Any) -> None:
    """The same table, read in batches of one row and of thousands, gives the same parts."""
    at = tmp_path / "shop.db"
    with sqlite3.connect(at) as db:
        db.execute("create table orders (id integer primary key, status text, total real)")
        db.executemany(
            "insert into orders values (?, ?, ?)", [(i, None if i % 3 else f"s{i % 5}", i / 7) for i in range(3_000)]
        )
    db.close()
    found = []
    for rows in (1, 500, 65_536):
        source = connect(f"sqlite:///{at}", batch_rows=rows)
        planned = plan(source, Export(name="orders", table="orders", format=fmt, max_file_size="4kB"))
        found.append(bodies(list(planned.parts(Shelf().stage))))
        planned.close()
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 2
    suffix = resolve_output(format=fmt).suffix
    for i, body in enumerate(found[0]):
        (tmp_path / f"{i:03}{suffix}").write_bytes(body)
    read = duckdb.sql(f"select count(*), sum(id), count(status), sum(total) from '{tmp_path}/*{suffix}'").fetchall()
    assert read == [(3_000, sum(range(3_000)), 1_000, pytest.approx(sum(i / 7 for i in range(3_000))))]


def test_a_source_without_windows_is_refused_for_some_rows() -> None:
    source = FakeSource([ID, AT])
    some = Export(name="orders", table="orders", partition_by="id")
    last = Export(name="orders", table="orders", mode=TimeWindow(time_column="at", days=1))
    output = resolve_output(export=some)
    for export, partition in ((some, Partition(key="1")), (last, None)):
        with pytest.raises(ConfigError, match="a source with windows for partitions and TimeWindow, found postgresql"):
            plan_export(export, export_name="o", source=source, output=output, head=None, partition=partition)
    assert source.asked == []
