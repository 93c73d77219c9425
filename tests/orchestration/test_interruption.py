"""A step that is terminated or killed half-way: nothing of it becomes visible, and the next one starts clean."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pandas as pd
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from tests.orchestration.kit import events, on_disk

CODE = '''
import os
import sys
from pathlib import Path

import dagster as dg
import pandas as pd
import rivet_dagster as rd

HERE = Path(__file__).parent


def rows():
    """Half of the rows; then it says who it is and waits for what never comes, but only the first time."""
    yield pd.DataFrame({"id": [10, 11]})
    if not (HERE / "interrupted").exists():
        (HERE / "interrupted").touch()
        with open(HERE / "half_way", "w") as said:
            said.write(str(os.getpid()))
        open(HERE / "never").read()
    yield pd.DataFrame({"id": [12]})


POLICY = dg.RetryPolicy(max_retries=1) if "RETRY" in os.environ else None


@dg.asset(retry_policy=POLICY, metadata={"rivet/max_file_size": "1KB"})
def orders():
    return rd.Batches(rows())


defs = dg.Definitions(
    assets=[orders],
    resources={"io_manager": rd.LocalIOManager(path=str(HERE / "lake"))},
    jobs=[dg.define_asset_job("all")],
    executor=dg.in_process_executor if "IN_PROCESS" in os.environ else dg.multiprocess_executor,
)


def job():
    return defs.resolve_job_def("all")


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        dg.execute_job(dg.reconstructable(job), instance=instance)
'''


@pytest.fixture
def home(tmp_path):
    """Made by one process, since two that make it at once break it."""
    (tmp_path / "home").mkdir()
    with dg.instance_for_test(temp_dir=str(tmp_path / "home")) as instance:
        yield instance


@pytest.fixture
def started(tmp_path, home):
    """Start the run of `CODE` over an old delivery, wait until it is half-way, do something to it, wait for its end."""
    code = tmp_path / "exports_of_a_test.py"
    code.write_text(CODE)
    os.mkfifo(tmp_path / "half_way")
    os.mkfifo(tmp_path / "never")
    with dg.build_output_context(asset_key=dg.AssetKey("orders")) as context:
        rd.LocalIOManager(path=str(tmp_path / "lake")).handle_output(context, pd.DataFrame({"id": [1, 2, 3]}))

    def start(do: Callable[[int, subprocess.Popen[bytes]], None], **environment: str) -> list[str]:
        named = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        with subprocess.Popen([sys.executable, str(code)], env=named, stderr=subprocess.DEVNULL) as process:
            step = int((tmp_path / "half_way").read_text())
            do(step, process)
            process.wait(timeout=120)
        (only,) = home.get_runs()
        return [only.status.value, *events(home, only.run_id)]

    return start


def _terminate_step(step, _run):
    os.kill(step, signal.SIGTERM)


def _kill_step(step, _run):
    os.kill(step, signal.SIGKILL)


def _terminate_run(_step, run):
    run.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("do", "environment"),
    [(_terminate_step, {}), (_terminate_run, {}), (_terminate_run, {"IN_PROCESS": "1"})],
    ids=["the-step", "the-run", "in-process"],
)
def test_a_terminated_step_aborts_and_the_old_delivery_stays(started, tmp_path, do, environment):
    before = on_disk(tmp_path / "lake")
    status, *log = started(do, **environment)
    assert status == "FAILURE"
    assert "ASSET_MATERIALIZATION" not in log
    after = on_disk(tmp_path / "lake")
    assert before.items() <= after.items()
    (left,) = after.keys() - before.keys()
    assert json.loads(after[left])["status"] == "failed"
    assert _rows(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("do", [_terminate_step, _kill_step], ids=["terminated", "killed"])
def test_the_retry_after_it_exports_each_row_once_and_leaves_nothing_else(started, tmp_path, do):
    status, *log = started(do, RETRY="1")
    assert status == "SUCCESS"
    assert log.count("STEP_UP_FOR_RETRY") == 1
    assert log.count("ASSET_MATERIALIZATION") == 1
    assert _rows(tmp_path) == [10, 11, 12]
    manifest = json.loads((tmp_path / "lake/orders/manifest.json").read_bytes())
    names = {f"orders/{p['path']}" for p in manifest["parts"]}
    side = f"orders/manifest-{manifest['run_id']}.json"
    assert on_disk(tmp_path / "lake").keys() == {*names, side, "orders/manifest.json", "orders/_SUCCESS"}


def test_a_killed_step_leaves_the_old_delivery_and_the_next_run_cleans_up(started, tmp_path):
    before = on_disk(tmp_path / "lake")
    status, *_ = started(_kill_step)
    assert status == "FAILURE"
    after = on_disk(tmp_path / "lake")
    assert before.items() <= after.items()
    assert _rows(tmp_path) == [1, 2, 3]
    io_manager = rd.LocalIOManager(path=str(tmp_path / "lake"))

    @dg.asset
    def orders():
        return pd.DataFrame({"id": [20]})

    with dg.DagsterInstance.get() as instance:
        result = dg.materialize([orders], resources={"io_manager": io_manager}, instance=instance)
    assert result.success
    manifest = json.loads((tmp_path / "lake/orders/manifest.json").read_bytes())
    (part,) = manifest["parts"]
    side = f"orders/manifest-{manifest['run_id']}.json"
    assert on_disk(tmp_path / "lake").keys() == {
        f"orders/{part['path']}",
        side,
        "orders/manifest.json",
        "orders/_SUCCESS",
    }


def _rows(tmp_path: Path) -> list[int]:
    """By the manifest alone."""
    prefix = tmp_path / "lake/orders"
    manifest = json.loads((prefix / "manifest.json").read_bytes())
    return [i for p in manifest["parts"] for i in pq.read_table(prefix / p["path"])["id"].to_pylist()]
