"""A materialization is stored only of what is committed, and a repeated step finds what its first attempt did."""

import json
import logging
import os

import dagster as dg
import pandas as pd
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from rivet_dagster.errors import DestinationError, NoAnswer
from tests.faults.kit import FaultyStore, Trouble, is_head, is_marker, is_part
from tests.orchestration.kit import (
    NO_WAIT,
    events,
    failure,
    faulty_local,
    lines,
    materialization,
    materializations,
    on_disk,
    plain,
    run,
    told,
)


def test_nothing_is_materialized_before_the_marker_is_there(instance, lake, shop, orders):
    seen_at_marker = []

    def look(operation, key):
        if operation == "write" and is_marker(key):
            record = instance.get_latest_materialization_event(dg.AssetKey("orders"))
            seen_at_marker.append((record, (lake / "orders/manifest.json").exists(), (lake / key).exists()))

    class Watched(rd.LocalIOManager):
        def open_destination(self, clients):
            return FaultyStore(super().open_destination(clients), before=look)

    result = run([orders], Watched(path=str(lake)), instance, resources={"source": shop})
    assert result.success
    assert seen_at_marker == [(None, True, False)]
    order = events(instance, result.run_id)
    assert order.index("STEP_OUTPUT") < order.index("ASSET_MATERIALIZATION") < order.index("STEP_SUCCESS")
    assert order.count("ASSET_MATERIALIZATION") == 1


@pytest.mark.parametrize("where", [is_part, is_head, is_marker], ids=["part", "manifest", "marker"])
def test_a_destination_that_fails_gives_no_materialization_and_keeps_the_old_dataset(
    instance, lake, shop, orders, where
):
    assert run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop}).success
    before = on_disk(lake)
    broken = faulty_local(lake, Trouble("before", operation="write", key=where, error=DestinationError, times=99))
    result = run([orders], broken, instance, resources={"source": shop})
    assert not result.success
    assert materializations(result, "orders") == []
    after = on_disk(lake)
    assert after["orders/_SUCCESS"] == before["orders/_SUCCESS"]
    parts = {k: v for k, v in before.items() if "/data/" in k}
    assert parts
    assert parts.items() <= after.items()
    assert rd.LocalIOManager.capabilities.retry_safe


def test_a_retry_after_the_commit_returns_its_receipt_and_exports_nothing(instance, lake, shop):
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"), retry_policy=NO_WAIT)
    calls: list[tuple[str, str]] = []
    # The marker lands, and then every request of the first attempt fails: the process learns of no success.
    lost = Trouble("dead-after", operation="write", key=is_marker, error=NoAnswer)

    class DiesOnce(rd.LocalIOManager):
        def open_destination(self, clients):
            inner = super().open_destination(clients)
            return FaultyStore(inner, troubles=[] if lost.seen else [lost], calls=calls)

        def handle_output(self, context, obj):
            try:
                super().handle_output(context, obj)
            finally:
                self._opened = None

    result = run([asset], DiesOnce(path=str(lake)), instance, resources={"source": shop})
    assert result.success
    log = events(instance, result.run_id)
    assert log.count("STEP_UP_FOR_RETRY") == 1
    assert log.count("ASSET_MATERIALIZATION") == 1
    assert len([key for op, key in calls if op == "write" and is_part(key)]) == 1
    said = plain(materialization(result, "orders").metadata)
    manifest = json.loads((lake / "orders/manifest.json").read_bytes())
    assert said["rivet/run_id"] == manifest["run_id"]
    assert said["dagster/row_count"] == 100
    assert said["rivet/attempts"] == 2
    assert said["rivet/parts"][0]["path"] == manifest["parts"][0]["path"]
    assert sum(1 for k in on_disk(lake) if "/data/" in k) == 1


def test_a_retry_after_a_failed_part_has_each_row_once(instance, lake, shop):
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"), retry_policy=NO_WAIT)
    broken = faulty_local(lake, Trouble("after", operation="write", key=is_part, error=DestinationError))
    result = run([asset], broken, instance, resources={"source": shop})
    assert result.success
    assert events(instance, result.run_id).count("STEP_UP_FOR_RETRY") == 1
    (part,) = (lake / "orders/data").iterdir()
    assert sorted(pq.read_table(part)["id"].to_pylist()) == list(range(1, 101))


class DiesWhenTold(rd.LocalIOManager):
    """Where `TEST_DIES` is set, the marker lands and then nothing answers any more."""

    def open_destination(self, clients):
        lost = Trouble("dead-after", operation="write", key=is_marker, error=NoAnswer)
        return FaultyStore(super().open_destination(clients), troubles=[lost] if "TEST_DIES" in os.environ else [])


def job_of_orders():
    """Loaded by name, and only once in a process, as Dagster does it: what differs comes from the environment."""
    definitions = dg.Definitions(
        assets=[rd.build_export_asset(rd.Export(name="orders", table="orders"))],
        resources={
            "io_manager": DiesWhenTold(path=dg.EnvVar("TEST_LAKE")),
            "source": rd.DatabaseResource(url=dg.EnvVar("TEST_DATABASE_URL")),
        },
        jobs=[dg.define_asset_job("export_orders")],
        executor=dg.in_process_executor,
    )
    return definitions.resolve_job_def("export_orders")


