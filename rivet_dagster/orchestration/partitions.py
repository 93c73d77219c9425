"""Dagster's partitions of an export: which rows they stand for, how many a run has, and which a schedule asks for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import dagster as dg

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.partitions import Partition
from rivet_dagster.exports.spec import Export

__all__ = [
    "check_partitions",
    "is_ranged",
    "keys_of",
    "one_partition_a_run",
    "partition_schedule",
    "partitions_of",
    "untold",
]


def check_partitions(
    export: Export,
    partitions_def: dg.PartitionsDefinition[str] | None,
    backfill_policy: dg.BackfillPolicy | None,
) -> None:
    """Refuse what leaves open which rows are of a partition.

    Raises:
        ConfigError: says what is missing or does not go together.
    """
    by, what = export.partitioned_by, f"export {export.name!r}"
    if partitions_def is None:
        if by is not None:
            raise ConfigError(f"{what}: partition_by says which rows are of a partition; give partitions_def, too")
        if backfill_policy is not None:
            raise ConfigError(f"{what}: backfill_policy is of partitions; give partitions_def, or leave it out")
        return
    kinds = dg.TimeWindowPartitionsDefinition | dg.StaticPartitionsDefinition | dg.DynamicPartitionsDefinition
    if not isinstance(partitions_def, kinds):
        raise ConfigError(
            f"{what}: expected partitions of time, static or dynamic ones, found {type(partitions_def).__name__}; of "
            "several dimensions, make one key and an expression for it (expression=\"region || '/' || kind\")"
        )
    if by is None:
        raise ConfigError(
            f"{what}: expected to be told which rows are of a partition, found none; name the column, "
            f'rd.Export(…, partition_by="created_at"), without another mode than Full'
        )
    of_time = isinstance(partitions_def, dg.TimeWindowPartitionsDefinition)
    if not of_time and (by.time_zone is not None or by.unit is not None):
        raise ConfigError(f"{what}: partition_by: time_zone and unit are of partitions of time; leave them out")


def keys_of(context: dg.AssetExecutionContext) -> Sequence[str]:
    """The partitions of a run.

    Raises:
        dagster.Failure: it has none.
    """
    if not (context.has_partition_key or context.has_partition_key_range):
        name = ", ".join(sorted(k.to_user_string() for k in context.selected_asset_keys))
        msg = f"{name}: expected a run of a partition, or of a range of them, found one without; choose a partition"
        raise dg.Failure(description=msg, allow_retries=False)
    keys: Sequence[str] = context.partition_keys
    return keys


def partitions_of(partitions_def: dg.PartitionsDefinition[str], keys: Iterable[str]) -> dict[str, Partition]:
    """What partition keys stand for."""
    if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        return {key: Partition(key=key) for key in keys}
    found = {}
    for key in keys:
        window = partitions_def.time_window_for_partition_key(key)
        found[key] = Partition(key=key, start=window.start, end=window.end)
    return found


def one_partition_a_run() -> dg.BackfillPolicy:
    """What is done unless another policy is given: a failure is then one partition's alone."""
    with untold():
        return dg.BackfillPolicy.multi_run(max_partitions_per_run=1)


def is_ranged(backfill_policy: dg.BackfillPolicy | None) -> bool:
    """Whether a run may have several partitions."""
    return backfill_policy is not None and backfill_policy.max_partitions_per_run != 1


@contextmanager
def untold() -> Iterator[None]:
    """Dagster warns of each new argument; nobody who builds an export could do anything about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


def partition_schedule(
    name: str,
    job: dg.UnresolvedAssetJobDefinition,
    cron: str,
    *,
    partitions_def: dg.PartitionsDefinition[str],
    keys: Sequence[dg.AssetKey],
) -> dg.ScheduleDefinition:
    """Run a job of partitioned assets by a cron line, each partition in a run of its own.

    Of partitions of time, each tick asks for the newest one that is over (with `end_offset`, for so many more) and for
    those before it that are newer than any that was materialized: a tick that was missed loses none. Of all others,
    each tick asks for every partition.
    """
    zone = partitions_def.timezone if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition) else None

    @dg.schedule(name=name, job=job, cron_schedule=cron, execution_timezone=zone)
    def partitions(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        found = _asked_for(context, partitions_def, keys)
        # The same partition may be asked for again, by another tick.
        tick = context.scheduled_execution_time.isoformat()
        runs = [dg.RunRequest(run_key=f"{tick} {key}", partition_key=key) for key in found]
        return runs or dg.SkipReason("there is no partition yet")

    return partitions


def _asked_for(
    context: dg.ScheduleEvaluationContext, partitions_def: dg.PartitionsDefinition[str], keys: Sequence[dg.AssetKey]
) -> Sequence[str]:
    known = partitions_def.get_partition_keys(
        current_time=context.scheduled_execution_time, dynamic_partitions_store=context.instance
    )
    if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        return known
    always = max(1, 1 + partitions_def.end_offset)
    done = [context.instance.get_materialized_partitions(key) for key in keys]
    newest = [max((i for i, k in enumerate(known) if k in of_one), default=None) for of_one in done]
    since = min((i + 1 for i in newest if i is not None), default=len(known))
    return known[max(0, min(since, len(known) - always)) :]
