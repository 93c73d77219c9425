"""What a maintenance job does for one asset, in all of its partitions, and what it says of that."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import dagster as dg

from rivet_dagster.attempt import Attempt, Head
from rivet_dagster.contract import ObjectDestination
from rivet_dagster.destinations.watched import RehearsedDestination, Removed, WatchedDestination
from rivet_dagster.errors import RivetError
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.layout import Prefix
from rivet_dagster.maintenance import Maintained, maintain
from rivet_dagster.orchestration.datasets import Dataset
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.judgement import judge
from rivet_dagster.orchestration.metadata import materialization_metadata
from rivet_dagster.orchestration.run_facts import RunFacts
from rivet_dagster.orchestration.state import agreed, remembered

__all__ = ["Upkeep"]

_SHOWN = 50
# Dagster's own key of the data version of what is reported.
_DATA_VERSION = "dagster/data_version"


class _DryRun(logging.LoggerAdapter):  # type: ignore[type-arg] # generic in stubs only
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"dry run, nothing is changed: {msg}", kwargs


@dataclass(kw_only=True)
class Upkeep:
    """What is done for one asset, in all of its partitions."""

    context: dg.OpExecutionContext
    dataset: Dataset
    io_manager: ExportIOManager
    dry_run: bool
    quarantined_for: timedelta
    removed: list[Removed] = field(default_factory=list)
    done: dict[str | None, Maintained] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
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
                prefix = self._prefix(partition)
                self.unknown += [f"{prefix.root}{path}" for path in judge(watched, prefix).unknown]
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
            "rivet/unknown_objects": len(self.unknown),
        }
        if self.unknown:
            notes.append(f"objects that no manifest names, left alone: {', '.join(self.unknown[:_SHOWN])}")
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
