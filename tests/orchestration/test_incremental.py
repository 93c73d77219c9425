"""Where an incremental export stands: the event log held against the destination, on instances that stay or do not."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import pytest
import xxhash

import rivet_dagster as rd
from tests.orchestration.kit import failure, lines, materialization, on_disk, plain, run

EVENTS = rd.Export(name="events", table="events", mode=rd.Incremental(cursor_column="id"))
ANEW = dg.RunConfig(ops={"events": {"config": {"full_refresh": True}}})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an instance that was used once: its tables are there."""
    found = tmp_path_factory.mktemp("home")
    with dg.DagsterInstance.local_temp(str(found)) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(asset_key="another"))
    return found


@pytest.fixture(params=["ephemeral", "persistent"])
def instance(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Any:
    """One that forgets with its process, and one that keeps what it has seen on disk."""
    if request.param == "ephemeral":
        with dg.DagsterInstance.ephemeral() as found:
            yield found
        return
    shutil.copytree(home, tmp_path / "home")
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as found:
        yield found


class Shop:
    """A table that grows, exported into a lake."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        self.file, self.lake, self.instance = root / "shop.db", root / "lake", instance
        self.ids = 0
        self.sql("create table events (id integer primary key, note text)")

    def sql(self, statement: str) -> None:
        connection = sqlite3.connect(self.file, isolation_level=None)
        try:
            connection.execute(statement)
        finally:
            connection.close()

    def grow(self) -> None:
        self.ids += 1
        self.sql(f"insert into events values ({self.ids}, 'note {self.ids}')")

    def export(self, export: rd.Export = EVENTS, *, instance: Any = None, **more: Any) -> dg.ExecuteInProcessResult:
        source = rd.DatabaseResource(url=f"sqlite:///{self.file}")
        io_manager = more.pop("io_manager", None) or rd.LocalIOManager(path=str(self.lake))
        assets = [rd.build_export_asset(export)]
        return run(assets, io_manager, instance or self.instance, resources={"source": source}, **more)

    def elsewhere(self) -> dict[str, Any]:
        """A row more, exported by a Dagster that this one does not know."""
        self.grow()
        with dg.DagsterInstance.ephemeral() as other:
            return said(self.export(instance=other))

    @property
    def prefix(self) -> Path:
        return self.lake / "events"

    def rows(self) -> list[int]:
        """What a reader finds along the chain of manifests."""
        found, paths = json.loads((self.prefix / "manifest.json").read_bytes()), []
        while True:
            paths += [str(self.prefix / p["path"]) for p in found["parts"]]
            if found["dataset"] == "snapshot":
                break
            found = json.loads((self.prefix / f"manifest-{found['previous']['run_id']}.json").read_bytes())
        return (
            [i for (i,) in duckdb.sql(f"select id from read_parquet({paths}) order by id").fetchall()] if paths else []
        )


@pytest.fixture
def shop(tmp_path: Path, instance: dg.DagsterInstance) -> Shop:
    found = Shop(tmp_path, instance)
    found.grow()
    return found


def said(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success, told(result)
    return plain(materialization(result, "events").metadata)


def told(result: dg.ExecuteInProcessResult) -> str:
    found = failure(result, "events")
    return str(found.user_failure_data.description if found.user_failure_data else found.error)


def refused(shop: Shop, expected: str, **more: Any) -> None:
    """A run fails for good, and changes nothing."""
    import re

    before = on_disk(shop.lake) if shop.lake.exists() else {}
    result = shop.export(**more)
    assert not result.success
    assert re.search(expected, told(result)), told(result)
    assert (on_disk(shop.lake) if shop.lake.exists() else {}) == before


def test_runs_go_on_from_each_other(shop: Shop) -> None:
    first = said(shop.export())
    assert first["rivet/window"] == {"low": None, "low_open": False, "high": 1, "high_open": False, "nulls": False}
    shop.grow()
    shop.grow()
    second = said(shop.export())
    assert second["dagster/row_count"] == 2
    assert second["rivet/cursor"]["value"] == 3
    assert second["rivet/window"] == {"low": 1, "low_open": True, "high": 3, "high_open": False, "nulls": False}
    assert second["rivet/settle"]["settle"] == "writers"
    # Nothing new: the dataset is described as it was, and the data version says so to whoever depends on it.
    third = said(shop.export())
    same = ("rivet/run_id", "rivet/checksum", "rivet/cursor", "rivet/data_version")
    assert [third[k] for k in same] == [second[k] for k in same]
    assert (third["dagster/row_count"], third["rivet/parts"]) == (0, [])
    shop.grow()
    fourth = said(shop.export())
    assert not [x for x in (first, second, third, fourth) if "rivet/adopted" in x]
    assert shop.rows() == [1, 2, 3, 4]


def test_a_run_whose_event_was_lost_is_adopted(shop: Shop) -> None:
    shop.export()
    lost = shop.elsewhere()
    shop.grow()
    result = shop.export()
    found = said(result)
    assert found["rivet/adopted"]["run_id"] == lost["rivet/run_id"]
    assert "record was lost" in found["rivet/adopted"]["because"]
    assert [x for x in lines(shop.instance, result.run_id, level=logging.WARNING) if lost["rivet/run_id"] in x]
    assert shop.rows() == [1, 2, 3]
    shop.grow()
    assert "rivet/adopted" not in said(shop.export())


def test_a_dataset_of_ours_is_adopted_by_an_instance_that_has_never_seen_it(shop: Shop) -> None:
    there = shop.elsewhere()
    shop.grow()
    found = said(shop.export())
    assert found["rivet/adopted"]["run_id"] == there["rivet/run_id"]
    assert (found["dagster/row_count"], shop.rows()) == (1, [1, 2, 3])


def test_wiping_an_asset_does_not_begin_anew_and_full_refresh_does(shop: Shop) -> None:
    first = said(shop.export())
    shop.instance.wipe_assets([dg.AssetKey("events")])
    shop.grow()
    found = said(shop.export())
    assert found["rivet/adopted"]["run_id"] == first["rivet/run_id"]
    assert found["dagster/row_count"] == 1
    anew = said(shop.export(run_config=ANEW))
    assert (anew["dagster/row_count"], anew["rivet/window"]["low"]) == (2, None)
    assert json.loads((shop.prefix / "manifest.json").read_bytes())["dataset"] == "snapshot"
    assert len(list((shop.prefix / "data").iterdir())) == 1
    shop.grow()
    assert said(shop.export())["dagster/row_count"] == 1
    assert shop.rows() == [1, 2, 3]


def test_a_dataset_of_another_database_is_refused(shop: Shop) -> None:
    shop.elsewhere()
    shutil.copy(shop.file, shop.file.with_name("other.db"))
    shop.file = shop.file.with_name("other.db")
    refused(shop, r"database is 'sqlite:other.db', there it is 'sqlite:shop.db'.*full_refresh")
    assert "rivet/adopted" not in said(shop.export(run_config=ANEW))
    assert shop.rows() == [1, 2]


def test_a_dataset_of_another_tool_is_refused(shop: Shop) -> None:
    shop.elsewhere()
    ours = ("identity", "columns", "cursor", "window", "dataset", "ancestors", "sequence", "dagster")
    rewrite(shop, lambda found: [found.pop(k) for k in ours])
    refused(shop, r"another tool wrote.*full_refresh")
    assert said(shop.export(run_config=ANEW))["dagster/row_count"] == 2


@pytest.mark.parametrize("mode", [EVENTS.mode, rd.Full()], ids=["incremental", "full"])
def test_a_prefix_that_another_export_has_taken_is_refused_whatever_is_asked(shop: Shop, mode: Any) -> None:
    """`of/events` in one directory is where `events` of another one would be."""
    source = {"source": rd.DatabaseResource(url=f"sqlite:///{shop.file}")}
    other = rd.build_export_asset(EVENTS, key_prefix="of")
    assert run([other], rd.LocalIOManager(path=str(shop.lake)), shop.instance, resources=source).success
    export = rd.Export(name="events", table="events", mode=mode)
    for more in ({}, {"run_config": ANEW}):
        inside = rd.LocalIOManager(path=str(shop.lake / "of"))
        refused(
            shop, r"a dataset of export 'events', found one of 'of/events'", export=export, io_manager=inside, **more
        )


def test_a_snapshot_of_the_same_export_is_not_added_to(shop: Shop) -> None:
    shop.export(rd.Export(name="events", table="events"))
    refused(shop, r"cursor_column is 'id', there it is None.*full_refresh")


def test_a_manifest_that_was_changed_is_refused(shop: Shop) -> None:
    shop.export()
    rewrite(shop, lambda found: found["cursor"].update(value=0))
    shop.grow()
    refused(shop, r"its manifest was changed; restore it")
    # Nor is what was built on it taken for what had been there.
    with dg.DagsterInstance.ephemeral() as other:
        shop.export(instance=other)
    refused(shop, r"its manifest was changed; restore it")


def rewrite(shop: Shop, change: Any) -> None:
    """The head, with a marker that fits."""
    found = json.loads((shop.prefix / "manifest.json").read_bytes())
    change(found)
    body = json.dumps(found).encode()
    (shop.prefix / "manifest.json").write_bytes(body)
    (shop.prefix / f"manifest-{found['run_id']}.json").write_bytes(body)
    (shop.prefix / "_SUCCESS").write_text(f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n")


def test_a_dataset_that_is_gone_is_not_begun_anew_unasked(shop: Shop) -> None:
    last = said(shop.export())
    shutil.rmtree(shop.lake)
    refused(shop, rf"expected .*{last['rivet/run_id']}.*found nothing.*lost it.*full_refresh")
    assert said(shop.export(run_config=ANEW))["dagster/row_count"] == 1


def test_a_snapshot_that_is_gone_is_made_again_with_a_warning(shop: Shop) -> None:
    whole = rd.Export(name="events", table="events")
    last = said(shop.export(whole))
    shutil.rmtree(shop.lake)
    result = shop.export(whole)
    assert said(result)["dagster/row_count"] == 1
    (warned,) = [x for x in lines(shop.instance, result.run_id, level=logging.WARNING) if "lost" in x]
    assert last["rivet/run_id"] in warned


def test_a_dataset_that_was_rolled_back_is_refused(shop: Shop, tmp_path: Path) -> None:
    shop.export()
    shutil.copytree(shop.lake, tmp_path / "backup")
    shop.grow()
    last = said(shop.export())
    shutil.rmtree(shop.lake)
    shutil.copytree(tmp_path / "backup", shop.lake)
    shop.grow()
    refused(shop, rf"expected .*{last['rivet/run_id']}.*an earlier one: the destination has lost data")


def test_two_datasets_that_have_parted_are_refused(shop: Shop, tmp_path: Path) -> None:
    shop.export()
    shutil.copytree(shop.lake, tmp_path / "backup")
    shop.grow()
    shop.export()
    shutil.rmtree(shop.lake)
    shutil.copytree(tmp_path / "backup", shop.lake)
    shop.elsewhere()
    refused(shop, r"neither descends from it nor came before: two datasets have parted")


def test_a_destination_that_was_moved_is_told_apart_and_its_copy_is_gone_on_with(shop: Shop, tmp_path: Path) -> None:
    shop.export()
    shop.lake = tmp_path / "other"
    shop.grow()
    refused(shop, r"it was written to file:///\S*/lake/events.*moved; copy that prefix here, whole")
    shutil.copytree(tmp_path / "lake", shop.lake)
    assert said(shop.export())["dagster/row_count"] == 1
    assert shop.rows() == [1, 2]


def test_materializations_that_carry_no_state_are_passed_over(shop: Shop) -> None:
    shop.export()
    for n in range(25):
        shop.instance.report_runless_asset_event(
            dg.AssetMaterialization(asset_key="events", metadata={"by": "hand", "n": n})
        )
    shop.grow()
    found = said(shop.export())
    assert "rivet/adopted" not in found
    assert found["dagster/row_count"] == 1


def test_to_a_stream_every_run_exports_from_the_beginning(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    shop.export()
    for _ in range(2):
        result = shop.export(io_manager=rd.StdoutIOManager())
        found = said(result)
        assert found["dagster/row_count"] == 1
        assert not {"rivet/cursor", "rivet/run_id"} & found.keys()
        assert [x for x in lines(shop.instance, result.run_id, level=logging.WARNING) if "stdout-no-state" in x]
    shop.grow()
    assert said(shop.export())["dagster/row_count"] == 1


def test_whoever_depends_on_it_gets_the_whole_dataset(shop: Shop) -> None:
    """All deliveries, in their order; and each one's check judges its own."""
    seen: list[list[int]] = []

    @dg.asset
    def sums(events: pd.DataFrame) -> None:
        seen.append([int(i) for i in events["id"]])

    exported = rd.build_export_asset(EVENTS)
    resources = {
        "source": rd.DatabaseResource(url=f"sqlite:///{shop.file}"),
        "io_manager": rd.LocalIOManager(path=str(shop.lake)),
    }
    for _ in range(3):
        result = dg.materialize(
            [exported, *rd.build_manifest_checks(exported), sums], instance=shop.instance, resources=resources
        )
        assert [c.passed for c in result.get_asset_check_evaluations()] == [True]
        shop.grow()
    assert seen == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("bundle", [False, True])
def test_a_job_is_told_which_exports_begin_anew(shop: Shop, bundle: bool) -> None:
    shop.sql("create table other as select * from events")
    other = rd.Export(name="other", table="other", mode=rd.Incremental(cursor_column="id"))
    defs = rd.build_export_definitions(
        [EVENTS, other],
        source=rd.DatabaseResource(url=f"sqlite:///{shop.file}"),
        destination=rd.LocalIOManager(path=str(shop.lake)),
        name="lake",
        bundle=bundle,
    )
    job = defs.resolve_job_def("lake")
    assert job.execute_in_process(instance=shop.instance).success
    asked = (
        {"lake_bundle": {"config": {"full_refresh": ["events"]}}}
        if bundle
        else {"events": {"config": {"full_refresh": True}}}
    )
    result = job.execute_in_process(instance=shop.instance, run_config={"ops": asked})
    found = {k: plain(materialization(result, k).metadata)["rivet/window"]["low"] for k in ("events", "other")}
    # Without a unique index the greatest value waits, and there is but one.
    assert found == {"events": None, "other": 1}
    if bundle:
        asked["lake_bundle"]["config"]["full_refresh"] = ["event"]
        wrong = job.execute_in_process(instance=shop.instance, run_config={"ops": asked}, raise_on_error=False)
        assert "(events, other), found event" in str(failure(wrong, "lake_bundle").user_failure_data.description)
