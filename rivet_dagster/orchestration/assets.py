"""Exports as assets. No `from __future__ import annotations` here: Dagster reads the annotations of an asset's body."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import Field

from rivet_dagster.exports.spec import Export
from rivet_dagster.manifest import fingerprint
from rivet_dagster.orchestration.asset_options import AssetOptions, KeyPrefix
from rivet_dagster.orchestration.gates import check_specs, of_partition, result_of
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.partitions import check_partitions, keys_of, one_partition_a_run, partitions_of, untold
from rivet_dagster.orchestration.resources import DatabaseResource
from rivet_dagster.orchestration.run_facts import report_of_each

__all__ = [
    "Defined",
    "ExportConfig",
    "KeyPrefix",
    "StepBody",
    "as_it_is",
    "build_export_asset",
    "defined",
    "describe",
    "export_asset",
    "export_key",
    "require",
    "what_is_exported",
]

# The definition says so itself, so that whoever has the definition alone (a check, the console) knows what it exports.
_EXPORT, _SOURCE = "rivet/export", "rivet/source"

StepBody = Callable[[dg.AssetExecutionContext, ExportHandle], Any]
"""What a step does with its export before it is committed: it gives what the IO manager is to commit."""


class ExportConfig(dg.Config):
    """What one run may be told."""

    full_refresh: bool = Field(
        default=False, description="Begin the dataset anew with all rows, instead of adding to what is there."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Defined:
    """What the metadata of an asset's definition says it exports, and the key of the database that it reads."""

    export: Export
    source: str


def build_export_asset(
    export: Export,
    *,
    source: str = "source",
    io_manager_key: str = "io_manager",
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
) -> dg.AssetsDefinition:
    """Make an asset whose materialization is one committed delivery of an export.

    Args:
        export: what to export.
        source: key of the `DatabaseResource` to read from.
        io_manager_key: key of the IO manager, which is the destination.
        key_prefix: of the asset key, which ends in the export's name.
        partitions_def: of time, static or dynamic; each partition is a dataset of its own, with the rows that
            `partition_by` of the export says.
        backfill_policy: how many partitions a run may have; one unless given.
        retry_policy: how often Dagster repeats the step after a failure that may pass.
        pool: where an instance may limit how many exports of one database run at once; named like `source` unless
            given.
        deps: assets that have to be there before.
        group_name: of the asset.
        owners: of the asset.
        tags: of the asset.
        kinds: shown besides the format.
        automation_condition: when Dagster materializes the asset by itself.
        freshness_policy: how old its newest materialization may be.

    Raises:
        ConfigError: nothing says which rows are of a partition, or the partitions are of another kind.

    Example:
        .. code-block:: python

            import dagster as dg
            import rivet_dagster as rd

            orders = rd.build_export_asset(rd.Export(name="orders", table="public.orders"))
            defs = dg.Definitions(
                assets=[orders],
                resources={
                    "source": rd.DatabaseResource(url=dg.EnvVar("DATABASE_URL")),
                    "io_manager": rd.LocalIOManager(path="data/exports"),
                },
            )
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
    )
    spec = describe(export, options).merge_attributes(metadata=what_is_exported(export, source))
    return export_asset(export, spec, options, source=source, io_manager_key=io_manager_key)


def as_it_is(_context: dg.AssetExecutionContext, handle: ExportHandle) -> ExportHandle:
    """Export what the definition says."""
    return handle


def export_asset(
    export: Export,
    spec: dg.AssetSpec,
    options: AssetOptions,
    *,
    source: str,
    io_manager_key: str,
    body: StepBody = as_it_is,
) -> dg.AssetsDefinition:
    """As `build_export_asset`, of an asset that is described already.

    Raises:
        ConfigError: nothing says which rows are of a partition, or the partitions are of another kind.
    """
    partitions_def, backfill_policy = spec.partitions_def, options.backfill_policy
    check_partitions(export, partitions_def, backfill_policy)
    if partitions_def is not None and backfill_policy is None:
        backfill_policy = one_partition_a_run()
    checks = check_specs(export, spec)
    with untold():
        asset = dg.asset(
            key=spec.key,
            deps=spec.deps,
            description=spec.description,
            metadata=spec.metadata,
            tags=spec.tags,
            code_version=spec.code_version,
            group_name=spec.group_name,
            owners=spec.owners,
            automation_condition=spec.automation_condition,
            freshness_policy=spec.freshness_policy,
            required_resource_keys={source, io_manager_key},
            io_manager_key=io_manager_key,
            partitions_def=partitions_def,
            backfill_policy=backfill_policy,
            retry_policy=options.retry_policy,
            pool=options.pool or source,
            check_specs=checks,
        )

    @asset
    def _export(context: dg.AssetExecutionContext, config: ExportConfig) -> Iterator[Any]:
        # Nothing is read here: the IO manager reads, within the commit.
        require(context, io_manager_key, ExportIOManager)
        database = require(context, source, DatabaseResource)
        partitions = {} if partitions_def is None else partitions_of(partitions_def, keys_of(context))
        handle = ExportHandle(export=export, database=database, full_refresh=config.full_refresh, partitions=partitions)
        value = body(context, handle)
        # The rows are read, judged and committed before this goes on.
        yield dg.Output(value)
        if checks:
            verdicts = value.verdicts if isinstance(value, ExportHandle) and value.judged else None
            if not context.has_partition_key:
                report_of_each(context, {k: result_of(spec.key, of_partition(verdicts, k)) for k in partitions})
            yield result_of(spec.key, verdicts)

    return _export


def describe(export: Export, options: AssetOptions, *, kinds: Iterable[str] = ()) -> dg.AssetSpec:
    """What an export's asset is, the same whether it has a step of its own or not.

    `kinds` are shown besides the export's own format and those of the options.
    """
    with untold():
        return dg.AssetSpec(
            key=export_key(export, options.key_prefix),
            deps=options.deps,
            description=_description(export),
            tags={"rivet/export": export.mode.kind, **(options.tags or {})},
            kinds={*kinds, *({export.format.kind} if export.format is not None else ()), *(options.kinds or ())},
            code_version=_code_version(export),
            group_name=options.group_name,
            owners=options.owners,
            automation_condition=options.automation_condition,
            freshness_policy=options.freshness_policy,
            partitions_def=options.partitions_def,
        )


def what_is_exported(export: Export, source: str) -> dict[str, Any]:
    """Metadata of an asset's definition that `defined` reads."""
    return {_EXPORT: dg.MetadataValue.json(_what_is_set(export)), _SOURCE: source}


