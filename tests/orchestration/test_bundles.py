"""Many exports in one step: each is committed and recorded as if it had a step of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import dagster as dg
import pandas as pd
import pytest

import rivet_dagster as rd
from rivet_dagster.destinations.local import LocalDestination
from tests.orchestration.kit import events, failure, lines, materialization, plain, told

NAMES = [f"t{i:02}" for i in range(6)]


@pytest.fixture
def tables(tmp_path):
    """Six tables with as many rows as their place, from one."""
    path = tmp_path / "tables.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        for rows, name in enumerate(NAMES, 1):
            connection.execute(f"create table {name} (id integer primary key)")
            connection.executemany(f"insert into {name} values (?)", [(i,) for i in range(rows)])
    return path


def bundle(path, lake, names=NAMES, *, destination=None, queries=(), **more):
    exports = [rd.Export(name=name, table=name) for name in names]
    exports += [rd.Export(name=name, query=sql) for name, sql in queries]
    return rd.build_export_definitions(
        exports,
        source=rd.DatabaseResource(url=f"sqlite:///{path}"),
        destination=destination or rd.LocalIOManager(path=str(lake)),
        bundle=True,
        **more,
    )


def execute(definitions, instance, **more):
    return definitions.resolve_job_def("exports").execute_in_process(instance=instance, raise_on_error=False, **more)


def head(lake, name):
    return json.loads((lake / name / "manifest.json").read_bytes())


def assets_of(definitions):
    return [a for a in definitions.assets if isinstance(a, dg.AssetsDefinition)]


def test_every_export_is_committed_and_recorded_as_with_a_step_of_its_own(instance, lake, tables, tmp_path):
    result = execute(bundle(tables, lake), instance)
    assert result.success
    alone = rd.build_export_definitions(
        [rd.Export(name="t02", table="t02")],
        source=rd.DatabaseResource(url=f"sqlite:///{tables}"),
        destination=rd.LocalIOManager(path=str(tmp_path / "other")),
    )
    single = materialization(execute(alone, instance), "t02")
    found = materialization(result, "t02")
    assert found.metadata.keys() == single.metadata.keys()
    assert found.tags["dagster/data_version"] == single.tags["dagster/data_version"]
    assert plain(found.metadata)["dagster/row_count"] == 3
    for rows, name in enumerate(NAMES, 1):
        said = plain(materialization(result, name).metadata)
        assert said["rivet/run_id"] == head(lake, name)["run_id"]
        assert (said["dagster/row_count"], head(lake, name)["row_count"]) == (rows, rows)
        begun = [x for x in lines(instance, result.run_id) if x.startswith(f"export '{name}': destination commit_")]
        assert len(begun) == 1
    assert {e.check_name for e in result.get_asset_check_evaluations()} == {"manifest"}
    assert len([e for e in result.get_asset_check_evaluations() if e.passed]) == len(NAMES)
    assert {e.step_key for e in result.all_events if e.is_step_success} == {
        "exports_bundle",
        "exports_bundle_manifest",
    }


def test_each_asset_is_described_as_without_a_bundle(lake, tables):
    more = {
        "key_prefix": ["wh"],
        "deps": ["upstream"],
        "group_name": "raw",
        "owners": ["team:data"],
        "tags": {"tier": "gold"},
        "retry_policy": dg.RetryPolicy(max_retries=3),
        "pool": "shop",
    }
    (together,) = assets_of(bundle(tables, lake, **more))
    each = assets_of(
        rd.build_export_definitions(
            [rd.Export(name=name, table=name) for name in NAMES],
            source=rd.DatabaseResource(url=f"sqlite:///{tables}"),
            destination=rd.LocalIOManager(path=str(lake)),
            **more,
        )
    )
    assert together.op.retry_policy == dg.RetryPolicy(max_retries=3)
    assert together.op.pool == "shop"
    assert together.can_subset
    for asset in each:
        (alone,) = asset.specs
        found = next(s for s in together.specs if s.key == alone.key)
        for name in ("description", "group_name", "owners", "tags", "kinds", "code_version"):
            assert getattr(found, name) == getattr(alone, name), name
        assert [d.asset_key for d in found.deps] == [d.asset_key for d in alone.deps]
        assert alone.metadata.items() <= found.metadata.items()


def test_what_is_selected_is_exported_and_checked_alone(instance, lake, tables):
    wanted = [dg.AssetKey("t01"), dg.AssetKey("t04")]
    result = execute(bundle(tables, lake), instance, asset_selection=wanted)
    assert result.success
    assert sorted(p.name for p in lake.iterdir()) == ["t01", "t04"]
    assert {e.asset_key for e in result.get_asset_materialization_events()} == set(wanted)


def test_one_that_fails_stops_no_other_and_is_named_at_the_end(instance, lake, tables):
    gone = [("gone", "select * from not_there"), ("broken", "select nothing at all")]
    result = execute(bundle(tables, lake, queries=gone), instance)
    assert not result.success
    assert {e.asset_key.path[0] for e in result.get_asset_materialization_events()} == set(NAMES)
    (error,) = (e for e in result.all_events if e.is_step_failure and e.step_key == "exports_bundle")
    said = error.step_failure_data.user_failure_data
    assert said.description.startswith("file://")
    assert "2 of 8 exports failed, the others are committed" in said.description
    assert "gone: " in said.description
    assert "broken: " in said.description
    assert plain(said.metadata)["rivet/error"] == "SourceError"
    # What the others have committed is visible.
    assert plain(said.metadata)["rivet/left_behind"].startswith("of those that failed: nothing of this run is visible")
    assert not [e for e in result.all_events if e.is_step_up_for_retry]


def test_where_all_fail_nothing_is_said_to_be_committed(instance, lake, tables):
    gone = [("gone", "select * from not_there"), ("broken", "select nothing at all")]
    result = execute(bundle(tables, lake, queries=gone), instance, asset_selection=[dg.AssetKey(n) for n, _ in gone])
    (error,) = (e for e in result.all_events if e.is_step_failure and e.step_key == "exports_bundle")
    assert "2 of 2 exports failed, none is committed:" in error.step_failure_data.user_failure_data.description
    assert not lake.exists() or not [*lake.iterdir()]


class Flaky(rd.LocalIOManager):
    """Fails to stage the parts of one asset so many times."""

    trouble: str
    times: int = 1

    def open_destination(self, clients):
        found, left = super().open_destination(clients), TIMES.setdefault(self.trouble, [self.times])
        stage, trouble = found.stage, self.trouble

        def staged(key):
            if key.startswith(f"{trouble}/") and left[0] > 0:
                left[0] -= 1
                raise rd.DestinationError("no space left")
            return stage(key)

        found.stage = staged
        return found


TIMES: dict[str, list[int]] = {}


@pytest.fixture(autouse=True)
def _fresh():
    TIMES.clear()


def that_fails(path, lake, **more):
    """One export would fail again, one passes when it is repeated."""
    gone = [("gone", "select * from not_there")]
    return bundle(path, lake, destination=Flaky(path=str(lake), trouble="t03"), queries=gone, **more)


def job_that_fails():
    """Loaded by name, and only once in a process, as Dagster does it."""
    definitions = that_fails(os.environ["TEST_TABLES"], os.environ["TEST_LAKE"])
    definitions = dg.Definitions.merge(definitions, dg.Definitions(executor=dg.in_process_executor))
    return definitions.resolve_job_def("exports")


@pytest.mark.parametrize("retries", [0, 1], ids=["re-executed", "retried"])
def test_what_is_committed_is_found_when_the_step_is_repeated(instance, lake, tables, retries, monkeypatch):
    monkeypatch.setenv("TEST_LAKE", str(lake))
    monkeypatch.setenv("TEST_TABLES", str(tables))
    if retries:
        first = execute(that_fails(tables, lake, retry_policy=dg.RetryPolicy(max_retries=1)), instance)
        assert not first.success
        assert [e.step_key for e in first.all_events if e.is_step_up_for_retry] == ["exports_bundle"]
    else:
        job = dg.reconstructable(job_that_fails)
        first = dg.execute_job(job, instance=instance)
        assert not (lake / "t03" / "manifest.json").exists()
        assert "no space left" in told(first, "exports_bundle")
        assert failure(first, "exports_bundle").user_failure_data is None, "a policy may repeat it"
        again = dg.ReexecutionOptions.from_failure(first.run_id, instance)
        second = dg.execute_job(job, instance=instance, reexecution_options=again)
        assert "1 of 7 exports failed" in failure(second, "exports_bundle").user_failure_data.description
    for name in NAMES:
        found = instance.fetch_materializations(dg.AssetKey(name), limit=9).records
        assert len(found) == (1 if name == "t03" else 2)
        assert {r.asset_materialization.metadata["rivet/run_id"].value for r in found} == {head(lake, name)["run_id"]}
        assert head(lake, name)["sequence"] == 1
        assert (head(lake, name)["dagster"]["run_id"] == first.run_id) is (bool(retries) or name != "t03")


def test_a_dataset_begins_anew_only_where_its_own_export_is_named(instance, lake, tables):
    defs = dg.component_defs(
        component=rd.ExportsComponent(
            source=rd.DatabaseResource(url=f"sqlite:///{tables}"),
            destination={"type": "local", "path": str(lake)},
            bundle=True,
            exports=[
                {"name": "t01", "table": "t01", "key_prefix": prefix, "mode": rd.Incremental(cursor_column="id")}
                for prefix in ("a", "b")
            ],
        )
    )

    def anew(*names):
        config = {"ops": {"exports_bundle": {"config": {"full_refresh": [*names]}}}}
        return execute(defs, instance, run_config=config)

    execute(defs, instance)
    both = anew("t01")
    assert "(a/t01, b/t01), found t01" in failure(both, "exports_bundle").user_failure_data.description
    assert anew("b/t01").success
    assert [head(lake, f"{prefix}/t01")["sequence"] for prefix in ("a", "b")] == [1, 2]


def test_so_many_run_at_a_time_and_no_more(instance, lake, tables):
    running, most, lock = [0], [0], threading.Lock()
    three, fourth = threading.Barrier(3), threading.Event()

    class Counted(rd.LocalIOManager):
        def open_destination(self, clients):
            found = super().open_destination(clients)
            stage = found.stage

            def staged(key):
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                    if running[0] > 3:
                        fourth.set()
                three.wait(30)
                # Time for one more to come, if there is one.
                fourth.wait(0.5)
                with lock:
                    running[0] -= 1
                return stage(key)

            found.stage = staged
            return found

    assert execute(bundle(tables, lake, destination=Counted(path=str(lake)), parallel=3), instance).success
    assert most == [3]


def test_a_downstream_asset_gets_what_the_bundle_of_its_run_committed(instance, lake, tables):
    @dg.asset(ins={"t05": dg.AssetIn(), "t01": dg.AssetIn()}, io_manager_key="exports_destination")
    def total(t05: pd.DataFrame, t01: rd.ExportReceipt) -> pd.DataFrame:
        return pd.DataFrame({"rows": [len(t05) + t01.row_count]})

    definitions = dg.Definitions.merge(bundle(tables, lake), dg.Definitions(assets=[total]))
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    assert result.success
    assert head(lake, "total")["row_count"] == 1
    assert plain(materialization(result, "total").metadata)["dagster/row_count"] == 1


def test_a_blocking_check_holds_up_what_is_behind_its_own_asset(instance, lake, tables, monkeypatch):
    done = []

    def after(name):
        @dg.asset(name=f"after_{name}", deps=[name], io_manager_key="nothing")
        def down() -> None:
            done.append(name)

        return down

    definitions = bundle(tables, lake, names=["t01", "t02"])
    (together,) = assets_of(definitions)
    definitions = dg.Definitions(
        assets=[together, after("t01"), after("t02")],
        asset_checks=rd.build_manifest_checks(together, blocking=True),
        resources={**definitions.resources, "nothing": dg.mem_io_manager},
    )
    head_of, broken = LocalDestination.list, []

    def listed(self, directory):
        if directory.startswith("t01/data") and not broken:
            broken.extend((lake / "t01" / "data").iterdir())
            broken[0].unlink()
        return head_of(self, directory)

    monkeypatch.setattr(LocalDestination, "list", listed)
    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    verdicts = {e.asset_key.path[0]: e.passed for e in result.get_asset_check_evaluations()}
    assert verdicts == {"t01": False, "t02": True}
    assert done == ["t02"]


def test_a_stream_is_refused_where_it_is_defined(tables, lake):
    with pytest.raises(rd.PlanRejected, match="stdout-no-bundle") as raised:
        bundle(tables, lake, destination=rd.StdoutIOManager())
    assert raised.value.diagnostics


def test_a_stream_is_refused_when_the_step_starts(instance, tables, lake, capfd):
    definitions = bundle(tables, lake, names=["t01"])
    (together,) = assets_of(definitions)
    swapped = dg.Definitions(
        assets=[together], resources={**definitions.resources, "exports_destination": rd.StdoutIOManager()}
    )
    result = swapped.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance, raise_on_error=False)
    assert "stdout-no-bundle" in failure(result, "exports_bundle").user_failure_data.description
    assert "id" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"parallel": 0}, "1 or more; found 0"),
        ({"partitions_def": dg.StaticPartitionsDefinition(["a"])}, "do not go together"),
        ({"name": "t01", "parallel": 2, "bundle": False}, "bundle=False"),
    ],
)
def test_what_cannot_be_is_refused(tables, lake, more, said):
    with pytest.raises(rd.ConfigError, match=said):
        rd.build_export_definitions(
            [rd.Export(name="t01", table="t01")],
            source=rd.DatabaseResource(url=f"sqlite:///{tables}"),
            destination=rd.LocalIOManager(path=str(lake)),
            **{"bundle": True, **more},
        )


CODE = '''
import os
from pathlib import Path

import dagster as dg
import rivet_dagster as rd
from rivet_dagster.orchestration import bundles

HERE = Path(__file__).parent
stop = bundles._Step._stop


def stopped(step):
    stop(step)
    (HERE / "stopped").touch()


bundles._Step._stop = stopped


class Lake(rd.LocalIOManager):
    """One export says who it is and then waits for what never comes, while the database is being read."""

    def open_destination(self, clients):
        found = super().open_destination(clients)
        stage = found.stage

        def staged(key):
            if key.startswith("t03/") and (HERE / "never").exists():
                with open(HERE / "half_way", "w") as said:
                    said.write(str(os.getpid()))
                open(HERE / "never").read()
            return stage(key)

        found.stage = staged
        return found


defs = rd.build_export_definitions(
    [rd.Export(name=f"t{i:02}", table=f"t{i % 6:02}") for i in range(12)],
    source=rd.DatabaseResource(url=f"sqlite:///{HERE / 'tables.db'}"),
    destination=Lake(path=str(HERE / "lake")),
    bundle=True,
)
if "IN_PROCESS" in os.environ:
    defs = dg.Definitions.merge(defs, dg.Definitions(executor=dg.in_process_executor))


def job():
    return defs.resolve_job_def("exports")


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        result = dg.execute_job(dg.reconstructable(job), instance=instance)
        raise SystemExit(0 if result.success else 3)
'''


@pytest.fixture
def started(tmp_path, tables):
    """A bundle twice as long in a process of its own: by Dagster's default executor, unless it is told otherwise."""
    (tmp_path / "home").mkdir()
    (tmp_path / "bundle_of_a_test.py").write_text(CODE)
    with dg.instance_for_test(temp_dir=str(tmp_path / "home")) as home:

        def start(**environment):
            return subprocess.Popen(
                [sys.executable, str(tmp_path / "bundle_of_a_test.py")],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

        yield home, start


def test_twelve_exports_are_two_processes_of_the_default_executor(started, lake):
    home, start = started
    with start() as process:
        assert process.wait(120) == 0
    (run,) = home.get_runs()
    log = events(home, run.run_id)
    assert log.count("ASSET_MATERIALIZATION") == log.count("ASSET_CHECK_EVALUATION") == 12
    assert log.count("STEP_WORKER_STARTED") == 2
    assert [head(lake, f"t{i:02}")["row_count"] for i in range(12)] == [1, 2, 3, 4, 5, 6] * 2


def test_a_bundle_that_is_terminated_stops_reading_and_leaves_what_is_committed(started, tmp_path, lake):
    home, start = started
    os.mkfifo(tmp_path / "half_way")
    os.mkfifo(tmp_path / "never")
    with start(IN_PROCESS="1") as process:
        try:
            assert int((tmp_path / "half_way").read_text()) == process.pid
            process.send_signal(signal.SIGTERM)
            while not (tmp_path / "stopped").exists() and process.poll() is None:
                threading.Event().wait(0.05)
            # A worker that waits on a pipe is nothing that can be stopped: it is let go here.
            with (tmp_path / "never").open("w"):
                pass
            assert process.wait(120) == 3
        finally:
            process.kill()
    (run,) = home.get_runs()
    assert run.status.value == "FAILURE"
    assert not (lake / "t03" / "manifest.json").exists()
    assert not [*(lake / "t03").glob("data/*")]
    for prefix in lake.iterdir():
        states = {json.loads(m.read_bytes())["status"] for m in prefix.glob("manifest*.json")}
        assert states in ({"success"}, {"failed"})
