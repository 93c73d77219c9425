"""The one path from an asset's value to a committed delivery and its materialization."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from rivet_dagster.attempt import Attempt, ExportReceipt, Extraction
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import Destination, DestinationCapabilities
from rivet_dagster.errors import ConfigError, RivetError
from rivet_dagster.exports.modes import Full
from rivet_dagster.exports.plan import PlannedExport, diagnose, reject
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import Prefix, asset_prefix
from rivet_dagster.manifest import Column, Manifest
from rivet_dagster.orchestration.announce import announce
from rivet_dagster.orchestration.failures import left_behind, partitions_failure
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.metadata import combined_data_version, materialization_metadata
from rivet_dagster.orchestration.run_facts import RunFacts, add_partition_metadata, set_data_version
from rivet_dagster.orchestration.settings import Settings

__all__ = ["Outlet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    receipt: ExportReceipt
    columns: tuple[Column, ...]


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
        delivered: dict[str | None, _Delivery] = {}
        failed: dict[str | None, RivetError] = {}
        uri, keys = self.kind, 1
        facts = RunFacts.of(context)
        try:
            name = _export_name(context)
            announce(context.log, export_name=name, kind=self.kind, capabilities=self.capabilities, facts=facts)
            settings = self.settings.over(context.definition_metadata)
            values = _by_partition(context, value, name)
            keys = len(values)
            # Of all of them, before anything is written: a key that cannot be is no failure of one partition.
            prefixes = {key: asset_prefix(context.asset_key.path, key) for key in values}
            destination = self.open_destination()
            uri = destination.uri(asset_prefix(context.asset_key.path, _only(values)).root)
            self._diagnose(context, name, uri, settings=settings, export=_export_of(value), facts=facts)
        except RivetError as e:
            failure = partitions_failure({None: e}, of=1, capabilities=self.capabilities, uri=uri)
            raise failure from failure.__cause__
        for key, one in values.items():
            try:
                delivered[key] = _commit(
                    context,
                    one,
                    name,
                    key,
                    destination=destination,
                    prefix=prefixes[key],
                    settings=settings,
                    facts=facts,
                )
            except RivetError as e:
                failed[key] = e
                where = destination.uri(prefixes[key].root)
                left = left_behind(e, self.capabilities)
                # Without the traceback: its texts are not yet free of secrets.
                context.log.error("export '%s': failed at %s: %s", name, where, left)  # noqa: TRY400
        if failed:
            failure = partitions_failure(failed, of=keys, capabilities=self.capabilities, uri=uri)
            raise failure from failure.__cause__
        _describe(context, delivered, facts)

    def _diagnose(
        self,
        context: dg.OutputContext,
        name: str,
        uri: str,
        *,
        settings: Settings,
        export: Export | None,
        facts: RunFacts,
    ) -> None:
        planned = PlannedExport(
            name=name,
            output=settings.output(export),
            capabilities=self.capabilities,
            uri=uri,
            max_retries=facts.max_retries,
            mode=export.mode if export else Full(),
        )
        found = diagnose([planned])
        reject(found)
        if facts.attempt == 1:
            for finding in found:
                # What `announce` has said in its own words is not said again.
                if finding.rule != "retries-not-safe":
                    context.log.warning("%s", finding)


def _export_name(context: dg.OutputContext) -> str:
    if not context.has_asset_key:
        msg = "expected the output of an asset, found one of a plain op; use @asset"
        raise ConfigError(msg)
    return "/".join(context.asset_key.path)


def _export_of(value: Any) -> Export | None:
    return value.export if isinstance(value, ExportHandle) else None


def _only(values: Mapping[str | None, Any]) -> str | None:
    return next(iter(values)) if len(values) == 1 else None


def _by_partition(context: dg.OutputContext, value: Any, name: str) -> dict[str | None, Any]:
    if value is None:
        msg = (
            f"{name}: expected rows (a pandas.DataFrame, pyarrow.Table, RecordBatchReader or Batches), found None; "
            "return them, or give an asset without rows another io_manager_key"
        )
        raise ConfigError(msg)
    if not context.has_asset_partitions:
        return {None: value}
    keys = sorted(str(k) for k in context.asset_partition_keys)
    if isinstance(value, Mapping):
        if set(value) != set(keys):
            msg = f"{name}: expected a mapping with one value per partition of this run ({keys}), found {sorted(value)}"
            raise ConfigError(msg)
        return {k: value[k] for k in keys}
    if len(keys) != 1:
        msg = (
            f"{name}: found one {type(value).__name__} for {len(keys)} partitions ({keys[0]} … {keys[-1]}); "
            "return a dict of partition key to rows, or run one partition at a time (BackfillPolicy.multi_run())"
        )
        raise ConfigError(msg)
    return {keys[0]: value}


def _commit(
    context: dg.OutputContext,
    value: Any,
    name: str,
    key: str | None,
    *,
    destination: Destination,
    prefix: Prefix,
    settings: Settings,
    facts: RunFacts,
) -> _Delivery:
    # pyarrow loads only where rows are read or written.
    from rivet_dagster.exports.extraction import plan_export, plan_value  # noqa: PLC0415

    output = settings.output(_export_of(value))
    columns: tuple[Column, ...] = ()

    def plan(head: Manifest | None) -> Extraction:
        nonlocal columns
        if isinstance(value, ExportHandle):
            source = value.database.source()
            planned = plan_export(
                value.export, export_name=name, source=source, output=output, head=head, log=context.log
            )
        else:
            planned = plan_value(value, export_name=name, output=output, head=head, log=context.log)
        columns = planned.content.columns
        return planned

    receipt = commit_export(
        destination,
        prefix=prefix,
        attempt=Attempt(
            export_name=name,
            dagster_run_id=facts.run_id,
            lineage=facts.lineage,
            partition_key=key,
            is_over=facts.is_over,
        ),
        plan=plan,
        settings=settings.commit(output),
        log=context.log,
    )
    return _Delivery(receipt=receipt, columns=columns)


def _describe(context: dg.OutputContext, delivered: Mapping[str | None, _Delivery], facts: RunFacts) -> None:
    for key, d in delivered.items():
        said = materialization_metadata(d.receipt, columns=d.columns, attempt=facts.attempt)
        if key is None or len(delivered) == 1:
            context.add_output_metadata(said)
        else:
            add_partition_metadata(context, key, said)
    data_version = combined_data_version({k or "": d.receipt for k, d in delivered.items()})
    if data_version is not None:
        set_data_version(context, data_version)
