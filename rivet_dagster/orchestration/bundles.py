"""Many exports in one step, several at a time: small tables must not pay for a process each."""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from rivet_dagster.attempt import Extraction
from rivet_dagster.errors import RivetError, SourceError
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.asked import Asked
from rivet_dagster.orchestration.assets import StepBody, as_it_is, require
from rivet_dagster.orchestration.failures import exports_failure, text_of
from rivet_dagster.orchestration.gates import CHECK, check_specs, report_failed, result_of
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.outputs import Outcome, Outlet
from rivet_dagster.orchestration.resources import DatabaseResource
from rivet_dagster.orchestration.run_facts import RunFacts

__all__ = ["bundle_asset"]


class BundleConfig(dg.Config):
    """What one run may be told."""

    full_refresh: list[str] = Field(
        default_factory=list,
        description="Names of exports whose datasets begin anew with all rows, instead of being added to; keys of "
        "assets, where exports have the same name.",
    )


def bundle_asset(
    exports: Mapping[dg.AssetKey, Export],
    *,
    name: str,
    specs: Sequence[dg.AssetSpec],
    source: str,
    io_manager_key: str,
    parallel: int,
    retry_policy: dg.RetryPolicy | None,
    pool: str | None,
    body: StepBody = as_it_is,
) -> dg.AssetsDefinition:
    """Make one asset of each export, all of them materialized by one step, or by it alone what is selected.

    One that fails does not stop the others: those are materialized, and at the end the step fails with a list. When
    it is repeated, what is committed is found and not exported again.

    Args:
        exports: by the key of the asset.
        name: of the step.
        specs: of the assets.
        source: key of the `DatabaseResource` to read from.
        io_manager_key: key of the IO manager, which is the destination.
        parallel: how many exports run at a time.
        retry_policy: how often Dagster repeats the step after a failure that may pass.
        pool: of the step.
        body: called for each export before any of them is committed.
    """
    metadata = {spec.key: spec.metadata for spec in specs}

    @dg.multi_asset(
        name=name,
        specs=[spec.replace_attributes(skippable=True).with_io_manager_key(io_manager_key) for spec in specs],
        check_specs=[check for spec in specs for check in check_specs(exports[spec.key], spec)],
        can_subset=True,
        required_resource_keys={source, io_manager_key},
        retry_policy=retry_policy,
        pool=pool or source,
    )
    def _bundle(context: dg.AssetExecutionContext, config: BundleConfig) -> Iterator[dg.MaterializeResult[Any]]:
        outlet = require(context, io_manager_key, ExportIOManager).outlet
        database = require(context, source, DatabaseResource)
        step = _Step(context, outlet, parallel=parallel)
        wanted = [key for key in exports if key in context.selected_asset_keys]
        _refuse_checks_alone(context)
        anew = _named(config.full_refresh, exports)
        handles = {k: ExportHandle(export=exports[k], database=database, full_refresh=k in anew) for k in wanted}
        yield from step.run({k: (body(context, handle), metadata[k]) for k, handle in handles.items()})

    return _bundle


def _named(names: Sequence[str], exports: Mapping[dg.AssetKey, Export]) -> set[dg.AssetKey]:
    times = Counter(export.name for export in exports.values())
    # A name that several have is no name of one of them: their keys are.
    known = {e.name if times[e.name] == 1 else key.to_user_string(): key for key, e in exports.items()}
    unknown = sorted(set(names) - known.keys())
    if unknown:
        msg = f"full_refresh: expected names of the bundle's exports ({', '.join(known)}), found {', '.join(unknown)}"
        raise dg.Failure(description=msg, allow_retries=False)
    return {known[name] for name in names}


def _refuse_checks_alone(context: dg.AssetExecutionContext) -> None:
    alone = {check.asset_key for check in context.selected_asset_check_keys} - set(context.selected_asset_keys)
    if alone:
        named = ", ".join(sorted(key.to_user_string() for key in alone))
        msg = f"expected the check `{CHECK}` to run with its asset, whose rows it judges, found it alone: {named}"
        raise dg.Failure(description=f"{msg}; materialize the asset", allow_retries=False)


