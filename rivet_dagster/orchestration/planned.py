"""Exports on their way to be assets of one job: checked together, and diagnosed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.plan import Diagnostic, Level, PlannedExport, diagnose, reject
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.announce import announce_findings
from rivet_dagster.orchestration.asset_options import AssetOptions
from rivet_dagster.orchestration.assets import describe, what_is_exported
from rivet_dagster.orchestration.check_kinds import chosen
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.metadata import definition_metadata, promises_table
from rivet_dagster.orchestration.partitions import check_partitions, is_ranged
from rivet_dagster.orchestration.resources import DatabaseResource
from rivet_dagster.sources.url import parse_url

__all__ = ["Planned", "check_together", "diagnosed", "spec_of"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An export, its options, and its asset as it is described."""

    export: Export
    options: AssetOptions
    spec: dg.AssetSpec


def spec_of(export: Export, options: AssetOptions, destination: ExportIOManager) -> dg.AssetSpec:
    """Describe the asset of an export."""
    kinds = {destination.kind} | (set() if export.format else {destination.format})
    spec = describe(export, options, kinds=kinds)
    promised = promises_table(destination.kind, destination.capabilities)
    return spec.replace_attributes(description=f"{spec.description}\n\n{promised}")


def check_together(planned: Sequence[Planned], *, name: str, bundle: bool) -> None:
    """Refuse exports that cannot be of one job, or one step.

    Raises:
        ConfigError: there is none, options differ that have to be the same, or nothing says which rows are of a
            partition.
    """
    if not planned:
        msg = f"{name}: expected at least one export, found none"
        raise ConfigError(msg)
    partitions_def = planned[0].spec.partitions_def
    if any(p.spec.partitions_def != partitions_def for p in planned):
        msg = f"{name}: partitions_def has to be the same for all exports of a job; make definitions of their own"
        raise ConfigError(msg)
    if bundle and partitions_def is not None:
        msg = f"{name}: partitions_def and bundle=True do not go together; leave one of them out"
        raise ConfigError(msg)
    if bundle and any(_of_the_step(p.options) != _of_the_step(planned[0].options) for p in planned):
        msg = f"{name}: retry_policy and pool are of a step, and a bundle is one: give them for all exports"
        raise ConfigError(msg)
    for p in planned:
        check_partitions(p.export, partitions_def, p.options.backfill_policy)


def diagnosed(
    planned: Sequence[Planned],
    *,
    source: DatabaseResource,
    source_key: str,
    destination: ExportIOManager,
    bundled: bool,
) -> list[dg.AssetSpec]:
    """Describe each asset with what planning found of it, which is warned of.

    Raises:
        PlanRejected: an export cannot work at this destination; carries every diagnostic.
    """
    found = _diagnose(planned, source=source, destination=destination, bundled=bundled)
    return [
        p.spec.merge_attributes(
            metadata={**_metadata(p.spec.key, destination, found), **what_is_exported(p.export, source_key)}
        )
        for p in planned
    ]


def _of_the_step(options: AssetOptions) -> tuple[Any, ...]:
    return options.retry_policy, options.pool


def _metadata(key: dg.AssetKey, destination: ExportIOManager, found: Iterable[Diagnostic]) -> dict[str, Any]:
    return definition_metadata(
        destination.capabilities,
        uri=destination.uri(destination.prefix_of(key)),
        diagnostics=[
            {"level": d.level.value, "rule": d.rule, "message": d.message, "remedy": d.remedy}
            for d in found
            if "/".join(key.path) in d.subject.split(", ")
        ],
    )


def _diagnose(
    planned: Sequence[Planned], *, source: DatabaseResource, destination: ExportIOManager, bundled: bool
) -> tuple[Diagnostic, ...]:
    exports = []
    for p in planned:
        key, retry_policy = p.spec.key, p.options.retry_policy
        prefix = destination.prefix_of(key)
        exports.append(
            PlannedExport(
                name="/".join(key.path),
                output=destination.settings.output(p.export),
                capabilities=destination.capabilities,
                uri=destination.uri(prefix) or prefix.root,
                max_retries=retry_policy.max_retries if retry_policy else 0,
                mode=p.export.mode,
                bundled=bundled,
                ranged=is_ranged(p.options.backfill_policy),
                checks=tuple(kind.name for kind in chosen(p.options.checks)),
                quality=p.export.quality,
                on_schema_drift=p.export.on_schema_drift,
            )
        )
    found = (*diagnose(exports), *_password_in_clear(source, [e.name for e in exports]))
    reject(found)
    announce_findings(_LOG, found)
    return found


def _password_in_clear(source: DatabaseResource, names: Sequence[str]) -> list[Diagnostic]:
    if isinstance(source.url, dg.EnvVar) or not parse_url(source.url).secrets:
        return []
    return [
        Diagnostic(
            level=Level.WARNING,
            rule="password-in-clear",
            subject=", ".join(names),
            message="the source's URL is written with its password, which Dagster shows in its UI",
            remedy='put the URL into an environment variable and give url=dg.EnvVar("ITS_NAME")',
        )
    ]
