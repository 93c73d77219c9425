"""Processes to be stopped: forked from one server that has imported everything and opened nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

# Loaded by the fork server, so that no victim pays for it.
import azure.storage.blob
import boto3.session
import pyarrow.parquet

import rivet_dagster.destinations.azure
import rivet_dagster.destinations.local
import rivet_dagster.destinations.s3
import rivet_dagster.sources.sqlite
from rivet_dagster.contract import ObjectDestination
from rivet_dagster.control import SideRecord
from tests.faults.crash_matrix.exports import run
from tests.faults.crash_matrix.points import DEAD, FAILPOINTS, VICTIM, Stopping

PATIENCE_S = 120.0
PRELOADED = (
    __name__,
    "tests.faults.crash_matrix.dagster_runs",
    # What Dagster itself loads only when an instance is opened, half a second for each step.
    "alembic.command",
    "dagster._core.instance.factory",
    "dagster._core.launcher.default_run_launcher",
    "dagster._core.remote_representation",
    "dagster._core.run_coordinator",
    "dagster._core.storage.event_log.sqlite",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.runs.sqlite",
    "dagster._core.storage.schedules.sqlite",
    "sqlalchemy.dialects.sqlite",
    "upath",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a victim is told."""

    recipe: Callable[[], ObjectDestination]
    kind: str
    database: Path
    point: str
    anew: bool


def record_at_once() -> None:
    """A record is rewritten at most every five seconds, which no run here lasts."""
    (SideRecord.__init__.__kwdefaults__ or {})["at_most_every"] = 0.0


def victim(told: Told, said: Connection) -> None:
    """Run until the failpoint, say that it is reached, and go no further."""
    terminated = threading.Event()

    def terminate(_number: int, _frame: object) -> None:
        # A request that is under way in another thread ends, as it would.
        terminated.set()
        raise SystemExit(143)

    def stop() -> None:
        said.send("stopped")
        terminated.wait()

    signal.signal(signal.SIGTERM, terminate)
    record_at_once()
    try:
        store = Stopping(told.recipe(), FAILPOINTS[told.point], stop)
        run(told.kind, store, told.database, run_id=VICTIM, over=[DEAD], repeats=[DEAD], anew=told.anew)
        if FAILPOINTS[told.point].operation is None:
            stop()
        said.send("ended")
    except Exception:
        said.send(traceback.format_exc())
        raise


def strike(told: Told, blow: signal.Signals) -> str:
    """Start a victim, wait until it stands at its failpoint, and strike; what it had said.

    Raises:
        AssertionError: it did not come there, or did not end of the blow.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=victim, args=(told, there))
    process.start()
    there.close()
    try:
        said = str(here.recv()) if here.poll(PATIENCE_S) else "nothing"
        if said == "stopped":
            os.kill(process.pid or 0, blow)
        process.join(PATIENCE_S)
        expected = {"stopped": -blow if blow is signal.SIGKILL else 128 + blow, "ended": 0}
        assert process.exitcode == expected.get(said), f"{told.point}: {said}, then exit code {process.exitcode}"
        return said
    finally:
        process.kill()
        process.join()
        process.close()
        here.close()


LOADED = (azure.storage.blob, boto3.session, pyarrow.parquet, rivet_dagster.destinations, rivet_dagster.sources)
