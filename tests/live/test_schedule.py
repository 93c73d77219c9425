"""A schedule that a daemon runs, over a table that is written to meanwhile."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest
import xxhash

from tests.servers import PostgresServer, postgres
from tests.servers.process import running

HERE = Path(__file__).parent
EXPORTS = str(HERE / "scheduled.py")
RUNS = 2
# How long each writer waits after a row at most: some transactions outlast the beginning of a run, most do not.
PAUSES_S = (0.05, 0.2, 1.5)
TABLE = """
CREATE TABLE events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    note text NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


@pytest.fixture
def settings():
    queue = {
        "module": "dagster.core.run_coordinator",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    }
    return {"run_coordinator": queue}


@pytest.fixture
def source(servers, monkeypatch) -> PostgresServer:
    database = servers(postgres).new_database()
    database.execute(TABLE, "INSERT INTO events (note) SELECT 'old' FROM generate_series(1, 1000)")
    monkeypatch.setenv("DATABASE_URL", database.url)
    return database


@contextmanager
def writing(database: PostgresServer) -> Iterator[None]:
    """Insert rows for as long as this lasts, in transactions that stay open for a while and overlap."""
    over = threading.Event()

    def write(number: int, pause: float) -> None:
        rng = random.Random(number)
        with database.client() as connection, connection.cursor() as cursor:
            while not over.is_set():
                cursor.execute("BEGIN")
                for _ in range(rng.randrange(1, 6)):
                    cursor.execute(f"INSERT INTO events (note) VALUES ('by {number}')")
                    over.wait(rng.random() * pause)
                cursor.execute("COMMIT")

    threads = [threading.Thread(target=write, args=told) for told in enumerate(PAUSES_S)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def eventually(look: Callable[[], bool], *, within: float = 120) -> None:
    deadline = time.monotonic() + within
    while not look():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


def deliveries(prefix: Path) -> list[dict[str, Any]]:
    """The manifests of a dataset, oldest first, by its marker and nothing of the package."""
    head = (prefix / "manifest.json").read_bytes()
    assert (prefix / "_SUCCESS").read_text() == f"xxh3:{xxhash.xxh3_64_hexdigest(head)}\n"
    chain = [json.loads(head)]
    while chain[-1]["dataset"] == "append":
        chain.append(json.loads((prefix / f"manifest-{chain[-1]['previous']['run_id']}.json").read_bytes()))
    return chain[::-1]


def test_a_daemon_runs_the_schedule_while_others_write(
    home: dg.DagsterInstance, source: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    monkeypatch.setenv("LAKE", str(lake))
    daemon = [sys.executable, str(HERE / "hurried_daemon.py"), "run", "-f", EXPORTS]
    turn_on = [sys.executable, "-m", "dagster", "schedule", "start", "lake_schedule", "-f", EXPORTS]

    def done() -> bool:
        return home.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])) >= RUNS

    with writing(source):
        turned_on = subprocess.Popen(turn_on, stdout=subprocess.DEVNULL)
        with running(lambda _port: daemon, directory=tmp_path, ready=lambda _port: turned_on.poll() is not None):
            assert turned_on.returncode == 0
            eventually(done)

    found = deliveries(lake / "events")
    windows = [(m["window"]["low"], m["window"]["high"]) for m in found]
    assert len(windows) >= RUNS
    assert [low for low, _ in windows] == [None, *(high for _, high in windows[:-1])]
    parts = [str(lake / "events" / p["path"]) for m in found for p in m["parts"]]
    landed = duckdb.sql(f"SELECT id, note, epoch_us(written_at) FROM read_parquet({parts}) ORDER BY id").fetchall()
    written = "SELECT id, note, (extract(epoch FROM written_at) * 1000000)::bigint FROM events WHERE written_at"
    bound = windows[-1][1]
    with source.client() as connection, connection.cursor() as cursor:
        cursor.execute(f"{written} < '{bound}' ORDER BY id")
        assert landed == cursor.fetchall()
        cursor.execute(f"{written} >= '{bound}'")
        assert cursor.fetchall(), "nobody wrote while the last run read"
    assert min(m["row_count"] for m in found) > 0

    assert [r for r in home.get_runs() if r.status is dg.DagsterRunStatus.FAILURE] == []
    (state,) = home.all_instigator_state()
    ticks = home.get_ticks(state.instigator_origin_id, state.selector_id)
    # None is missed: one that comes while a run is unfinished says so.
    assert {"SUCCESS", "SKIPPED"} <= {tick.status.value for tick in ticks} <= {"SUCCESS", "SKIPPED", "STARTED"}
    assert all("is not finished" in tick.tick_data.skip_reason for tick in ticks if tick.status.value == "SKIPPED")
    recorded = home.fetch_materializations(dg.AssetKey("events"), limit=100).records[::-1]
    fingerprints = [r.asset_materialization.metadata["rivet/run_id"].value for r in recorded]
    # A run that ended with the daemon may have committed and not said so.
    assert fingerprints in ([m["run_id"] for m in found], [m["run_id"] for m in found[:-1]])
    started = {home.get_run_by_id(r.run_id).tags["dagster/schedule_name"] for r in recorded}
    assert started == {"lake_schedule"}
