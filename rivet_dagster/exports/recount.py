"""How many rows the source has now that a delivery was made of: those of its window, where it has one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rivet_dagster.exports.content import identity_of
from rivet_dagster.exports.cursor import read_window, term_name
from rivet_dagster.exports.modes import Chunked, Full, Incremental, TimeWindow
from rivet_dagster.exports.spec import Export
from rivet_dagster.manifest import Manifest
from rivet_dagster.rows import CountingSource, IncrementalSource, Source
from rivet_dagster.windows import CursorTerm

__all__ = ["Recount", "recount"]

_WHOLE = frozenset({"full", "chunked", "snapshot", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """What the source says now.

    Attributes:
        rows: that there are; `None` where they cannot be compared with the delivery's.
        counted: which rows that are, or why none were counted.
        means: what it says, or does not, where the numbers differ.
        lost: more rows than were delivered will be in no later delivery either.
    """

    rows: int | None
    counted: str
    means: str = ""
    lost: bool = False


def recount(export: Export, source: Source, manifest: Manifest, *, export_name: str) -> Recount:
    """Let the source count the rows of a delivery's window, or all where it has none.

    Args:
        export: as it is defined now.
        source: where from.
        manifest: of the delivery, or another tool's.
        export_name: the asset key's segments joined by "/".

    Raises:
        ConfigError: the export's names or cursor cannot be.
        ContractError: the manifest's window is none.
        SourceError: the source refused, or could not be reached.
    """
    if not isinstance(source, CountingSource):
        return Recount(rows=None, counted=f"{source.engine} is a source that does not count")
    query, term = export.source_query, _term(export)
    window = manifest.content.window if manifest.content is not None else None
    because = _another(export, source, manifest, export_name=export_name)
    if because is not None:
        return Recount(rows=None, counted=because)
    if term is None and window is None:
        return Recount(
            rows=source.count(query),
            counted=f"all rows of {'the table' if query.table is not None else 'the query'} are counted",
            means="rows that came or went since the delivery was read count too" + _by_ranges(export),
        )
    if term is None or window is None:
        had, has = ("a window", "none") if window is not None else ("no window", "one")
        return Recount(rows=None, counted=f"the delivery is of {had}, and the export has {has} now")
    if not isinstance(source, IncrementalSource):
        return Recount(rows=None, counted=f"{source.engine} is a source without windows")
    endless = isinstance(export.mode, TimeWindow)
    found = read_window(window, source.describe_cursor(query, term), endless=endless, where=manifest.destination_uri)
    return _of_window(export, source.count(replace(query, window=found)))


def _of_window(export: Export, rows: int) -> Recount:
    if isinstance(export.mode, Incremental):
        return Recount(
            rows=rows,
            counted="the rows of the window that this delivery added are counted, not those of the table",
            means="fewer are rows that were deleted, or changed and stamped anew, since; more are rows that were "
            "committed late, or stamped with an earlier time: no later run reads this window again",
            lost=True,
        )
    if isinstance(export.mode, TimeWindow):
        return Recount(
            rows=rows,
            counted="the rows from the start of the delivery's window on are counted",
            means="rows that came or went since the delivery was read count too",
        )
    return Recount(
        rows=rows,
        counted="the rows of the partition are counted",
        means="rows that came or went since the partition was read count too: run it again to replace it",
    )


def _another(export: Export, source: Source, manifest: Manifest, *, export_name: str) -> str | None:
    """Why the delivery is none of what the export is now."""
    content = manifest.content
    if content is None:
        strategy = str((manifest.source.get("extraction") or {}).get("strategy") or "")
        if strategy in _WHOLE and _term(export) is None:
            return None
        return f"another tool wrote the delivery, by the strategy {strategy!r}, and its window is not recorded"
    if content.rewrites:
        return "compaction made the delivery of several, each of a window of its own"
    ours, theirs = identity_of(export, export_name=export_name, source=source), content.identity
    differ = [
        f"{name} was {there!r} and is {here!r}"
        for name, here, there in (
            ("the relation", ours.relation, theirs.relation),
            ("the database", ours.database, theirs.database),
            ("the mode", export.mode.kind, content.strategy),
        )
        if here != there
    ]
    term = _term(export)
    if not differ and term is not None and content.window is not None:
        column = content.window.get("column", theirs.cursor_column)
        differ = [] if column == term_name(term) else [f"the window was over {column!r}, now over {term_name(term)!r}"]
    return f"the export has changed since the delivery: {'; '.join(differ)}" if differ else None


def _term(export: Export) -> CursorTerm | None:
    if export.partitioned_by is not None:
        return export.partitioned_by.term
    return None if isinstance(export.mode, Full | Chunked) else export.mode.term


def _by_ranges(export: Export) -> str:
    if isinstance(export.mode, Chunked) and export.mode.consistency == "statement":
        return "; its ranges were read one after the other, each as it was then"
    return ""
