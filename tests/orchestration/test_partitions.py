"""Each partition is a dataset of its own: its prefix, its commit, its metadata; a range fails as a list."""

import json

import dagster as dg
import pandas as pd
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from rivet_dagster.errors import DestinationError
from tests.faults.kit import Trouble
from tests.orchestration.kit import (
    events,
    failure,
    faulty_local,
    materialization,
    materializations,
    on_disk,
    plain,
    run,
    told,
)

# Pairs that meet where a key is encoded badly, and names that the layout or a file system gives a meaning.
AWKWARD = [
    "2024/01",
    "2024%2f01",
    "2024_01",
    "0.1",
    "0.2",
    "2024-01-01T00:00:00+00:00",
    "a b",
    "a:b",
    "..",
    ".",
    "A",
    "a",
    "_SUCCESS",
    "data",
    "manifest.json",
    "é",
    "e\u0301",
    "x" * 400,
    "x" * 401,
]
# Dagster calls range runs a beta.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")

ONE_RUN = dg.BackfillPolicy.single_run()


def _asset(keys, *, backfill_policy=None, rows=None, **more):
    @dg.asset(
        name="orders", partitions_def=dg.StaticPartitionsDefinition(keys), backfill_policy=backfill_policy, **more
    )
    def orders(context: dg.AssetExecutionContext):
        return rows(context.partition_keys) if rows else pd.DataFrame({"key": [context.partition_key]})

    return orders


def test_every_key_has_a_prefix_of_its_own_and_is_read_back(instance, lake):
    io_manager = rd.LocalIOManager(path=str(lake))
    asset = _asset(AWKWARD)
    for key in AWKWARD:
        assert run([asset], io_manager, instance, partition_key=key).success
    prefixes = sorted(p.parent for p in lake.rglob("_SUCCESS"))
    assert len(prefixes) == len(AWKWARD)
    assert all(p.parent == lake / "orders" and p.name.startswith("partition=") for p in prefixes)
    assert len({p.name.lower() for p in prefixes}) == len(AWKWARD)
    found = {}
    for prefix in prefixes:
        manifest = json.loads((prefix / "manifest.json").read_bytes())
        found[manifest["dagster"]["partition_key"]] = pq.read_table(prefix / "data")["key"].to_pylist()
    assert found == {key: [key] for key in AWKWARD}


def test_runs_of_two_partitions_do_not_touch_each_other(instance, lake):
    io_manager, asset = rd.LocalIOManager(path=str(lake)), _asset(["a", "b"])
    run([asset], io_manager, instance, partition_key="a")
    before = on_disk(lake)
    result = run([asset], io_manager, instance, partition_key="b")
    assert before.items() <= on_disk(lake).items()
    found = materialization(result, "orders")
    assert found.partition == "b"
    assert plain(found.metadata)["dagster/uri"] == f"{(lake / 'orders/partition=b').as_uri()}/"


def test_a_range_commits_each_partition_with_its_own_metadata(instance, lake):
    def rows(keys):
        return {k: pd.DataFrame({"key": [k] * (i + 1)}) for i, k in enumerate(keys)}

    asset = _asset(["a", "b", "c"], backfill_policy=ONE_RUN, rows=rows)
    result = _range(asset, rd.LocalIOManager(path=str(lake)), instance, "a", "c")
    assert result.success
    found = {m.partition: plain(m.metadata) for m in materializations(result, "orders")}
    assert {k: v["dagster/row_count"] for k, v in found.items()} == {"a": 1, "b": 2, "c": 3}
    for key, said in found.items():
        manifest = json.loads((lake / f"orders/partition={key}/manifest.json").read_bytes())
        assert said["rivet/run_id"] == manifest["run_id"]
        assert said["rivet/checksum"] == (lake / f"orders/partition={key}/_SUCCESS").read_text().strip()
    versions = {m.tags["dagster/data_version"] for m in materializations(result, "orders")}
    assert len(versions) == 1
    assert len({v["rivet/data_version"] for v in found.values()}) == 3


