"""A downstream asset gets what its annotation asks for, of what a valid manifest lists and nothing else."""

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import rivet_dagster as rd
from tests.faults.kit import Trouble
from tests.orchestration.kit import failure, faulty_local, on_disk, plain, run, told

BIG = 9007199254740993
UTC = dt.timezone.utc
ROWS = pa.table(
    {
        "id": pa.array([1, BIG, None], pa.int64()),
        "exact": pa.array([1, 2, 3], pa.int64()),
        "text": pa.array(["", None, 'a "quoted"\nline, é'], pa.string()),
        "flag": pa.array([True, None, False]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(12, 2)),
        "ratio": pa.array([0.1, float("inf"), None], pa.float64()),
        "day": pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
        "clock": pa.array([dt.time(23, 59, 59, 999999), None, dt.time(0)], pa.time64("us")),
        "at": pa.array([dt.datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=UTC), None, None], pa.timestamp("us", tz="UTC")),
        "local": pa.array([dt.datetime(2024, 1, 1), None, dt.datetime(1900, 1, 1)], pa.timestamp("us")),
        "raw": pa.array([b"\x00\xff", None, b""], pa.binary()),
    }
)


def _load(instance, lake, annotation, value=ROWS, *, upstream=None, metadata=None, partition_key=None, io_manager=None):
    """What a downstream asset with this annotation is given."""
    given = []

    @dg.asset(name="orders", metadata=metadata)
    def orders():
        return value

    def body(context, orders):
        given.append(orders)

    body.__annotations__ = {"orders": annotation} if annotation is not None else {}
    down = dg.asset(name="down", io_manager_key="mem", ins={"orders": dg.AssetIn()})(body)
    result = run(
        [upstream or orders, down],
        io_manager or rd.LocalIOManager(path=str(lake)),
        instance,
        resources={"mem": dg.mem_io_manager},
        partition_key=partition_key,
    )
    return result, (given[0] if given else None)


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
@pytest.mark.parametrize("size", [None, "200B"], ids=["one-part", "parts"])
def test_an_arrow_table_comes_back_as_it_went(instance, lake, file_format, size):
    metadata = {"rivet/format": file_format} | ({"rivet/max_file_size": size} if size else {})
    result, given = _load(instance, lake, pa.Table, metadata=metadata)
    assert result.success
    assert given.schema == ROWS.schema
    assert given.to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("annotation", [None, pd.DataFrame], ids=["unannotated", "annotated"])
def test_pandas_is_the_default_and_keeps_integers_exact(instance, lake, annotation):
    _, given = _load(instance, lake, annotation)
    assert isinstance(given, pd.DataFrame)
    assert given["id"].dtype == pd.Int64Dtype()
    assert given["id"].tolist()[:2] == [1, BIG]
    assert given["exact"].dtype == "int64"
    assert given["price"].tolist()[0] == Decimal("1.50")


def test_a_frame_survives_the_way_there_and_back(instance, lake):
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, 1.5]})
    _, given = _load(instance, lake, pd.DataFrame, frame)
    pd.testing.assert_frame_equal(given, frame)


def test_integers_within_others_stay_exact_in_pandas(instance, lake):
    rows = pa.table({"l": [[BIG, None], [1]], "s": [{"a": BIG}, {"a": None}]})
    _, given = _load(instance, lake, pd.DataFrame, rows)
    assert [list(x) for x in given["l"]] == [[BIG, None], [1]]
    assert given["s"].tolist() == [{"a": BIG}, {"a": None}]


@pytest.mark.parametrize(
    "odd", [pa.array([1], pa.time64("ns")), pa.array([3_000_000], pa.int32()).view(pa.date32())], ids=["time", "date"]
)
def test_what_pandas_cannot_hold_is_refused_with_the_remedy(instance, lake, odd):
    result, _ = _load(instance, lake, pd.DataFrame, pa.table({"odd": odd}))
    assert "annotate the input pyarrow.Table" in failure(result, "down").user_failure_data.description


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_a_dataset_is_lazy_and_reads_through_the_destination(instance, lake, file_format):
    calls: list[tuple[str, str]] = []
    metadata = {"rivet/format": file_format, "rivet/max_file_size": "100B"}
    result, given = _load(instance, lake, ds.Dataset, metadata=metadata, io_manager=faulty_local(lake, calls=calls))
    assert result.success
    assert isinstance(given, ds.Dataset)
    read_before = sum(op == "read" and "/data/" in key for op, key in calls)
    found = given.to_table(columns=["exact", "text"], filter=ds.field("exact") > 1)
    assert found.to_pydict() == {"exact": [2, 3], "text": [None, 'a "quoted"\nline, é']}
    assert sum(op == "read" and "/data/" in key for op, key in calls) > read_before


