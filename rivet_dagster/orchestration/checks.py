"""Asset checks that look at what a materialization claims; `check_kinds` says what each of them looks at."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.errors import ConfigError, RivetError
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.assets import Defined, KeyPrefix, defined, export_key
from rivet_dagster.orchestration.check_kinds import chosen
from rivet_dagster.orchestration.checking import Subject, make_check, refuse_stream, unchecked

__all__ = ["build_manifest_checks"]


def build_manifest_checks(
    asset: dg.AssetsDefinition | Export,
    *,
    checks: str | Sequence[str] | Mapping[dg.AssetKey, str | Sequence[str]] = ("manifest",),
    source: str | None = None,
    io_manager_key: str | None = None,
    key_prefix: KeyPrefix = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    blocking: bool = False,
    severity: dg.AssetCheckSeverity | None = None,
    pool: str | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Build checks for an asset, or for each asset of a multi-asset or bundle.

    They judge the delivery of the latest materialization by what that recorded, not whatever the head is now: one
    that a later run replaced meanwhile passes, with a warning that names its successor. Without any materialization
    of ours, the manifest found at the prefix is judged (it may be Rivet's own); where there is none either, the check
    fails. A store or source that cannot be asked fails the step and gives no verdict. The checks of a partitioned
    asset judge the partition of its run, or each of the range of its run.

    All checks of an asset share one step, in which any of them can be run alone, and so do those of a multi-asset
    without partitions. With `blocking` each asset has its own step, since a failed one holds up what is downstream of
    any of its checks.

    Args:
        asset: what `build_export_asset`, `build_export_definitions` or `@dg.asset` made, or an export whose asset lives
            elsewhere.
        checks: which of them. `manifest`: marker, manifest and a listing of the parts; `content`: every part is read
            again; `row_count`: the source counts the rows that were delivered, for exports only; `schema`: the columns
            are those of the delivery before. By asset key where assets of one step differ.
        source: key of the `DatabaseResource` that an `Export` reads, "source" unless given; an asset brings its own.
        io_manager_key: of the destination; read from the asset unless given.
        key_prefix: of the asset's key; only for an `Export`.
        partitions_def: only for an `Export`; an asset brings its own. With it, each partition is judged on its own.
        blocking: whether downstream assets of the same run wait for the checks and are skipped when one fails; a
            warning holds nothing up.
        severity: of what `row_count` and `schema` find, which may be rightful. Unless given, it is a warning, but for
            more rows in the window of an incremental export than were delivered: no later run reads those.
        pool: of the checks' step; with `row_count` that of the export, unless given.

    Raises:
        ConfigError: there is no such check, `row_count` is asked of what is no export, the destination is a stream and
            keeps nothing to check, or a setting does not belong.
    """
    found: dict[dg.AssetKey, tuple[str, Mapping[str, Any]]]
    resources: dict[str, Any] = {}
    if isinstance(asset, Export):
        found = {export_key(asset, key_prefix): (io_manager_key or "io_manager", {})}
        defines = {key: Defined(export=asset, source=source or "source") for key in found}
    else:
        if key_prefix is not None or partitions_def is not None or source is not None:
            msg = (
                "build_manifest_checks: an asset brings its own key, partitions and source; leave key_prefix, "
                "partitions_def and source"
            )
            raise ConfigError(msg)
        resources, partitions_def = dict(asset.resource_defs), asset.partitions_def
        found = {
            key: (io_manager_key or asset.get_io_manager_key_for_asset_key(key), asset.metadata_by_key.get(key, {}))
            for key in asset.keys
        }
        defines = {key: d for key, (_, said) in found.items() if (d := defined(said)) is not None}
    warns = None if severity is None else severity is dg.AssetCheckSeverity.WARN
    of = {}
    for key, (named, said) in found.items():
        refuse_stream(key, resources.get(named), said)
        kinds = chosen(checks.get(key, ()) if isinstance(checks, Mapping) else checks)
        one = Subject(kinds=kinds, io_manager=named, defined=defines.get(key), warns=warns)
        _refuse_no_export(key, one)
        if kinds:
            of[key] = one
    steps = {key.to_python_identifier(): {key: one} for key, one in of.items()}
    if isinstance(asset, dg.AssetsDefinition) and len(of) > 1 and partitions_def is None and not blocking:
        steps = {asset.op.name: of}
    return [
        _step(
            f"{name}_{_suffix(some)}",
            some,
            resource_defs={k: resources[k] for one in some.values() for k in one.needs if k in resources},
            partitions_def=partitions_def,
            blocking=blocking,
            pool=pool or _pool(asset, some),
        )
        for name, some in steps.items()
    ]


def _step(
    name: str,
    of: Mapping[dg.AssetKey, Subject],
    *,
    resource_defs: Mapping[str, Any],
    partitions_def: dg.PartitionsDefinition[Any] | None,
    blocking: bool,
    pool: str | None,
) -> dg.AssetChecksDefinition:
    """Checks as one step; one that cannot be made does not stop the others."""
    # Dagster warns of each experimental argument; nobody who builds a check could do anything about it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        specs = [
            dg.AssetCheckSpec(
                kind.name, asset=key, description=kind.description, blocking=blocking, partitions_def=partitions_def
            )
            for key, one in of.items()
            for kind in one.kinds
        ]

    @dg.multi_asset_check(
        name=name,
        specs=specs,
        can_subset=True,
        required_resource_keys={needed for one in of.values() for needed in one.needs},
        resource_defs=resource_defs,
        pool=pool,
    )
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        failed: dict[str, Exception] = {}
        for key, one in of.items():
            for kind in one.kinds:
                if dg.AssetCheckKey(key, kind.name) not in context.selected_asset_check_keys:
                    continue
                try:
                    yield make_check(context, key, kind, one, partitioned=partitions_def is not None)
                except (RivetError, dg.Failure) as e:
                    failed[f"{key.to_user_string()}: {kind.name}"] = e
        if failed:
            raise unchecked(failed)

    return check


def _suffix(of: Mapping[dg.AssetKey, Subject]) -> str:
    names = {kind.name for one in of.values() for kind in one.kinds}
    return names.pop() if len(names) == 1 else "checks"


def _pool(asset: dg.AssetsDefinition | Export, of: Mapping[dg.AssetKey, Subject]) -> str | None:
    """What reads the database does so within the limit of its exports."""
    sources = [one.source for one in of.values() if one.source is not None]
    if not sources or isinstance(asset, Export):
        return sources[0] if sources else None
    return asset.op.pool


def _refuse_no_export(key: dg.AssetKey, subject: Subject) -> None:
    counting = [kind.name for kind in subject.kinds if kind.counts]
    if counting and subject.defined is None:
        msg = (
            f"{key.to_user_string()}: the check `{counting[0]}` asks the source of an export, and expected an asset of "
            "build_export_asset or build_export_definitions, found another one; leave the check out"
        )
        raise ConfigError(msg)