@pytest.fixture
def job(lake, shop_file, monkeypatch):
    monkeypatch.setenv("TEST_LAKE", str(lake))
    monkeypatch.setenv("TEST_DATABASE_URL", f"sqlite:///{shop_file}")
    return dg.reconstructable(job_of_orders)


def test_a_reexecution_from_failure_takes_over_what_its_parent_committed(instance, lake, job, monkeypatch):
    """The parent committed, then died before Dagster heard of it; the child must not export again."""
    monkeypatch.setenv("TEST_DIES", "1")
    parent = dg.execute_job(job, instance=instance)
    assert not parent.success
    before = on_disk(lake)
    assert "orders/_SUCCESS" in before
    monkeypatch.delenv("TEST_DIES")
    again = dg.ReexecutionOptions.from_failure(parent.run_id, instance)
    child = dg.execute_job(job, instance=instance, reexecution_options=again)
    said = plain(materialization(child, "orders").metadata)
    assert said["rivet/run_id"].startswith(parent.run_id)
    assert said["dagster/row_count"] == 100
    assert on_disk(lake) == before


@pytest.mark.parametrize("failed", [False, True], ids=["of-a-good-run", "of-a-failed-run"])
def test_a_reexecution_of_all_steps_exports_again(instance, lake, job, monkeypatch, failed):
    if failed:
        monkeypatch.setenv("TEST_DIES", "1")
    parent = dg.execute_job(job, instance=instance)
    assert parent.success is not failed
    assert (lake / "orders/_SUCCESS").exists()
    monkeypatch.delenv("TEST_DIES", raising=False)
    child = dg.execute_job(job, instance=instance, reexecution_options=dg.ReexecutionOptions(parent.run_id))
    assert plain(materialization(child, "orders").metadata)["rivet/run_id"].startswith(child.run_id)


@pytest.mark.parametrize("lost", [False, True], ids=["root-succeeded", "root-lost-its-event"])
def test_what_the_root_committed_is_old_where_all_steps_were_asked_for_since(instance, lake, job, monkeypatch, lost):
    """The root committed, its child was to export all anew and failed: who resumes the child owes what that owed."""
    if lost:
        monkeypatch.setenv("TEST_DIES", "1")
    root = dg.execute_job(job, instance=instance)
    monkeypatch.delenv("TEST_DIES", raising=False)
    assert (lake / "orders/_SUCCESS").exists()
    with monkeypatch.context() as broken:
        broken.setenv("TEST_DATABASE_URL", "sqlite:///nowhere.db")
        child = dg.execute_job(job, instance=instance, reexecution_options=dg.ReexecutionOptions(root.run_id))
        assert not child.success
        for _ in range(2):
            child = _resumed(job, instance, child)
            assert not child.success, "the old delivery is no answer"
    last = _resumed(job, instance, child)
    assert plain(materialization(last, "orders").metadata)["rivet/run_id"].startswith(last.run_id)


def test_what_the_root_committed_is_found_through_all_who_resume_it(instance, lake, job, monkeypatch):
    monkeypatch.setenv("TEST_DIES", "1")
    root = last = dg.execute_job(job, instance=instance)
    before = on_disk(lake)
    with monkeypatch.context() as broken:
        broken.setattr(DiesWhenTold, "open_destination", _nobody_there)
        for _ in range(2):
            last = _resumed(job, instance, last)
            assert not last.success
    monkeypatch.delenv("TEST_DIES")
    last = _resumed(job, instance, last)
    assert plain(materialization(last, "orders").metadata)["rivet/run_id"].startswith(root.run_id)
    assert on_disk(lake) == before


def _resumed(job, instance, failed):
    """As the UI and the daemon do it."""
    again, tags = dg.ReexecutionOptions.from_failure(failed.run_id, instance), {"dagster/is_resume_retry": "true"}
    return dg.execute_job(job, instance=instance, reexecution_options=again, tags=tags)


def _nobody_there(_self, _clients):
    raise rd.DestinationError("nobody is there")


def test_a_chosen_step_that_had_succeeded_exports_again(instance, lake, job):
    parent = dg.execute_job(job, instance=instance)
    again = dg.ReexecutionOptions(parent.run_id, step_selection=["orders"])
    child = dg.execute_job(job, instance=instance, reexecution_options=again)
    assert plain(materialization(child, "orders").metadata)["rivet/run_id"].startswith(child.run_id)


def test_executing_all_steps_again_exports_again(instance, lake, shop, orders):
    io_manager = rd.LocalIOManager(path=str(lake))
    first = run([orders], io_manager, instance, resources={"source": shop})
    second = run([orders], io_manager, instance, resources={"source": shop})
    ids = [plain(materialization(r, "orders").metadata)["rivet/run_id"] for r in (first, second)]
    assert ids[0].startswith(first.run_id)
    assert ids[1].startswith(second.run_id)