def test_a_reader_streams(instance, lake):
    _, given = _load(instance, lake, pa.RecordBatchReader)
    assert isinstance(given, pa.RecordBatchReader)
    assert given.read_all()["exact"].to_pylist() == [1, 2, 3]


def test_a_receipt_tells_what_there_is(instance, lake):
    result, given = _load(instance, lake, rd.ExportReceipt)
    assert isinstance(given, rd.ExportReceipt)
    assert given.manifest.dagster_run_id == result.run_id
    assert given.fingerprint == (lake / "orders/_SUCCESS").read_text().strip()
    assert given.row_count == 3
    assert given.uri == f"{lake.as_uri()}/orders/"


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
@pytest.mark.parametrize("annotation", [pd.DataFrame, pa.Table, ds.Dataset])
def test_an_empty_delivery_has_its_columns(instance, lake, file_format, annotation):
    result, given = _load(instance, lake, annotation, ROWS.slice(0, 0), metadata={"rivet/format": file_format})
    assert result.success
    names = given.schema.names if annotation is not pd.DataFrame else list(given.columns)
    assert names == ROWS.column_names
    if annotation is pa.Table:
        assert given.schema == ROWS.schema


def test_one_column_of_nothing_keeps_its_rows_as_csv(instance, lake):
    rows = pa.table({"a": pa.array([None, "x", None])})
    _, given = _load(instance, lake, pa.Table, rows, metadata={"rivet/format": "csv"})
    assert given.to_pydict() == {"a": [None, "x", None]}


def test_line_ends_in_text_survive_a_part_that_is_read_in_pieces(instance, lake):
    rows = pa.table({"id": range(60_000), "text": ["one line\nand another, longer one"] * 60_000})
    _, given = _load(instance, lake, pa.Table, rows, metadata={"rivet/format": "csv"})
    assert next((lake / "orders/data").iterdir()).stat().st_size > 2**21
    assert given.equals(rows)


def test_long_records_and_numbers_that_arrow_reads_from_no_csv_come_back(instance, lake):
    rows = pa.table(
        {
            "text": ['one "long"\r\n' * 250_000, ""],
            "wide": pa.array([Decimal("-1e-20"), None], pa.decimal256(60, 20)),
            "half": pa.array([float("inf"), None], pa.float16()),
        }
    )
    _, given = _load(instance, lake, pa.Table, rows, metadata={"rivet/format": "csv"})
    assert given.equals(rows)
    result, given = _load(instance, lake, ds.Dataset, rows, metadata={"rivet/format": "csv"})
    assert result.success
    assert given.to_table(columns=["text", "wide"])["wide"].to_pylist() == ["-0.00000000000000000001", None]


def test_csv_that_arrow_cannot_read_says_so_and_is_not_retried(instance, lake):
    rows = pa.table({"day": pa.array([-1_000_000], pa.int32()).view(pa.date32())})
    result, _ = _load(instance, lake, pa.Table, rows, metadata={"rivet/format": "csv"})
    said = failure(result, "down").user_failure_data
    for word in (f"{lake.as_uri()}/orders/", "-0768-02-04", "Parquet"):
        assert word in said.description


def test_an_empty_delivery_has_its_nested_columns(instance, lake):
    kinds = [
        pa.struct(
            [pa.field("a b", pa.list_(pa.field("element", pa.decimal128(3, 1)))), ("t", pa.timestamp("us", "UTC"))]
        ),
        pa.map_(pa.string(), pa.struct([pa.field("n", pa.int8(), nullable=False)])),
        pa.list_(pa.field("element", pa.large_list(pa.field("element", pa.uuid())), nullable=False), 3),
        pa.bool8(),
    ]
    schema = pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)])
    _, given = _load(instance, lake, pa.Table, rd.Batches([], schema=schema))
    assert given.schema == schema


def test_an_annotation_that_is_not_supported_names_those_that_are(instance, lake):
    result, _ = _load(instance, lake, list)
    said = failure(result, "down").user_failure_data.description
    assert "pyarrow.dataset.Dataset" in said
    assert "found typing.List" in said


def test_a_stream_cannot_be_read_back(instance, lake, capfd):
    @dg.asset(name="orders", io_manager_key="screen")
    def preview():
        return pd.DataFrame({"a": [1]})

    @dg.asset(io_manager_key="mem")
    def down(orders: pd.DataFrame):
        raise AssertionError

    named = {"screen": rd.StdoutIOManager(), "mem": dg.mem_io_manager}
    result = run([preview, down], dg.mem_io_manager, instance, resources=named)
    assert "stdout keeps nothing that could be read back" in failure(result, "down").user_failure_data.description


