"""Database tables as files people can trust: exports are Dagster assets, their IO managers are the destinations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rivet_dagster.attempt import ExportReceipt
    from rivet_dagster.contract import DestinationCapabilities, WriteCommitProtocol
    from rivet_dagster.errors import (
        CommitConflict,
        CommitUnknown,
        ConfigError,
        ContractError,
        DestinationError,
        IntegrityError,
        PlanRejected,
        ReadError,
        RivetError,
        SourceError,
    )
    from rivet_dagster.exports.formats import Csv, Parquet
    from rivet_dagster.exports.modes import Chunked, Full, Incremental, TimeWindow
    from rivet_dagster.exports.partitions import PartitionBy
    from rivet_dagster.exports.quality import Quality
    from rivet_dagster.exports.spec import Batches, Export, cast
    from rivet_dagster.orchestration.assets import build_export_asset
    from rivet_dagster.orchestration.automation import build_delivery_sensor
    from rivet_dagster.orchestration.azure import AzureIOManager
    from rivet_dagster.orchestration.checks import build_manifest_checks
    from rivet_dagster.orchestration.component import ExportsComponent
    from rivet_dagster.orchestration.definitions import build_export_definitions
    from rivet_dagster.orchestration.gcs import GCSIOManager
    from rivet_dagster.orchestration.io_managers import ExportIOManager, LocalIOManager, StdoutIOManager
    from rivet_dagster.orchestration.maintenance import build_maintenance_job
    from rivet_dagster.orchestration.resources import DatabaseResource
    from rivet_dagster.orchestration.s3 import S3IOManager

    from . import testing

__all__ = [
    "AzureIOManager",
    "Batches",
    "Chunked",
    "CommitConflict",
    "CommitUnknown",
    "ConfigError",
    "ContractError",
    "Csv",
    "DatabaseResource",
    "DestinationCapabilities",
    "DestinationError",
    "Export",
    "ExportIOManager",
    "ExportReceipt",
    "ExportsComponent",
    "Full",
    "GCSIOManager",
    "Incremental",
    "IntegrityError",
    "LocalIOManager",
    "Parquet",
    "PartitionBy",
    "PlanRejected",
    "Quality",
    "ReadError",
    "RivetError",
    "S3IOManager",
    "SourceError",
    "StdoutIOManager",
    "TimeWindow",
    "WriteCommitProtocol",
    "build_delivery_sensor",
    "build_export_asset",
    "build_export_definitions",
    "build_maintenance_job",
    "build_manifest_checks",
    "cast",
    "testing",
]

# Each name is imported at its first use, so that importing the package loads no SDK, driver or pyarrow.
_HOME = {
    "AzureIOManager": "orchestration.azure",
    "Batches": "exports.spec",
    "Chunked": "exports.modes",
    "CommitConflict": "errors",
    "CommitUnknown": "errors",
    "ConfigError": "errors",
    "ContractError": "errors",
    "Csv": "exports.formats",
    "DatabaseResource": "orchestration.resources",
    "DestinationCapabilities": "contract",
    "DestinationError": "errors",
    "Export": "exports.spec",
    "ExportIOManager": "orchestration.io_managers",
    "ExportReceipt": "attempt",
    "ExportsComponent": "orchestration.component",
    "Full": "exports.modes",
    "GCSIOManager": "orchestration.gcs",
    "Incremental": "exports.modes",
    "IntegrityError": "errors",
    "LocalIOManager": "orchestration.io_managers",
    "Parquet": "exports.formats",
    "PartitionBy": "exports.partitions",
    "PlanRejected": "errors",
    "Quality": "exports.quality",
    "ReadError": "errors",
    "RivetError": "errors",
    "S3IOManager": "orchestration.s3",
    "SourceError": "errors",
    "StdoutIOManager": "orchestration.io_managers",
    "TimeWindow": "exports.modes",
    "WriteCommitProtocol": "contract",
    "build_delivery_sensor": "orchestration.automation",
    "build_export_asset": "orchestration.assets",
    "build_export_definitions": "orchestration.definitions",
    "build_maintenance_job": "orchestration.maintenance",
    "build_manifest_checks": "orchestration.checks",
    "cast": "exports.spec",
}


def __getattr__(name: str) -> Any:
    if name == "testing":
        found: Any = import_module("rivet_dagster.testing")
    elif name in _HOME:
        found = getattr(import_module(f"rivet_dagster.{_HOME[name]}"), name)
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
