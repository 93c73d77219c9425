"""What a run that is started now would do: from which cursor, over which window. It moves nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import dagster as dg

from rivet_dagster.attempt import Head
from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ConfigError, PlanRejected, RivetError, SourceError
from rivet_dagster.exports.modes import Full, Incremental
from rivet_dagster.exports.plan import Diagnostic, Level, PlannedExport, diagnose
from rivet_dagster.exports.progress import estimate_of
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Status
from rivet_dagster.orchestration.datasets import Dataset
from rivet_dagster.orchestration.failures import text_of
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.loading import CodeLocation, Opened
from rivet_dagster.orchestration.partitions import partitions_of
from rivet_dagster.orchestration.planning import Planning
from rivet_dagster.orchestration.run_facts import materialized
from rivet_dagster.readback import Sight, look, records

__all__ = ["Preview", "preview"]

# How long a plan waits for writers: a run would wait for as long as it is told to.
_PATIENCE = "1s"


@dataclass(kw_only=True)
class Preview:
    """What a run of one export would do.

    Attributes:
        export: the asset's key.
        mode: of the export.
        source: key of the database, and what it is.
        destination: URI of the dataset.
        partition: that was planned; `None` for an export without any.
        delivery: "snapshot" replaces what is there, "append" adds to it.
        continues: the delivery that is there, and its cursor; `None` where there is none.
        window: which rows, for a mode that has one.
        columns: names and types.
        rows_estimate: about how many rows the whole table has; `None` where the database does not say.
        bytes_estimate: of as many rows, by the size of those that are there.
        diagnostics: what planning found.
        notes: what a person should know.
        error: why there would be no delivery.
    """

    export: str
    mode: str
    source: str
    destination: str | None = None
    partition: str | None = None
    delivery: str | None = None
    continues: Mapping[str, Any] | None = None
    window: Mapping[str, Any] | None = None
    columns: Sequence[Mapping[str, str]] = ()
    rows_estimate: int | None = None
    bytes_estimate: int | None = None
    diagnostics: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a run would deliver."""
        return self.error is None and not any(d["level"] == Level.REJECTED.value for d in self.diagnostics)

    def as_json(self) -> dict[str, Any]:
        """With stable keys."""
        return {**asdict(self), "ok": self.ok}


def preview(
    location: CodeLocation,
    datasets: Sequence[Dataset],
    *,
    instance: dg.DagsterInstance | None,
    partition: str | None = None,
    log: logging.Logger,
) -> Iterator[Preview]:
    """Plan each export as a run would, and stop before its first row; an error is part of the plan.

    Args:
        location: where the exports are defined.
        datasets: of exports.
        instance: whose event log is held against the destinations; `None` where there is none.
        partition: of those that have partitions; the newest unless given.
        log: for what sources have to say.
    """
    keys = [k for d in datasets if (e := d.defined) for k in (e.source, d.io_manager_key)]
    with location.opened(keys) as opened:
        found = _findings(location, datasets, opened)
        for dataset in datasets:
            planned = _Plan(dataset, opened, instance=instance, log=log)
            shown = planned.made(partition)
            now = [
                {"level": d.level.value, "rule": d.rule, "message": d.message, "remedy": d.remedy}
                for d in found
                if dataset.name in d.subject.split(", ")
            ]
            # Some of them only whoever defined it could know.
            then = getattr(dataset.metadata.get("rivet/diagnostics"), "value", ())
            shown.diagnostics += [*now, *(d for d in then if d["rule"] not in {x["rule"] for x in now})]
            yield shown


def _findings(location: CodeLocation, datasets: Sequence[Dataset], opened: Opened) -> tuple[Diagnostic, ...]:
    """Of all together, as where a code location is loaded: two may get into each other's way."""
    planned = []
    for dataset in datasets:
        export = dataset.export
        try:
            io_manager = opened.io_manager(dataset.io_manager_key)
            prefix = io_manager.prefix_of(dataset.key)
            planned.append(
                PlannedExport(
                    name=dataset.name,
                    output=io_manager.settings.over(dataset.metadata).output(export),
                    capabilities=io_manager.capabilities,
                    uri=io_manager.uri(prefix) or prefix.root,
                    max_retries=location.retries(dataset.key),
                    mode=export.mode if export is not None else Full(),
                    quality=export.quality if export is not None else None,
                    on_schema_drift=export.on_schema_drift if export is not None else None,
                )
            )
        except RivetError:
            # Said where that export is planned.
            continue
    return diagnose(planned)


