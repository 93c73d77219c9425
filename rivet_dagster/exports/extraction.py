"""An export, or the value of an asset, planned: everything is known of it but its rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.exports.chunked import RangesReading, key_of, ranges_between, ranges_of, rows_of_a_range
from rivet_dagster.exports.content import content_of_value, schema_of_value
from rivet_dagster.exports.incremental import plan_incremental
from rivet_dagster.exports.memory import Share, divide
from rivet_dagster.exports.modes import Chunked, Incremental, TimeWindow
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.pace import Pace
from rivet_dagster.exports.partitions import Partition
from rivet_dagster.exports.planned import Asked, Extraction
from rivet_dagster.exports.progress import Progress, estimate_of
from rivet_dagster.exports.reading import Encoder, Reading
from rivet_dagster.exports.resume import Resume, obstacle, resume_terms
from rivet_dagster.exports.spec import Export
from rivet_dagster.exports.subset import plan_partition, plan_time_window
from rivet_dagster.exports.values import Rows, rows_of
from rivet_dagster.manifest import Manifest
from rivet_dagster.rows import KeyRange, Snapshot, Source, SplittableSource

__all__ = ["Extraction", "plan_export", "plan_value"]

_LOG = logging.getLogger(__name__)


def _agreed() -> None:
    """Nobody remembers another state."""


def plan_export(
    export: Export,
    *,
    export_name: str,
    source: Source,
    output: OutputSettings,
    head: Manifest | None,
    partition: Partition | None = None,
    agree: Callable[[], None] = _agreed,
    log: logging.Logger = _LOG,
    clock: Callable[[], float] = time.monotonic,
    max_rows_per_second: int | None = None,
) -> Extraction:
    """Ask the source to describe the result; read no row.

    Args:
        export: what to export.
        export_name: the asset key's segments joined by "/".
        source: where from.
        output: what counts for this export.
        head: of the prefix, as it is when the run begins; a mode with a cursor adds to it, others replace it.
        partition: of the export, where it has some.
        agree: called before anything is added to `head`, or begun without one, once `head` is known to be this
            export's; raises where it is not the state that somebody else remembers.
        log: told of the progress, by the thread that calls this.
        clock: seconds that only rise.
        max_rows_per_second: how fast the rows may come, whoever reads them.

    Raises:
        ConfigError: the columns cannot be exported like this, or not in ranges or with this cursor; the source is free
            again.
        ContractError: the rows cannot be added to `head`, or its columns have to stay.
        SourceError: the source refused.
    """
    subject = f"export {export_name!r}"
    estimate = partial(estimate_of, source, export.source_query)
    progress = Progress(log, subject=subject, estimate=estimate, clock=clock)
    asked = Asked(
        export=export,
        export_name=export_name,
        source=source,
        output=output,
        subject=subject,
        progress=progress,
        pace=Pace(max_rows_per_second, clock=clock),
        head=head,
    )
    by = export.partitioned_by
    if by is not None and partition is not None:
        return plan_partition(asked, by, partition)
    if isinstance(export.mode, Chunked):
        return _in_ranges(asked, export.mode)
    if isinstance(export.mode, Incremental):
        return plan_incremental(asked, export.mode, agree=agree)
    if isinstance(export.mode, TimeWindow):
        return plan_time_window(asked, export.mode)
    return _whole(asked)


def plan_value(
    value: Any,
    *,
    export_name: str,
    output: OutputSettings,
    head: Manifest | None,
    log: logging.Logger = _LOG,
    clock: Callable[[], float] = time.monotonic,
) -> Extraction:
    """Describe what an asset returned: a pandas DataFrame, an Arrow table, a RecordBatchReader or `Batches`.

    Args:
        value: the rows.
        export_name: the asset key's segments joined by "/".
        output: what counts for this asset.
        head: of the prefix, as it is when the run begins.
        log: told of the progress, by the thread that calls this.
        clock: seconds that only rise.

    Raises:
        ConfigError: it is something else, or its columns cannot be exported like this.
        ContractError: its values have no one type.
    """
    subject = f"export {export_name!r}"
    # A snapshot replaces whatever head there is; the seam has made sure that it is ours.
    del head
    rows: Rows = rows_of(value, subject=subject)
    try:
        schema = schema_of_value(rows.schema, output=output, subject=subject)
    except BaseException:
        rows.stop()
        raise
    progress = Progress(log, subject=subject, clock=clock)
    encoder = Encoder(schema=schema, output=output, subject=subject, progress=progress)
    return Extraction(
        content=content_of_value(export_name=export_name, output=output, schema=schema),
        output=output,
        # In this thread: an asset's own generator may be bound to it.
        read=lambda stage: encoder.parts(rows.read(), stage),
        stop=rows.stop,
    )


def _whole(asked: Asked) -> Extraction:
    query = asked.export.source_query
    stream = asked.source.open(query)
    return asked.by_one_statement(query, stream, asked.described(stream), said={})


def _in_ranges(asked: Asked, mode: Chunked) -> Extraction:
    source, query = asked.source, asked.export.source_query
    if not isinstance(source, SplittableSource):
        msg = f"{asked.subject}: expected a source that can be read in ranges for Chunked, found {source.engine}"
        raise ConfigError(f"{msg}; export with Full()")
    rows = rows_of_a_range(mode, source, query)
    with ExitStack() as begun:
        snapshot = begun.enter_context(source.snapshot(mode.consistency))
        key = key_of(mode, source, snapshot, query, subject=asked.subject)
        with closing(snapshot.open(query)) as stream:
            described = asked.described(stream, in_ranges=True)
        because = obstacle(asked.export, snapshot)
        terms = resume_terms(asked.export, key, source=source, output=asked.output) if because is None else None
        resume = Resume(replace(described.content, resume=terms), key, because=because)

        def ranges_within(within: KeyRange) -> Iterator[KeyRange]:
            return ranges_of(within, snapshot.boundaries(replace(query, within=within), key, rows=rows))

        share = _share(asked, mode, snapshot)

        def read(within: KeyRange) -> Reading:
            open_stream = partial(snapshot.open, replace(query, within=within))
            # A worker reads one range while it still encodes another.
            return Reading(described.encoder, open_stream, ahead_bytes=share.ahead_bytes // 2, fetched=True)

        ranges = RangesReading(
            ranges_between(key, lambda: resume.left_out, ranges_within),
            read,
            workers=share.workers,
            progress=asked.progress,
            release=partial(_released, begun.pop_all()),
        )
    return described.extraction(
        ranges.parts,
        ranges.close,
        said={"rivet/consistency": snapshot.consistency},
        parallel=ranges.workers,
        resume=resume,
    )


def _share(asked: Asked, mode: Chunked, snapshot: Snapshot) -> Share:
    parallel = mode.parallel
    if parallel > 1 and not snapshot.parallel:
        asked.progress.warn(
            f"expected to read parallel={parallel} ranges at a time, found that {asked.source.engine} with "
            f"consistency={mode.consistency!r} gives one stream at a time; they are read one after the other"
        )
        parallel = 1
    return divide(asked.output.max_memory, asked.output.format, parallel=parallel)


def _released(begun: ExitStack) -> None:
    # Whatever was read is whole: how its transaction ends changes nothing.
    with suppress(SourceError):
        begun.close()
