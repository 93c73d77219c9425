"""Findings about a planned export: all of them at once, each with its level, rule and remedy. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from rivet_dagster.exports.diagnostics import Diagnostic, Level, PlannedExport, reject
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.memory import divide, least_memory
from rivet_dagster.exports.modes import Chunked, Incremental, TimeWindow
from rivet_dagster.exports.stream_rules import stream_findings

__all__ = ["Diagnostic", "Level", "PlannedExport", "diagnose", "format_findings", "reject"]

_LEVELS = {"zstd": (1, 22), "gzip": (1, 9)}
# pyarrow compresses a whole stream with zstd at this level only.
_STREAM_LEVELS = {"zstd": (1, 1), "gzip": (1, 9)}


def diagnose(exports: Sequence[PlannedExport]) -> tuple[Diagnostic, ...]:
    """Find everything there is to say about exports that run in one job, in the order of the exports.

    Nothing is raised: `reject` does that.
    """
    each = (finding for export in exports for rule in _RULES for finding in rule(export))
    return (*each, *_shared_prefix(exports), *_single_stream(exports))


def format_findings(settings: Parquet | Csv, *, subject: str) -> Iterator[Diagnostic]:
    """Find settings of a format that contradict each other, wherever it is written to."""
    if settings.level is None:
        return
    levels = _LEVELS if isinstance(settings, Parquet) else _STREAM_LEVELS
    low, high = levels.get(settings.compression, (1, 0))
    if low <= settings.level <= high:
        return
    expected = "no level" if high < low else str(low) if low == high else f"{low} to {high}"
    yield Diagnostic(
        level=Level.REJECTED,
        rule="codec-level",
        subject=subject,
        message=f"{settings.kind} with {settings.compression!r} takes {expected}, found level={settings.level}",
        remedy="remove level" if high <= low else f"choose a level from {low} to {high}",
    )


def _memory(e: PlannedExport) -> Iterator[Diagnostic]:
    settings, most = e.output.format, e.output.max_memory
    if most is None:
        return
    least, parallel = least_memory(settings), e.mode.parallel if isinstance(e.mode, Chunked) else 1
    workers = divide(most, settings, parallel=parallel).workers
    if most < least:
        yield Diagnostic(
            level=Level.REJECTED,
            rule="max-memory-too-little",
            subject=e.name,
            message=f"max_memory={most} cannot be held: batches, an upload and a row group need {least}",
            remedy=f"set max_memory to {least} or more, or row_group_bytes lower",
        )
    elif workers < parallel:
        yield Diagnostic(
            level=Level.WARNING,
            rule="max-memory-fewer-ranges",
            subject=e.name,
            message=f"max_memory={most} has room for {workers} of parallel={parallel} ranges at a time",
            remedy="set max_memory higher, or parallel lower",
        )


def _retries_not_safe(e: PlannedExport) -> Iterator[Diagnostic]:
    if e.max_retries and not e.capabilities.retry_safe:
        yield Diagnostic(
            level=Level.WARNING,
            rule="retries-not-safe",
            subject=e.name,
            message=f"max_retries={e.max_retries} at a destination that is not retry-safe: a repeated export may "
            "leave the output of the failed one beside its own",
            remedy="remove the retry policy, or choose a destination that is retry-safe",
        )


def _no_cap(e: PlannedExport) -> Iterator[Diagnostic]:
    if e.quality is not None and e.quality.unique and e.quality.memory is None:
        yield Diagnostic(
            level=Level.WARNING,
            rule="quality-unique-no-cap",
            subject=e.name,
            message="unique_memory=None: what `unique` remembers of each row takes as much memory as it needs, however "
            "many rows there are",
            remedy='set unique_memory, e.g. "1GB", beyond which a run is refused',
        )


def _counts_a_window(e: PlannedExport) -> Iterator[Diagnostic]:
    if "row_count" not in e.checks:
        return
    if isinstance(e.mode, Incremental):
        yield Diagnostic(
            level=Level.WARNING,
            rule="incremental-reconcile-mismatch",
            subject=e.name,
            message="the check row_count counts the rows of the newest delivery's window, not those of the table, and "
            "rows that are changed or deleted later leave that window",
            remedy="run the check in the run of the export, and take fewer rows for what the check says they are",
        )
    if isinstance(e.mode, TimeWindow):
        yield Diagnostic(
            level=Level.WARNING,
            rule="time-window-reconcile-mismatch",
            subject=e.name,
            message="the check row_count counts the rows from the start of the window on, not those of the table, and "
            "rows that come later are among them",
            remedy="run the check in the run of the export, or leave it out where rows keep coming",
        )


def _shared_prefix(exports: Sequence[PlannedExport]) -> Iterator[Diagnostic]:
    for uri, names in _together(e for e in exports if not e.is_stream):
        yield Diagnostic(
            level=Level.REJECTED,
            rule="shared-prefix",
            subject=", ".join(names),
            message=f"they resolve to one prefix, {uri}, where each would replace the other's dataset",
            remedy="give them other names, key prefixes or destinations",
        )


def _single_stream(exports: Sequence[PlannedExport]) -> Iterator[Diagnostic]:
    names = [e.name for e in exports if e.is_stream]
    if len(names) > 1:
        yield Diagnostic(
            level=Level.WARNING,
            rule="stdout-single-export",
            subject=", ".join(names),
            message=f"{len(names)} exports of one job write to a stream, and nothing says where one ends",
            remedy="give each a job of its own, or choose a destination that keeps objects",
        )


def _together(exports: Iterable[PlannedExport]) -> Iterator[tuple[str, list[str]]]:
    by_uri: defaultdict[str, list[str]] = defaultdict(list)
    for e in exports:
        by_uri[e.uri.rstrip("/")].append(e.name)
    return ((uri, names) for uri, names in by_uri.items() if len(names) > 1)


_RULES: tuple[Callable[[PlannedExport], Iterator[Diagnostic]], ...] = (
    lambda e: format_findings(e.output.format, subject=e.name),
    _memory,
    _retries_not_safe,
    _counts_a_window,
    _no_cap,
    stream_findings,
)
