"""Findings about a planned export: all of them at once, each with its level, rule and remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rivet_dagster.errors import PlanRejected

__all__ = ["Diagnostic", "Level", "reject"]


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


def reject(diagnostics: Iterable[Diagnostic]) -> None:
    """Do nothing unless something was rejected.

    Raises:
        PlanRejected: with every rejected finding in its message and every finding in `diagnostics`.
    """
    found = tuple(diagnostics)
    rejected = [str(d) for d in found if d.level is Level.REJECTED]
    if rejected:
        raise PlanRejected("\n".join(rejected), found)
