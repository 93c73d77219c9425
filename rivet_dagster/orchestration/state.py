"""Where an incremental export stands: what Dagster's event log remembers, held against what the destination has.

Compared are the attempt and the exact bytes of its manifest, never cursor values. The cursor itself is the head's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rivet_dagster.attempt import Head
from rivet_dagster.errors import ContractError
from rivet_dagster.manifest import MAX_ANCESTORS

__all__ = ["Remembered", "agreed", "remembered"]

_REFRESH = "or export with full_refresh: true in the run's config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What one materialization recorded.

    Attributes:
        run_id: of the attempt whose manifest described the dataset.
        fingerprint: of that manifest.
        uri: of the dataset, then.
    """

    run_id: str
    fingerprint: str
    uri: str


def remembered(materializations: Iterable[Mapping[str, Any]]) -> Iterator[Remembered]:
    """Those that carry our keys; others, reported by hand or by a plain asset before, are passed over."""
    for said in materializations:
        run_id, fingerprint = said.get("rivet/run_id"), said.get("rivet/checksum")
        if isinstance(run_id, str) and isinstance(fingerprint, str):
            yield Remembered(run_id=run_id, fingerprint=fingerprint, uri=str(said.get("dagster/uri", "")))


def agreed(head: Head | None, line: Iterator[Remembered], *, uri: str) -> dict[str, Any] | None:
    """Decide whether a run may go on from the head, or begin where there is none.

    Args:
        head: what is committed at the destination.
        line: what was recorded, the newest first.
        uri: of the dataset.

    Returns:
        For metadata, which delivery is adopted that nobody had recorded, and why; `None` where none has to be.

    Raises:
        ContractError: the two do not belong together; says what happened and the remedy.
    """
    last = next(line, None)
    if last is None:
        return None if head is None else _adopted(head, "this Dagster instance has no record of the dataset")
    said = f"the last recorded delivery {last.run_id} ({last.fingerprint})"
    if head is not None:
        named = {head.manifest.run_id: head.fingerprint, **{a.run_id: a.fingerprint for a in head.manifest.ancestors}}
        found = named.get(last.run_id)
        if found is not None and found != last.fingerprint:
            raise ContractError(
                f"{uri}: expected {said}, found it with the fingerprint {found}: its manifest was changed; restore it, "
                f"{_REFRESH}"
            )
        if last.run_id == head.manifest.run_id:
            return None
        # Beyond its last entries, what the ancestors do not name is older, not foreign.
        if found is not None or len(head.manifest.ancestors) >= MAX_ANCESTORS:
            return _adopted(head, f"it was committed after {last.run_id}, and its record was lost")
    there = f"found {head.manifest.run_id}" if head is not None else "found nothing"
    if last.uri.rstrip("/") != uri.rstrip("/"):
        raise ContractError(
            f"{uri}: expected {said}, {there}: it was written to {last.uri}, and the destination was moved; copy that "
            f"prefix here, whole, {_REFRESH}"
        )
    if head is None:
        raise ContractError(f"{uri}: expected {said}, {there}: the destination has lost it; restore it, {_REFRESH}")
    if any(earlier.run_id == head.manifest.run_id for earlier in line):
        raise ContractError(
            f"{uri}: expected {said}, {there}, an earlier one: the destination has lost data; restore it, {_REFRESH}"
        )
    raise ContractError(
        f"{uri}: expected {said}, or a delivery after it, {there}, which neither descends from it nor came before: "
        f"two datasets have parted; restore the one that counts, {_REFRESH}"
    )


def _adopted(head: Head, because: str) -> dict[str, Any]:
    manifest = head.manifest
    return {"run_id": manifest.run_id, "dagster_run_id": manifest.dagster_run_id, "because": because}
