"""The maintenance job through Dagster: what it does, what it says, and datasets that it compacts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pyarrow as pa
import pytest
import xxhash

import rivet_dagster as rd
from tests import rivet_cli
from tests.faults.kit import FaultyStore, Killed, Trouble, is_head, is_part, litter
from tests.orchestration.kit import faulty_local, lines, materialization, on_disk, plain, run, told

EVENTS = rd.Export(name="events", table="events", mode=rd.Incremental(cursor_column="id"))
FOR_REAL = {"dry_run": False}


class Shop:
    """A table that grows, exported into a lake, and a job that maintains the lake."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, export: rd.Export = EVENTS) -> None:
        self.file, self.lake, self.instance = root / "shop.db", root / "lake", instance
        self.asset = rd.build_export_asset(export)
        self.ids = 0
        self.sql("create table events (id integer primary key, note text, at timestamp, raw blob, price decimal(9, 2))")

    def sql(self, statement: str, *values: Any) -> None:
        connection = sqlite3.connect(self.file, isolation_level=None)
        try:
            connection.execute(statement, values)
        finally:
            connection.close()

    def grow(self) -> None:
        self.ids += 1
        note = None if self.ids % 3 == 0 else f'note "{self.ids}", é'
        moment = f"2026-01-01 00:00:0{self.ids % 10}.123456"
        self.sql("insert into events values (?, ?, ?, ?, ?)", self.ids, note, moment, bytes([self.ids]), "1.50")

    def export(self, *, io_manager: Any = None, instance: Any = None, **more: Any) -> dict[str, Any]:
        result = run(
            [self.asset],
            io_manager or self.io_manager,
            instance or self.instance,
            resources={"source": rd.DatabaseResource(url=f"sqlite:///{self.file}")},
            **more,
        )
        assert result.success
        return plain(materialization(result, "events").metadata)

    @property
    def io_manager(self) -> rd.LocalIOManager:
        return rd.LocalIOManager(path=str(self.lake))

    def maintain(self, *, io_manager: Any = None, assets: Any = None, **config: Any) -> dg.ExecuteInProcessResult:
        job = rd.build_maintenance_job(assets or [self.asset])
        defs = dg.Definitions(
            assets=[self.asset],
            jobs=[job],
            resources={
                "io_manager": io_manager or self.io_manager,
                "source": rd.DatabaseResource(url=f"sqlite:///{self.file}"),
            },
        )
        told = {"ops": {"maintenance_step": {"config": config}}} if config else None
        return defs.resolve_job_def("maintenance").execute_in_process(
            instance=self.instance, run_config=told, raise_on_error=False
        )

    @property
    def head(self) -> dict[str, Any]:
        return json.loads((self.lake / "events" / "manifest.json").read_bytes())

    def rows(self) -> list[tuple[Any, ...]]:
        """What a reader finds along the chain of manifests, with the types it finds."""
        prefix, found, paths = self.lake / "events", self.head, []
        while True:
            paths += [str(prefix / p["path"]) for p in found["parts"]]
            if found["dataset"] == "snapshot":
                break
            found = json.loads((prefix / f"manifest-{found['previous']['run_id']}.json").read_bytes())
        read = "read_parquet" if found["format"] == "parquet" else "read_csv"
        query = f'select typeof(columns(*)) as "t_\\0", * from {read}({paths}) order by id'
        return duckdb.sql(query).fetchall()

    def dies(self) -> str:
        """A run that is killed with parts behind it, as Dagster sees it: over."""
        dead = faulty_local(self.lake, Trouble("dead-after", operation="write", key=is_part, error=Killed))
        self.grow()
        with pytest.raises(AssertionError):
            self.export(io_manager=dead)
        (found,) = self.instance.get_runs(limit=1)
        return found.run_id


@pytest.fixture
def persistent(tmp_path: Path) -> Any:
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as found:
        yield found


@pytest.fixture
def forgetful() -> Any:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def shop(tmp_path: Path, forgetful: dg.DagsterInstance) -> Shop:
    return Shop(tmp_path, forgetful)


