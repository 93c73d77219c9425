"""What the tests of orchestration share: runs, what their event logs say, and destinations that fail on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg

import rivet_dagster as rd
from tests.faults.kit import FaultyStore, Trouble

NO_WAIT = dg.RetryPolicy(max_retries=2)


def run(
    assets: Sequence[Any],
    io_manager: Any,
    instance: dg.DagsterInstance,
    *,
    resources: dict[str, Any] | None = None,
    **more: Any,
) -> dg.ExecuteInProcessResult:
    """Materialize in this process; a failure is a result."""
    named = {"io_manager": io_manager, **(resources or {})}
    return dg.materialize(assets, instance=instance, resources=named, raise_on_error=False, **more)


def materialization(result: dg.ExecuteInProcessResult, key: str) -> dg.AssetMaterialization:
    """The one that a run recorded for an asset."""
    (found,) = materializations(result, key)
    return found


def materializations(result: dg.ExecuteInProcessResult, key: str) -> list[dg.AssetMaterialization]:
    events = result.get_asset_materialization_events()
    wanted = dg.AssetKey.from_user_string(key)
    return [e.step_materialization_data.materialization for e in events if e.asset_key == wanted]


def plain(metadata: Any) -> dict[str, Any]:
    """Metadata as plain values; a table as its records."""
    return {
        k: [r.data for r in v.records] if isinstance(v, dg.TableMetadataValue) else getattr(v, "value", v)
        for k, v in metadata.items()
    }


def lines(instance: dg.DagsterInstance, run_id: str, *, level: int | None = None) -> list[str]:
    """What was logged by hand in a run, in order."""
    return [
        entry.user_message
        for entry in instance.all_logs(run_id)
        if entry.dagster_event is None and (level is None or entry.level == level)
    ]


def events(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """The types of a run's events, in order."""
    return [e.dagster_event.event_type_value for e in instance.all_logs(run_id) if e.dagster_event is not None]


def failure(result: dg.ExecuteInProcessResult, step: str) -> dg.StepFailureData:
    (found,) = (e for e in result.all_events if e.is_step_failure and e.step_key == step)
    return found.step_failure_data


def chain(error: Any) -> Iterator[Any]:
    """An error of the event log and all it was caused by."""
    while error is not None:
        yield error
        error = error.cause or error.context


def told(result: dg.ExecuteInProcessResult, step: str) -> str:
    """All that a person reads of a failed step, but the stack traces."""
    return "\n".join(e.message for e in chain(failure(result, step).error))


def everything(instance: dg.DagsterInstance) -> str:
    """All that an instance holds of all runs, as it is stored."""
    from dagster._serdes import serialize_value

    runs = instance.get_runs()
    entries = (entry for r in runs for entry in instance.all_logs(r.run_id))
    return "\n".join([*map(serialize_value, runs), *map(serialize_value, entries)])


def faulty_local(path: Path, *troubles: Trouble, calls: list[tuple[str, str]] | None = None) -> rd.LocalIOManager:
    """A local IO manager whose destination has these troubles, for as long as they last."""
    seen = [] if calls is None else calls

    class FaultyIOManager(rd.LocalIOManager):
        made: ClassVar[list[FaultyStore]] = []

        def open_destination(self, clients: Any) -> Any:
            return FaultyStore(super().open_destination(clients), troubles=list(troubles), calls=seen)

    return FaultyIOManager(path=str(path))


def on_disk(lake: Path) -> dict[str, bytes]:
    """What lies there, without the permanent lock files."""
    found = (p for p in lake.rglob("*") if p.is_file() and p.name != ".rivet.lock")
    return {p.relative_to(lake).as_posix(): p.read_bytes() for p in found}


__all__ = [
    "NO_WAIT",
    "chain",
    "events",
    "everything",
    "failure",
    "faulty_local",
    "lines",
    "materialization",
    "materializations",
    "on_disk",
    "plain",
    "run",
    "told",
]
