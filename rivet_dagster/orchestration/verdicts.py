"""What a check shows of a verdict. Pure: from what was found to Dagster's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.layout import MANIFEST
from rivet_dagster.orchestration.judgement import Verdict
from rivet_dagster.orchestration.metadata import link, weakest
from rivet_dagster.readback import Fault

__all__ = ["result_of", "result_of_partitions"]

_SHOWN = 50


def result_of(key: dg.AssetKey, check: str, verdict: Verdict, *, uri: str, recorded: bool) -> dg.AssetCheckResult:
    """Of one delivery.

    Args:
        key: of the asset.
        check: its name.
        verdict: what was found.
        uri: of the prefix.
        recorded: whether a materialization of ours says what there has to be.
    """
    judged = verdict.manifest
    parts = judged.parts if judged else ()
    notes = list(verdict.notes)
    if not recorded:
        notes.append(
            "no materialization of this asset with a delivery is recorded"
            + ("; the manifest found here was judged" if judged else " and no manifest was found: materialize it")
        )
    said: dict[str, Any] = {
        "rivet/faults": len(verdict.faults),
        "rivet/bytes": judged.size_bytes if judged else 0,
        "rivet/rows": judged.row_count if judged else 0,
        "rivet/manifest": link(f"{uri.rstrip('/')}/{MANIFEST}"),
        **(verdict.found.numbers if verdict.found else {}),
    }
    if judged:
        said |= {
            "rivet/run_id": judged.run_id,
            "rivet/checksum": str(verdict.fingerprint),
            "rivet/verification": weakest(parts) if parts else "no parts",
        }
    if verdict.faults:
        said["rivet/fault_table"] = _table(verdict.faults)
    if verdict.successor:
        said["rivet/successor"] = verdict.successor
    if verdict.unknown:
        notes.append(f"objects that no manifest names, left alone: {', '.join(verdict.unknown[:_SHOWN])}")
    if notes:
        said["rivet/notes"] = dg.MetadataValue.json(notes)
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=verdict.passed,
        severity=dg.AssetCheckSeverity.WARN if verdict.warns else dg.AssetCheckSeverity.ERROR,
        description=_said(verdict, notes),
        metadata=said,
    )


def result_of_partitions(
    key: dg.AssetKey, check: str, results: Mapping[str, dg.AssetCheckResult]
) -> dg.AssetCheckResult:
    """Of the deliveries of several partitions that were judged each on its own."""
    failed = [k for k, r in results.items() if not r.passed]
    warned = [k for k, r in results.items() if r.severity is dg.AssetCheckSeverity.WARN]
    told = failed or warned
    said: dict[str, Any] = {}
    for name, value in (found for r in results.values() for found in r.metadata.items()):
        if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue):
            said[name] = said.get(name, 0) + value.value
    said["rivet/partitions_checked"] = len(results)
    faults = [
        dg.TableRecord({**row.data, "path": f"{k}: {row.data['path']}"})
        for k in failed
        for row in getattr(results[k].metadata.get("rivet/fault_table"), "records", ())
    ]
    if faults:
        said["rivet/fault_table"] = dg.MetadataValue.table(records=faults[:_SHOWN])
    description = f"{len(results)} partitions checked, {len(failed)} failed"
    if told:
        said["rivet/partitions"] = dg.MetadataValue.json(told[:_SHOWN])
        description += f"; {told[0]}: {results[told[0]].description}"
    only_warned = told and set(told) <= set(warned)
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=not failed,
        severity=dg.AssetCheckSeverity.WARN if only_warned else dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata=said,
    )


def _said(verdict: Verdict, notes: Sequence[str]) -> str:
    if verdict.faults:
        first, others = verdict.faults[0], len(verdict.faults) - 1
        return f"{first}" + (f" (and {others} more)" if others else "") + _after(notes)
    if verdict.manifest is None:
        return "; ".join(notes)
    looked = f", {verdict.found.said}" if verdict.found else ""
    return f"marker and manifest agree{looked}" + _after(notes)


def _after(notes: Sequence[str]) -> str:
    return f"; {'; '.join(notes)}" if notes else ""


def _table(faults: Sequence[Fault]) -> dg.TableMetadataValue:
    records = [
        dg.TableRecord({"path": f.path, "kind": f.kind, "expected": f.expected, "found": f.found})
        for f in faults[:_SHOWN]
    ]
    return dg.MetadataValue.table(records=records)
