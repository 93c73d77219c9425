"""A run in ranges that is killed, and its re-execution: through Dagster, and seen by other readers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import dagster as dg
import duckdb

import rivet_dagster as rd
from rivet_dagster.control import SideRecord
from tests import rivet_cli
from tests.faults.ranges import Dying
from tests.orchestration.kit import materialization, plain

ROOT = Path(__file__).parents[2]


class DiesWhenTold(rd.LocalIOManager):
    """Its process is killed once the run's record lists four parts."""

    def open_destination(self, clients):
        found = super().open_destination(clients)
        if "TEST_DIES" not in os.environ:
            return found
        SideRecord.__init__.__kwdefaults__["at_most_every"] = 0.0
        return Dying(found, parts=4, then=lambda: os.kill(os.getpid(), signal.SIGKILL))


def job_of_orders():
    """Loaded by name, and only once in a process, as Dagster does it: what differs comes from the environment."""
    mode = rd.Chunked(rows_per_part=10, parallel=2, consistency="statement")
    definitions = dg.Definitions(
        assets=[rd.build_export_asset(rd.Export(name="orders", table="orders", mode=mode))],
        resources={
            "io_manager": DiesWhenTold(path=dg.EnvVar("TEST_LAKE")),
            "source": rd.DatabaseResource(url=dg.EnvVar("TEST_DATABASE_URL")),
        },
        jobs=[dg.define_asset_job("export_orders")],
        executor=dg.in_process_executor,
    )
    return definitions.resolve_job_def("export_orders")


RUN = """
import dagster as dg
from tests.orchestration.test_resume import job_of_orders
with dg.DagsterInstance.get() as instance:
    dg.execute_job(dg.reconstructable(job_of_orders), instance=instance)
"""


def test_the_reexecution_of_a_killed_run_reads_the_other_ranges(tmp_path, lake, shop_file, monkeypatch):
    monkeypatch.setenv("TEST_LAKE", str(lake))
    monkeypatch.setenv("TEST_DATABASE_URL", f"sqlite:///{shop_file}")
    (tmp_path / "home").mkdir()
    with dg.instance_for_test(temp_dir=str(tmp_path / "home")) as home:
        environment = {**os.environ, "TEST_DIES": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        killed = subprocess.run(
            [sys.executable, "-c", RUN], env=environment, cwd=ROOT, capture_output=True, timeout=120, check=False
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        (parent,) = home.get_runs()
        # What Dagster's run monitoring finds out.
        home.report_run_failed(parent)
        (record,) = (lake / "orders").glob("manifest-*.json")
        recorded = [lake / "orders" / p["path"] for p in json.loads(record.read_bytes())["parts"]]
        before = {path: path.stat().st_mtime_ns for path in recorded}
        again = dg.ReexecutionOptions.from_failure(parent.run_id, home)
        child = dg.execute_job(dg.reconstructable(job_of_orders), instance=home, reexecution_options=again)
        assert child.success
        said = plain(materialization(child, "orders").metadata)
    assert before == {path: path.stat().st_mtime_ns for path in recorded}
    told = said["rivet/reused_parts"]
    assert (told["parts"], told["quarantined"]) == (len(recorded), 0)
    assert told["rows"] == 10 * len(recorded)
    assert told["bytes"] == sum(path.stat().st_size for path in recorded)
    assert [it["dagster_run_id"] for it in told["from"]] == [parent.run_id]
    assert any("re-used" in note for note in said["rivet/notes"])
    assert said["dagster/row_count"] == 100
    manifest = json.loads((lake / "orders" / "manifest.json").read_bytes())
    paths = [str(lake / "orders" / p["path"]) for p in manifest["parts"]]
    assert {str(path) for path in (lake / "orders" / "data").iterdir()} == set(paths)
    with sqlite3.connect(shop_file) as connection:
        expected = connection.execute("select id, note, price from orders order by id").fetchall()
    assert duckdb.sql(f"select id, note, price from read_parquet({paths}) order by id").fetchall() == expected
    opinion = rivet_cli.validate(rivet_cli.local(lake / "orders"), workdir=tmp_path)
    assert (opinion.passed, opinion.marker, opinion.parts) == (True, True, 10)
    assert opinion.untracked == (".rivet.lock",)
