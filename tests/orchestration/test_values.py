"""Whatever an asset returns goes the same way to the same kind of delivery, or is refused with the reason."""

import json
from collections.abc import Iterator

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from tests.orchestration.kit import failure, lines, materialization, materializations, on_disk, plain, run, told

FRAME = pd.DataFrame({"id": [1, 2, 3], "note": ["a", None, ""]})
TABLE = pa.table({"id": pa.array([1, 2, 3]), "note": pa.array(["a", None, ""])})


def _frames() -> Iterator[pd.DataFrame]:
    yield FRAME.iloc[:2]
    yield FRAME.iloc[2:]


VALUES = {
    "pandas": lambda: FRAME,
    "arrow": lambda: TABLE,
    "reader": lambda: TABLE.to_reader(max_chunksize=1),
    "batches": lambda: rd.Batches(_frames()),
    "batches-of-arrow": lambda: rd.Batches(TABLE.to_batches(max_chunksize=2)),
}


@pytest.mark.parametrize("kind", VALUES)
def test_rows_of_every_kind_make_the_same_delivery(instance, lake, kind):
    @dg.asset(name="orders")
    def orders():
        return VALUES[kind]()

    result = run([orders], rd.LocalIOManager(path=str(lake)), instance)
    assert result.success
    assert plain(materialization(result, "orders").metadata)["dagster/row_count"] == 3
    (part,) = (lake / "orders/data").iterdir()
    assert pq.read_table(part).to_pydict() == {"id": [1, 2, 3], "note": ["a", None, ""]}
    manifest = json.loads((lake / "orders/manifest.json").read_bytes())
    assert manifest["source"]["engine"] == "dagster"
    assert manifest["dagster"]["run_id"] == result.run_id


@pytest.mark.parametrize(
    ("value", "found"),
    [(None, "None"), ([1, 2], "list"), ("rows", "str"), ({"a": [1]}, "dict"), (iter([FRAME]), "list_iterator")],
)
def test_what_is_no_rows_is_refused_at_once_with_what_is_accepted(instance, lake, value, found):
    attempts = []

    @dg.asset(name="orders", retry_policy=dg.RetryPolicy(max_retries=3))
    def orders():
        attempts.append(1)
        return value

    result = run([orders], rd.LocalIOManager(path=str(lake)), instance)
    assert not result.success
    assert len(attempts) == 1
    said = failure(result, "orders").user_failure_data.description
    assert said.startswith(("orders: ", "export 'orders': "))
    assert found in said
    assert "DataFrame" in said
    assert ("another io_manager_key" in said) is (value is None)
    assert materializations(result, "orders") == []
    assert on_disk(lake) == {}


def test_the_output_of_a_plain_op_is_refused(instance, lake):
    @dg.op(out=dg.Out(io_manager_key="io_manager"))
    def rows():
        return FRAME

    @dg.job(resource_defs={"io_manager": rd.LocalIOManager(path=str(lake)).get_resource_definition()})
    def not_an_asset():
        rows()

    result = not_an_asset.execute_in_process(instance=instance, raise_on_error=False)
    assert "expected the output of an asset" in told(result, "rows")
    assert on_disk(lake) == {}


def test_twice_the_same_column_is_refused_by_its_name(instance, lake):
    @dg.asset(name="orders")
    def orders():
        return pd.DataFrame([[1, 2]], columns=["id", "id"])

    result = run([orders], rd.LocalIOManager(path=str(lake)), instance)
    assert "'id'" in failure(result, "orders").user_failure_data.description
    assert on_disk(lake) == {}


def test_columns_that_differ_only_in_case_are_both_there(instance, lake):
    @dg.asset(name="orders")
    def orders():
        return pa.table({"id": [1], "Id": [2], "na!e": [3], "na%e": [4]})

    assert run([orders], rd.LocalIOManager(path=str(lake)), instance).success
    assert pq.read_table(lake / "orders/data").to_pylist() == [{"id": 1, "Id": 2, "na!e": 3, "na%e": 4}]


def test_a_generator_that_breaks_publishes_nothing_and_keeps_its_own_error(instance, lake):
    def rows():
        yield FRAME
        raise LookupError("the third page is gone")

    @dg.asset(name="orders")
    def orders():
        return rd.Batches(rows())

    result = run([orders], rd.LocalIOManager(path=str(lake)), instance)
    assert "LookupError: the third page is gone" in told(result, "orders")
    assert [k for k in on_disk(lake) if "/data/" in k or k.endswith(("manifest.json", "_SUCCESS"))] == []


