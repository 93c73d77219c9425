"""Receipts: what a run committed, or found committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rivet_dagster.attempt import Attempt, ExportReceipt, Extraction
from rivet_dagster.contract import Destination, ObjectDestination
from rivet_dagster.errors import ReadError
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Manifest, Part
from rivet_dagster.readback import Sight, deliveries

__all__ = ["already_committed", "receipt_for", "with_rows"]


def receipt_for(
    destination: Destination, attempt: Attempt, prefix: Prefix, *, manifest: Manifest | None, fingerprint: str | None
) -> ExportReceipt:
    """A receipt without rows."""
    return ExportReceipt(
        export_name=attempt.export_name,
        capabilities=destination.capabilities,
        uri=destination.uri(prefix.root),
        manifest=manifest,
        fingerprint=fingerprint,
    )


def with_rows(
    receipt: ExportReceipt, extraction: Extraction, parts: Sequence[Part], *, more: Mapping[str, Any] | None = None
) -> ExportReceipt:
    """Add what this run exported, and `more` to say of it."""
    return replace(
        receipt,
        parts=tuple(parts),
        row_count=sum(p.rows for p in parts),
        size_bytes=sum(p.size_bytes for p in parts),
        window=extraction.content.window,
        counters={**extraction.counters(), **(more or {})},
    )


def already_committed(
    destination: ObjectDestination, attempt: Attempt, prefix: Prefix, sight: Sight
) -> ExportReceipt | None:
    """What an earlier attempt of this run, or of the run that this one re-executes from failure, has committed."""
    committed = sight.committed
    if committed is None:
        return None
    line = committed.as_ancestors(sight.committed_fingerprint or "")
    ours = (a for a in line if a.dagster_run_id in attempt.lineage and a.partition_key == attempt.partition_key)
    found = next(ours, None)
    if found is None:
        return None
    # What describes the dataset is the head's; what this run added is its own, as long as the dataset has it.
    added, notes = committed, tuple[str, ...]()
    if found.run_id != committed.run_id:
        with suppress(ReadError):
            chain = deliveries(destination, prefix, committed)
            added = next((m for m in chain if m.run_id == found.run_id), committed)
        notes = (f"{found.run_id} was committed before, and {committed.run_id} after it",)
    return replace(
        receipt_for(destination, attempt, prefix, manifest=committed, fingerprint=sight.committed_fingerprint),
        found=True,
        parts=added.parts,
        row_count=added.row_count,
        size_bytes=added.size_bytes,
        window=added.content.window if added.content else None,
        notes=notes,
    )
