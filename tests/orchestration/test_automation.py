"""What nobody starts: ticks while a run is not over, and what a sensor sees of deliveries, whoever wrote them."""

from __future__ import annotations

import json
import logging
import os
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest

import rivet_dagster as rd
from rivet_dagster.attempt import Attempt, CommitSettings
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.layout import Prefix
from rivet_dagster.orchestration.compaction import compact
from tests.faults.kit import FaultyStore, Trouble, fingerprint
from tests.orchestration.kit import faulty_local, materialization, plain
from tests.sources.databases import Sqlite
from tests.sources.incremental import Incrementally

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
PARTITIONED = {"partitions_def": dg.StaticPartitionsDefinition(["a", "b"])}


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """The home of an instance that was used once: its tables are there."""
    found = tmp_path_factory.mktemp("home")
    with dg.DagsterInstance.local_temp(str(found)) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(asset_key="another"))
    return found


@pytest.fixture
def kept(used, tmp_path):
    """Ticks want an instance that stays."""
    shutil.copytree(used, tmp_path / "home")
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as found:
        yield found


def exports(shop: Any, lake: Path, *, name: str = "site", export: str = "orders", **more: Any) -> dg.Definitions:
    return rd.build_export_definitions(
        [rd.Export(name=export, table="orders", **({"partition_by": "note"} if more else {}))],
        source=shop,
        destination=rd.LocalIOManager(path=str(lake)),
        name=name,
        schedule="0 2 * * *",
        **more,
    )


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    repository = definitions.get_repository_def()
    (schedule,) = repository.schedule_defs
    at = datetime(2026, 1, 2, 2, tzinfo=timezone.utc)
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=at, repository_def=repository
    ) as context:
        return schedule.evaluate_tick(context)


def begun(instance: dg.DagsterInstance, definitions: dg.Definitions) -> str:
    """A run of the job, before its first step; Dagster notes what it is going to materialize."""
    from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

    # Without one there is no queue.
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "exports"), "site")
    return instance.create_run_for_job(definitions.resolve_job_def("site"), remote_job_origin=origin).run_id


def happens(instance: dg.DagsterInstance, run_id: str, event: str) -> None:
    """As the daemon, a worker or the UI reports it."""
    instance.report_dagster_event(dg.DagsterEvent(event_type_value=event, job_name="site"), run_id)


LIVES = {
    "SUCCESS": ["ENQUEUED", "DEQUEUED", "STARTING", "START"],
    "FAILURE": ["STARTING", "START"],
    "CANCELED": ["START", "CANCELING"],
}


@pytest.mark.parametrize(("end", "more"), [("SUCCESS", PARTITIONED), ("FAILURE", {}), ("CANCELED", {})], ids=[*LIVES])
def test_a_tick_is_skipped_from_a_run_s_beginning_to_its_end(kept, shop, lake, more, end):
    definitions = exports(shop, lake, **more)
    run_id = begun(kept, definitions)
    for event in (None, *LIVES[end]):
        if event is not None:
            happens(kept, run_id, f"PIPELINE_{event}")
        status = kept.get_run_by_id(run_id).status.value
        skipped = tick(definitions, kept)
        assert skipped.run_requests == []
        assert f"run {run_id} of site is not finished ({status})" in skipped.skip_message
    happens(kept, run_id, f"PIPELINE_{end}")
    assert kept.get_run_by_id(run_id).status.value == end
    asked = tick(definitions, kept)
    assert asked.skip_message is None
    assert [r.partition_key for r in asked.run_requests] == (["a", "b"] if more else [None])


def test_a_run_of_the_export_alone_counts_and_one_of_another_export_does_not(kept, shop, lake):
    definitions = exports(shop, lake)
    # Of another code location, where a job has the same name.
    begun(kept, exports(shop, lake, export="other"))
    assert len(tick(definitions, kept).run_requests) == 1
    by_hand = definitions.resolve_implicit_global_asset_job_def()
    run_id = kept.create_run_for_job(by_hand, asset_selection=frozenset([dg.AssetKey("orders")])).run_id
    assert run_id in tick(definitions, kept).skip_message
    assert len(tick(exports(shop, lake, export="third"), kept).run_requests) == 1


def test_what_a_tick_asks_for_is_the_job(kept, shop, lake):
    definitions = exports(shop, lake)
    (asked,) = tick(definitions, kept).run_requests
    assert (asked.run_key, asked.partition_key, asked.run_config) == (None, None, {})
    assert definitions.resolve_job_def("site").execute_in_process(instance=kept).success
    assert len(tick(definitions, kept).run_requests) == 1


