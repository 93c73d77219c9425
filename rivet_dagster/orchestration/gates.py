"""The check `quality`: what an export's gates found, as its asset shows it. Pure but for `report_failed`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.exports.spec import Export
from rivet_dagster.exports.verdict import Finding, Verdict
from rivet_dagster.orchestration.run_facts import report_check

__all__ = ["CHECK", "Verdicts", "check_specs", "of_partition", "report_failed", "result_of"]

CHECK = "quality"
_DESCRIPTION = (
    "What the rows of the export have to be like: judged while they are read, and unless all gates pass nothing is "
    "committed. It runs with the asset, not on its own."
)

Verdicts = Mapping[str | None, Verdict]
"""By partition key; `None` where there is none."""


def check_specs(export: Export, spec: dg.AssetSpec) -> list[dg.AssetCheckSpec]:
    """The check of an export's asset; none where the export has no gates."""
    if export.quality is None:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [dg.AssetCheckSpec(CHECK, asset=spec.key, description=_DESCRIPTION, partitions_def=spec.partitions_def)]


def report_failed(
    context: dg.OutputContext | dg.AssetExecutionContext, key: dg.AssetKey, partition: str | None, verdicts: Verdicts
) -> None:
    """Record a failed check in the run that is about to fail; nothing where no gate failed.

    Args:
        context: of the step.
        key: of the asset.
        partition: of the run, where it is one.
        verdicts: of its partitions.
    """
    failed = [k for k, v in verdicts.items() if v.failed]
    if not failed:
        return
    # Of each partition of a range, and of all of them together.
    for of, some in {**{k: of_partition(verdicts, k) for k in failed}, partition: verdicts}.items():
        result = result_of(key, some)
        evaluation = dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=CHECK,
            passed=False,
            description=result.description,
            metadata=result.metadata,
            severity=result.severity,
            blocking=False,
            partition=of,
        )
        report_check(context, evaluation)


def of_partition(verdicts: Verdicts | None, partition: str | None) -> Verdicts | None:
    """Those of one partition alone."""
    return verdicts and {k: v for k, v in verdicts.items() if k == partition}


def result_of(key: dg.AssetKey, verdicts: Verdicts | None) -> dg.AssetCheckResult:
    """Say what the gates found.

    Args:
        key: of the asset.
        verdicts: empty where an earlier attempt of the run had committed; `None` where a step gave rows without gates.
    """
    if not verdicts:
        judged = verdicts is not None
        before = "an earlier attempt of this run had committed the rows, and judged them before"
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=CHECK,
            passed=judged,
            severity=dg.AssetCheckSeverity.WARN,
            description=before if judged else "the step gave rows that no gate has judged",
        )
    found = [(partition, f) for partition, v in verdicts.items() for f in v.findings]
    failed = [(partition, f) for partition, f in found if not f.passed]
    said: dict[str, Any] = {
        "rivet/rows": sum(v.rows for v in verdicts.values()),
        "rivet/gates": len(found),
        "rivet/failed_gates": len(failed),
        "rivet/gate_table": _table(found),
    }
    examples = [{**_named(p), **_named_gate(f), "rows": list(f.examples)} for p, f in failed if f.examples]
    if examples:
        said["rivet/examples"] = dg.MetadataValue.json(examples)
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=CHECK,
        passed=not failed,
        description=_described(found, failed),
        metadata=said,
    )


def _described(found: Sequence[tuple[str | None, Finding]], failed: Sequence[tuple[str | None, Finding]]) -> str:
    if not failed:
        return f"{len(found)} gate{'' if len(found) == 1 else 's'} passed"
    told = "; ".join(f"{'' if partition is None else f'{partition}: '}{f}" for partition, f in failed)
    return f"{len(failed)} of {len(found)} gates failed, nothing was committed: {told}"


def _table(found: Sequence[tuple[str | None, Finding]]) -> dg.TableMetadataValue:
    partitioned = any(partition is not None for partition, _ in found)
    rows: list[dict[str, Any]] = [
        {
            **_named(partition),
            **_named_gate(f),
            "passed": f.passed,
            "expected": f.expected,
            "found": f.found,
            "rows": f.rows,
        }
        for partition, f in found
    ]
    types = {"passed": "bool", "rows": "int"}
    names = [*(["partition"] if partitioned else []), "gate", "column", "passed", "expected", "found", "rows"]
    return dg.MetadataValue.table(
        records=[dg.TableRecord({name: row.get(name, "") for name in names}) for row in rows],
        schema=dg.TableSchema(columns=[dg.TableColumn(name, types.get(name, "string")) for name in names]),
    )


def _named(partition: str | None) -> dict[str, str]:
    return {} if partition is None else {"partition": partition}


def _named_gate(finding: Finding) -> dict[str, str]:
    return {"gate": finding.gate, "column": finding.column}