def test_only_what_the_manifest_lists_is_read(instance, lake):
    io_manager = rd.LocalIOManager(path=str(lake))
    _commit(io_manager, pd.DataFrame({"a": [1]}))
    (part,) = (lake / "orders/data").iterdir()
    (part.parent / "part-stranger-00001.parquet").write_bytes(part.read_bytes())
    assert _read(io_manager)["a"].tolist() == [1]


def test_the_newest_delivery_is_read_in_another_run(instance, lake):
    io_manager = rd.LocalIOManager(path=str(lake))
    _commit(io_manager, pd.DataFrame({"a": [1]}))
    _commit(io_manager, pd.DataFrame({"a": [2]}))
    assert _read(io_manager)["a"].tolist() == [2]


@pytest.mark.parametrize("retain", [0, 1])
def test_the_own_run_s_delivery_is_read_though_another_replaced_it(instance, lake, retain):
    io_manager, other = (rd.LocalIOManager(path=str(lake), retain=retain) for _ in range(2))
    given = []

    @dg.asset
    def orders():
        return pd.DataFrame({"a": [1]})

    @dg.asset(deps=[orders])
    def meanwhile() -> None:
        _commit(other, pd.DataFrame({"a": [2]}))

    @dg.asset(io_manager_key="mem", deps=[meanwhile])
    def down(orders: pd.DataFrame):
        given.extend(orders["a"].tolist())

    result = run([orders, meanwhile, down], io_manager, instance, resources={"mem": dg.mem_io_manager})
    if retain:
        assert result.success
        assert given == [1]
    else:
        said = failure(result, "down").user_failure_data
        assert "has replaced it" in said.description
        assert "retain" in said.description
        assert plain(said.metadata)["rivet/error"] == "ReadError"


def test_what_is_replaced_while_it_is_read_is_read_again(lake):
    newer = iter([2, 3])

    def replaces(key):
        if "/data/" in key and (n := next(newer, None)):
            _commit(rd.LocalIOManager(path=str(lake)), pd.DataFrame({"a": [n]}))
        return False

    _commit(rd.LocalIOManager(path=str(lake)), pd.DataFrame({"a": [1]}))
    reader = faulty_local(lake, Trouble("before", operation="read", key=replaces))
    assert _read(reader)["a"].tolist() == [3]


def test_a_commit_in_flight_shows_the_previous_delivery(lake):
    io_manager = rd.LocalIOManager(path=str(lake), retain=1)
    _commit(io_manager, pd.DataFrame({"a": [1]}))
    old_marker = (lake / "orders/_SUCCESS").read_bytes()
    _commit(io_manager, pd.DataFrame({"a": [2]}))
    (lake / "orders/_SUCCESS").write_bytes(old_marker)
    assert _read(io_manager)["a"].tolist() == [1]


def _damage_marker(prefix):
    (prefix / "_SUCCESS").write_text("xxh3:0123456789abcdef\n")


def _damage_manifest(prefix):
    body = (prefix / "manifest.json").read_bytes()
    (prefix / "manifest.json").write_bytes(body.replace(b'"sequence"', b'"sequence" '))


def _remove_part(prefix):
    next((prefix / "data").iterdir()).unlink()


def _cut_part(prefix):
    part = next((prefix / "data").iterdir())
    part.write_bytes(part.read_bytes()[:-1])


def _lengthen_part(prefix):
    part = next((prefix / "data").iterdir())
    part.write_bytes(part.read_bytes() + b"x")


def _remove_marker(prefix):
    (prefix / "_SUCCESS").unlink()


@pytest.mark.parametrize(
    "damage", [_damage_marker, _damage_manifest, _remove_part, _cut_part, _lengthen_part, _remove_marker]
)
def test_a_dataset_that_is_not_whole_is_refused(lake, damage):
    io_manager = rd.LocalIOManager(path=str(lake))
    _commit(io_manager, pd.DataFrame({"a": [1]}))
    damage(lake / "orders")
    with pytest.raises(dg.Failure) as caught:
        _read(io_manager)
    assert caught.value.allow_retries is False
    assert lake.as_uri() in caught.value.description
    assert isinstance(caught.value.__cause__, rd.ReadError)


def test_what_was_never_materialized_is_named(lake):
    with pytest.raises(dg.Failure) as caught:
        _read(rd.LocalIOManager(path=str(lake)))
    assert "a committed delivery of orders" in caught.value.description
    assert on_disk(lake) == {}


