"""Asset checks that look at what a materialization claims: marker, manifest and every part it lists."""

import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from rivet_dagster.contract import ObjectDestination, WriteCommitProtocol
from rivet_dagster.errors import ConfigError, DestinationError, RivetError
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.assets import KeyPrefix, export_key
from rivet_dagster.orchestration.failures import as_dagster_failure
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.judgement import judge
from rivet_dagster.orchestration.verdicts import CHECK_NAME, result_of, result_of_partitions

__all__ = ["build_manifest_checks"]

# Materializations that somebody reported by hand carry none of our keys; this many of them are skipped over.
_LOOKED_BACK = 100
_DESCRIPTION = (
    "Marker, manifest and a listing of the parts (sizes, and checksums where the store has them) "
    "are what the latest materialization recorded."
)


def build_manifest_checks(
    asset: dg.AssetsDefinition | Export,
    *,
    io_manager_key: str | None = None,
    key_prefix: KeyPrefix = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    blocking: bool = False,
    pool: str | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Build the check `manifest` for an asset, or for each asset of a multi-asset or bundle.

    It judges the delivery of the latest materialization by what that recorded, not whatever the head is now: one
    that a later run replaced meanwhile passes, with a warning that names its successor. Without any materialization
    of ours, the manifest found at the prefix is judged (it may be Rivet's own); where there is none either, the check
    fails. A store that cannot be asked fails the step and gives no verdict. The check of a partitioned
    asset judges the partition of its run, or each of the range of its run.

    Those of a multi-asset without partitions share one step, as its assets do. With `blocking` each has its own, since
    a failed step holds up what is downstream of any of its checks.

    Args:
        asset: what `build_export_asset` or `@dg.asset` made, or an export whose asset lives elsewhere.
        io_manager_key: of the destination; read from the asset unless given.
        key_prefix: of the asset's key; only for an `Export`.
        partitions_def: only for an `Export`; an asset brings its own. With it, each partition is judged on its own.
        blocking: whether downstream assets of the same run wait for the check and are skipped when it fails.
        pool: of the check's step.

    Raises:
        ConfigError: the destination is a stream and keeps nothing to check, or a setting does not belong.
    """
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
    if len(keys) > 1 and partitions is None and not blocking and isinstance(asset, dg.AssetsDefinition):
        return [_manifest_checks(keys, name=f"{asset.op.name}_{CHECK_NAME}", resource_defs=resources, pool=pool)]
    return [
        _manifest_check(
            key,
            io_manager_key=named,
            resource_defs={named: resources[named]} if named in resources else {},
            partitions_def=partitions,
            blocking=blocking,
            pool=pool,
        )
        for key, named in keys.items()
    ]


def _manifest_check(
    key: dg.AssetKey,
    *,
    io_manager_key: str,
    resource_defs: Mapping[str, Any],
    partitions_def: dg.PartitionsDefinition[Any] | None,
    blocking: bool,
    pool: str | None,
) -> dg.AssetChecksDefinition:
    # Dagster warns of each experimental argument; nobody who builds a check could do anything about it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)

        @dg.asset_check(
            asset=key,
            name=CHECK_NAME,
            description=_DESCRIPTION,
            blocking=blocking,
            required_resource_keys={io_manager_key},
            resource_defs=resource_defs,
            partitions_def=partitions_def,
            pool=pool,
        )
        def manifest(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            io_manager = getattr(context.resources, io_manager_key)
            if partitions_def is not None and context.has_partition_key_range and not context.has_partition_key:
                keys = context.op_execution_context.partition_keys
                return result_of_partitions(key, {k: _check(context, key, io_manager, k) for k in keys})
            partition = context.partition_key if context.has_partition_key else None
            return _check(context, key, io_manager, partition)

    return manifest


def _manifest_checks(
    keys: Mapping[dg.AssetKey, str], *, name: str, resource_defs: Mapping[str, Any], pool: str | None
) -> dg.AssetChecksDefinition:
    """The checks of several assets as one step; one that cannot be made does not stop the others."""
    needed = set(keys.values())

    @dg.multi_asset_check(
        name=name,
        specs=[dg.AssetCheckSpec(CHECK_NAME, asset=key, description=_DESCRIPTION) for key in keys],
        can_subset=True,
        required_resource_keys=needed,
        resource_defs={k: v for k, v in resource_defs.items() if k in needed},
        pool=pool,
    )
    def manifests(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        wanted = {check.asset_key for check in context.selected_asset_check_keys}
        failed: dict[dg.AssetKey, Exception] = {}
        for key, named in keys.items():
            if key not in wanted:
                continue
            try:
                yield _check(context, key, getattr(context.resources, named), None)
            except (RivetError, dg.Failure) as e:
                failed[key] = e
        if failed:
            raise _unchecked(failed)

    return manifests


def _unchecked(failed: Mapping[dg.AssetKey, Exception]) -> Exception:
    """One error for all that could not be checked; a policy may repeat it where it may repeat one of them."""
    said = "\n".join(f"  {key.to_user_string()}: {getattr(e, 'description', None) or e}" for key, e in failed.items())
    text = f"{len(failed)} assets could not be checked:\n{said}"
    passing = [e for e in failed.values() if not isinstance(e, dg.Failure)]
    if not passing:
        return dg.Failure(description=text, allow_retries=False)
    error = DestinationError(text)
    error.__cause__ = passing[0]
    return error


def _check(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, io_manager: Any, partition: str | None
) -> dg.AssetCheckResult:
    started = time.monotonic()
    if not isinstance(io_manager, ExportIOManager):
        msg = (
            f"{key.to_user_string()}: the check `{CHECK_NAME}` expected an IO manager of rivet_dagster, found "
            f"{type(io_manager).__name__}; name the right io_manager_key"
        )
        raise dg.Failure(description=msg, allow_retries=False)
    recorded = _recorded(context.instance, key, partition)
    prefix = io_manager.prefix_of(key, partition)
    uri = key.to_user_string()
    try:
        destination = _object_destination(key, io_manager)
        uri = destination.uri(prefix.root)
        verdict = judge(
            destination, prefix, run_id=recorded.get("rivet/run_id"), checksum=recorded.get("rivet/checksum")
        )
    except RivetError as e:
        failure = as_dagster_failure(e, capabilities=None, uri=uri)
        raise failure from failure.__cause__
    if verdict.superseded:
        context.log.warning("%s: %s", uri, "; ".join(verdict.notes))
    result = result_of(key, verdict, uri=uri, recorded=bool(recorded))
    return result.with_metadata({**result.metadata, "rivet/duration_seconds": time.monotonic() - started})


def _object_destination(key: dg.AssetKey, io_manager: ExportIOManager) -> ObjectDestination:
    _refuse_stream(key, io_manager, {})
    destination = io_manager.destination
    if not isinstance(destination, ObjectDestination):
        raise ConfigError(_nothing_at_rest(key, io_manager.kind))
    return destination


def _recorded(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> dict[str, str]:
    """What the newest materialization that carries our keys says of its delivery; empty where there is none."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition is not None else None)
    for record in instance.fetch_materializations(wanted, limit=_LOOKED_BACK).records:
        found = record.asset_materialization
        if found is not None and {"rivet/run_id", "rivet/checksum"} <= found.metadata.keys():
            return {name: str(found.metadata[name].value) for name in ("rivet/run_id", "rivet/checksum")}
    return {}


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
        f"{key.to_user_string()}: the check `{CHECK_NAME}` expected a destination that keeps objects, found {kind} "
        "destination, a stream; leave the check out or choose another destination"
    )
