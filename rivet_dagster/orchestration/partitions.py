"""Dagster's partitions of an export: which rows they stand for, and how many a run has."""

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
