"""The one path from an asset's value to a committed delivery and its materialization."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dagster as dg

from rivet_dagster.attempt import Attempt, ExportReceipt, Extraction, Head
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import Destination, DestinationCapabilities
from rivet_dagster.errors import RivetError
from rivet_dagster.exports.modes import Full
from rivet_dagster.exports.plan import PlannedExport, diagnose, reject
from rivet_dagster.exports.spec import Export
from rivet_dagster.exports.verdict import Verdict
from rivet_dagster.layout import Prefix, asset_prefix
from rivet_dagster.manifest import Column
from rivet_dagster.orchestration.announce import announce
from rivet_dagster.orchestration.asked import Asked, by_partition
from rivet_dagster.orchestration.failures import left_behind, partitions_failure
from rivet_dagster.orchestration.gates import report_failed
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.metadata import combined_data_version, materialization_metadata
from rivet_dagster.orchestration.planning import Planning
from rivet_dagster.orchestration.run_facts import add_partition_metadata, set_data_version
from rivet_dagster.orchestration.settings import Settings

__all__ = ["Outcome", "Outlet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    receipt: ExportReceipt
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one asset's value, by partition key; `None` where there is none.

    Attributes:
        delivered: what is committed.
        failed: what is not, and why.
        verdicts: what the gates of an export found; `None` of a value that no gates judge.
        attempt: of the step, from 1.
        uri: of the asset.
        of: how many partitions there were.
    """

    attempt: int
    delivered: dict[str | None, _Delivery] = field(default_factory=dict)
    failed: dict[str | None, RivetError] = field(default_factory=dict)
    verdicts: dict[str | None, Verdict] | None = None
    uri: str
    of: int = 1

    def metadata(self) -> dict[str | None, dict[str, Any]]:
        """Of each materialization: by partition key where there are several partitions, else the only one."""
        said = {
            key: materialization_metadata(d.receipt, columns=d.columns, attempt=self.attempt)
            for key, d in self.delivered.items()
        }
        if len(said) != 1:
            return said
        (only,) = said.values()
        return {None: only}

    def data_version(self) -> str | None:
        """Of the asset; `None` where nothing is recorded."""
        return combined_data_version({k or "": d.receipt for k, d in self.delivered.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where an IO manager's outputs go, and how.

    Attributes:
        kind: of the destination.
        capabilities: of the destination.
        settings: of the IO manager.
        open_destination: called once settings and promises are checked; builds a client where one is needed.
    """

    kind: str
    capabilities: DestinationCapabilities
    settings: Settings
    open_destination: Callable[[], Destination]

    def write(self, context: dg.OutputContext, value: Any) -> None:
        """Commit a value, each partition on its own, then describe what was committed.

        Returns only after the commit, so that Dagster stores a materialization only of what is there.

        Raises:
            dagster.Failure: it would fail again in the same way; nothing of this output became visible.
            RivetError: it may succeed when it is repeated; see the subclasses for what is left behind.
        """
        try:
            outcome = self.deliver(Asked.of(context), value)
        except RivetError as e:
            outcome = Outcome(attempt=1, failed={None: e}, uri=self.kind)
        if outcome.verdicts:
            value.verdicts.update(outcome.verdicts)
            report_failed(context, context.asset_key, _only(outcome.verdicts), outcome.verdicts)
        if outcome.failed:
            failure = partitions_failure(outcome.failed, of=outcome.of, capabilities=self.capabilities, uri=outcome.uri)
            raise failure from failure.__cause__
        for key, said in outcome.metadata().items():
            if key is None:
                context.add_output_metadata(said)
            else:
                add_partition_metadata(context, key, said)
        data_version = outcome.data_version()
        if data_version is not None:
            set_data_version(context, data_version)

    def deliver(self, asked: Asked, value: Any) -> Outcome:
        """Commit a value, each partition on its own; what fails is in the outcome, but for errors of no known kind."""
        verdicts: dict[str | None, Verdict] = {}
        gated = isinstance(value, ExportHandle) and value.judged
        outcome = Outcome(attempt=asked.facts.attempt, uri=self.kind, verdicts=verdicts if gated else None)
        try:
            announce(
                asked.log, export_name=asked.name, kind=self.kind, capabilities=self.capabilities, facts=asked.facts
            )
            settings = self.settings.over(asked.definition_metadata)
            values = by_partition(asked, value)
            # Of all of them, before anything is written: a key that cannot be is no failure of one partition.
            prefixes = {key: asset_prefix(asked.asset_key.path, key) for key in values}
            destination = self.open_destination()
            uri = destination.uri(asset_prefix(asked.asset_key.path, _only(values)).root)
            outcome = replace(outcome, uri=uri, of=len(values))
            self._diagnose(asked, uri, settings=settings, export=_export_of(value), ranged=len(values) > 1)
        except RivetError as e:
            return replace(outcome, failed={None: e}, of=1)
        for key, one in values.items():
            try:
                outcome.delivered[key] = _commit(
                    asked, one, key, destination, prefixes[key], settings=settings, verdicts=verdicts
                )
            except RivetError as e:
                outcome.failed[key] = e
                where = destination.uri(prefixes[key].root)
                left = left_behind(e, self.capabilities)
                # Without the traceback: its texts are not yet free of secrets.
                asked.log.error("export '%s': failed at %s: %s", asked.name, where, left)  # noqa: TRY400
        return outcome

    def _diagnose(self, asked: Asked, uri: str, *, settings: Settings, export: Export | None, ranged: bool) -> None:
        planned = PlannedExport(
            name=asked.name,
            output=settings.output(export),
            capabilities=self.capabilities,
            uri=uri,
            max_retries=asked.facts.max_retries,
            mode=export.mode if export else Full(),
            bundled=asked.bundled,
            ranged=ranged,
            quality=export.quality if export else None,
            on_schema_drift=export.on_schema_drift if export else None,
        )
        found = diagnose([planned])
        reject(found)
        if asked.facts.attempt == 1:
            for finding in found:
                # What `announce` has said in its own words is not said again.
                if finding.rule != "retries-not-safe":
                    asked.log.warning("%s", finding)


def _export_of(value: Any) -> Export | None:
    return value.export if isinstance(value, ExportHandle) else None


def _only(values: Mapping[str | None, Any]) -> str | None:
    return next(iter(values)) if len(values) == 1 else None


def _commit(
    asked: Asked,
    value: Any,
    key: str | None,
    destination: Destination,
    prefix: Prefix,
    *,
    settings: Settings,
    verdicts: dict[str | None, Verdict],
) -> _Delivery:
    output = settings.output(_export_of(value))
    at_rest = destination.capabilities.commit_protocol.leaves_objects_at_rest
    planning = Planning(
        value=value,
        name=asked.name,
        output=output,
        uri=destination.uri(prefix.root) if at_rest else None,
        materialized=partial(asked.facts.materialized, asked.asset_key, key),
        log=asked.log,
    )

    def plan(head: Head | None) -> Extraction:
        planned = planning.plan(head)
        asked.begun(planned)
        return planned

    try:
        receipt = commit_export(
            destination,
            prefix=prefix,
            attempt=Attempt(
                export_name=asked.name,
                dagster_run_id=asked.facts.run_id,
                lineage=asked.facts.lineage,
                partition_key=key,
                is_over=asked.facts.is_over,
            ),
            plan=plan,
            settings=settings.commit(output),
            log=asked.log,
        )
    finally:
        if planning.judge is not None and planning.judge.verdict is not None:
            verdicts[key] = planning.judge.verdict
    if planning.adopted is not None:
        receipt = replace(receipt, counters={**receipt.counters, "rivet/adopted": planning.adopted})
    return _Delivery(receipt=receipt, columns=planning.columns)
