"""When exports run by themselves, and what follows a delivery: schedules that skip, and a sensor for markers."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ConfigError, DestinationError, ReadError
from rivet_dagster.layout import Prefix, asset_prefix
from rivet_dagster.manifest import Manifest, marker_fingerprint
from rivet_dagster.orchestration.failures import masked
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.metadata import link
from rivet_dagster.readback import look

__all__ = ["build_delivery_sensor", "export_schedule"]

_OVER = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _OVER]
# Longer than any marker.
_MARKER_BYTES = 1024


def export_schedule(
    name: str,
    job: dg.UnresolvedAssetJobDefinition,
    cron: str,
    *,
    keys: Collection[dg.AssetKey],
    partitions_def: dg.PartitionsDefinition[str] | None = None,
) -> dg.ScheduleDefinition:
    """Run a job of exports by a cron line; a tick is skipped while a run of these exports is unfinished.

    With partitions, each is a run of its own. Of partitions of time, each tick asks for the newest one that is over
    (with `end_offset`, for so many more) and for those before it that are newer than any that was materialized: a tick
    that was missed or skipped loses none. Of all others, each tick asks for every partition.
    """
    zone = partitions_def.timezone if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition) else None

    @dg.schedule(name=name, job=job, cron_schedule=cron, execution_timezone=zone)
    def exports(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | list[dg.RunRequest] | dg.SkipReason:
        if (run := _unfinished(context.instance, job.name, keys)) is not None:
            return dg.SkipReason(
                f"run {run.run_id} of {run.job_name} is not finished ({run.status.value}); the next tick looks again. "
                "One that is dead stays so until it is terminated, or run monitoring finds out"
            )
        if partitions_def is None:
            return dg.RunRequest()
        found = _asked_for(context, partitions_def, keys)
        # The same partition may be asked for again, by another tick.
        tick = context.scheduled_execution_time.isoformat()
        runs = [dg.RunRequest(run_key=f"{tick} {key}", partition_key=key) for key in found]
        return runs or dg.SkipReason("there is no partition yet")

    return exports


def _unfinished(instance: dg.DagsterInstance, job_name: str, keys: Collection[dg.AssetKey]) -> dg.DagsterRun | None:
    """A run of the job, or one that was started for some of its assets alone."""
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)):
        wanted: Collection[dg.AssetKey] = run.asset_selection or ()
        if not wanted and run.job_name == job_name:
            # Another code location may have a job of this name; a key of an asset is one in all of them.
            wanted = _planned(instance, run.run_id) or keys
        if not set(keys).isdisjoint(wanted):
            return run
    return None


def _planned(instance: dg.DagsterInstance, run_id: str) -> set[dg.AssetKey]:
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    events = (entry.dagster_event for entry in entries)
    return {event.asset_key for event in events if event is not None and event.asset_key is not None}


def _asked_for(
    context: dg.ScheduleEvaluationContext, partitions_def: dg.PartitionsDefinition[str], keys: Iterable[dg.AssetKey]
) -> Sequence[str]:
    known = partitions_def.get_partition_keys(
        current_time=context.scheduled_execution_time, dynamic_partitions_store=context.instance
    )
    if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        return known
    always = max(1, 1 + partitions_def.end_offset)
    done = [context.instance.get_materialized_partitions(key) for key in keys]
    newest = [max((i for i, k in enumerate(known) if k in of_one), default=None) for of_one in done]
    since = min((i + 1 for i in newest if i is not None), default=len(known))
    return known[max(0, min(since, len(known) - always)) :]


def build_delivery_sensor(
    prefixes: Iterable[str | dg.AssetKey],
    *,
    name: str = "delivery_sensor",
    io_manager_key: str = "io_manager",
    target: Any = None,
    observe: bool = False,
    minimum_interval_seconds: int | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """Build a sensor that fires once for each new delivery at a destination, whoever has written it.

    A delivery is new when `_SUCCESS` names another manifest than at the last tick, and that manifest is there: this
    Dagster may have committed it, another code location, or the public `rivet`. A head without its marker, or with a
    marker that names the delivery before, is no delivery yet; a compaction of the delivery that was there is none
    either. What is there at the first tick is new. The sensor's cursor holds the fingerprint of each prefix; one whose
    store cannot be asked keeps its own until it can be.

    Args:
        prefixes: what is watched: keys of assets, or directories below the destination's own (`"shop/orders"`,
            `"visits/partition=2026-01-31"`, `""` for the destination itself).
        name: of the sensor.
        io_manager_key: of the destination, a resource of the code location.
        target: what is run for a delivery, a job or a selection of assets, as `dg.sensor` takes it; each run has the
            prefix, the fingerprint and the marker's time as its run key, and tags that say which delivery it is for.
        observe: record an observation of each key of an asset among the prefixes, with the delivery's data version,
            for assets that are made elsewhere.
        minimum_interval_seconds: between two ticks.
        default_status: whether it runs without being turned on.
        description: of the sensor.

    Raises:
        ConfigError: nothing is watched, a prefix is watched twice or leads elsewhere, or nothing would follow.

    Example:
        .. code-block:: python

            import dagster as dg
            import rivet_dagster as rd

            @dg.asset
            def report() -> None: ...

            defs = dg.Definitions(
                assets=[report],
                sensors=[rd.build_delivery_sensor([dg.AssetKey("orders")], target=[report])],
                resources={"io_manager": rd.LocalIOManager(path="data/exports")},
            )
    """
    watched = _watched(name, prefixes)
    observed = [w for w in watched if w.key is not None]
    if target is None and not (observe and observed):
        msg = f"{name}: expected a target to run, or observe=True with the key of an asset, found neither; give one"
        raise ConfigError(msg)

    @dg.sensor(
        name=name,
        target=target,
        required_resource_keys={io_manager_key},
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Fires for new deliveries at {', '.join(w.name for w in watched)}.",
    )
    def deliveries(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        seen = _read_cursor(context.cursor, context.log)
        known = {w.prefix.root: seen[w.prefix.root] for w in watched if w.prefix.root in seen}
        try:
            destination = _destination(name, io_manager_key, getattr(context.resources, io_manager_key))
            seen_now, unasked = _look_at(destination, watched, known)
        except DestinationError as e:
            seen_now, unasked = [], [masked(str(e))]
        for said in unasked:
            context.log.warning("%s", said)
        found = [d for d in seen_now if not d.has_the_rows_of(known.get(d.watched.prefix.root))]
        compacted = [f"{d.watched.name} was compacted, its rows are the same" for d in seen_now if d not in found]
        reason = None if found else "; ".join(unasked + compacted) or "no new delivery"
        return dg.SensorResult(
            run_requests=[d.run_request() for d in found] if target is not None else [],
            asset_events=[d.observation(d.watched.key) for d in found if observe and d.watched.key is not None],
            skip_reason=reason,
            cursor=json.dumps(known | {d.watched.prefix.root: d.fingerprint for d in seen_now}),
        )

    return deliveries


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    name: str
    prefix: Prefix
    key: dg.AssetKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    watched: _Watched
    manifest: Manifest
    fingerprint: str
    marked_at: datetime
    uri: str

    def has_the_rows_of(self, fingerprint: str | None) -> bool:
        """Whether it is that delivery, in other parts."""
        content, base = self.manifest.content, self.manifest.previous
        return content is not None and content.rewrites and base is not None and base.fingerprint == fingerprint

    def run_request(self) -> dg.RunRequest:
        said = {"rivet/manifest": self.uri, "rivet/checksum": self.fingerprint, "rivet/run_id": self.manifest.run_id}
        # Dagster drops a key that it has seen: a copy at another prefix is another delivery, and so is one put back.
        key = f"{self.watched.prefix.root}{self.fingerprint} {self.marked_at.isoformat()}"
        return dg.RunRequest(run_key=key, tags=said)

    def observation(self, key: dg.AssetKey) -> dg.AssetObservation:
        return dg.AssetObservation(
            asset_key=key,
            metadata={
                "rivet/run_id": self.manifest.run_id,
                "rivet/checksum": self.fingerprint,
                "rivet/manifest": link(self.uri),
                "dagster/row_count": self.manifest.row_count,
            },
            tags={"dagster/data_version": self.manifest.data_version or self.fingerprint},
        )


def _watched(name: str, prefixes: Iterable[str | dg.AssetKey]) -> list[_Watched]:
    if isinstance(prefixes, str | dg.AssetKey):
        prefixes = [prefixes]
    found: dict[str, _Watched] = {}
    for given in prefixes:
        if isinstance(given, dg.AssetKey):
            said, prefix, key = given.to_user_string(), asset_prefix(given.path), given
        else:
            said, prefix, key = given, Prefix(f"{given.strip('/')}/" if given.strip("/") else ""), None
            if any(part in ("", ".", "..") for part in prefix.root.split("/")[:-1]):
                msg = f"{name}: expected prefixes below the destination, found {given!r}; leave out '.', '..' and '//'"
                raise ConfigError(msg)
        if prefix.root in found:
            raise ConfigError(f"{name}: {said!r} is watched twice; leave one of them out")
        found[prefix.root] = _Watched(name=said or "the destination itself", prefix=prefix, key=key)
    if not found:
        raise ConfigError(f"{name}: expected at least one prefix, found none")
    return list(found.values())


def _read_cursor(cursor: str | None, log: logging.Logger) -> dict[str, str]:
    """What was there at the last tick, by prefix."""
    try:
        found = json.loads(cursor) if cursor else {}
        if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
            return found
        why = "it is none"
    except ValueError as e:
        why = str(e)
    log.warning("expected a cursor that this sensor has written, found another one (%s): all deliveries are new", why)
    return {}


def _destination(name: str, key: str, io_manager: Any) -> ObjectDestination:
    if not isinstance(io_manager, ExportIOManager):
        msg = f"{name}: expected the resource {key!r} to be an IO manager of rivet_dagster, found "
        raise ConfigError(f"{msg}{type(io_manager).__name__}; name the right io_manager_key")
    destination = io_manager.destination
    if not isinstance(destination, ObjectDestination):
        msg = f"{name}: expected a destination that keeps objects, found {io_manager.kind}, a stream; choose another"
        raise ConfigError(msg)
    return destination


def _look_at(
    destination: ObjectDestination, watched: Iterable[_Watched], known: Mapping[str, str]
) -> tuple[list[_Delivery], list[str]]:
    """What is new, and which prefixes could not be looked at: their turn comes again."""
    found, unasked = [], []
    for one in watched:
        try:
            stored = destination.read(one.prefix.marker, length=_MARKER_BYTES)
            if stored is None or marker_fingerprint(stored.body) == known.get(one.prefix.root, ""):
                continue
            sight = look(destination, one.prefix)
        except (DestinationError, ReadError) as e:
            unasked.append(f"{one.name} could not be looked at: {masked(str(e))}")
            continue
        new = sight.committed_fingerprint
        if sight.committed is not None and new is not None and new != known.get(one.prefix.root):
            uri = destination.uri(one.prefix.manifest)
            at = stored.meta.modified_at
            found.append(_Delivery(watched=one, manifest=sight.committed, fingerprint=new, marked_at=at, uri=uri))
    return found, unasked