@dg.asset
def report() -> None:
    """What follows a delivery."""


class Watch:
    """A sensor as its daemon sees it: what a tick asks for, and the cursor that is kept for the next one."""

    def __init__(self, lake: Path, instance: dg.DagsterInstance, *prefixes: Any, io_manager: Any = None, **more: Any):
        self.sensor = rd.build_delivery_sensor(prefixes, **({"target": [report]} | more))
        self.instance, self.cursor = instance, None
        self.definitions = dg.Definitions(
            assets=[report],
            sensors=[self.sensor],
            resources={"io_manager": io_manager or rd.LocalIOManager(path=str(lake))},
        )

    def tick(self) -> Any:
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            definitions=self.definitions,
            resources=self.definitions.get_repository_def().get_top_level_resources(),
        ) as context:
            found = self.sensor.evaluate_tick(context)
        self.cursor = found.cursor
        return found

    def fired(self) -> list[str]:
        """The fingerprints of a tick; it says why where there are none."""
        found = self.tick()
        assert bool(found.run_requests) != bool(found.skip_message)
        return [request.tags["rivet/checksum"] for request in found.run_requests]


def deliver(lake: Path, name: str, *ids: int) -> str:
    """A delivery of ours that no instance knows of; its fingerprint, as a reader of the lake sees it."""
    with dg.build_output_context(asset_key=dg.AssetKey(name.split("/"))) as context:
        rd.LocalIOManager(path=str(lake)).handle_output(context, pd.DataFrame({"id": ids}))
    return (lake / name / "_SUCCESS").read_text().strip()


def marked_at(dataset: Path) -> str:
    return datetime.fromtimestamp((dataset / "_SUCCESS").stat().st_mtime_ns / 1e9, timezone.utc).isoformat()


def test_a_sensor_fires_once_for_each_delivery_of_each_prefix(kept, lake):
    watch = Watch(lake, kept, "shop/orders", dg.AssetKey(["shop", "items"]))
    assert watch.fired() == []
    orders = deliver(lake, "shop/orders", 1)
    assert watch.fired() == [orders]
    assert watch.fired() == []
    both = [deliver(lake, "shop/orders", 2), deliver(lake, "shop/items", 1)]
    deliver(lake, "shop/others", 1)
    found = watch.tick()
    assert [request.tags["rivet/checksum"] for request in found.run_requests] == both
    for request, name in zip(found.run_requests, ("orders", "items"), strict=True):
        head = lake / "shop" / name / "manifest.json"
        assert request.tags["rivet/manifest"] == head.as_uri()
        assert request.tags["rivet/run_id"] == json.loads(head.read_bytes())["run_id"]
        assert request.run_key == f"shop/{name}/{request.tags['rivet/checksum']} {marked_at(lake / 'shop' / name)}"
    assert watch.fired() == []
    assert json.loads(watch.cursor) == {"shop/orders/": both[0], "shop/items/": both[1]}


def test_a_copy_at_another_prefix_is_another_delivery(kept, lake):
    watch = Watch(lake, kept, "orders", "copy")
    marker = deliver(lake, "orders", 1)
    shutil.copytree(lake / "orders", lake / "copy")
    found = watch.tick()
    keys = {f"{name}/{marker} {marked_at(lake / name)}" for name in ("orders", "copy")}
    assert {request.run_key for request in found.run_requests} == keys


def test_a_delivery_that_is_put_back_is_new_and_one_that_is_seen_twice_is_not(kept, lake):
    """Dagster starts one run for each run key, however often it is asked for."""
    deliver(lake, "orders", 1)
    shutil.copytree(lake / "orders", lake / "backup")
    watch = Watch(lake, kept, "orders")
    keys = [request.run_key for _ in range(2) for request in watch.tick().run_requests]
    # A daemon that died before it had kept the cursor.
    watch.cursor = None
    assert [request.run_key for request in watch.tick().run_requests] == keys
    deliver(lake, "orders", 2)
    keys += [request.run_key for request in watch.tick().run_requests]
    shutil.rmtree(lake / "orders")
    (lake / "backup").rename(lake / "orders")
    marker = lake / "orders" / "_SUCCESS"
    os.utime(marker, (marker.stat().st_mtime + 5, marker.stat().st_mtime + 5))
    keys += [request.run_key for request in watch.tick().run_requests]
    assert len(keys) == len(set(keys)) == 3


