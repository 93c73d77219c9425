"""Whether the columns of a delivery are those of the one before it, of the same partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ReadError
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Column, Manifest
from rivet_dagster.orchestration.judgement import Findings
from rivet_dagster.readback import Fault, read_record

__all__ = ["compare_columns"]

_SCHEMA = "dagster/column_schema"


def compare_columns(
    destination: ObjectDestination,
    prefix: Prefix,
    manifest: Manifest,
    *,
    recorded: Sequence[Mapping[str, Any]],
    warns: bool = True,
) -> Findings:
    """Compare the manifest's columns with what was recorded before.

    Dagster's own check of columns compares the last two materializations of any partition, and of whatever run found
    nothing to add; here it is the delivery before, of the same partition.

    Args:
        destination: of the delivery.
        prefix: of the dataset.
        manifest: of the delivery.
        recorded: what materializations of the dataset say, the newest first.
        warns: whether a change is a warning.
    """
    if manifest.content is None or not manifest.content.columns:
        note = "the manifest records no columns, so they were not compared"
        return Findings(said=note, notes=(note,))
    now = {c.name: c for c in manifest.content.columns}
    numbers = {"rivet/columns": len(now)}
    before = _before(destination, prefix, manifest, recorded)
    if before is None:
        note = "no delivery before this one is recorded: there is nothing to compare with"
        return Findings(said=f"{len(now)} columns", notes=(note,), numbers=numbers)
    changes = [
        Fault(path=name, kind="schema", expected=_shown(before.get(name)), found=_shown(now.get(name)))
        for name in dict.fromkeys([*before, *now])
        if _shown(before.get(name)) != _shown(now.get(name))
    ]
    notes = []
    if not changes and [*before] != [*now]:
        notes.append(f"the columns are in another order: {', '.join(now)}; before {', '.join(before)}")
    return Findings(
        said=f"{len(now)} columns as in the delivery before",
        faults=tuple(changes),
        warns=warns,
        notes=tuple(notes),
        numbers=numbers,
    )


def _before(
    destination: ObjectDestination, prefix: Prefix, manifest: Manifest, recorded: Iterable[Mapping[str, Any]]
) -> dict[str, Column] | None:
    """The columns before: of a record of the destination where it is kept, else of Dagster's."""
    link = manifest.previous
    if link is not None:
        try:
            copy = read_record(destination, prefix, link.run_id)
        except ReadError:
            copy = None
        if copy is not None and copy.fingerprint == link.fingerprint and copy.manifest.content is not None:
            return {c.name: c for c in copy.manifest.content.columns}
    for said in recorded:
        schema = said.get(_SCHEMA)
        if said.get("rivet/run_id") != manifest.run_id and isinstance(schema, dg.TableSchema):
            return {c.name: Column(name=c.name, type=c.type, nullable=c.constraints.nullable) for c in schema.columns}
    return None


def _shown(column: Column | None) -> str:
    return "no such column" if column is None else f"{column.type}{'' if column.nullable else ' not null'}"
