"""Make one check as Dagster asks for it: find what was recorded, judge, and say it in Dagster's terms."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import dagster as dg

from rivet_dagster.contract import ObjectDestination, WriteCommitProtocol
from rivet_dagster.errors import ConfigError, DestinationError, RivetError
from rivet_dagster.orchestration.assets import Defined
from rivet_dagster.orchestration.check_kinds import Asked, Kind
from rivet_dagster.orchestration.failures import as_dagster_failure
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.judgement import judge
from rivet_dagster.orchestration.resources import DatabaseResource
from rivet_dagster.orchestration.run_facts import materialized, report_of_each
from rivet_dagster.orchestration.verdicts import result_of, result_of_partitions

__all__ = ["Subject", "make_check", "refuse_stream", "unchecked"]

# Materializations that somebody reported by hand carry none of our keys; this many of them are skipped over.
_LOOKED_BACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked of one asset, and what that needs: keys of resources, and the export where it is one."""

    kinds: Sequence[Kind]
    io_manager: str
    defined: Defined | None
    warns: bool | None

    @property
    def source(self) -> str | None:
        """The database that is asked."""
        return self.defined.source if self.defined is not None and any(k.counts for k in self.kinds) else None

    @property
    def needs(self) -> set[str]:
        """Keys of resources."""
        return {self.io_manager, *([self.source] if self.source is not None else ())}


def make_check(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, kind: Kind, subject: Subject, *, partitioned: bool
) -> dg.AssetCheckResult:
    """Check the delivery of an asset; of one with partitions that of the run's partition, or each of its range.

    Raises:
        dagster.Failure: it could not be checked, and would not be when it is repeated.
        RivetError: it may be when it is repeated.
    """
    asked = _asked(context, key, kind, subject)
    if not partitioned:
        return _check(context, kind, asked, None)
    if context.has_partition_key:
        return _check(context, kind, asked, context.partition_key)
    if not context.has_partition_key_range:
        msg = (
            f"{key.to_user_string()}: the check `{kind.name}` expected a run of a partition, or of a range of them, "
            "found one without; choose a partition"
        )
        raise dg.Failure(description=msg, allow_retries=False)
    keys = context.op_execution_context.partition_keys
    results = {k: _check(context, kind, asked, k) for k in keys}
    report_of_each(context, results)
    return result_of_partitions(key, kind.name, results)


def unchecked(failed: Mapping[str, Exception]) -> Exception:
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


def _asked(context: dg.AssetCheckExecutionContext, key: dg.AssetKey, kind: Kind, subject: Subject) -> Asked:
    exported = None
    if kind.counts and subject.defined is not None:
        exported = (subject.defined.export, _resource(context, key, kind, subject.defined.source, DatabaseResource))
    return Asked(
        key=key,
        io_manager=_resource(context, key, kind, subject.io_manager, ExportIOManager),
        recorded=(),
        exported=exported,
        warns=subject.warns,
    )


def _resource(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, kind: Kind, named: str, expected: type[Any]
) -> Any:
    found = getattr(context.resources, named)
    if isinstance(found, expected):
        return found
    msg = (
        f"{key.to_user_string()}: the check `{kind.name}` expected the resource {named!r} to be an {expected.__name__} "
        f"of rivet_dagster, found {type(found).__name__}; name the right key"
    )
    raise dg.Failure(description=msg, allow_retries=False)


def _check(
    context: dg.AssetCheckExecutionContext, kind: Kind, asked: Asked, partition: str | None
) -> dg.AssetCheckResult:
    started = time.monotonic()
    key, io_manager = asked.key, asked.io_manager
    asked = replace(asked, recorded=_recorded(context.instance, key, partition))
    newest = asked.recorded[0] if asked.recorded else {}
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
            look_at=kind.look(asked),
        )
    except RivetError as e:
        failure = as_dagster_failure(e, capabilities=None, uri=uri)
        raise failure from failure.__cause__
    if verdict.superseded:
        context.log.warning("%s: %s", uri, "; ".join(verdict.notes))
    result = result_of(key, kind.name, verdict, uri=uri, recorded=bool(asked.recorded))
    return result.with_metadata({**result.metadata, "rivet/duration_seconds": round(time.monotonic() - started, 3)})


def _object_destination(key: dg.AssetKey, io_manager: ExportIOManager) -> ObjectDestination:
    refuse_stream(key, io_manager, {})
    destination = io_manager.destination
    if not isinstance(destination, ObjectDestination):
        raise ConfigError(_nothing_at_rest(key, io_manager.kind))
    return destination


def _recorded(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> list[Mapping[str, Any]]:
    """What materializations that carry our keys say of their deliveries, the newest first."""
    newest = islice(materialized(instance, key, partition), _LOOKED_BACK)
    return [said for said in newest if {"rivet/run_id", "rivet/checksum"} <= said.keys()]


def refuse_stream(key: dg.AssetKey, io_manager: Any, definition_metadata: Mapping[str, Any]) -> None:
    """Refuse to check what a stream has taken.

    Raises:
        ConfigError: the IO manager, or else what the definition shows, is of a stream.
    """
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
