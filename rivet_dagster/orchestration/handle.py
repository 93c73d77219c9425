"""What an export asset returns: small, and read only inside the IO manager, where the commit is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rivet_dagster.exports.spec import Export
from rivet_dagster.rows import Source

__all__ = ["ExportHandle", "OpensSource"]


class OpensSource(Protocol):
    """What a source resource has to offer."""

    def source(self) -> Source:
        """The database to read from."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportHandle:
    """An export that has not begun.

    Attributes:
        export: what to export.
        database: where from; nothing is connected yet.
    """

    export: Export
    database: OpensSource
