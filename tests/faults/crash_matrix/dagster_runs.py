"""The matrix as a job of Dagster: each step exports one case, and ends itself, or is ended, at the case's failpoint."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

import rivet_dagster as rd
from tests.faults.crash_matrix.points import DEAD, FAILPOINTS, Stopping
from tests.faults.crash_matrix.victims import PATIENCE_S, PRELOADED, record_at_once
from tests.faults.ranges import Dying

KILL, TERM = signal.SIGKILL, signal.SIGTERM
PARTITION = "1"
RETRIED = ("part verified", "head swapped")
OVER_A_DEAD_RUN = ("takeover swapped", "adopted part checked")
# Of each failpoint, what is exported by the step that is killed there, and by the one that is terminated.
KINDS_AT = {
    "side record created": ("full", "incremental"),
    "probe done": ("incremental", "partitioned"),
    "takeover swapped": ("partitioned", "full"),
    "adopted part checked": ("full", "full"),
    "part staged": ("incremental", "partitioned"),
    "part written": ("partitioned", "full"),
    "part verified": ("full", "incremental"),
    "side record final": ("partitioned", "full"),
    "head swapped": ("incremental", "partitioned"),
    "marker swapped": ("incremental", "full"),
    "symlink written": ("full", "incremental"),
    # Only a new snapshot supersedes anything.
    "superseded part removed": ("partitioned", "full"),
    "superseded record removed": ("full", "partitioned"),
    "receipt returned": ("incremental", "partitioned"),
}
_MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": rd.Chunked(rows_per_part=4, consistency="statement")},
    "incremental": {"mode": rd.Incremental(cursor_column="id"), "format": "csv", "max_file_size": "200"},
    "partitioned": {"partition_by": rd.PartitionBy(expression="id % 2"), "format": "csv", "max_file_size": "200"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One step.

    Attributes:
        point: where it ends.
        blow: how.
        kind: what it exports.
        retried: Dagster repeats it in the same run, and then it is left alone.
    """

    point: str
    blow: signal.Signals
    kind: str
    retried: bool = False

    @property
    def name(self) -> str:
        return "_".join((self.blow.name, *self.point.split(), *(["retried"] if self.retried else []))).lower()

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey([self.name, "orders"])

    @property
    def root(self) -> str:
        return f"{self.name}/orders/" + (f"partition={PARTITION}/" if self.kind == "partitioned" else "")


CASES = [
    *(Case(point=p, blow=b, kind=kinds[n]) for p, kinds in KINDS_AT.items() for n, b in enumerate((KILL, TERM))),
    *(Case(point=p, blow=b, kind="full", retried=True) for p in RETRIED for b in (KILL, TERM)),
]
_BY_NAME = {case.name: case for case in CASES}


class Lake(rd.LocalIOManager):
    """Where steps end, as long as `ends` says so.

    Attributes:
        ends: whether they do.
        dead: the Dagster run that died before, in its re-execution.
    """

    ends: bool = False
    dead: str = ""
    _case: Case | None = PrivateAttr(default=None)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        case = _BY_NAME[context.asset_key.path[0]]
        ends = self.ends and not context.step_context.previous_attempt_count
        self._case, self._opened = case if ends else None, None
        record_at_once()
        if not ends:
            super().handle_output(context, obj)
            return
        _tell_of_terms()
        super().handle_output(context, obj)
        assert FAILPOINTS[case.point].operation is None, f"{case.name} has come to its end"
        _strike(case.blow)

    def open_destination(self, clients: Any) -> Any:
        found, case = super().open_destination(clients), self._case
        if case is None:
            return found
        if case.point in OVER_A_DEAD_RUN and not self.dead:
            return Dying(found, parts=1, then=lambda: _strike(KILL))
        point = FAILPOINTS[case.point]
        there = replace(point, key=point.key.replace(DEAD, self.dead or DEAD))
        return Stopping(found, there, lambda: _strike(case.blow))


_termed = threading.Event()


def _tell_of_terms() -> None:
    """Whoever stands still in another thread than the main one goes on once that is interrupted, as it would."""
    before = signal.getsignal(TERM)

    def told(number: int, frame: Any) -> None:
        _termed.set()
        before(number, frame)

    signal.signal(TERM, told)


def _strike(blow: signal.Signals) -> None:
    os.kill(os.getpid(), blow)
    _termed.wait(PATIENCE_S)


def crashes() -> dg.JobDefinition:
    """The job, as each process loads it."""
    partitions = dg.StaticPartitionsDefinition(["0", PARTITION])
    assets = [
        rd.build_export_asset(
            rd.Export(name="orders", table="orders", **_MODES[case.kind]),
            key_prefix=[case.name],
            partitions_def=partitions if case.kind == "partitioned" else None,
            retry_policy=dg.RetryPolicy(max_retries=1) if case.retried else None,
        )
        for case in CASES
    ]
    method = {"forkserver": {"preload_modules": [*PRELOADED]}}
    definitions = dg.Definitions(
        assets=assets,
        resources={
            "io_manager": Lake.configure_at_launch(),
            "source": rd.DatabaseResource.configure_at_launch(),
        },
        jobs=[dg.define_asset_job("crashes")],
        executor=dg.multiprocess_executor.configured({"start_method": method, "max_concurrent": 2}),
    )
    return definitions.resolve_job_def("crashes")