def test_a_compaction_is_no_delivery_unless_it_holds_one(kept, lake, tmp_path):
    shop = Sqlite(tmp_path / "shop.db")
    shop.execute("CREATE TABLE events (id integer PRIMARY KEY)")
    events = Incrementally(shop.url, lake, rd.Incremental(cursor_column="id"))
    prefix, log = Prefix("events/"), logging.getLogger("tests.automation")

    def add():
        shop.execute("INSERT INTO events DEFAULT VALUES")
        events.run()

    def compacted():
        compact(
            LocalDestination(lake),
            prefix,
            attempt=Attempt(export_name="events", dagster_run_id="compaction"),
            settings=CommitSettings(),
            output=resolve_output(export=None),
            agree=lambda _head: None,
            log=log,
        )
        return (lake / "events" / "_SUCCESS").read_text().strip()

    watch = Watch(lake, kept, dg.AssetKey("events"), observe=True)
    add()
    add()
    assert len(watch.fired()) == 1
    marker = compacted()
    found = watch.tick()
    assert (found.run_requests, found.asset_events) == ([], [])
    assert found.skip_message == "events was compacted, its rows are the same"
    assert json.loads(watch.cursor) == {"events/": marker}
    add()
    marker = compacted()
    assert watch.fired() == [marker]


@pytest.mark.parametrize("cursor", ["orders", '["orders"]', '{"orders/": 1}', "{"])
def test_a_cursor_that_no_sensor_has_written_begins_anew(kept, lake, cursor):
    orders = deliver(lake, "orders", 1)
    watch = Watch(lake, kept, "orders")
    watch.cursor = cursor
    assert watch.fired() == [orders]
    assert json.loads(watch.cursor) == {"orders/": orders}


def test_what_is_not_committed_is_no_delivery(kept, lake):
    """A head whose marker is not there yet, or still names the delivery before."""
    before = deliver(lake, "orders", 1)
    marker = (lake / "orders" / "_SUCCESS").read_bytes()
    [record] = (lake / "orders").glob("manifest-*.json")
    old = record.read_bytes()
    after = deliver(lake, "orders", 2)
    watch = Watch(lake, kept, "orders")
    (lake / "orders" / "_SUCCESS").unlink()
    assert watch.fired() == []
    record.write_bytes(old)
    (lake / "orders" / "_SUCCESS").write_bytes(marker)
    assert watch.fired() == [before]
    assert watch.fired() == []
    (lake / "orders" / "_SUCCESS").write_text(f"{after}\n")
    assert watch.fired() == [after]


def test_a_delivery_of_the_public_tool_is_one(kept, lake, tmp_path):
    """Written by another program, which knows nothing of Dagster."""
    directory = lake / "exports" / "payments"
    directory.mkdir(parents=True)
    body = (GOLDEN / "manifest_by_rivet_cli.json").read_bytes()
    (directory / "manifest.json").write_bytes(body)
    watch = Watch(lake, kept, "exports/payments")
    assert watch.fired() == []
    (directory / "_SUCCESS").write_text(f"{fingerprint(body)}\n")
    assert watch.fired() == [fingerprint(body)]
    assert watch.fired() == []


def test_a_delivery_is_observed_where_its_asset_is_made_elsewhere(kept, lake):
    watch = Watch(lake, kept, dg.AssetKey("orders"), "items", target=None, observe=True)
    orders, _ = deliver(lake, "orders", 1), deliver(lake, "items", 1)
    found = watch.tick()
    assert found.run_requests == []
    (seen,) = found.asset_events
    assert seen.asset_key == dg.AssetKey("orders")
    said = plain(seen.metadata)
    assert (said["rivet/checksum"], said["dagster/row_count"]) == (orders, 1)
    assert said["rivet/manifest"] == (lake / "orders" / "manifest.json").as_uri()
    head = json.loads((lake / "orders" / "manifest.json").read_bytes())
    assert seen.tags["dagster/data_version"] == head["data_version"]
    assert watch.tick().asset_events == []


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore:Property `OpDefinition.version`:DeprecationWarning")
def test_what_depends_on_an_observed_asset_runs_by_itself(kept, lake):
    """By an automation condition, without a target: what the sensor records is all that it needs."""

    @dg.observable_source_asset
    def orders() -> None: ...

    @dg.asset(deps=[orders], automation_condition=dg.AutomationCondition.eager())
    def follower() -> None: ...

    definitions = dg.Definitions(assets=[orders, follower])
    assert dg.materialize([orders, follower], instance=kept, selection=[follower]).success
    watch = Watch(lake, kept, dg.AssetKey("orders"), target=None, observe=True)
    cursor, asked = None, []
    for ids in ([1], [], [2]):
        if ids:
            deliver(lake, "orders", *ids)
        for event in watch.tick().asset_events:
            kept.report_runless_asset_event(event)
        selected = dg.AssetSelection.assets(follower)
        found = dg.evaluate_automation_conditions(definitions, kept, selected, cursor=cursor)
        asked.append(found.total_requested)
        cursor = found.cursor
    # At the first evaluation there is nothing that a delivery could be newer than.
    assert asked == [0, 0, 1]


