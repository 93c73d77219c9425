"""Asset checks that look at what a materialization claims; `check_kinds` says what each of them looks at."""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import dagster as dg

from rivet_dagster.contract import ObjectDestination, WriteCommitProtocol
from rivet_dagster.errors import ConfigError, DestinationError, RivetError
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.assets import KeyPrefix, export_key
from rivet_dagster.orchestration.check_kinds import Asked, Kind, chosen
from rivet_dagster.orchestration.failures import as_dagster_failure
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.judgement import judge
from rivet_dagster.orchestration.run_facts import materialized
from rivet_dagster.orchestration.verdicts import result_of, result_of_partitions

__all__ = ["build_manifest_checks"]

# Materializations that somebody reported by hand carry none of our keys; this many of them are skipped over.
_LOOKED_BACK = 100


def build_manifest_checks(
    asset: dg.AssetsDefinition | Export,
    *,
    checks: str | Sequence[str] = ("manifest",),
    io_manager_key: str | None = None,
    key_prefix: KeyPrefix = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    blocking: bool = False,
    pool: str | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Build checks for an asset, or for each asset of a multi-asset or bundle.

    They judge the delivery of the latest materialization by what that recorded, not whatever the head is now: one
    that a later run replaced meanwhile passes, with a warning that names its successor. Without any materialization
    of ours, the manifest found at the prefix is judged (it may be Rivet's own); where there is none either, the check
    fails. A store that cannot be asked fails the step and gives no verdict. The checks of a partitioned
    asset judge the partition of its run, or each of the range of its run.

    All checks of an asset share one step, in which any of them can be run alone, and so do those of a multi-asset
    without partitions. With `blocking` each asset has its own step, since a failed one holds up what is downstream of
    any of its checks.

    Args:
        asset: what `build_export_asset` or `@dg.asset` made, or an export whose asset lives elsewhere.
        checks: which of them. `manifest`: marker, manifest and a listing of the parts; `content`: every part is read
            again.
        io_manager_key: of the destination; read from the asset unless given.
        key_prefix: of the asset's key; only for an `Export`.
        partitions_def: only for an `Export`; an asset brings its own. With it, each partition is judged on its own.
        blocking: whether downstream assets of the same run wait for the checks and are skipped when one fails.
        pool: of the checks' step.

    Raises:
        ConfigError: there is no such check, the destination is a stream and keeps nothing to check, or a setting does
            not belong.
    """
    kinds = chosen(checks)
    if isinstance(asset, Export):
        keys, resources = {export_key(asset, key_prefix): io_manager_key or "io_manager"}, {}
        partitions, promises = partitions_def, {}
    else:
        if key_prefix is not None or partitions_def is not None:
            msg = (
                "build_manifest_checks: an asset brings its own key and partitions; leave key_prefix and partitions_def"
            )
            raise ConfigError(msg)
        keys = {key: io_manager_key or asset.get_io_manager_key_for_asset_key(key) for key in asset.keys}
        resources, partitions = dict(asset.resource_defs), asset.partitions_def
        promises = {key: asset.metadata_by_key.get(key, {}) for key in keys}
    for key, named in keys.items():
        _refuse_stream(key, resources.get(named), promises.get(key, {}))
    if not kinds:
        return []
    steps = {key.to_python_identifier(): {key: named} for key, named in keys.items()}
    if isinstance(asset, dg.AssetsDefinition) and len(keys) > 1 and partitions is None and not blocking:
        steps = {asset.op.name: keys}
    suffix = kinds[0].name if len(kinds) == 1 else "checks"
    return [
        _step(
            f"{name}_{suffix}",
            {key: (named, kinds) for key, named in of.items()},
            resource_defs={named: resources[named] for named in of.values() if named in resources},
            partitions_def=partitions,
            blocking=blocking,
            pool=pool,
        )
        for name, of in steps.items()
    ]


def _step(
    name: str,
    of: Mapping[dg.AssetKey, tuple[str, Sequence[Kind]]],
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
            for key, (_, kinds) in of.items()
            for kind in kinds
        ]

    @dg.multi_asset_check(
        name=name,
        specs=specs,
        can_subset=True,
        required_resource_keys={named for named, _ in of.values()},
        resource_defs=resource_defs,
        pool=pool,
    )
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        failed: dict[str, Exception] = {}
        for key, (named, kinds) in of.items():
            for kind in kinds:
                if dg.AssetCheckKey(key, kind.name) not in context.selected_asset_check_keys:
                    continue
                try:
                    io_manager = _io_manager(key, kind, getattr(context.resources, named))
                    if partitions_def is None:
                        yield _check(context, key, kind, io_manager, None)
                    else:
                        yield _check_partitions(context, key, kind, io_manager)
                except (RivetError, dg.Failure) as e:
                    failed[f"{key.to_user_string()}: {kind.name}"] = e
        if failed:
            raise _unchecked(failed)

    return check


def _unchecked(failed: Mapping[str, Exception]) -> Exception:
    """One error for all that could not be checked; a policy may repeat it where it may repeat one of them."""
    if len(failed) == 1:
        (only,) = failed.values()
        return only
    said = "\n".join(f"  {name}: {getattr(e, 'description', None) or e}" for name, e in failed.items())
    text = f"{len(failed)} checks could not be made:\n{said}"
    passing = [e for e in failed.values() if not isinstance(e, dg.Failure)]
    if not passing:
        return dg.Failure(description=text, allow_retries=False)
    error = DestinationError(text)
    error.__cause__ = passing[0]
    return error


def _io_manager(key: dg.AssetKey, kind: Kind, found: Any) -> ExportIOManager:
    if isinstance(found, ExportIOManager):
        return found
    msg = (
        f"{key.to_user_string()}: the check `{kind.name}` expected an IO manager of rivet_dagster, found "
        f"{type(found).__name__}; name the right io_manager_key"
    )
    raise dg.Failure(description=msg, allow_retries=False)


def _check_partitions(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, kind: Kind, io_manager: ExportIOManager
) -> dg.AssetCheckResult:
    """Of the partition of the run, or of each of its range."""
    if context.has_partition_key or not context.has_partition_key_range:
        partition = context.partition_key if context.has_partition_key else None
        return _check(context, key, kind, io_manager, partition)
    keys = context.op_execution_context.partition_keys
    return result_of_partitions(key, kind.name, {k: _check(context, key, kind, io_manager, k) for k in keys})


def _check(
    context: dg.AssetCheckExecutionContext,
    key: dg.AssetKey,
    kind: Kind,
    io_manager: ExportIOManager,
    partition: str | None,
) -> dg.AssetCheckResult:
    started = time.monotonic()
    recorded = _recorded(context.instance, key, partition)
    newest = recorded[0] if recorded else {}
    prefix = io_manager.prefix_of(key, partition)
    uri = key.to_user_string()
    try:
        destination = _object_destination(key, io_manager)
        uri = destination.uri(prefix.root)
        verdict = judge(
            destination,
            prefix,
            run_id=newest.get("rivet/run_id"),
            checksum=newest.get("rivet/checksum"),
            look_at=kind.look(Asked(io_manager=io_manager, recorded=recorded)),
        )
    except RivetError as e:
        failure = as_dagster_failure(e, capabilities=None, uri=uri)
        raise failure from failure.__cause__
    if verdict.superseded:
        context.log.warning("%s: %s", uri, "; ".join(verdict.notes))
    result = result_of(key, kind.name, verdict, uri=uri, recorded=bool(recorded))
    return result.with_metadata({**result.metadata, "rivet/duration_seconds": time.monotonic() - started})


def _object_destination(key: dg.AssetKey, io_manager: ExportIOManager) -> ObjectDestination:
    _refuse_stream(key, io_manager, {})
    destination = io_manager.destination
    if not isinstance(destination, ObjectDestination):
        raise ConfigError(_nothing_at_rest(key, io_manager.kind))
    return destination


def _recorded(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> list[Mapping[str, Any]]:
    """What materializations that carry our keys say of their deliveries, the newest first."""
    newest = islice(materialized(instance, key, partition), _LOOKED_BACK)
    return [said for said in newest if {"rivet/run_id", "rivet/checksum"} <= said.keys()]


def _refuse_stream(key: dg.AssetKey, io_manager: Any, definition_metadata: Mapping[str, Any]) -> None:
    # Given to `@asset(io_manager_def=…)`, an IO manager is wrapped in a definition that knows its class.
    kind = getattr(io_manager, "configurable_resource_cls", type(io_manager))
    if issubclass(kind, ExportIOManager):
        protocol, named = kind.capabilities.commit_protocol.value, kind.kind
    else:
        said = definition_metadata.get("rivet/commit_protocol")
        protocol, named = getattr(said, "value", said), "this"
    if protocol == WriteCommitProtocol.STREAMING.value:
        raise ConfigError(_nothing_at_rest(key, named))


def _nothing_at_rest(key: dg.AssetKey, kind: str) -> str:
    return (
        f"{key.to_user_string()}: checks expected a destination that keeps objects, found {kind} "
        "destination, a stream; leave the checks out or choose another destination"
    )