class _Plan:
    """One export's."""

    def __init__(
        self, dataset: Dataset, opened: Opened, *, instance: dg.DagsterInstance | None, log: logging.Logger
    ) -> None:
        defined = dataset.defined
        if defined is None:
            msg = f"{dataset.name}: expected an export of a table or query, found a plain asset; name an export"
            raise ConfigError(msg)
        self._dataset, self._opened, self._instance, self._log = dataset, opened, instance, log
        self._export, self._source = defined.export, defined.source

    def made(self, partition: str | None) -> Preview:
        """The plan."""
        shown = Preview(export=self._dataset.name, mode=self._export.mode.kind, source=self._source)
        try:
            self._make(shown, partition)
        except PlanRejected as e:
            shown.error = str(e)
        except SourceError as e:
            shown.error = f"{text_of(e)}{' (a run waits, or may be repeated)' if e.transient else ''}"
        except RivetError as e:
            shown.error = text_of(e)
        return shown

    def _make(self, shown: Preview, partition: str | None) -> None:
        database = self._opened.database(self._source)
        io_manager = self._opened.io_manager(self._dataset.io_manager_key)
        source = database.source()
        shown.source = f"{self._source}: {source.engine} database {source.database!r}"
        handle = ExportHandle(export=_impatient(self._export), database=database)
        if (by := self._dataset.partitions_def) is not None:
            shown.partition = self._partition(by, partition)
            handle = replace(handle, partitions=partitions_of(by, [shown.partition])).of(shown.partition)
        output = io_manager.settings.over(self._dataset.metadata).output(self._export)
        prefix = io_manager.prefix_of(self._dataset.key, shown.partition)
        destination = io_manager.destination
        shown.destination = destination.uri(prefix.root)
        head = None
        if isinstance(destination, ObjectDestination):
            head = self._head(shown, destination, prefix)
        planning = Planning(
            value=handle,
            name=self._dataset.name,
            output=output,
            uri=shown.destination if isinstance(destination, ObjectDestination) else None,
            materialized=self._remembered(shown.partition),
            log=self._log,
        )
        extraction = planning.plan(head)
        extraction.close()
        content = extraction.content
        shown.delivery, shown.window = content.dataset.value, content.window
        shown.columns = [{"name": c.name, "type": c.type} for c in content.columns]
        if planning.adopted is not None:
            shown.notes.append(f"adopts {planning.adopted['run_id']}: {planning.adopted['because']}")
        shown.rows_estimate = estimate_of(source, self._export.source_query)
        if head is not None and head.manifest.row_count and shown.rows_estimate is not None:
            each = head.manifest.size_bytes / head.manifest.row_count
            shown.bytes_estimate = round(each * shown.rows_estimate)

    def _partition(self, by: dg.PartitionsDefinition[Any], asked: str | None) -> str:
        """The one that was asked for, else the newest."""
        name, instance = self._dataset.name, self._instance
        if instance is None and isinstance(by, dg.DynamicPartitionsDefinition):
            if asked is not None:
                return asked
            msg = f"{name}: expected an instance of Dagster, which knows the dynamic partitions, found none"
            raise ConfigError(f"{msg}: set DAGSTER_HOME, or name a partition")
        known = by.get_partition_keys(dynamic_partitions_store=instance)
        if not known:
            raise ConfigError(f"{name}: there is no partition yet")
        if asked is not None and asked not in known:
            raise ConfigError(f"{name}: expected the key of a partition, such as {known[-1]!r}, found {asked!r}")
        return asked or str(known[-1])

    def _remembered(self, partition: str | None) -> Any:
        if self._instance is None:
            return lambda: iter(())
        return partial(materialized, self._instance, self._dataset.key, partition)

    def _head(self, shown: Preview, destination: ObjectDestination, prefix: Prefix) -> Head | None:
        sight = look(destination, prefix)
        found = sight.committed
        if sight.head is not None and sight.head.content is not None:
            theirs = sight.head.content.identity.export
            if theirs != self._dataset.name:
                msg = f"{destination.uri(prefix.root)}: expected a dataset of export {self._dataset.name!r}, found one"
                raise ConfigError(f"{msg} of {theirs!r}; give this export its own prefix, or remove that dataset first")
        shown.notes += self._unfinished(destination, prefix, sight)
        if found is None or sight.committed_fingerprint is None:
            return None
        shown.continues = {
            "run_id": found.run_id,
            "finished_at": found.finished_at.isoformat() if found.finished_at else None,
            "rows": found.row_count,
            "cursor": found.content.cursor if found.content else None,
        }
        return Head(manifest=found, fingerprint=sight.committed_fingerprint)

    def _unfinished(self, destination: ObjectDestination, prefix: Prefix, sight: Sight) -> Iterator[str]:
        if not sight.settled and sight.head is not None:
            yield f"{sight.head.run_id} is being committed, or stopped before its marker: a run settles that first"
        for token, record in records(destination, prefix, sight.head).items():
            if record.manifest.status is Status.RUNNING:
                yield f"{token} is unfinished; its last heartbeat was at {record.modified_at.isoformat()}"


def _impatient(export: Export) -> Export:
    if not isinstance(export.mode, Incremental):
        return export
    mode = export.mode.model_copy(update={"settle_timeout": _PATIENCE})
    return export.model_copy(update={"mode": mode})
