"""Exports of one database to one destination, as a whole: assets, resources, job, schedule and checks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.plan import Diagnostic, Level, PlannedExport, diagnose, reject
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.announce import announce_findings
from rivet_dagster.orchestration.asset_options import AssetOptions, KeyPrefix
from rivet_dagster.orchestration.assets import StepBody, as_it_is, describe, export_asset, what_is_exported
from rivet_dagster.orchestration.automation import export_schedule
from rivet_dagster.orchestration.bundles import bundle_asset
from rivet_dagster.orchestration.check_kinds import chosen
from rivet_dagster.orchestration.checks import build_manifest_checks
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.metadata import definition_metadata, promises_table
from rivet_dagster.orchestration.partitions import check_partitions, is_ranged
from rivet_dagster.orchestration.resources import DatabaseResource
from rivet_dagster.sources.url import parse_url

__all__ = ["Planned", "build_export_definitions", "export_definitions", "spec_of"]

_LOG = logging.getLogger(__name__)
# Exports of a bundle: each has a connection to the database, and memory of its own.
_AT_A_TIME = 4


def build_export_definitions(
    exports: Iterable[Export],
    *,
    source: DatabaseResource,
    destination: ExportIOManager,
    name: str = "exports",
    schedule: str | None = None,
    bundle: bool = False,
    parallel: int | None = None,
    checks: str | Sequence[str] = ("manifest",),
    key_prefix: KeyPrefix = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    pool: str | None = None,
    deps: Iterable[Any] | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    kinds: Iterable[str] | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    freshness_policy: dg.FreshnessPolicy | None = None,
) -> dg.Definitions:
    """Make all that exports need in a code location; several of them merge with `dg.Definitions.merge`.

    There are the resources `<name>_source` and `<name>_destination`, the job `<name>`, with `schedule` the schedule
    `<name>_schedule`, and checks of each export where the destination leaves something to check.

    Args:
        exports: what to export.
        source: where from.
        destination: where to.
        name: of the job, and the beginning of the other names; unique in a code location.
        schedule: a cron line, for when the job runs; in the time zone of partitions, where they have one.
        bundle: all exports are one step that can be materialized in part, for many small tables; without it each is
            a step, and a process, of its own.
        parallel: how many exports of a bundle run at a time; 4 unless given.
        checks: some of `manifest`, `content`, `row_count` and `schema`; see `build_manifest_checks`.
        key_prefix: of the asset keys, as all that follows for each export; see `build_export_asset`.
        partitions_def: of each asset; `schedule` then runs each partition on its own, see the README.
        backfill_policy: of each asset.
        retry_policy: of each step.
        pool: of each step that reads; `<name>_source` unless given, so that an instance can limit how many exports of
            this database run at once.
        deps: of each asset.
        group_name: of each asset.
        owners: of each asset.
        tags: of each asset.
        kinds: shown for each asset besides those of destination and format.
        automation_condition: when Dagster materializes an asset by itself.
        freshness_policy: of each asset.

    Raises:
        PlanRejected: an export cannot work at this destination; carries every diagnostic.
        ConfigError: there is no export, one is named like the job, an argument is of another kind, a setting of the
            source is not its database's, `parallel` is given without `bundle`, `partitions_def` with it, or nothing
            says which rows are of a partition.
    """
    options = AssetOptions(
        key_prefix=key_prefix,
        partitions_def=partitions_def,
        backfill_policy=backfill_policy,
        retry_policy=retry_policy,
        pool=pool,
        deps=deps,
        group_name=group_name,
        owners=owners,
        tags=tags,
        kinds=kinds,
        automation_condition=automation_condition,
        freshness_policy=freshness_policy,
        checks=checks,
    )
    _require(name, "source", DatabaseResource, source)
    _require(name, "destination", ExportIOManager, destination)
    planned = [*exports]
    _require(name, "exports", Export, *planned)
    source.check()
    return export_definitions(
        [Planned(export=e, options=options, spec=spec_of(e, options, destination)) for e in planned],
        source=source,
        destination=destination,
        name=name,
        schedule=schedule,
        bundle=bundle,
        parallel=parallel,
    )


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


def export_definitions(
    planned: Sequence[Planned],
    *,
    source: DatabaseResource,
    destination: ExportIOManager,
    name: str,
    schedule: str | None,
    bundle: bool,
    parallel: int | None,
    body: StepBody = as_it_is,
) -> dg.Definitions:
    """As `build_export_definitions`, of exports that differ in their options; `body` is called by each step.

    Raises:
        PlanRejected: an export cannot work at this destination; carries every diagnostic.
        ConfigError: as there; or options differ that have to be the same.
    """
    if not planned:
        msg = f"{name}: expected at least one export, found none"
        raise ConfigError(msg)
    if parallel is not None and (parallel < 1 or not bundle):
        msg = f"{name}: parallel is how many exports of a bundle run at a time, 1 or more; found {parallel!r}"
        raise ConfigError(f"{msg} with bundle={bundle}")
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
    found = _diagnose(planned, source=source, destination=destination, bundled=bundle)
    source_key, destination_key = f"{name}_source", f"{name}_destination"
    specs = [
        p.spec.merge_attributes(
            metadata={
                **_metadata(p.spec.key, destination, found),
                **what_is_exported(p.export, source_key),
            }
        )
        for p in planned
    ]
    if bundle:
        assets = [
            bundle_asset(
                {spec.key: p.export for p, spec in zip(planned, specs, strict=True)},
                name=f"{name}_bundle",
                specs=specs,
                source=source_key,
                io_manager_key=destination_key,
                parallel=parallel or _AT_A_TIME,
                retry_policy=planned[0].options.retry_policy,
                pool=planned[0].options.pool,
                body=body,
            )
        ]
    else:
        assets = [
            export_asset(p.export, spec, p.options, source=source_key, io_manager_key=destination_key, body=body)
            for p, spec in zip(planned, specs, strict=True)
        ]
    if any(a.op.name == name for a in assets):
        msg = f"name={name!r} is also the step of an export, and Dagster wants them to differ; give another name"
        raise ConfigError(msg)
    keys = [spec.key for spec in specs]
    job = dg.define_asset_job(name, selection=dg.AssetSelection.assets(*keys))
    schedules = []
    if schedule:
        schedules = [export_schedule(f"{name}_schedule", job, schedule, keys=keys, partitions_def=partitions_def)]
    return dg.Definitions(
        assets=assets,
        resources={source_key: source, destination_key: destination},
        jobs=[job],
        schedules=schedules,
        asset_checks=[
            check for asset in assets for check in _checks(asset, destination, dict(zip(keys, planned, strict=True)))
        ],
    )


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


def _require(name: str, argument: str, kind: type[Any], *given: object) -> None:
    for found in given:
        if not isinstance(found, kind):
            msg = f"{name}: {argument}: expected {kind.__name__}, found {type(found).__name__}"
            raise ConfigError(msg)


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


def _checks(
    asset: dg.AssetsDefinition, destination: ExportIOManager, planned: Mapping[dg.AssetKey, Planned]
) -> list[dg.AssetChecksDefinition]:
    checks = {key: planned[key].options.checks for key in asset.keys}
    at_rest = destination.capabilities.commit_protocol.leaves_objects_at_rest
    # Nobody asked a stream for those that are there by default; any others are refused there.
    if not at_rest and all(asked == AssetOptions().checks for asked in checks.values()):
        return []
    return build_manifest_checks(asset, checks=checks)