def test_unchanged_data_repeats_the_data_version_so_that_downstream_stays_fresh(instance, lake, shop, orders):
    io_manager = rd.LocalIOManager(path=str(lake))
    tags = [
        materialization(run([orders], io_manager, instance, resources={"source": shop}), "orders").tags
        for _ in range(2)
    ]
    assert tags[0]["dagster/data_version"] == tags[1]["dagster/data_version"]
    assert tags[0]["dagster/data_version_is_user_provided"] == "true"
    assert tags[0]["dagster/code_version"] == orders.code_versions_by_key[dg.AssetKey("orders")]


@pytest.mark.filterwarnings("ignore:Parameter `data_version`")
def test_an_asset_s_own_data_version_wins(instance, lake):
    @dg.asset
    def own() -> dg.Output[pd.DataFrame]:
        return dg.Output(pd.DataFrame({"a": [1]}), data_version=dg.DataVersion("mine"))

    result = run([own], rd.LocalIOManager(path=str(lake)), instance)
    assert materialization(result, "own").tags["dagster/data_version"] == "mine"


def test_a_commit_conflict_names_the_winner_and_may_be_retried(instance, lake, shop):
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"), retry_policy=NO_WAIT)
    other = rd.LocalIOManager(path=str(lake))
    raced = []

    def race(operation, key):
        if operation == "write" and is_head(key) and not raced:
            raced.append(key)
            with dg.build_output_context(asset_key=dg.AssetKey("orders")) as context:
                other.handle_output(context, pd.DataFrame({"id": [1]}))

    class Raced(rd.LocalIOManager):
        def open_destination(self, clients):
            return FaultyStore(LockFree(super().open_destination(clients)), before=race)

    class LockFree:
        """As the destination, but it keeps nobody out while it commits."""

        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        capabilities, kind = rd.LocalIOManager.capabilities, "local"

        def hold(self, _directory):
            from contextlib import nullcontext

            return nullcontext()

    result = run([asset], Raced(path=str(lake)), instance, resources={"source": shop})
    assert result.success
    (retried,) = [e for e in result.all_events if e.event_type_value == "STEP_UP_FOR_RETRY"]
    said = str(retried.event_specific_data.error)
    assert "CommitConflict" in said
    assert "no-run-00000000-" in said
    assert pq.read_table(lake / "orders/data").num_rows == 100


def test_the_unit_test_context_of_dagster_is_enough(lake):
    io_manager = rd.LocalIOManager(path=str(lake))
    context = dg.build_output_context(asset_key=dg.AssetKey(["wh", "orders"]))
    io_manager.handle_output(context, pd.DataFrame({"a": [1, 2]}))
    said = plain(context.get_logged_metadata())
    assert said["dagster/uri"].endswith("/lake/wh/orders/")
    loaded = io_manager.load_input(dg.build_input_context(asset_key=dg.AssetKey(["wh", "orders"])))
    assert loaded["a"].tolist() == [1, 2]


def test_the_materialization_carries_what_the_asset_itself_said_too(instance, lake):
    @dg.asset
    def noted(context: dg.AssetExecutionContext) -> pd.DataFrame:
        context.add_output_metadata({"mine": 1})
        return pd.DataFrame({"a": [1]})

    said = plain(materialization(run([noted], rd.LocalIOManager(path=str(lake)), instance), "noted").metadata)
    assert said["mine"] == 1
    assert said["dagster/row_count"] == 1


def test_a_failure_says_what_is_left_and_where(instance, lake, shop):
    missing = rd.build_export_asset(rd.Export(name="nothing", table="no_such_table"))
    result = run([missing], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    said = failure(result, "nothing").user_failure_data
    assert said.description is not None
    assert "no_such_table" in said.description
    metadata = plain(said.metadata)
    assert metadata["rivet/error"] == "SourceError"
    assert metadata["dagster/uri"] == f"{lake.as_uri()}/nothing/"
    assert metadata["rivet/left_behind"].startswith("nothing of this run is visible")
    assert "no_such_table" in told(result, "nothing")
    assert lines(instance, result.run_id, level=logging.INFO)[0].startswith("export 'nothing': destination")


@pytest.mark.parametrize("tag", ["dagster/is_resume_retry", "dagster/is_asset_resume_retry"])
def test_the_tags_of_the_ui_and_the_daemon_mean_a_reexecution_from_failure_too(instance, lake, job, monkeypatch, tag):
    monkeypatch.setenv("TEST_DIES", "1")
    parent = dg.execute_job(job, instance=instance)
    monkeypatch.delenv("TEST_DIES")
    again = dg.ReexecutionOptions(parent.run_id)
    child = dg.execute_job(job, instance=instance, reexecution_options=again, tags={tag: "true"})
    assert plain(materialization(child, "orders").metadata)["rivet/run_id"].startswith(parent.run_id)
