"""A run of an incremental export, planned: its window is fixed, its rows are opened, and they fit the dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rivet_dagster.exports.appending import check_identity
from rivet_dagster.exports.cursor import (
    column_name,
    known_nulls_of,
    recorded_cursor,
    recorded_window,
    start_of,
    type_name,
)
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.planned import Asked, Extraction
from rivet_dagster.exports.window import check_mode, fixed_window
from rivet_dagster.manifest import Dataset

__all__ = ["plan_incremental"]


def plan_incremental(asked: Asked, mode: Incremental, *, agree: Callable[[], None]) -> Extraction:
    """Fix the window and open its rows; see `plan_export` for the arguments and what it raises."""
    source, query, head = asked.windows("Incremental"), asked.export.source_query, asked.head
    cursor = source.describe_cursor(query, mode.term)
    by_clock = check_mode(mode, cursor, source, subject=asked.subject)
    column, kind = column_name(mode), type_name(mode, cursor)
    identity = replace(asked.identity, cursor_column=column, cursor_type=kind)
    start, known_nulls = None, None
    if head is not None:
        check_identity(identity, head)
    agree()
    if head is not None and head.content is not None and head.content.cursor is not None:
        start = start_of(head.content.cursor, cursor.kind, where=head.destination_uri)
        known_nulls = known_nulls_of(head.content.cursor)
    with fixed_window(
        mode,
        source,
        query,
        cursor,
        by_clock=by_clock,
        start=start,
        subject=asked.subject,
        known_nulls=known_nulls,
    ) as fixed:
        within = replace(query, window=fixed.window)
        stream = source.open(within)
    if fixed.warning is not None:
        asked.progress.warn(fixed.warning)
    described = asked.described(stream)
    content = replace(
        described.content,
        identity=identity,
        dataset=Dataset.SNAPSHOT if head is None else Dataset.APPEND,
        cursor=recorded_cursor(mode, fixed.window, nulls=fixed.nulls),
        window=recorded_window(fixed.window),
    )
    return asked.by_one_statement(within, stream, replace(described, content=content), said=fixed.said)
