"""Every mode at every destination, through Dagster: one path, so none of them is wired for one store alone."""

import sqlite3
from contextlib import closing

import dagster as dg
import pytest

import rivet_dagster as rd
from tests.faults.lakes import S3_ALONE

DAYS = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-03")
MODES = {
    "full": {},
    "chunked": {"mode": rd.Chunked(rows_per_part=7, parallel=2)},
    "incremental": {"mode": rd.Incremental(cursor_column="id")},
    "time window": {"mode": rd.TimeWindow(time_column="at", days=36_500, time_zone="UTC")},
    "partition": {"partition_by": rd.PartitionBy(column="at", time_zone="UTC")},
    "bundle": {},
}


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "shop.db"
    change(path, "create table orders (id integer primary key, at datetime, note text)")
    add(path, 1, 20)
    return path


def change(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def add(path, first, last):
    rows = ", ".join(f"({n}, '2024-01-01 10:00:00', {'NULL' if n % 3 else repr(str(n))})" for n in range(first, last))
    change(path, f"insert into orders values {rows}")


def definitions(shop, io_manager, mode):
    partitioned = {"partitions_def": DAYS} if mode == "partition" else {}
    return rd.build_export_definitions(
        [rd.Export(name="orders", table="orders", **MODES[mode])],
        source=rd.DatabaseResource(url=f"sqlite:///{shop}"),
        destination=io_manager,
        name="lake",
        bundle=mode == "bundle",
        **partitioned,
    )


def materialize(lake, shop, mode):
    job = definitions(shop, lake.io_manager(), mode).resolve_job_def("lake")
    key = "2024-01-01" if mode == "partition" else None
    return job.execute_in_process(instance=lake.instance, partition_key=key)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_there_is_what_the_source_has_and_the_check_says_so(lake, shop, mode):
    root = "orders/partition=2024-01-01/" if mode == "partition" else "orders/"
    for last in (20, 30):
        if last == 30:
            add(shop, 20, 30)
        done = materialize(lake, shop, mode)
        assert [c.passed for c in done.get_asset_check_evaluations()] == [True]
        assert sorted(row["id"] for row in lake.rows(root)) == list(range(1, last))
    [event] = done.get_asset_materialization_events()
    rows = event.materialization.metadata["dagster/row_count"].value
    assert rows == (10 if mode == "incremental" else 29)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in {"chunked", "bundle"}])
def test_a_stream_has_the_rows_of_each_mode_that_it_can_take(shop, mode, capfd):
    job = definitions(shop, rd.StdoutIOManager(), mode).resolve_job_def("lake")
    key = "2024-01-01" if mode == "partition" else None
    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process(instance=instance, partition_key=key)
    _header, *lines = capfd.readouterr().out.splitlines()
    assert [int(line.split(",")[0]) for line in lines] == list(range(1, 20))


@pytest.mark.parametrize("mode", ["chunked", "bundle"])
def test_a_stream_refuses_what_it_cannot_take(shop, mode):
    with pytest.raises(rd.PlanRejected, match=f"stdout-no-{mode}"):
        definitions(shop, rd.StdoutIOManager(), mode)


@pytest.mark.parametrize("lake", S3_ALONE, indirect=True)
def test_what_was_added_to_is_compacted_and_tidied_at_a_store_too(lake, shop):
    for last in (20, 30):
        if last == 30:
            add(shop, 20, 30)
        materialize(lake, shop, "incremental")
    rows, deliveries = lake.rows(), [k for k in lake.raw if "/data/" in k]
    assert len(deliveries) == 2
    defs = definitions(shop, lake.io_manager(), "incremental")
    job = rd.build_maintenance_job(defs.assets)
    told = {"ops": {"maintenance_step": {"config": {"dry_run": False, "compact": ["orders"]}}}}
    maintained = dg.Definitions.merge(defs, dg.Definitions(jobs=[job])).resolve_job_def("maintenance")
    done = maintained.execute_in_process(instance=lake.instance, run_config=told)
    assert len([k for k in lake.raw if "/data/" in k]) == 1
    assert (lake.rows(), lake.litter()) == (rows, [])
    [event] = done.get_asset_observation_events()
    said = event.asset_observation_data.asset_observation.metadata
    assert said["rivet/removed_objects"].value == 4
    add(shop, 30, 35)
    materialize(lake, shop, "incremental")
    assert [row["id"] for row in lake.rows()] == list(range(1, 35))
