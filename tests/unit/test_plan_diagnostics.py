"""Every finding at once, judged by capabilities."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rivet_dagster.contract import DestinationCapabilities, WriteCommitProtocol
from rivet_dagster.errors import PlanRejected
from rivet_dagster.exports import plan, stream_rules
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.modes import Chunked, Incremental, TimeWindow
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.plan import Diagnostic, Level, PlannedExport, diagnose, reject
from rivet_dagster.exports.quality import Quality

STREAM = DestinationCapabilities(
    commit_protocol=WriteCommitProtocol.STREAMING, idempotent_overwrite=False, retry_safe=False, partial_write_risk=True
)
AT_REST = DestinationCapabilities(
    commit_protocol=WriteCommitProtocol.ATOMIC, idempotent_overwrite=True, retry_safe=True, partial_write_risk=False
)


def planned(name: str = "orders", *, at: DestinationCapabilities = AT_REST, **settings: Any) -> PlannedExport:
    names = ("uri", "max_retries", "mode", "bundled", "checks", "quality", "on_schema_drift")
    said = {k: settings.pop(k) for k in names if k in settings}
    said = {"uri": f"file:///lake/{name}", **said}
    return PlannedExport(name=name, output=resolve_output(**settings), capabilities=at, **said)


def found(*exports: PlannedExport) -> dict[str, Level]:
    return {d.rule: d.level for d in diagnose(exports)}


def test_a_plain_export_to_a_destination_at_rest_has_no_finding() -> None:
    assert diagnose([planned(max_file_size="1MB", verify="readback", max_retries=3)]) == ()


def test_a_stream_says_that_it_keeps_nothing() -> None:
    assert found(planned(at=STREAM, format="csv")) == {"stdout-no-receipt": Level.DEGRADED}


def test_a_stream_cannot_be_divided() -> None:
    assert found(planned(at=STREAM, max_file_size="1MB"))["stdout-no-split"] is Level.REJECTED


@pytest.mark.parametrize("mode", [Chunked(), Chunked(rows_per_part=10**9), Chunked(key="id", parallel=4)])
def test_a_stream_cannot_be_divided_into_ranges_of_any_shape(mode: Chunked) -> None:
    assert found(planned(at=STREAM, format="csv", mode=mode))["stdout-no-chunked"] is Level.REJECTED
    assert found(planned(mode=mode)) == {}


def test_a_stream_cannot_be_one_of_several_in_a_step() -> None:
    assert found(planned(at=STREAM, format="csv", bundled=True))["stdout-no-bundle"] is Level.REJECTED
    assert found(planned(bundled=True)) == {}


def test_gates_and_drift_come_too_late_for_a_stream() -> None:
    quality = Quality(row_count_min=1)
    late = {"stdout-late-gates": Level.DEGRADED, "stdout-no-drift": Level.DEGRADED, "stdout-no-receipt": Level.DEGRADED}
    assert found(planned(at=STREAM, format="csv", quality=quality, on_schema_drift="fail")) == late
    assert found(planned(quality=quality, on_schema_drift="fail")) == {}


def test_uniqueness_without_a_cap_is_warned_of() -> None:
    assert found(planned(quality=Quality(unique="id", unique_memory=None))) == {"quality-unique-no-cap": Level.WARNING}
    assert found(planned(quality=Quality(unique="id"))) == {}
    assert found(planned(quality=Quality(row_count_min=1, unique_memory=None))) == {}


def test_a_stream_cannot_be_read_back() -> None:
    assert found(planned(at=STREAM, verify="readback"))["verify-unattainable"] is Level.REJECTED


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_csv_on_a_stream_is_plain_text(codec: Any) -> None:
    assert found(planned(at=STREAM, format=Csv(compression=codec)))["csv-no-codec-on-stdout"] is Level.REJECTED
    assert found(planned(format=Csv(compression=codec))) == {}


def test_parquet_may_be_compressed_on_a_stream() -> None:
    assert found(planned(at=STREAM, format=Parquet(compression="zstd"))) == {"stdout-no-receipt": Level.DEGRADED}


@pytest.mark.parametrize(
    ("fmt", "fine"),
    [
        (Parquet(level=1), True),
        (Parquet(level=22), True),
        (Parquet(level=0), False),
        (Parquet(level=23), False),
        (Parquet(compression="gzip", level=9), True),
        (Parquet(compression="gzip", level=10), False),
        (Parquet(compression="snappy", level=1), False),
        (Parquet(compression="lz4", level=1), False),
        (Parquet(compression="none", level=1), False),
        (Csv(compression="gzip", level=9), True),
        (Csv(compression="gzip", level=0), False),
        (Csv(compression="zstd", level=1), True),
        (Csv(compression="zstd", level=3), False),
        (Csv(level=1), False),
    ],
)
def test_a_level_belongs_to_its_codec(fmt: Parquet | Csv, fine: bool) -> None:
    assert found(planned(format=fmt)) == ({} if fine else {"codec-level": Level.REJECTED})


def test_two_exports_cannot_share_a_prefix() -> None:
    findings = diagnose(
        [planned("a", uri="s3://lake/x/"), planned("b", uri="s3://lake/x"), planned("c", uri="s3://lake/x/y")]
    )
    assert [(d.rule, d.level, d.subject) for d in findings] == [("shared-prefix", Level.REJECTED, "a, b")]
    assert "s3://lake/x" in findings[0].message


def test_two_exports_on_one_stream_share_no_prefix_but_run_together() -> None:
    findings = diagnose([planned(n, at=STREAM, uri="stdout") for n in ("a", "b")])
    assert [d.rule for d in findings] == ["stdout-no-receipt", "stdout-no-receipt", "stdout-single-export"]
    assert (findings[-1].level, findings[-1].subject) == (Level.WARNING, "a, b")


def test_retries_are_judged_by_the_promise_alone() -> None:
    assert found(planned(at=STREAM, max_retries=2))["retries-not-safe"] is Level.WARNING
    assert "retries-not-safe" not in found(planned(at=STREAM))
    unsafe = DestinationCapabilities(
        commit_protocol=WriteCommitProtocol.FINALIZE_ON_CLOSE,
        idempotent_overwrite=True,
        retry_safe=False,
        partial_write_risk=True,
    )
    assert found(planned(at=unsafe, max_retries=1)) == {"retries-not-safe": Level.WARNING}


def test_rows_of_a_window_are_not_those_of_the_table() -> None:
    incremental, recent = Incremental(cursor_column="id"), TimeWindow(time_column="at", days=2)
    counted = {"checks": ("manifest", "row_count")}
    assert found(planned(mode=incremental, **counted)) == {"incremental-reconcile-mismatch": Level.WARNING}
    assert found(planned(mode=recent, **counted)) == {"time-window-reconcile-mismatch": Level.WARNING}
    assert found(planned(**counted), planned("more", mode=incremental, checks=("content", "schema"))) == {}


def test_all_findings_are_reported_at_once() -> None:
    findings = diagnose(
        [
            planned(
                "a",
                at=STREAM,
                max_file_size="1MB",
                verify="readback",
                format=Csv(compression="gzip", level=12),
                max_retries=1,
            ),
            planned("b", format=Parquet(level=99)),
        ]
    )
    with pytest.raises(PlanRejected) as e:
        reject(findings)
    assert e.value.diagnostics == findings
    rejected = {d.rule for d in findings if d.level is Level.REJECTED}
    assert rejected == {"stdout-no-split", "verify-unattainable", "csv-no-codec-on-stdout", "codec-level"}
    assert len(str(e.value).splitlines()) == 5  # codec-level for both
    for d in findings:
        assert (str(d) in str(e.value)) == (d.level is Level.REJECTED)
        assert d.remedy in str(d)
        assert d.subject in str(d)


def test_warnings_alone_do_not_reject() -> None:
    reject(diagnose([planned("a", at=STREAM, max_retries=1), planned("b", at=STREAM)]))
    reject([Diagnostic(level=Level.DEGRADED, rule="r", subject="s", message="m", remedy="x")])


def test_no_rule_knows_a_destination_by_its_name() -> None:
    code = inspect.getsource(plan) + inspect.getsource(stream_rules)
    for rule in (
        "stdout-no-split",
        "stdout-no-chunked",
        "stdout-no-bundle",
        "stdout-no-ranges",
        "stdout-single-export",
        "stdout-no-state",
        "stdout-no-receipt",
        "stdout-late-gates",
        "stdout-no-drift",
        "csv-no-codec-on-stdout",
    ):
        code = code.replace(rule, "")
    for name in ("stdout", "local", "s3", "gcs", "azure", ".kind =="):
        assert name not in code