class Unasked(rd.LocalIOManager):
    """A store that does not answer for one of its datasets."""

    def open_destination(self, clients: Any) -> Any:
        silent = Trouble(when="before", key=lambda key: key.startswith("orders/"), times=99)
        return FaultyStore(super().open_destination(clients), troubles=[silent] if self.retain else [])


def test_a_store_that_cannot_be_asked_is_asked_again(kept, lake):
    orders, items = deliver(lake, "orders", 1), deliver(lake, "items", 1)
    watch = Watch(lake, kept, "orders", "items", io_manager=Unasked(path=str(lake), retain=1))
    assert watch.fired() == [items]
    found = watch.tick()
    assert found.run_requests == []
    assert "orders could not be looked at: " in found.skip_message
    assert "made to fail" in found.skip_message
    healed = Watch(lake, kept, "orders", "items")
    healed.cursor = watch.cursor
    assert healed.fired() == [orders]


def test_a_marker_that_is_damaged_is_told_and_keeps_no_other_from_firing(kept, lake):
    items = deliver(lake, "items", 1)
    deliver(lake, "orders", 1)
    (lake / "orders" / "_SUCCESS").write_text("")
    watch = Watch(lake, kept, "orders", "items")
    assert watch.fired() == [items]
    assert "orders could not be looked at: " in watch.tick().skip_message


@pytest.mark.parametrize(
    ("prefixes", "more", "expected"),
    [
        ([], {}, "at least one prefix"),
        (["orders", dg.AssetKey("orders")], {}, "watched twice"),
        (["../orders"], {}, r"below the destination, found '\.\./orders'"),
        (["orders"], {"target": None}, "a target to run"),
        (["orders"], {"target": None, "observe": True}, "a target to run"),
    ],
)
def test_a_sensor_that_cannot_work_is_refused(lake, kept, prefixes, more, expected):
    with pytest.raises(rd.ConfigError, match=f"delivery_sensor: .*{expected}"):
        Watch(lake, kept, *prefixes, **more)


@pytest.mark.parametrize(
    ("io_manager", "expected"),
    [(rd.StdoutIOManager(), "found stdout, a stream"), (dg.FilesystemIOManager(), "found .*FilesystemIOManager")],
)
def test_a_destination_that_keeps_nothing_of_ours_is_refused(lake, kept, io_manager, expected):
    with pytest.raises(rd.ConfigError, match=f"delivery_sensor: .*{expected}"):
        Watch(lake, kept, "orders", io_manager=io_manager).tick()


def test_a_client_that_cannot_be_built_is_told_and_nothing_is_lost(kept, lake):
    class Broken(rd.LocalIOManager):
        def open_destination(self, clients: Any) -> Any:
            raise OSError("no route; password=hunter2")

    orders = deliver(lake, "orders", 1)
    watch = Watch(lake, kept, "orders", io_manager=Broken(path=str(lake)))
    watch.cursor = json.dumps({"orders/": orders})
    said = watch.tick().skip_message
    assert "no route" in said
    assert "hunter2" not in said
    assert json.loads(watch.cursor) == {"orders/": orders}


def test_retries_with_backoff_wait_longer_each_time_and_export_each_row_once(instance, lake, shop):
    parts = Trouble(
        when="before", operation="write", key=lambda key: "/data/" in key, error=rd.DestinationError, times=2
    )
    definitions = rd.build_export_definitions(
        [rd.Export(name="orders", table="orders")],
        source=shop,
        destination=faulty_local(lake, parts),
        retry_policy=dg.RetryPolicy(max_retries=3, delay=0.01, backoff=dg.Backoff.EXPONENTIAL),
    )
    assert "rivet/diagnostics" not in definitions.resolve_asset_graph().get(dg.AssetKey("orders")).metadata
    result = definitions.resolve_job_def("exports").execute_in_process(instance=instance)
    waits = [e.step_retry_data.seconds_to_wait for e in result.all_events if e.is_step_up_for_retry]
    assert waits == [0.01, 0.03]
    assert plain(materialization(result, "orders").metadata)["rivet/attempts"] == 3
    head = json.loads((lake / "orders" / "manifest.json").read_bytes())
    assert sum(part["rows"] for part in head["parts"]) == 100
    assert {p.name for p in (lake / "orders" / "data").iterdir()} == {Path(p["path"]).name for p in head["parts"]}
