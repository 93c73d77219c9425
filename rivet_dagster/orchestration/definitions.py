"""Exports of one database to one destination, as a whole: assets, resources, job, schedule and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.asset_options import AssetOptions, KeyPrefix
from rivet_dagster.orchestration.assets import StepBody, as_it_is, export_asset
from rivet_dagster.orchestration.automation import export_schedule
from rivet_dagster.orchestration.bundles import bundle_asset
from rivet_dagster.orchestration.checks import build_manifest_checks
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.planned import Planned, check_together, diagnosed, spec_of
from rivet_dagster.orchestration.resources import DatabaseResource

__all__ = ["build_export_definitions", "export_definitions"]

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
    check_together(planned, name=name, bundle=bundle)
    if parallel is not None and (parallel < 1 or not bundle):
        msg = f"{name}: parallel is how many exports of a bundle run at a time, 1 or more; found {parallel!r}"
        raise ConfigError(f"{msg} with bundle={bundle}")
    source_key, destination_key = f"{name}_source", f"{name}_destination"
    specs = diagnosed(planned, source=source, source_key=source_key, destination=destination, bundled=bundle)
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
        partitions_def = planned[0].spec.partitions_def
        schedules = [export_schedule(f"{name}_schedule", job, schedule, keys=keys, partitions_def=partitions_def)]
    by_key = dict(zip(keys, planned, strict=True))
    return dg.Definitions(
        assets=assets,
        resources={source_key: source, destination_key: destination},
        jobs=[job],
        schedules=schedules,
        asset_checks=[check for asset in assets for check in _checks(asset, destination, by_key)],
    )


def _require(name: str, argument: str, kind: type[Any], *given: object) -> None:
    for found in given:
        if not isinstance(found, kind):
            msg = f"{name}: {argument}: expected {kind.__name__}, found {type(found).__name__}"
            raise ConfigError(msg)


def _checks(
    asset: dg.AssetsDefinition, destination: ExportIOManager, planned: Mapping[dg.AssetKey, Planned]
) -> list[dg.AssetChecksDefinition]:
    checks = {key: planned[key].options.checks for key in asset.keys}
    at_rest = destination.capabilities.commit_protocol.leaves_objects_at_rest
    # Nobody asked a stream for those that are there by default; any others are refused there.
    if not at_rest and all(asked == AssetOptions().checks for asked in checks.values()):
        return []
    return build_manifest_checks(asset, checks=checks)
