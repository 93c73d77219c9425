"""What an export's asset has beside the export: the arguments that all who make such assets have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import dagster as dg

__all__ = ["AssetOptions", "KeyPrefix"]

KeyPrefix = Optional[str | Sequence[str]]  # noqa: UP045 - Dagster's own way to say it


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetOptions:
    """Options of one asset, each as Dagster has it; see `build_export_asset`.

    Attributes:
        checks: names of its checks; see `build_manifest_checks`.
    """

    key_prefix: KeyPrefix = None
    partitions_def: dg.PartitionsDefinition[str] | None = None
    backfill_policy: dg.BackfillPolicy | None = None
    retry_policy: dg.RetryPolicy | None = None
    pool: str | None = None
    deps: Iterable[Any] | None = None
    group_name: str | None = None
    owners: Sequence[str] | None = None
    tags: Mapping[str, str] | None = None
    kinds: Iterable[str] | None = None
    automation_condition: dg.AutomationCondition[Any] | None = None
    freshness_policy: dg.FreshnessPolicy | None = None
    checks: str | Sequence[str] = ("manifest",)
