"""A run that exports some of the rows as a snapshot, planned: those of the last days, or those of one partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from rivet_dagster.exports.cursor import recorded_window, term_name
from rivet_dagster.exports.modes import TimeWindow
from rivet_dagster.exports.moments import LAST_ZONE, check_clock, value_at
from rivet_dagster.exports.partitions import Partition, PartitionBy, partition_window
from rivet_dagster.exports.planned import Asked, Extraction
from rivet_dagster.windows import Cursor, CursorTerm, Noted, Settling, Window

__all__ = ["plan_partition", "plan_time_window"]


def plan_time_window(asked: Asked, mode: TimeWindow) -> Extraction:
    """Open the rows of the last days; see `plan_export` for what it raises."""

    def last_days(cursor: Cursor, noted: Noted) -> Window:
        what = f"{asked.subject}: {mode.term.shown} ({cursor.type_name})"
        check_clock(cursor, time_zone=mode.time_zone, unit=mode.unit, what=what)
        return Window(cursor=cursor, low=_since(mode, cursor, noted), high=None, high_open=True, endless=True)

    return _plan(asked, mode.term, last_days)


def plan_partition(asked: Asked, by: PartitionBy, partition: Partition) -> Extraction:
    """Open the rows of a partition; see `plan_export` for what it raises."""

    def of_the_partition(cursor: Cursor, noted: Noted) -> Window:
        window = partition_window(by, partition, cursor, subject=asked.subject)
        if partition.end is not None and noted.clock < partition.end:
            asked.progress.warn(
                f"expected partition {partition.key!r} to be over, found that it ends at {partition.end.isoformat()} "
                f"and the source's clock is at {noted.clock.isoformat()}; rows that come later are not in it: run it "
                "again then"
            )
        return window

    return _plan(asked, by.term, of_the_partition)


def _plan(asked: Asked, term: CursorTerm, window_of: Callable[[Cursor, Noted], Window]) -> Extraction:
    source, query = asked.windows("partitions and TimeWindow"), asked.export.source_query
    cursor = source.describe_cursor(query, term)
    # Of a query nothing says whether there can be any, and counting them would run it twice.
    counted = query.table is not None and cursor.nullable
    settling = Settling(top=False, writers=False, timeout=timedelta(), nulls=counted)
    with source.settling(query, cursor, settling) as noted:
        window = window_of(cursor, noted)
        within = replace(query, window=window)
        stream = source.open(within)
    described = asked.described(stream)
    content = replace(described.content, window={"column": term_name(term), **recorded_window(window)})
    said = {"rivet/nulls_excluded": noted.nulls} if noted.nulls is not None else {}
    return asked.by_one_statement(within, stream, replace(described, content=content), said=said)


def _since(mode: TimeWindow, cursor: Cursor, noted: Noted) -> Any:
    moment = noted.clock - timedelta(days=mode.days)
    value, _ = value_at(moment, cursor, time_zone=mode.time_zone, unit=mode.unit, day_zone=LAST_ZONE)
    return value
