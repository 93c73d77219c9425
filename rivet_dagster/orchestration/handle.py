"""What an export asset returns: small, and read only inside the IO manager, where the commit is."""

from __future__ import annotations

from dataclasses import dataclass

from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.resources import DatabaseResource

__all__ = ["ExportHandle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportHandle:
    """An export that has not begun.

    Attributes:
        export: what to export.
        database: where from; nothing is connected yet.
        full_refresh: begin the dataset anew, whatever is there.
    """

    export: Export
    database: DatabaseResource
    full_refresh: bool = False