def test_a_range_fails_with_the_list_and_keeps_what_is_committed(instance, lake):
    def rows(keys):
        return {k: pd.DataFrame({"key": [k]}) for k in keys}

    asset = _asset(["a", "b", "c"], backfill_policy=ONE_RUN, rows=rows)
    broken = faulty_local(
        lake, Trouble("before", operation="write", key=lambda k: "=b/data" in k, error=DestinationError)
    )
    result = _range(asset, broken, instance, "a", "c")
    assert not result.success
    said = told(result, "orders")
    assert "1 of 3 partitions failed" in said
    assert "  b: " in said
    assert "  a: " not in said
    assert materializations(result, "orders") == []
    assert sorted(p.parent.name for p in lake.rglob("_SUCCESS")) == ["partition=a", "partition=c"]


def test_a_retried_range_exports_only_what_had_failed(instance, lake):
    def rows(keys):
        return {k: pd.DataFrame({"key": [k]}) for k in keys}

    calls: list[tuple[str, str]] = []
    asset = _asset(["a", "b", "c"], backfill_policy=ONE_RUN, rows=rows, retry_policy=dg.RetryPolicy(max_retries=1))
    trouble = Trouble("before", operation="write", key=lambda k: "=b/data" in k, error=DestinationError)
    result = _range(asset, faulty_local(lake, trouble, calls=calls), instance, "a", "c")
    assert result.success
    assert events(instance, result.run_id).count("STEP_UP_FOR_RETRY") == 1
    written = [k.split("/")[1] for op, k in calls if op == "write" and "/data/" in k]
    assert written == ["partition=a", "partition=b", "partition=c", "partition=b"]
    found = {m.partition: plain(m.metadata)["dagster/row_count"] for m in materializations(result, "orders")}
    assert found == {"a": 1, "b": 1, "c": 1}


def test_a_range_of_nothing_but_lasting_errors_is_not_retried(instance, lake):
    attempts = []

    def rows(keys):
        attempts.append(1)
        return dict.fromkeys(keys, "no rows")

    asset = _asset(["a", "b"], backfill_policy=ONE_RUN, rows=rows, retry_policy=dg.RetryPolicy(max_retries=2))
    result = _range(asset, rd.LocalIOManager(path=str(lake)), instance, "a", "b")
    assert len(attempts) == 1
    said = failure(result, "orders").user_failure_data
    assert "2 of 2 partitions failed" in said.description
    assert plain(said.metadata)["rivet/error"] == "ConfigError"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (lambda _keys: pd.DataFrame({"a": [1]}), "one DataFrame for 2 partitions"),
        (lambda keys: {keys[0]: pd.DataFrame({"a": [1]})}, "one value per partition"),
        (lambda keys: dict.fromkeys([*keys, "z"], pd.DataFrame({"a": [1]})), "one value per partition"),
    ],
    ids=["one-frame", "too-few", "too-many"],
)
def test_rows_that_belong_to_no_one_partition_are_refused_before_anything_is_written(instance, lake, rows, expected):
    asset = _asset(["a", "b"], backfill_policy=ONE_RUN, rows=rows)
    result = _range(asset, rd.LocalIOManager(path=str(lake)), instance, "a", "b")
    assert expected in failure(result, "orders").user_failure_data.description
    assert on_disk(lake) == {}


def test_the_same_asset_may_return_its_dict_for_one_partition_too(instance, lake):
    def rows(keys):
        return {k: pd.DataFrame({"key": [k]}) for k in keys}

    result = run([_asset(["a", "b"], rows=rows)], rd.LocalIOManager(path=str(lake)), instance, partition_key="b")
    assert plain(materialization(result, "orders").metadata)["dagster/row_count"] == 1
    assert pq.read_table(lake / "orders/partition=b/data")["key"].to_pylist() == ["b"]


def test_an_asset_without_partitions_in_a_partitioned_run_keeps_its_plain_prefix(instance, lake):
    parts = dg.StaticPartitionsDefinition(["a"])

    @dg.asset
    def whole():
        return pd.DataFrame({"a": [1]})

    @dg.asset(partitions_def=parts)
    def split():
        return pd.DataFrame({"a": [1]})

    assert run([whole, split], rd.LocalIOManager(path=str(lake)), instance, partition_key="a").success
    assert (lake / "whole/_SUCCESS").exists()
    assert (lake / "split/partition=a/_SUCCESS").exists()


def _range(asset, io_manager, instance, first, last):
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return run([asset], io_manager, instance, tags=tags)
