"""What a stream cannot do: findings about exports to a destination where nothing stays at rest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rivet_dagster.exports.diagnostics import Diagnostic, Level, PlannedExport
from rivet_dagster.exports.formats import Csv
from rivet_dagster.exports.modes import Chunked, Incremental

__all__ = ["stream_findings"]

_ELSEWHERE = "choose a destination that keeps objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One finding about a stream; `e` in a message is the export."""

    level: Level
    rule: str
    holds: Callable[[PlannedExport], object]
    message: str
    remedy: str


def stream_findings(e: PlannedExport) -> Iterator[Diagnostic]:
    """Find what an export cannot do where it goes, or not as elsewhere."""
    for rule in _RULES if e.is_stream else ():
        if rule.holds(e):
            message = rule.message.format(e=e)
            yield Diagnostic(level=rule.level, rule=rule.rule, subject=e.name, message=message, remedy=rule.remedy)


_RULES = (
    _Rule(
        level=Level.REJECTED,
        rule="stdout-no-split",
        holds=lambda e: e.output.max_file_size is not None,
        message="max_file_size={e.output.max_file_size} divides into named parts, and a stream has no names",
        remedy=f"remove max_file_size, or {_ELSEWHERE}",
    ),
    _Rule(
        level=Level.REJECTED,
        rule="stdout-no-chunked",
        holds=lambda e: isinstance(e.mode, Chunked),
        message="Chunked divides into named parts that are finished in any order, and a stream has neither",
        remedy=f"export with Full(), or {_ELSEWHERE}",
    ),
    _Rule(
        level=Level.REJECTED,
        rule="stdout-no-bundle",
        holds=lambda e: e.bundled,
        message="several exports of a bundle run at a time, and a repeated bundle leaves out what is committed; a "
        "stream would mix their rows, and nothing of it is ever committed",
        remedy=f"leave bundle=True out, or {_ELSEWHERE}",
    ),
    _Rule(
        level=Level.REJECTED,
        rule="stdout-no-ranges",
        holds=lambda e: e.ranged,
        message="each partition is a dataset of its own, and nothing in a stream says where one ends",
        remedy=f"run one partition at a time: leave backfill_policy out, or {_ELSEWHERE}",
    ),
    _Rule(
        level=Level.REJECTED,
        rule="verify-unattainable",
        holds=lambda e: e.output.verify == "readback",
        message='verify="readback" reads each part again, and nothing can be read back from a stream',
        remedy=f'set verify="store", or {_ELSEWHERE}',
    ),
    _Rule(
        level=Level.REJECTED,
        rule="csv-no-codec-on-stdout",
        holds=lambda e: isinstance(e.output.format, Csv) and e.output.format.compression != "none",
        message="CSV on a stream is text for people and pipes, found compression={e.output.format.compression!r}",
        remedy='set compression="none" and compress in the pipe',
    ),
    _Rule(
        level=Level.DEGRADED,
        rule="stdout-no-state",
        holds=lambda e: isinstance(e.mode, Incremental),
        message="a stream keeps no cursor: every run exports from the beginning and stores nothing",
        remedy=f"export with Full(), or {_ELSEWHERE}",
    ),
    _Rule(
        level=Level.DEGRADED,
        rule="stdout-late-gates",
        holds=lambda e: e.quality is not None,
        message="the rows have left by the time that gates decide: a run that fails has published them all the same",
        remedy=f"leave quality out, or {_ELSEWHERE}",
    ),
    _Rule(
        level=Level.DEGRADED,
        rule="stdout-no-drift",
        holds=lambda e: e.on_schema_drift is not None,
        message="a stream keeps no columns that those of a run could be compared with",
        remedy=f"leave on_schema_drift out, or {_ELSEWHERE}",
    ),
    _Rule(
        level=Level.DEGRADED,
        rule="stdout-no-receipt",
        holds=lambda _e: True,
        message="nothing stays at this destination: no manifest, marker or cursor is recorded",
        remedy=f"{_ELSEWHERE} where the data has to be verified later",
    ),
)
