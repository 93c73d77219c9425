"""Schema drift: how the columns of a run differ from those of the dataset that is there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rivet_dagster.manifest import Column, Manifest

__all__ = ["Drift", "DriftPolicy", "drift_of"]

DriftPolicy = Literal["warn", "allow", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What became of columns, by name; false where nothing did.

    Attributes:
        added: new ones.
        removed: those that are gone.
        retyped: those of another type, as they were and as they are.
    """

    added: tuple[Column, ...] = ()
    removed: tuple[Column, ...] = ()
    retyped: tuple[tuple[Column, Column], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.retyped)

    def __str__(self) -> str:
        """For a message."""
        return ", ".join(
            [
                *(f"column {c.name!r} ({c.type}) is new" for c in self.added),
                *(f"column {c.name!r} ({c.type}) is gone" for c in self.removed),
                *(f"column {was.name!r} was {was.type} and is {now.type}" for was, now in self.retyped),
            ]
        )

    @property
    def said(self) -> dict[str, Any]:
        """For metadata."""
        found = {
            "added": [{"name": c.name, "type": c.type} for c in self.added],
            "removed": [{"name": c.name, "type": c.type} for c in self.removed],
            "retyped": [{"name": was.name, "was": was.type, "is": now.type} for was, now in self.retyped],
        }
        return {what: columns for what, columns in found.items() if columns}


def drift_of(columns: tuple[Column, ...], head: Manifest | None) -> Drift:
    """Compare columns with those of a delivery; without one, or with one of another tool, there is no drift."""
    if head is None or head.content is None:
        return Drift()
    now, before = {c.name: c for c in columns}, {c.name: c for c in head.content.columns}
    return Drift(
        added=tuple(c for name, c in now.items() if name not in before),
        removed=tuple(c for name, c in before.items() if name not in now),
        retyped=tuple((c, now[name]) for name, c in before.items() if name in now and now[name].type != c.type),
    )
