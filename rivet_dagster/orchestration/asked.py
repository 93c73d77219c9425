"""What an IO manager is asked to commit: one asset's value, each partition's on its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from rivet_dagster.attempt import Extraction
from rivet_dagster.errors import ConfigError
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.run_facts import RunFacts

__all__ = ["Asked", "by_partition"]


def _nothing(_extraction: Extraction) -> None:
    """Nobody else stops what is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One asset of one step, whose value is to be committed.

    Attributes:
        asset_key: of the asset.
        partition_keys: those of the run; `None` for an asset without partitions.
        definition_metadata: of the asset.
        facts: of the step.
        log: of the step, used by the thread that delivers.
        bundled: whether other exports share the step.
        begun: told of what is read before its first row, so that another thread can stop it.
    """

    asset_key: dg.AssetKey
    partition_keys: tuple[str, ...] | None
    definition_metadata: Mapping[str, Any]
    facts: RunFacts
    log: logging.Logger
    bundled: bool = False
    begun: Callable[[Extraction], None] = _nothing

    @classmethod
    def of(cls, context: dg.OutputContext) -> Asked:
        """What an IO manager is asked for.

        Raises:
            ConfigError: it is no asset.
        """
        if not context.has_asset_key:
            msg = "expected the output of an asset, found one of a plain op; use @asset"
            raise ConfigError(msg)
        partitions = tuple(sorted(map(str, context.asset_partition_keys))) if context.has_asset_partitions else None
        return cls(
            asset_key=context.asset_key,
            partition_keys=partitions,
            definition_metadata=context.definition_metadata,
            facts=RunFacts.of(context),
            log=context.log,
        )

    @property
    def name(self) -> str:
        """Of the export, as a person knows it."""
        return "/".join(self.asset_key.path)


def by_partition(asked: Asked, value: Any) -> dict[str | None, Any]:
    """Divide a value by the partitions of the run; `None` is the key where there is none.

    Raises:
        ConfigError: it does not say what is of which partition, or there is none.
    """
    name = asked.name
    if value is None:
        msg = (
            f"{name}: expected rows (a pandas.DataFrame, pyarrow.Table, RecordBatchReader or Batches), found None; "
            "return them, or give an asset without rows another io_manager_key"
        )
        raise ConfigError(msg)
    if asked.partition_keys is None:
        return {None: value}
    keys = asked.partition_keys
    if isinstance(value, ExportHandle) and value.partitions:
        return {k: value.of(k) for k in keys}
    if isinstance(value, Mapping):
        if set(value) != set(keys):
            msg = (
                f"{name}: expected a mapping with one value per partition of this run ({[*keys]}), "
                f"found {sorted(value)}"
            )
            raise ConfigError(msg)
        return {k: value[k] for k in keys}
    if len(keys) != 1:
        msg = (
            f"{name}: found one {type(value).__name__} for {len(keys)} partitions ({keys[0]} … {keys[-1]}); "
            "return a dict of partition key to rows, or run one partition at a time (BackfillPolicy.multi_run())"
        )
        raise ConfigError(msg)
    return {keys[0]: value}