def observed(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (found,) = result.get_asset_observation_events()
    return plain(found.asset_observation_data.asset_observation.metadata)


def test_nothing_is_done_unless_it_is_told_to(shop: Shop) -> None:
    shop.grow()
    shop.export()
    dead = shop.dies()
    (shop.lake / "events" / "stray.txt").write_text("mine")
    before = on_disk(shop.lake)
    result = shop.maintain()
    assert result.success
    assert on_disk(shop.lake) == before
    would = observed(result)
    assert would["rivet/dry_run"] is True
    assert would["rivet/unknown_objects"] == 1
    assert "left alone: events/stray.txt" in would["rivet/notes"][-1]
    assert would["rivet/removed_objects"] == len(would["rivet/removed"]) == 2
    assert all(dead in r["path"] for r in would["rivet/removed"])
    assert [t[: len(dead)] for t in would["rivet/taken_over"]] == [dead]
    said = lines(shop.instance, result.run_id)
    assert all(t.startswith("dry run, nothing is changed: ") for t in said if "removed" in t and "would" not in t)
    result = shop.maintain(**FOR_REAL)
    did = observed(result)
    assert did == {**would, "rivet/dry_run": False}
    assert on_disk(shop.lake) == {k: v for k, v in before.items() if dead not in k}
    assert sum(r["bytes"] for r in did["rivet/removed"]) == did["rivet/removed_bytes"]
    assert any("removed 2 objects" in t for t in lines(shop.instance, result.run_id))


@pytest.mark.parametrize("at", [is_part, is_head])
def test_a_run_that_is_not_over_is_left_alone(shop: Shop, at: Callable[[str], bool]) -> None:
    """It has stopped before this write, and is maintained there."""
    shop.grow()
    shop.export()
    reached, go_on = threading.Event(), threading.Event()

    class Stops(rd.LocalIOManager):
        def open_destination(self, clients: Any) -> Any:
            def before(operation: str, key: str) -> None:
                if operation == "write" and at(key):
                    reached.set()
                    assert go_on.wait(60)

            return FaultyStore(super().open_destination(clients), before=before)

    shop.grow()
    exporting = threading.Thread(target=shop.export, kwargs={"io_manager": Stops(path=str(shop.lake))})
    exporting.start()
    assert reached.wait(60)
    before = on_disk(shop.lake)
    result = shop.maintain(**FOR_REAL)
    assert result.success
    assert on_disk(shop.lake) == before
    go_on.set()
    exporting.join(60)
    assert [r[5] for r in shop.rows()] == [1, 2]


def test_many_deliveries_become_one_and_the_next_run_goes_on(tmp_path: Path, persistent: dg.DagsterInstance) -> None:
    shop = Shop(tmp_path, persistent)
    for _ in range(3):
        shop.grow()
        shop.export()
    before, rows = shop.head, shop.rows()
    size = sum(p.stat().st_size for p in (shop.lake / "events" / "data").iterdir())
    would = observed(shop.maintain(compact=["events"]))
    assert any("would compact" in note for note in would["rivet/notes"])
    assert shop.head == before
    result = shop.maintain(compact=["events"], **FOR_REAL)
    assert result.success
    after = shop.head
    assert after["dataset"] == "snapshot"
    assert [p["rows"] for p in after["parts"]] == [3]
    assert shop.rows() == rows
    for same in ("cursor", "identity", "columns", "schema_fingerprint", "data_version", "format", "export_name"):
        assert after[same] == before[same], same
    assert len([*(shop.lake / "events" / "data").iterdir()]) == 1
    said = plain(materialization(result, "events").metadata)
    assert said["rivet/run_id"] == after["run_id"]
    assert said["rivet/compacted"] == {"deliveries": 3, "parts": 3, "rows": 3, "bytes": size}
    assert rivet_cli.validate(rivet_cli.local(shop.lake / "events"), workdir=tmp_path).passed
    checks = [shop.asset, *rd.build_manifest_checks(shop.asset, checks=("manifest", "content", "row_count"))]
    source = {"source": rd.DatabaseResource(url=f"sqlite:///{shop.file}")}
    only = dg.AssetSelection.checks_for_assets("events")
    judged = run(checks, shop.io_manager, persistent, resources=source, selection=only)
    judged_as = {c.check_name: c for c in judged.get_asset_check_evaluations()}
    assert [c.passed for c in judged_as.values()] == [True] * 3
    assert "compaction made the delivery" in str(judged_as["row_count"].description)
    # What the event log says last is the head: nothing has to be adopted.
    shop.grow()
    said = shop.export()
    assert "rivet/adopted" not in said
    assert (said["dagster/row_count"], said["rivet/window"]["low"]) == (1, 3)
    assert [r[5] for r in shop.rows()] == [1, 2, 3, 4]
    # And an instance that knows nothing adopts it.
    shop.maintain(compact=["events"], **FOR_REAL)
    shop.grow()
    with dg.DagsterInstance.ephemeral() as other:
        assert shop.export(instance=other)["rivet/adopted"]["run_id"] == shop.head["previous"]["run_id"]
    assert [r[5] for r in shop.rows()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("settings", [{"format": "csv"}, {"format": "parquet", "max_file_size": "1KB"}])
def test_rows_and_types_stay_in_each_format(tmp_path: Path, forgetful: dg.DagsterInstance, settings: Any) -> None:
    shop = Shop(
        tmp_path,
        forgetful,
        rd.Export(**{**EVENTS.model_dump(include={"name", "table"}), "mode": EVENTS.mode, **settings}),
    )
    for _ in range(3):
        shop.grow()
        shop.export()
    rows, before = shop.rows(), shop.head
    assert shop.maintain(compact=["events"], **FOR_REAL).success
    assert (shop.head["dataset"], shop.head["row_count"]) == ("snapshot", 3)
    assert shop.head["columns"] == before["columns"]
    assert shop.rows() == rows
    shop.grow()
    shop.export()
    assert [r[5] for r in shop.rows()] == [1, 2, 3, 4]


def test_a_dataset_that_has_got_columns_is_compacted_under_all_of_them(shop: Shop) -> None:
    shop.grow()
    shop.export()
    shop.sql("alter table events add column more integer")
    shop.sql("insert into events (id, more) values (2, 7)")
    shop.asset = rd.build_export_asset(EVENTS.model_copy(update={"on_schema_drift": "allow"}))
    shop.export()
    assert shop.maintain(compact=["events"], **FOR_REAL).success
    manifest = json.loads((shop.lake / "events" / "manifest.json").read_bytes())
    assert manifest["dataset"] == "snapshot"
    parts = [str(shop.lake / "events" / p["path"]) for p in manifest["parts"]]
    assert duckdb.sql(f"select id, more from read_parquet({parts}) order by id").fetchall() == [(1, None), (2, 7)]


@pytest.mark.parametrize("first", ["compaction", "export"])
def test_a_run_and_a_compaction_at_once_are_a_conflict(shop: Shop, first: str) -> None:
    """The one has read its rows when the other commits."""
    for _ in range(2):
        shop.grow()
        shop.export()
    shop.grow()
    others: list[Any] = []

    class Overtaken(rd.LocalIOManager):
        def open_destination(self, clients: Any) -> Any:
            def before(operation: str, key: str) -> None:
                if operation == "write" and is_part(key) and not others:
                    others.append(None)
                    others[0] = shop.export() if first == "export" else shop.maintain(compact=["events"], **FOR_REAL)

            return FaultyStore(super().open_destination(clients), before=before)

    late = Overtaken(path=str(shop.lake))
    if first == "export":
        result = shop.maintain(io_manager=late, compact=["events"], **FOR_REAL)
        assert not result.success
        assert "expected the head that was there at the start" in told(result, "maintenance_step")
        assert [r[5] for r in shop.rows()] == [1, 2, 3]
    else:
        with pytest.raises(AssertionError):
            shop.export(io_manager=late)
        assert others[0].success
        assert [r[5] for r in shop.rows()] == [1, 2]
    shop.export()
    assert [r[5] for r in shop.rows()] == [1, 2, 3]
    assert shop.maintain(compact=["events"], **FOR_REAL).success
    assert [r[5] for r in shop.rows()] == [1, 2, 3]
    assert litter(on_disk(shop.lake), "events/") == []


def test_what_was_changed_or_lost_is_not_compacted_into_something_that_looks_whole(shop: Shop) -> None:
    for _ in range(3):
        shop.grow()
        shop.export()
    whole = on_disk(shop.lake)
    first = min((shop.lake / "events" / "data").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    body = bytearray(first.read_bytes())
    body[10] ^= 1
    first.write_bytes(body)
    result = shop.maintain(compact=["events"], **FOR_REAL)
    assert "expected the bytes that were recorded" in told(result, "maintenance_step")
    first.write_bytes(whole[f"events/data/{first.name}"])
    # An older state was restored: the event log remembers more than is there.
    link = shop.head["previous"]
    older = (shop.lake / "events" / f"manifest-{link['run_id']}.json").read_bytes()
    (shop.lake / "events" / "manifest.json").write_bytes(older)
    (shop.lake / "events" / "_SUCCESS").write_text(f"{link['fingerprint']}\n")
    result = shop.maintain(compact=["events"], **FOR_REAL)
    assert "the destination has lost data" in told(result, "maintenance_step")
    assert (shop.lake / "events" / "manifest.json").read_bytes() == older
    assert {k for k in on_disk(shop.lake) if "/data/" in k} == {k for k in whole if "/data/" in k}


def test_what_cannot_be_maintained_is_refused_or_left_out(shop: Shop) -> None:
    shop.grow()
    shop.export()
    result = shop.maintain(compact=["evnts"])
    assert "expected keys of the job's assets (events), found evnts" in told(result, "maintenance_step")
    for given, message in (([], "at least one"), (["events"], "found str")):
        with pytest.raises(rd.ConfigError, match=message):
            rd.build_maintenance_job(given)

    @dg.asset
    def elsewhere() -> None: ...

    job = rd.build_maintenance_job([shop.asset, elsewhere, dg.AssetSpec("outside")], io_manager_key="plain")
    defs = dg.Definitions(jobs=[job], resources={"plain": dg.mem_io_manager})
    result = defs.resolve_job_def("maintenance").execute_in_process(instance=shop.instance)
    assert result.success
    assert result.get_asset_observation_events() == []


def test_each_partition_is_maintained_on_its_own(tmp_path: Path, forgetful: dg.DagsterInstance) -> None:
    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b", "c"]))
    def days(context) -> pa.Table:
        return pa.table({"day": [context.partition_key]})

    lake = tmp_path / "lake"
    for key in ("a", "b"):
        assert run([days], rd.LocalIOManager(path=str(lake)), forgetful, partition_key=key).success
    before = on_disk(lake)
    for key in ("b", "c"):
        dead = faulty_local(lake, Trouble("dead-after", operation="write", key=is_part, error=Killed))
        assert not run([days], dead, forgetful, partition_key=key).success
    defs = dg.Definitions(
        jobs=[rd.build_maintenance_job([days])], resources={"io_manager": rd.LocalIOManager(path=str(lake))}
    )
    told = {"ops": {"maintenance_step": {"config": FOR_REAL}}}
    result = defs.resolve_job_def("maintenance").execute_in_process(instance=forgetful, run_config=told)
    assert observed(result)["rivet/removed_objects"] == 4
    assert {t.rsplit("-", 2)[1] for t in observed(result)["rivet/taken_over"]} == {
        xxhash.xxh3_64_hexdigest(key.encode())[:8] for key in ("b", "c")
    }
    assert on_disk(lake) == before