KEYS = ["b", "a", "c/d"]


def _partitioned():
    @dg.asset(name="orders", partitions_def=dg.StaticPartitionsDefinition(KEYS))
    def orders(context: dg.AssetExecutionContext):
        return pd.DataFrame({"key": [context.partition_key]})

    return orders


def _with_all_partitions(instance, lake, annotation, keys=KEYS):
    io_manager = rd.LocalIOManager(path=str(lake))
    upstream = _partitioned()
    for key in keys:
        assert run([upstream], io_manager, instance, partition_key=key).success
    given = []

    def down(orders):
        given.append(orders)

    down.__annotations__ = {"orders": annotation}
    asset = dg.asset(name="down", io_manager_key="mem")(down)
    result = run([upstream, asset], io_manager, instance, resources={"mem": dg.mem_io_manager}, selection=[asset])
    return result, (given[0] if given else None)


def test_several_partitions_come_concatenated_in_the_order_of_their_keys(instance, lake):
    _, given = _with_all_partitions(instance, lake, pd.DataFrame)
    assert given["key"].tolist() == ["a", "b", "c/d"]


def test_several_partitions_come_as_one_dataset(instance, lake):
    _, given = _with_all_partitions(instance, lake, ds.Dataset)
    assert sorted(given.to_table()["key"].to_pylist()) == sorted(KEYS)


@pytest.mark.parametrize(
    "annotation", [dict[str, pd.DataFrame], Mapping[str, pa.Table], dict[str, rd.ExportReceipt], dict]
)
def test_several_partitions_come_each_on_its_own(instance, lake, annotation):
    result, given = _with_all_partitions(instance, lake, annotation)
    assert result.success, told(result, "down")
    assert sorted(given) == sorted(KEYS)
    one = given["c/d"]
    if isinstance(one, rd.ExportReceipt):
        assert one.manifest.partition_key == "c/d"
    else:
        assert list(one["key"] if isinstance(one, pd.DataFrame) else one["key"].to_pylist()) == ["c/d"]


def test_a_partition_that_is_missing_is_named(instance, lake):
    result, _ = _with_all_partitions(instance, lake, pd.DataFrame, keys=["a", "b"])
    assert "partition 'c/d'" in failure(result, "down").user_failure_data.description


def test_one_partition_reads_only_itself(instance, lake):
    io_manager = rd.LocalIOManager(path=str(lake))
    upstream = _partitioned()
    given = []

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(KEYS), io_manager_key="mem")
    def down(orders: pd.DataFrame):
        given.extend(orders["key"])

    for key in ("a", "c/d"):
        named = {"mem": dg.mem_io_manager}
        assert run([upstream, down], io_manager, instance, resources=named, partition_key=key).success
    assert given == ["a", "c/d"]


def test_the_first_partition_of_an_asset_that_depends_on_its_previous_one_gets_nothing(instance, lake):
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03")
    before = dg.AssetIn(partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1))
    given = []

    @dg.asset(partitions_def=days, ins={"total": before})
    def total(total: pd.DataFrame | None) -> pd.DataFrame:
        given.append(total if total is None else total["n"].tolist())
        return pd.DataFrame({"n": [1] if total is None else [1, *total["n"]]})

    @dg.asset(partitions_def=days, ins={"each": before})
    def each(each: dict[str, pd.DataFrame]) -> pd.DataFrame:
        given.append(sorted(each))
        return pd.DataFrame({"n": [1]})

    io_manager = rd.LocalIOManager(path=str(lake))
    for asset in (total, each):
        for day in ("2024-01-01", "2024-01-02"):
            assert run([asset], io_manager, instance, partition_key=day).success
    assert given == [None, [1], [], ["2024-01-01"]]


def test_an_input_that_is_no_asset_is_refused(instance, lake):
    @dg.op(ins={"rows": dg.In(input_manager_key="io_manager")})
    def plain_op(rows):
        raise AssertionError

    @dg.job(resource_defs={"io_manager": rd.LocalIOManager(path=str(lake))})
    def job():
        plain_op()

    result = job.execute_in_process(instance=instance, raise_on_error=False)
    said = failure(result, "plain_op").user_failure_data
    assert "input 'rows': expected one that is an asset" in said.description


def _commit(io_manager, frame):
    # Closed at once: Dagster's own storage behind it minds being closed by the garbage collector.
    with dg.build_output_context(asset_key=dg.AssetKey("orders")) as context:
        io_manager.handle_output(context, frame)


def _read(io_manager):
    with dg.build_input_context(asset_key=dg.AssetKey("orders")) as context:
        return io_manager.load_input(context)
