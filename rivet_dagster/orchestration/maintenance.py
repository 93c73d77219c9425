"""A job that keeps datasets tidy. No `from __future__ import annotations` here: Dagster reads an op's annotations."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from rivet_dagster.errors import ConfigError, DestinationError, RivetError
from rivet_dagster.orchestration.asset_options import KeyPrefix
from rivet_dagster.orchestration.datasets import Dataset, datasets_of
from rivet_dagster.orchestration.failures import as_dagster_failure, may_be_repeated
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.upkeep import Upkeep

__all__ = ["MaintenanceConfig", "build_maintenance_job"]


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
            work = Upkeep(
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
