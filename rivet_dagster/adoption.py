"""Parts of a dead run that this one lists as its own, once the store confirms what that run's record says of them.

Only after a takeover, and only of the runs that it took: nobody else may remove or move their parts from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rivet_dagster.attempt import Extraction, Resume, Reusable, Verify
from rivet_dagster.contract import ObjectDestination, ObjectMeta
from rivet_dagster.errors import DestinationError, IntegrityError
from rivet_dagster.layout import Prefix, token_of
from rivet_dagster.manifest import Manifest, Part
from rivet_dagster.parts import read_md5
from rivet_dagster.readback import remove

__all__ = ["Adopted", "adopt"]

_REUSED = "rivet/reused_parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What a run need not write again.

    Attributes:
        parts: each with its place in `resume`.
        versions: of their objects as they were confirmed, by key.
        notes: what was decided, and why not more.
        said: metadata; empty where nothing was re-used or damaged.
    """

    parts: tuple[Part, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    said: Mapping[str, Any] = field(default_factory=dict)

    def look_again(self, destination: ObjectDestination) -> None:
        """Make sure that all of them are still what was confirmed: what is published next names them.

        Raises:
            IntegrityError: one is gone, or is another one.
        """
        for key, version in self.versions.items():
            now = destination.head(key)
            if now is None or now.version != version:
                found = "no object" if now is None else "another one"
                msg = f"{destination.uri(key)}: expected the part of a dead run that this one re-uses, found {found}"
                raise IntegrityError(f"{msg}; nothing was published, run again")


def adopt(
    destination: ObjectDestination,
    prefix: Prefix,
    extraction: Extraction,
    taken: Sequence[Manifest],
    *,
    lineage: frozenset[str],
    verify: Verify,
    log: logging.Logger,
) -> Adopted:
    """Have an extraction leave out what a dead run has exported already; damaged parts go to quarantine.

    Of several dead runs the one with the most rows is used, alone: the order of its ranges is known from its record,
    and a run that had re-used others' parts lists those as well.

    Args:
        destination: where.
        prefix: which dataset.
        extraction: that has not begun to read.
        taken: what the runs that this one has taken over had recorded.
        lineage: the Dagster runs that this one repeats; whoever runs on a schedule asks for the rows of today.
        verify: "readback" reads every part again; "store" those of which the store keeps no checksum to compare.
        log: told of what is moved.
    """
    resume = extraction.resume
    if resume is None:
        return Adopted()
    inspection = _Inspection(destination, prefix, verify=verify, log=log)
    offers: list[tuple[Manifest, Reusable]] = []
    for dead in taken:
        found = _reusable(resume, extraction, dead, lineage)
        if found.ranges:
            offers.append((dead, found))
        elif found.because and dead.parts:
            inspection.notes.append(f"no part of {dead.run_id} is re-used: {found.because}")
    for dead, found in sorted(offers, key=lambda offer: -_rows(p for some in offer[1].ranges for p in some)):
        ranges = [whole for parts in found.ranges if (whole := inspection.confirmed(parts))]
        if ranges:
            parts = resume.leave_out(ranges)
            inspection.notes.append(f"re-used {len(parts)} of the {len(dead.parts)} parts that {dead.run_id} recorded")
            return inspection.result(parts, taken)
    return inspection.result((), taken)


def _reusable(resume: Resume, extraction: Extraction, dead: Manifest, lineage: frozenset[str]) -> Reusable:
    if dead.dagster_run_id not in lineage:
        return Reusable(because=f"this run does not repeat {dead.dagster_run_id}, so all its rows are read now")
    if extraction.gates:
        return Reusable(because="gates judge the rows as they are read")
    return resume.reusable(dead)


def _rows(parts: Iterable[Part]) -> int:
    return sum(part.rows for part in parts)


class _Inspection:
    """Looks at recorded parts, and remembers what it found."""

    def __init__(self, destination: ObjectDestination, prefix: Prefix, *, verify: Verify, log: logging.Logger) -> None:
        self._destination, self._prefix, self._verify, self._log = destination, prefix, verify, log
        self.notes: list[str] = []
        self._versions: dict[str, str] = {}
        self._quarantined = 0

    def confirmed(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """All parts of a range as this run lists them; none where one of them is not what was recorded."""
        found = [self._look(part) for part in parts]
        return tuple(part for part in found if part is not None) if None not in found else ()

    def result(self, parts: tuple[Part, ...], taken: Sequence[Manifest]) -> Adopted:
        """What is re-used, and what is said of it."""
        keys = {self._prefix.at(part.path) for part in parts}
        writers = {token_of(part.path) for part in parts}
        said = {
            "parts": len(parts),
            "rows": _rows(parts),
            "bytes": sum(part.size_bytes for part in parts),
            "from": [
                {"run_id": m.run_id, "dagster_run_id": m.dagster_run_id, "started_at": m.started_at.isoformat()}
                for m in taken
                if m.run_id in writers
            ],
            "quarantined": self._quarantined,
        }
        return Adopted(
            parts=parts,
            versions={key: version for key, version in self._versions.items() if key in keys},
            notes=tuple(self.notes),
            said={_REUSED: said} if parts or self._quarantined else {},
        )

    def _look(self, part: Part) -> Part | None:
        key = self._prefix.at(part.path)
        try:
            meta = self._destination.head(key)
            level = None if meta is None else self._level(meta, part)
        except DestinationError as e:
            # What cannot be looked at is not damaged: it is only not used.
            self.notes.append(f"{part.path} is not re-used: {e}")
            return None
        if meta is not None and level is not None:
            self._versions[key] = meta.version
            return replace(part, verification=level)
        self.notes.append(f"{part.path} is not re-used: {self._set_aside(key, part) if meta else 'it is gone'}")
        return None

    def _level(self, meta: ObjectMeta, part: Part) -> str | None:
        """How the store confirms a part; `None` where it holds something else."""
        if meta.size_bytes != part.size_bytes:
            return None
        recorded = (part.resume or {}).get("checksum") or {}
        known = {"md5": part.md5, recorded.get("kind"): bytes.fromhex(recorded.get("value", ""))}
        store = meta.checksum
        if self._verify == "store" and store is not None and store.kind in known:
            return part.verification if known[store.kind] == store.value else None
        read = read_md5(self._destination, meta.key)
        return read.level if read.value == part.md5 else None

    def _set_aside(self, key: str, part: Part) -> str:
        token = token_of(part.path) or "unknown"
        try:
            remove(
                self._destination,
                [key],
                because="it is not what its run had recorded",
                log=self._log,
                into=lambda _key: self._prefix.quarantine(token, part.path),
            )
        except DestinationError as e:
            return f"it is not what its run had recorded, and could not be moved to quarantine: {e}"
        self._quarantined += 1
        return "it is not what its run had recorded; moved to quarantine"
