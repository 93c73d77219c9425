"""What an export asset returns: small, and read only inside the IO manager, where the commit is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rivet_dagster.exports.partitions import Partition
from rivet_dagster.exports.spec import Export
from rivet_dagster.exports.verdict import Verdict
from rivet_dagster.orchestration.resources import DatabaseResource

__all__ = ["ExportHandle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportHandle:
    """An export that has not begun.

    Attributes:
        export: what to export.
        database: where from; nothing is connected yet.
        full_refresh: begin the dataset anew, whatever is there.
        partitions: of the run, by key; empty for an export without any.
        partition: the only one that this is about, once they are told apart.
        verdicts: for whoever gave this away: what the gates found, by partition, once the rows are read.
    """

    export: Export
    database: DatabaseResource
    full_refresh: bool = False
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    partition: Partition | None = None
    verdicts: dict[str | None, Verdict] = field(default_factory=dict, compare=False)

    @property
    def judged(self) -> bool:
        """Whether there are gates for its rows; who changes an export may leave them out."""
        return self.export.quality is not None

    def of(self, key: str) -> ExportHandle:
        """One partition of the run."""
        return replace(self, partition=self.partitions[key])
