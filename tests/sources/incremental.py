"""An incremental export of a real database, run by run; what is in the dataset is read from its manifests alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import duckdb

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import Destination
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import Prefix
from rivet_dagster.sources.connect import connect

LOG = logging.getLogger("tests.incremental")


@dataclass
class Incrementally:
    """An export that is run again and again."""

    url: str
    lake: Path
    mode: Incremental
    relation: dict[str, str] = field(default_factory=lambda: {"table": "events"})
    wrapped: Callable[[Destination], Destination] = lambda destination: destination
    runs: count[int] = field(default_factory=lambda: count(1))

    def run(self, mode: Incremental | None = None, **more: Any) -> ExportReceipt:
        """One run of the seam, as orchestration would start it."""
        wanted = Export(name="events", mode=mode or self.mode, **self.relation, **more)
        run_id = f"run-{next(self.runs)}"
        return commit_export(
            self.wrapped(LocalDestination(self.lake)),
            prefix=Prefix("events/"),
            attempt=Attempt(export_name="events", dagster_run_id=run_id, lineage=frozenset({run_id})),
            plan=lambda head: plan_export(
                wanted,
                export_name="events",
                source=connect(self.url),
                output=resolve_output(export=wanted),
                head=head and head.manifest,
                log=LOG,
            ),
            settings=CommitSettings(),
            log=LOG,
        )

    @property
    def manifest(self) -> dict[str, Any]:
        """The head."""
        found: dict[str, Any] = json.loads((self.lake / "events" / "manifest.json").read_bytes())
        return found

    def chain(self) -> list[dict[str, Any]]:
        """All deliveries of the dataset, the oldest first."""
        found = [self.manifest]
        while found[-1]["dataset"] == "append":
            side = self.lake / "events" / f"manifest-{found[-1]['previous']['run_id']}.json"
            found.append(json.loads(side.read_bytes()))
        return found[::-1]

    def rows(self, columns: str = "id") -> list[Any]:
        """What a reader finds; of one column its values."""
        paths = [str(self.lake / "events" / p["path"]) for m in self.chain() for p in m["parts"]]
        if not paths:
            return []
        read = "read_csv" if ".csv" in paths[0] else "read_parquet"
        found = duckdb.sql(f"SELECT {columns} FROM {read}({paths}, union_by_name = true) ORDER BY ALL").fetchall()
        return [row[0] for row in found] if "," not in columns else found


def only(mode: Any) -> str:
    """What an engine of a kind has to choose: MySQL promises nothing by itself."""
    return "none" if mode == "mysql" else "writers"
