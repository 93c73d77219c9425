"""What planning judges, and what it says of it. Pure; the rules are in `plan`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from rivet_dagster.contract import DestinationCapabilities
from rivet_dagster.errors import PlanRejected
from rivet_dagster.exports.drift import DriftPolicy
from rivet_dagster.exports.modes import Full, Mode
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.quality import Quality

__all__ = ["Diagnostic", "Level", "PlannedExport", "reject"]


class Level(str, Enum):
    """What a finding does."""

    REJECTED = "Rejected"
    """The code location does not load, or the step fails without a retry."""
    WARNING = "Warning"
    """Logged and shown on the asset."""
    DEGRADED = "Degraded"
    """Logged and shown on the asset: something that other destinations or modes have is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding.

    Attributes:
        level: what it does.
        rule: its stable id.
        subject: the export, or the exports, it is about.
        message: what was expected and what was found.
        remedy: what to do.
    """

    level: Level
    rule: str
    subject: str
    message: str
    remedy: str

    def __str__(self) -> str:
        """As it is logged."""
        return f"[{self.level.value}] {self.rule}: {self.subject}: {self.message}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedExport:
    """An export with all that is known before its first query.

    Attributes:
        name: the asset key's segments joined by "/".
        output: what counts for it.
        capabilities: of its destination.
        uri: of its prefix.
        max_retries: of the retry policy that applies; 0 without one.
        mode: which rows, in which pieces.
        bundled: whether several exports share one step.
        ranged: whether a run may have several partitions.
        checks: names of the checks that are defined for it, where that is known.
        quality: its gates.
        on_schema_drift: what becomes of other columns, where that is said.
    """

    name: str
    output: OutputSettings
    capabilities: DestinationCapabilities
    uri: str
    max_retries: int = 0
    mode: Mode = field(default_factory=Full)
    bundled: bool = False
    ranged: bool = False
    checks: tuple[str, ...] = ()
    quality: Quality | None = None
    on_schema_drift: DriftPolicy | None = None

    @property
    def is_stream(self) -> bool:
        """Whether nothing is left at rest at its destination."""
        return not self.capabilities.commit_protocol.leaves_objects_at_rest


def reject(diagnostics: Iterable[Diagnostic]) -> None:
    """Do nothing unless something was rejected.

    Raises:
        PlanRejected: with every rejected finding in its message and every finding in `diagnostics`.
    """
    found = tuple(diagnostics)
    rejected = [str(d) for d in found if d.level is Level.REJECTED]
    if rejected:
        raise PlanRejected("\n".join(rejected), found)
