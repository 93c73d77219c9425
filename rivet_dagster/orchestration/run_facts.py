"""What Dagster knows of the step that an output or input belongs to; the one place that looks into a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg

__all__ = [
    "RunFacts",
    "add_partition_metadata",
    "materialized",
    "report_check",
    "report_of_each",
    "run_id_of",
    "set_data_version",
]

_StepContext = dg.AssetExecutionContext | dg.AssetCheckExecutionContext
_Context = dg.OutputContext | dg.InputContext | _StepContext | dg.OpExecutionContext
_MAX_RETRIES = "dagster/max_retries"
_PAGE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Who runs, for how many times, and what may happen after a failure.

    Attributes:
        run_id: Dagster's; `None` outside of a run (unit tests).
        lineage: this run and those that it resumes, one after the other, from their failures; empty outside of a run.
        attempt: of this step in this run, from 1.
        max_retries: how often Dagster would repeat the step or the run by itself.
        is_over: whether a run has ended; False for one that this instance does not know.
        materialized: the metadata of an asset's materializations, or of one partition's, the newest first.
    """

    run_id: str | None = None
    lineage: frozenset[str] = frozenset()
    attempt: int = 1
    max_retries: int = 0
    is_over: Callable[[str], bool] = lambda _run_id: False
    materialized: Callable[[dg.AssetKey, str | None], Iterator[Mapping[str, Any]]] = lambda _key, _partition: iter(())

    @classmethod
    def of(cls, context: dg.OutputContext | dg.AssetExecutionContext | dg.OpExecutionContext) -> RunFacts:
        """Read them; outside of a run nothing is known and nothing fails."""
        step = _step(context)
        if step is None:
            return cls()
        run, instance = step.dagster_run, step.instance

        def is_over(run_id: str) -> bool:
            found = instance.get_run_by_id(run_id)
            return found is not None and found.is_finished

        return cls(
            run_id=run.run_id,
            lineage=frozenset({run.run_id, *_repeated(step)}),
            attempt=step.previous_attempt_count + 1,
            max_retries=_max_retries(step.op_retry_policy, run.tags),
            is_over=is_over,
            materialized=partial(materialized, instance),
        )


def run_id_of(context: dg.InputContext) -> str | None:
    """The run that an input is loaded in; `None` outside of one."""
    step = _step(context)
    return None if step is None else step.dagster_run.run_id


def set_data_version(context: dg.OutputContext, data_version: str) -> None:
    """Give the materialization its data version; one that the asset itself has set wins. Outside of a run: nothing."""
    step = _step(context)
    if step is not None:
        step.set_data_version(context.asset_key, dg.DataVersion(data_version))


def add_partition_metadata(context: dg.OutputContext, partition_key: str, metadata: Mapping[str, Any]) -> None:
    """Give one partition of a range run its own metadata. Outside of a run: nothing."""
    step = _step(context)
    if step is not None:
        step.add_asset_metadata(metadata, asset_key=context.asset_key, partition_key=partition_key)


def report_check(context: dg.OutputContext | dg.AssetExecutionContext, evaluation: dg.AssetCheckEvaluation) -> None:
    """Record what a check found, at once: also where the step fails after this. Outside of a run: nothing."""
    step = _step(context)
    if step is not None:
        # Made for a step, an event is stored by that.
        dg.DagsterEvent.asset_check_evaluation(step, evaluation)


def report_of_each(context: _StepContext, results: Mapping[str, dg.AssetCheckResult]) -> None:
    """Record what a check found of each partition of a range run: a result that is yielded is of none of them."""
    step = _step(context)
    for key, result in results.items() if step is not None else ():
        dg.DagsterEvent.asset_check_evaluation(step, result.to_asset_check_evaluation(_OfOnePartition(step, key)))  # type: ignore[arg-type]


class _OfOnePartition:
    """A step of a range, as it would be of one partition alone."""

    has_partition_key = True

    def __init__(self, step: Any, partition_key: str) -> None:
        self._step, self.partition_key = step, partition_key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def _step(context: _Context) -> Any | None:
    if isinstance(context, dg.AssetExecutionContext | dg.AssetCheckExecutionContext):
        context = context.op_execution_context
    try:
        if isinstance(context, dg.OpExecutionContext):
            return context.get_step_execution_context()
        return context.step_context
    except dg.DagsterError:
        # Made by hand, as unit tests do.
        return None


def materialized(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition_key: str | None
) -> Iterator[Mapping[str, Any]]:
    """The metadata of an asset's materializations, or of one partition's, the newest first."""
    wanted = dg.AssetRecordsFilter(asset_key=asset_key, asset_partitions=partition_key and [partition_key])
    cursor, more = None, True
    while more:
        page = instance.fetch_materializations(wanted, limit=_PAGE, cursor=cursor)
        for record in page.records:
            if record.asset_materialization is not None:
                yield {name: value.value for name, value in record.asset_materialization.metadata.items()}
        cursor, more = page.cursor, page.has_more


def _repeated(step: Any) -> set[str]:
    # Only a re-execution from failure takes over what its parent committed: whoever executes all steps, or a step
    # that had succeeded, asks for fresh data. Whoever resumes that one owes fresh data, too.
    found: set[str] = set()
    run, resumes = step.dagster_run, _resumes(step)
    while run is not None and resumes and (parent := run.parent_run_id) and parent not in found:
        done = step.instance.all_logs(parent, of_type=dg.DagsterEventType.STEP_SUCCESS)
        if any(entry.step_key == step.step.key for entry in done):
            break
        found.add(parent)
        run = step.instance.get_run_by_id(parent)
        resumes = run is not None and _is_told_to_resume(run)
    return found


def _resumes(step: Any) -> bool:
    # `dagster.execute_job` sets no tag, but only a part of a run knows what was there before it.
    return _is_told_to_resume(step.dagster_run) or step.get_known_state().parent_state is not None


def _is_told_to_resume(run: dg.DagsterRun) -> bool:
    return run.is_resume_retry or run.tags.get("dagster/is_asset_resume_retry") == "true"


def _max_retries(policy: dg.RetryPolicy | None, tags: Mapping[str, str]) -> int:
    if policy is not None and policy.max_retries > 0:
        return policy.max_retries
    said = tags.get(_MAX_RETRIES, "")
    return int(said) if said.isdigit() else 0