def test_a_plain_asset_s_metadata_overrules_the_io_manager(instance, lake):
    metadata = {
        "rivet/format": "csv",
        "rivet/max_file_size": 10,
        "rivet/verify": "readback",
        "rivet/symlink_manifest": True,
        "rivet/retain": 1,
        "mine": "untouched",
    }

    @dg.asset(name="orders", metadata=metadata)
    def orders():
        return pd.DataFrame({"id": range(10)})

    io_manager = rd.LocalIOManager(path=str(lake))
    ids = [plain(materialization(run([orders], io_manager, instance), "orders").metadata) for _ in range(3)]
    manifest = json.loads((lake / "orders/manifest.json").read_bytes())
    assert manifest["format"] == "csv"
    assert manifest["row_count"] == 10
    assert {p["verification"] for p in manifest["parts"]} == {"readback-md5"}
    parts = [k for k in on_disk(lake) if k.endswith(".csv")]
    assert any(ids[1]["rivet/run_id"] in p for p in parts)
    assert not any(ids[0]["rivet/run_id"] in p for p in parts)
    listed = (lake / "orders/_symlink_format_manifest/manifest").read_text().split()
    assert listed == [f"{lake.as_uri()}/orders/{p['path']}" for p in manifest["parts"]]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rivet/format", "cvs"),
        ("rivet/max_file_size", "a lot"),
        ("rivet/verify", "always"),
        ("rivet/retain", -1),
        ("rivet/takeover_after", "soon"),
        ("rivet/formt", "rivet/formt"),
    ],
)
def test_a_setting_in_metadata_that_cannot_be_is_named_and_not_retried(instance, lake, key, value):
    attempts = []

    @dg.asset(name="orders", metadata={key: value}, retry_policy=dg.RetryPolicy(max_retries=2))
    def orders():
        attempts.append(1)
        return FRAME

    result = run([orders], rd.LocalIOManager(path=str(lake)), instance)
    said = failure(result, "orders").user_failure_data.description
    assert key.removeprefix("rivet/") in said
    assert str(value) in said
    assert len(attempts) == 1
    assert on_disk(lake) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "cvs"),
        ("max_file_size", "256 MBs"),
        ("max_file_size", "0B"),
        ("takeover_after", "1"),
        ("takeover_after", "-1h"),
        ("retain", -1),
        ("retain", 256),
        ("verify", "maybe"),
    ],
)
def test_a_setting_of_the_io_manager_that_cannot_be_fails_where_it_is_written(field, value):
    from pydantic import ValidationError

    with pytest.raises((rd.ConfigError, ValidationError)) as caught:
        rd.LocalIOManager(path="x", **{field: value})
    assert field in str(caught.value)
    assert str(value) in str(caught.value)


def test_a_setting_that_comes_from_the_environment_is_judged_in_the_step(instance, lake, monkeypatch):
    @dg.asset(name="orders")
    def orders():
        return FRAME

    monkeypatch.setenv("TEST_SIZE", "2MB")
    monkeypatch.setenv("TEST_LAKE", str(lake))
    io_manager = rd.LocalIOManager(path=dg.EnvVar("TEST_LAKE"), max_file_size=dg.EnvVar("TEST_SIZE"))
    assert run([orders], io_manager, instance).success
    assert (lake / "orders/_SUCCESS").exists()
    monkeypatch.setenv("TEST_SIZE", "huge")
    result = dg.materialize([orders], resources={"io_manager": io_manager}, instance=instance, raise_on_error=False)
    assert not result.success
    assert "huge" in str(result.all_events)


def test_stdout_refuses_parts_before_the_first_row(instance, capfd):
    read = []

    def rows():
        read.append(1)
        yield FRAME

    @dg.asset(name="orders", metadata={"rivet/max_file_size": "1MB"}, retry_policy=dg.RetryPolicy(max_retries=2))
    def orders():
        return rd.Batches(rows())

    result = run([orders], rd.StdoutIOManager(), instance)
    said = failure(result, "orders").user_failure_data
    assert "stdout-no-split" in said.description
    assert plain(said.metadata)["rivet/error"] == "PlanRejected"
    assert read == []
    assert capfd.readouterr().out == ""
    assert any("destination commit_protocol=Streaming" in x for x in lines(instance, result.run_id))
