"""Exports in ranges of a key as a step runs them: what is refused, recorded, logged and left after an interrupt."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys

import dagster as dg
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from rivet_dagster.exports import extraction
from tests.orchestration.kit import failure, lines, materialization, on_disk, plain, run

CHUNKED = rd.Export(name="orders", table="orders", mode=rd.Chunked(rows_per_part=30, parallel=2))


def rows_in(lake):
    manifest = json.loads((lake / "orders" / "manifest.json").read_bytes())
    tables = [pq.read_table(lake / "orders" / p["path"]) for p in manifest["parts"]]
    return [i for t in tables for i in t["id"].to_pylist()]


def test_an_export_in_ranges_is_recorded_as_any_other(instance, lake, shop):
    orders = rd.build_export_asset(CHUNKED)
    result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    assert result.success
    said = plain(materialization(result, "orders").metadata)
    assert said["dagster/row_count"] == 100
    assert said["rivet/consistency"] == "snapshot"
    assert [p["rows"] for p in said["rivet/parts"]] == [30, 30, 30, 10]
    assert "rivet/source_retries" not in said
    assert rows_in(lake) == list(range(1, 101))
    assert orders.tags_by_key[dg.AssetKey("orders")]["rivet/export"] == "chunked"
    (noted,) = [x for x in lines(instance, result.run_id, level=logging.WARNING) if "parallel=2" in x]
    assert "sqlite" in noted


def test_the_same_rows_have_the_same_data_version_whatever_the_number_of_workers(instance, lake, shop):
    found = set()
    for parallel in (1, 2, 3):
        mode = rd.Chunked(rows_per_part=7, parallel=parallel, consistency="statement")
        orders = rd.build_export_asset(rd.Export(name="orders", table="orders", mode=mode))
        result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
        found.add(plain(materialization(result, "orders").metadata)["rivet/data_version"])
    assert len(found) == 1


def test_a_stream_is_refused_where_it_is_defined(shop):
    with pytest.raises(rd.PlanRejected, match=r"stdout-no-chunked.*orders"):
        rd.build_export_definitions([CHUNKED], source=shop, destination=rd.StdoutIOManager())


def test_a_stream_is_refused_when_the_step_starts(instance, shop, capfd, monkeypatch):
    def never(*_args, **_more):
        raise AssertionError("planned")

    monkeypatch.setattr(extraction, "plan_export", never)
    result = run([rd.build_export_asset(CHUNKED)], rd.StdoutIOManager(), instance, resources={"source": shop})
    assert not result.success
    assert "stdout-no-chunked" in str(failure(result, "orders").user_failure_data.description)
    assert "row" not in capfd.readouterr().out


def test_a_table_without_a_key_is_refused_without_a_retry(instance, lake, tmp_path):
    import sqlite3

    with sqlite3.connect(tmp_path / "plain.db") as connection:
        connection.execute("create table orders (id integer)")
    source = rd.DatabaseResource(url=f"sqlite:///{tmp_path / 'plain.db'}")
    orders = rd.build_export_asset(CHUNKED, retry_policy=dg.RetryPolicy(max_retries=3))
    result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": source})
    assert not result.success
    assert "key" in str(failure(result, "orders").user_failure_data.description)
    assert not [e for e in result.all_events if e.is_step_up_for_retry]
    assert not (lake / "orders" / "manifest.json").exists()


def test_a_long_export_logs_how_far_it_is(instance, lake, shop, monkeypatch):
    now = [0.0]

    def clock():
        now[0] += 6
        return now[0]

    monkeypatch.setattr(
        extraction.plan_export, "__kwdefaults__", {**extraction.plan_export.__kwdefaults__, "clock": clock}
    )
    for export in (CHUNKED, rd.Export(name="orders", table="orders")):
        result = run(
            [rd.build_export_asset(export)], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop}
        )
        said = [x for x in lines(instance, result.run_id, level=logging.INFO) if "rows/s" in x]
        assert said
        assert all(x.startswith("export 'orders': ") for x in said)


CODE = '''
import os
from pathlib import Path

import dagster as dg
import rivet_dagster as rd

HERE = Path(__file__).parent


class Lake(rd.LocalIOManager):
    """Says who it is once three parts are begun, and then waits for what never comes."""

    def open_destination(self, clients):
        found = super().open_destination(clients)
        stage, begun = found.stage, []

        def staged(key):
            begun.append(key)
            if len(begun) == 3:
                with open(HERE / "half_way", "w") as said:
                    said.write(str(os.getpid()))
                open(HERE / "never").read()
            return stage(key)

        found.stage = staged
        return found


mode = rd.Chunked(rows_per_part=10, parallel=2, consistency="statement")
defs = dg.Definitions(
    assets=[rd.build_export_asset(rd.Export(name="orders", table="orders", mode=mode))],
    resources={
        "source": rd.DatabaseResource(url=f"sqlite:///{HERE / 'shop.db'}"),
        "io_manager": Lake(path=str(HERE / "lake")),
    },
    jobs=[dg.define_asset_job("all")],
    executor=dg.in_process_executor,
)

if __name__ == "__main__":
    with dg.DagsterInstance.ephemeral() as instance:
        result = defs.resolve_job_def("all").execute_in_process(instance=instance, raise_on_error=False)
        raise SystemExit(0 if result.success else 3)
'''


def test_a_run_that_is_terminated_ends_at_once_and_leaves_nothing(tmp_path, shop_file, instance, lake, shop):
    """While one worker waits for the database or the disk, and others read."""
    for name in ("half_way", "never"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "job.py").write_text(CODE)
    root = str(next(p for p in rd.__path__)).rsplit("/", 1)[0]
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py")],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            pid = int((tmp_path / "half_way").read_text())
            assert pid == process.pid
            process.send_signal(signal.SIGINT)
            # A worker that waits on a pipe is nothing that can be stopped: it is let go here.
            with (tmp_path / "never").open("w"):
                pass
            assert process.wait(60) != 0
        finally:
            process.kill()
    left = on_disk(lake)
    assert not [k for k in left if "/data/" in k or k.endswith(("/manifest.json", "_SUCCESS"))]
    orders = rd.build_export_asset(CHUNKED)
    assert run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop}).success
    assert rows_in(lake) == list(range(1, 101))
