"""A job that keeps datasets tidy. No `from __future__ import annotations` here: Dagster reads an op's annotations."""

import logging
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import dagster as dg
from pydantic import Field

from rivet_dagster.attempt import Attempt, Head
from rivet_dagster.contract import ObjectDestination
from rivet_dagster.destinations.watched import RehearsedDestination, Removed, WatchedDestination
from rivet_dagster.errors import ConfigError, DestinationError, RivetError
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.layout import Prefix
from rivet_dagster.maintenance import Maintained, maintain
from rivet_dagster.orchestration.assets import KeyPrefix
from rivet_dagster.orchestration.datasets import Dataset, datasets_of
from rivet_dagster.orchestration.failures import as_dagster_failure, may_be_repeated
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.metadata import materialization_metadata
from rivet_dagster.orchestration.run_facts import RunFacts
from rivet_dagster.orchestration.state import agreed, remembered

__all__ = ["MaintenanceConfig", "build_maintenance_job"]

_SHOWN = 50
# Dagster's own key of the data version of what is reported.
_DATA_VERSION = "dagster/data_version"


class MaintenanceConfig(dg.Config):
    """What one run may be told."""

    dry_run: bool = Field(default=True, description="Say what would be done, and do nothing.")
    compact: list[str] = Field(
        default_factory=list,
        description="Keys of assets whose dataset is rewritten as one delivery, where an incremental export has added"
        " to it. All of its rows are read and written; cursor and rows stay.",
    )


