"""The same definitions on other engines: processes of Dagster's own, and Celery's workers, who share a backfill."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest
import xxhash

from tests.servers import postgres
from tests.servers.process import running

HERE = Path(__file__).parent
CODE = str(HERE / "backfilled.py")
BACKFILLED = [f"2026-01-{day:02}" for day in range(1, 31)]
BY_STEPS, BY_PROCESSES = "2026-01-31", "2026-02-01"
ROWS = """
CREATE TABLE visits AS
SELECT i AS id, date '2025-12-25' + i % 45 AS seen_on, 'page ' || i AS page FROM generate_series(1, 4500) AS i
"""
WORKER = ["--pool=solo", "--queues=dagster", "--without-gossip", "--without-mingle", "--without-heartbeat"]


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake" / "visits"


@pytest.fixture
def celery(tmp_path, monkeypatch) -> dict[str, Any]:
    """Celery's settings: it needs no broker where its messages are files."""
    mail = tmp_path / "mail"
    for folder in ("messages", "processed", "control", "results"):
        (mail / folder).mkdir(parents=True)
    both_ways = {f"data_folder_{way}": str(mail / "messages") for way in ("in", "out")}
    others = {f"{use}_folder": str(mail / use) for use in ("processed", "control")}
    found = {
        "broker": "filesystem://",
        "backend": f"file://{mail / 'results'}",
        "config_source": {"broker_transport_options": {**both_ways, **others, "polling_interval": 0.1}},
    }
    monkeypatch.setenv("CELERY", json.dumps(found))
    return found


@pytest.fixture
def settings(celery):
    """Runs are sent to Celery: all that an instance is told."""
    return {
        "run_coordinator": {"module": "dagster.core.run_coordinator", "class": "DefaultRunCoordinator"},
        "run_launcher": {"module": "dagster_celery.launcher", "class": "CeleryRunLauncher", "config": celery},
    }


@contextmanager
def worker(name: str, celery: dict[str, Any], directory: Path) -> Iterator[None]:
    """A worker of Celery; its settings are a module of a name that dagster-celery looks for."""
    told = {"broker_url": celery["broker"], "result_backend": celery["backend"], **celery["config_source"]}
    (directory / "dagster_celery_config.py").write_text("".join(f"{k} = {v!r}\n" for k, v in told.items()))
    command = [sys.executable, "-m", "celery", "-A", "dagster_celery.app", "worker", f"--hostname={name}", *WORKER]
    path = os.pathsep.join([str(directory), *sys.path])
    with running(
        lambda _port: command, directory=directory, ready=lambda _port: True, environment={"PYTHONPATH": path}
    ):
        yield


def dagster(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dagster", *words, "--job", "lake", "--python-file", CODE]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(home: dg.DagsterInstance, runs: int, *, within: float = 150) -> list[dg.DagsterRun]:
    deadline = time.monotonic() + within
    while True:
        found = home.get_runs()
        if len(found) == runs and all(run.is_finished for run in found):
            return found
        assert time.monotonic() < deadline, Counter(run.status.value for run in found)
        time.sleep(0.2)


def engine(home: dg.DagsterInstance, run: dg.DagsterRun, pattern: str) -> list[str]:
    """What Dagster noted of how a run was executed."""
    said = home.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    return [found for entry in said for found in re.findall(pattern, entry.dagster_event.message)]


def test_a_backfill_is_shared_by_two_workers_and_other_executors_do_the_same(
    servers, home, celery, lake, tmp_path, monkeypatch
):
    database = servers(postgres).new_database()
    database.execute(ROWS)
    monkeypatch.setenv("DATABASE_URL", database.url)

    with worker("one", celery, tmp_path), worker("two", celery, tmp_path):
        span = ("--from", BACKFILLED[0], "--to", BACKFILLED[-1], "--noprompt")
        started = [
            dagster("job", "backfill", "--attribute", "in_the_worker", *span),
            dagster("job", "execute", "-a", "step_by_step", "--tags", json.dumps({"dagster/partition": BY_STEPS})),
            dagster("job", "execute", "-a", "as_they_are", "--tags", json.dumps({"dagster/partition": BY_PROCESSES})),
        ]
        for process in started:
            said, _ = process.communicate(timeout=150)
            assert process.returncode == 0, said
        runs = {run.tags["dagster/partition"]: run for run in finished(home, len(BACKFILLED) + 2)}

    partitions = [*BACKFILLED, BY_STEPS, BY_PROCESSES]
    assert sorted(runs) == partitions
    assert {run.status for run in runs.values()} == {dg.DagsterRunStatus.SUCCESS}
    assert len({runs[key].tags["dagster/backfill"] for key in BACKFILLED}) == 1
    processes = Counter(pid for key in BACKFILLED for pid in engine(home, runs[key], r"^Started process for run .*\d"))
    assert len(processes) == 2
    assert sum(processes.values()) == len(BACKFILLED)
    assert engine(home, runs[BY_STEPS], "Executing steps (.+) in celery worker") == ["visits", "visits_manifest"]
    assert engine(home, runs[BY_PROCESSES], "^Executing steps using (.+) executor") == ["multiprocess"]

    recorded = home.fetch_materializations(dg.AssetKey("visits"), limit=100).records
    assert sorted(r.partition_key for r in recorded) == partitions
    manifests = {}
    for key in partitions:
        prefix = lake / f"partition={key}"
        body = (prefix / "manifest.json").read_bytes()
        assert (prefix / "_SUCCESS").read_text() == f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n"
        assert len([*prefix.glob("manifest-*.json")]) == 1
        manifests[prefix] = json.loads(body)
        assert manifests[prefix]["dagster"] == {"run_id": runs[key].run_id, "partition_key": key}
    parts = [str(prefix / part["path"]) for prefix, manifest in manifests.items() for part in manifest["parts"]]
    landed = duckdb.sql(f"SELECT id, seen_on, page FROM read_parquet({parts}) ORDER BY id").fetchall()
    with database.client() as connection, connection.cursor() as cursor:
        cursor.execute(
            f"SELECT * FROM visits WHERE seen_on BETWEEN '{partitions[0]}' AND '{partitions[-1]}' ORDER BY id"
        )
        assert landed == cursor.fetchall()
    assert len(landed) == 3200
