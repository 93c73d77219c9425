"""A snapshot of some rows of a real database, run by run; what landed is read from its manifest alone."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import duckdb

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt
from rivet_dagster.commit import commit_export
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.partitions import Partition
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import asset_prefix
from rivet_dagster.sources.connect import connect

LOG = logging.getLogger("tests.snapshots")


@dataclass
class Snapshots:
    """An export of `events` that is run again and again."""

    url: str
    lake: Path
    relation: dict[str, str] = field(default_factory=lambda: {"table": "events"})
    runs: count[int] = field(default_factory=lambda: count(1))

    def run(self, partition: Partition | None = None, **export: Any) -> ExportReceipt:
        """One run of the seam, as orchestration would start it."""
        wanted = Export(name="events", **self.relation, **export)
        run_id = f"run-{next(self.runs)}"
        key = partition and partition.key
        return commit_export(
            LocalDestination(self.lake),
            prefix=asset_prefix(["events"], key),
            attempt=Attempt(
                export_name="events", dagster_run_id=run_id, lineage=frozenset({run_id}), partition_key=key
            ),
            plan=lambda head: plan_export(
                wanted,
                export_name="events",
                source=connect(self.url),
                output=resolve_output(export=wanted),
                head=head and head.manifest,
                partition=partition,
                log=LOG,
            ),
            settings=CommitSettings(),
            log=LOG,
        )

    def manifest(self, key: str | None = None) -> dict[str, Any]:
        """The head."""
        found: dict[str, Any] = json.loads((self.lake / asset_prefix(["events"], key).manifest).read_bytes())
        return found

    def ids(self, key: str | None = None) -> list[int]:
        """What a reader finds."""
        root = self.lake / asset_prefix(["events"], key).root
        paths = [str(root / p["path"]) for p in self.manifest(key)["parts"]]
        return (
            [i for (i,) in duckdb.sql(f"SELECT id FROM read_parquet({paths}) ORDER BY id").fetchall()] if paths else []
        )