def build_maintenance_job(
    assets: Iterable[Any],
    *,
    name: str = "maintenance",
    io_manager_key: str | None = None,
    key_prefix: KeyPrefix = None,
    quarantine_days: float = 7,
    pool: str | None = None,
    tags: Mapping[str, str] | None = None,
    description: str | None = None,
) -> dg.JobDefinition:
    """Build a job that takes dead runs over and removes what no reader and no run can need any more.

    That is: what dead and failed runs left, deliveries that were superseded and are not retained, and what has been in
    quarantine for too long. Each export does so before and after its own commit; the job is for those that run rarely,
    or not any more. It goes by manifests and their tokens alone: whatever else lies at a destination is counted and
    left alone, and so is every run that is alive. It does nothing unless it is run with `dry_run: false`.

    Of each asset, what was (or would be) done is in the log and in an observation of the asset.

    Args:
        assets: what `build_export_asset` or `@dg.asset` made (`defs.assets` of `build_export_definitions`), or exports
            whose assets live elsewhere. What other IO managers keep is left out.
        name: of the job.
        io_manager_key: of all destinations; read from the assets unless given.
        key_prefix: of the keys of what is given as `Export`.
        quarantine_days: how long damaged parts of dead runs are kept, by the store's clock.
        pool: of the job's step.
        tags: of the job.
        description: of the job.

    Raises:
        ConfigError: there is no asset, something else is among them, or `quarantine_days` is negative.

    Example:
        .. code-block:: python

            import dagster as dg
            import rivet_dagster as rd

            orders = rd.build_export_asset(rd.Export(name="orders", table="public.orders"))
            maintenance = rd.build_maintenance_job([orders])
            nightly = dg.ScheduleDefinition(
                job=maintenance,
                cron_schedule="0 4 * * *",
                run_config={"ops": {"maintenance_step": {"config": {"dry_run": False}}}},
            )
    """
    found = [*datasets_of(assets, io_manager_key=io_manager_key, key_prefix=key_prefix)]
    if not found:
        msg = f"{name}: expected at least one asset or export, found none"
        raise ConfigError(msg)
    if quarantine_days < 0:
        msg = f"{name}: quarantine_days: expected a number of days, 0 or more; found {quarantine_days}"
        raise ConfigError(msg)
    needed = {d.io_manager_key for d in found}
    brought = {k: v for d in found for k, v in d.resource_defs.items() if k in needed}

    @dg.op(name=f"{name}_step", required_resource_keys=needed, pool=pool)
    def step(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        wanted = _named(config.compact, found)
        failed: dict[str, RivetError] = {}
        for dataset in found:
            io_manager = getattr(context.resources, dataset.io_manager_key)
            if not isinstance(io_manager, ExportIOManager):
                continue
            work = _Work(
                context=context,
                dataset=dataset,
                io_manager=io_manager,
                dry_run=config.dry_run,
                quarantined_for=timedelta(days=quarantine_days),
            )
            failed |= work.do(compacting=dataset.key in wanted)
        if failed:
            failure = _failure(failed, of=len(found))
            raise failure from failure.__cause__

    @dg.job(
        name=name,
        resource_defs=brought or None,
        tags=tags,
        description=description or "Removes what dead runs, failed runs and superseded deliveries left behind.",
    )
    def maintenance() -> None:
        step()

    return maintenance


def _named(names: Sequence[str], found: Iterable[Dataset]) -> set[dg.AssetKey]:
    wanted, known = {dg.AssetKey.from_user_string(n) for n in names}, {d.key for d in found}
    if unknown := sorted(k.to_user_string() for k in wanted - known):
        there = ", ".join(sorted(k.to_user_string() for k in known))
        msg = f"compact: expected keys of the job's assets ({there}), found {', '.join(unknown)}"
        raise dg.Failure(description=msg, allow_retries=False)
    return wanted


def _failure(failed: Mapping[str, RivetError], *, of: int) -> Exception:
    said = "\n".join(f"  {name}: {error}" for name, error in failed.items())
    text = f"{len(failed)} datasets of {of} assets could not be maintained, all others were:\n{said}"
    passes = any(map(may_be_repeated, failed.values()))
    whole = (DestinationError if passes else RivetError)(text)
    whole.__cause__ = next(iter(failed.values()))
    return as_dagster_failure(whole, capabilities=None, uri="")


class _DryRun(logging.LoggerAdapter):  # type: ignore[type-arg] # generic in stubs only
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"dry run, nothing is changed: {msg}", kwargs


@dataclass(kw_only=True)
class _Work:
    """What is done for one asset, in all of its partitions."""

    context: dg.OpExecutionContext
    dataset: Dataset
    io_manager: ExportIOManager
    dry_run: bool
    quarantined_for: timedelta
    removed: list[Removed] = field(default_factory=list)
    done: dict[str | None, Maintained] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def do(self, *, compacting: bool) -> dict[str, RivetError]:
        """Maintain each partition, and tell; what could not be maintained is returned."""
        failed: dict[str, RivetError] = {}
        uri = self.dataset.name
        try:
            destination = self.io_manager.destination
            if not isinstance(destination, ObjectDestination):
                return {}
            uri = destination.uri(self.io_manager.prefix_of(self.dataset.key).root)
            settings = self.io_manager.settings.over(self.dataset.metadata)
            output = settings.output(self.dataset.export)
        except RivetError as e:
            return {self.dataset.name: e}
        for partition in self.dataset.partitions(self.context.instance):
            watched = (RehearsedDestination if self.dry_run else WatchedDestination)(destination)
            try:
                if compacting:
                    self._compact(watched, partition, output)
                self.done[partition] = self._maintain(watched, partition, output)
            except RivetError as e:
                failed[self.dataset.name if partition is None else f"{self.dataset.name}/{partition}"] = e
            self.removed += watched.removed
            self.notes += [f"could not be removed: {error}" for error in watched.failed.values()]
        self._tell(uri)
        return failed

    @property
    def _log(self) -> logging.Logger:
        log = self.context.log
        return cast("logging.Logger", _DryRun(log, {})) if self.dry_run else log

    def _prefix(self, partition: str | None) -> Prefix:
        return self.io_manager.prefix_of(self.dataset.key, partition)

    def _attempt(self, facts: RunFacts, partition: str | None) -> Attempt:
        return Attempt(
            export_name=self.dataset.name,
            dagster_run_id=facts.run_id,
            lineage=facts.lineage,
            partition_key=partition,
            is_over=facts.is_over,
        )

    def _maintain(self, watched: WatchedDestination, partition: str | None, output: OutputSettings) -> Maintained:
        return maintain(
            watched,
            self._prefix(partition),
            attempt=self._attempt(RunFacts.of(self.context), partition),
            settings=self.io_manager.settings.over(self.dataset.metadata).commit(output),
            quarantined_for=self.quarantined_for,
            log=self._log,
        )

    def _compact(self, watched: WatchedDestination, partition: str | None, output: OutputSettings) -> None:
        # pyarrow loads only where rows are read or written.
        from rivet_dagster.orchestration.compaction import compact, compactable  # noqa: PLC0415

        prefix, key = self._prefix(partition), self.dataset.key
        found, uri = compactable(watched, prefix), watched.uri(prefix.root)
        if found is None:
            self.notes.append("nothing to compact: the dataset is one delivery, or none")
            return
        facts = RunFacts.of(self.context)

        def agree(head: Head) -> None:
            agreed(head, remembered(facts.materialized(key, partition)), uri=uri)

        if self.dry_run:
            self.notes.append(f"would compact {found.said}")
            return
        receipt = compact(
            watched,
            prefix,
            attempt=self._attempt(facts, partition),
            settings=self.io_manager.settings.over(self.dataset.metadata).commit(output),
            output=output,
            agree=agree,
            log=self.context.log,
        )
        self.notes.append(f"compacted {found.said}")
        # The event log has to say what the head is: an incremental run compares the two.
        version = receipt.manifest.data_version if receipt.manifest else None
        self.context.log_event(
            dg.AssetMaterialization(
                asset_key=key,
                partition=partition,
                metadata=materialization_metadata(receipt, columns=(), attempt=facts.attempt),
                tags={_DATA_VERSION: version} if version else None,
            )
        )

    def _tell(self, uri: str) -> None:
        taken = [t for found in self.done.values() for t in found.taken_over]
        alive = [t for found in self.done.values() for t in found.alive]
        notes = [
            *self.notes,
            *(note if key is None else f"{key}: {note}" for key, found in self.done.items() for note in found.notes),
        ]
        size = sum(r.size_bytes for r in self.removed)
        said: dict[str, Any] = {
            "rivet/dry_run": self.dry_run,
            "dagster/uri": uri,
            "rivet/taken_over": dg.MetadataValue.json(taken),
            "rivet/alive": dg.MetadataValue.json(alive),
            "rivet/removed_objects": len(self.removed),
            "rivet/removed_bytes": size,
            "rivet/quarantined": sum(found.quarantined for found in self.done.values()),
        }
        if self.removed:
            said["rivet/removed"] = dg.MetadataValue.table(
                records=[dg.TableRecord({"path": r.key, "bytes": r.size_bytes}) for r in self.removed[:_SHOWN]]
            )
        if notes:
            said["rivet/notes"] = dg.MetadataValue.json(notes)
        self.context.log_event(dg.AssetObservation(asset_key=self.dataset.key, metadata=said))
        verb = "would remove" if self.dry_run else "removed"
        self.context.log.info(
            "%s: %s %d objects (%d bytes), %s %d dead runs, %d alive",
            self.dataset.name,
            verb,
            len(self.removed),
            size,
            "would take over" if self.dry_run else "took over",
            len(taken),
            len(alive),
        )