class _Step:
    """One run of a bundle. Only its own thread talks to Dagster: workers commit, and say what there is to say."""

    def __init__(self, context: dg.AssetExecutionContext, outlet: Outlet, *, parallel: int) -> None:
        self._context, self._outlet, self._parallel = context, outlet, parallel
        self._facts = RunFacts.of(context)
        # What workers say, in order: log records, and then what became of an export.
        self._said: queue.SimpleQueue[logging.LogRecord | tuple[dg.AssetKey, Future[Outcome]]] = queue.SimpleQueue()
        # Of this run alone, so not one that the process shares.
        self._log = logging.Logger("rivet_dagster.bundle", logging.DEBUG)  # noqa: LOG001
        self._log.addHandler(_Relay(self._said))
        self._lock = threading.Lock()
        # By worker: each reads one export at a time.
        self._reading: dict[int, Extraction] = {}
        self._stopped = False

    def run(self, wanted: Mapping[dg.AssetKey, tuple[Any, Mapping[str, Any]]]) -> Iterator[dg.MaterializeResult[Any]]:
        """Yield what is committed, as it is; raise at the end for what is not."""
        failed: dict[str, Exception] = {}
        uri = self._open()
        workers = ThreadPoolExecutor(self._parallel, thread_name_prefix="bundle")
        try:
            for key, (value, metadata) in wanted.items():
                exporting = workers.submit(self._export, key, value, metadata)
                exporting.add_done_callback(partial(self._done, key))
            left = len(wanted)
            while left:
                said = self._said.get()
                if isinstance(said, logging.LogRecord):
                    self._context.log.log(said.levelno, "%s", said.getMessage())
                    continue
                left -= 1
                yield from self._ended(*said, failed)
        except BaseException:
            self._stop()
            raise
        finally:
            # Nothing writes to the destination any more after this.
            workers.shutdown(wait=True, cancel_futures=True)
        if failed:
            failure = exports_failure(failed, of=len(wanted), capabilities=self._outlet.capabilities, uri=uri)
            raise failure from failure.__cause__

    def _open(self) -> str:
        """Build the client once, before workers want it: each of them meets what fails here, and says so."""
        with suppress(RivetError):
            return self._outlet.open_destination().uri()
        return self._outlet.kind

    def _export(self, key: dg.AssetKey, value: Any, metadata: Mapping[str, Any]) -> Outcome:
        partitions = tuple(sorted(self._context.partition_keys)) if self._context.has_partition_key else None
        asked = Asked(
            asset_key=key,
            partition_keys=partitions,
            definition_metadata=metadata,
            facts=self._facts,
            log=self._log,
            bundled=True,
            begun=self._begun,
        )
        return self._outlet.deliver(asked, value)

    def _done(self, key: dg.AssetKey, exporting: Future[Outcome]) -> None:
        self._said.put((key, exporting))

    def _ended(
        self, key: dg.AssetKey, exporting: Future[Outcome], failed: dict[str, Exception]
    ) -> Iterator[dg.MaterializeResult[Any]]:
        name = "/".join(key.path)
        try:
            outcome = exporting.result()
        except Exception as e:  # noqa: BLE001 (the others go on; it is raised at the end)
            self._fail(name, e, failed)
            return
        for partition, error in outcome.failed.items():
            self._fail(name if partition is None else f"{name}/{partition}", error, failed)
        if outcome.failed:
            report_failed(self._context, key, None, outcome.verdicts or {})
            return
        said, version = outcome.metadata(), outcome.data_version()
        for partition, metadata in said.items():
            if partition is not None:
                self._context.add_asset_metadata(metadata, asset_key=key, partition_key=partition)
        judged = any(check.asset_key == key for check in self._context.selected_asset_check_keys)
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=said.get(None),
            data_version=dg.DataVersion(version) if version else None,
            check_results=[result_of(key, outcome.verdicts)] if judged else [],
        )

    def _fail(self, name: str, error: Exception, failed: dict[str, Exception]) -> None:
        failed[name] = error
        self._context.log.error("export '%s': %s", name, text_of(error))

    def _begun(self, extraction: Extraction) -> None:
        # A small table is read as soon as it is begun: then it is the publishing that must not happen any more.
        extraction.gates = (*extraction.gates, self._go_on)
        with self._lock:
            self._reading[threading.get_ident()] = extraction
            stopped = self._stopped
        if stopped:
            extraction.close()

    def _go_on(self) -> None:
        if self._stopped:
            raise SourceError("the step was stopped; nothing of this export was published")

    def _stop(self) -> None:
        with self._lock:
            self._stopped, reading = True, list(self._reading.values())
        for extraction in reading:
            extraction.close()


class _Relay(logging.Handler):
    """Takes what a worker logs to the step's own thread."""

    def __init__(self, said: "queue.SimpleQueue[Any]") -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.put(record)