def defined(metadata: Mapping[str, Any]) -> Defined | None:
    """Read what an asset exports from the metadata of its definition; `None` where it is no export of this package."""
    export, source = (getattr(found, "value", found) for found in map(metadata.get, (_EXPORT, _SOURCE)))
    if export is None or source is None:
        return None
    return Defined(export=Export.model_validate(export), source=source)


def require(context: dg.AssetExecutionContext, key: str, kind: type[Any]) -> Any:
    """A resource of the step.

    Raises:
        dagster.Failure: it is of another kind.
    """
    # Dagster's default IO manager would store the handle, and call that a materialization.
    found = getattr(context.resources, key)
    if isinstance(found, kind):
        return found
    name = ", ".join(sorted(k.to_user_string() for k in context.selected_asset_keys))
    msg = f"{name}: expected the resource {key!r} to be a {kind.__name__}, found {type(found).__name__}"
    raise dg.Failure(description=f"{msg}; give this key one of rivet_dagster's", allow_retries=False)


def export_key(export: Export, key_prefix: KeyPrefix) -> dg.AssetKey:
    """The key of an export's asset."""
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or [])
    return dg.AssetKey([*prefix, export.name])


def _description(export: Export) -> str:
    if export.query is None:
        return f"Exports the table `{export.relation}`."
    return f"Exports the result of a query:\n\n```sql\n{export.query.strip()}\n```"


def _what_is_set(export: Export) -> dict[str, Any]:
    fields = type(export).model_fields.items()
    given = {name for name, field in fields if getattr(export, name) != field.get_default(call_default_factory=True)}
    return export.model_dump(mode="json", include=given)


def _code_version(export: Export) -> str:
    return fingerprint(json.dumps(export.model_dump(mode="json"), sort_keys=True).encode())
