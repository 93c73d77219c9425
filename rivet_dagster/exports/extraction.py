"""An export, or the value of an asset, planned: everything is known of it but its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rivet_dagster.contract import EncodedPart, Staged
from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.columns import conform, name_check, plain_schema, type_check
from rivet_dagster.exports.encode import encode
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.spec import Export
from rivet_dagster.exports.values import Rows, rows_of
from rivet_dagster.manifest import Column, Content, Dataset, Identity, Manifest
from rivet_dagster.rows import ResultColumn, ResultStream, Source

__all__ = ["Extraction", "plan_export", "plan_value"]


@dataclass(slots=True, kw_only=True)
class Extraction:
    """Rows that can be encoded once, and what the manifest will say of them.

    Attributes:
        content: what is known before the first row.
        suffix: of the parts, e.g. ".csv.gz".
        skip_empty: a run without rows leaves the dataset as it was.
        output: how parts come out.
        schema: as it is written.
        batches: reads the rows; called once.
        stop: stops reading and frees what is read from; may be called again.
        gates: called after the last row.
    """

    content: Content
    suffix: str
    skip_empty: bool
    output: OutputSettings
    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    stop: Callable[[], None]
    gates: Sequence[Callable[[], None]] = field(default=())

    def parts(self, stage: Callable[[], Staged]) -> Iterator[EncodedPart]:
        """Read and encode; `stage` is called when the first row of a part is there, never for an empty part.

        Raises:
            SourceError: reading failed; the part that was not complete is discarded.
            ContractError: the rows are not what was described; likewise.
        """
        checked = conform(self.batches(), self.schema, subject=f"export {self.content.export_name!r}")
        return encode(checked, self.schema, output=self.output, stage=stage)

    def counters(self) -> Mapping[str, Any]:
        """What was counted while reading: nothing yet."""
        return {}

    def close(self) -> None:
        """Stop reading and free the source; may be called at any time and again."""
        self.stop()


def plan_export(
    export: Export, *, export_name: str, source: Source, output: OutputSettings, head: Manifest | None
) -> Extraction:
    """Ask the source to describe the result; read no row.

    Args:
        export: what to export.
        export_name: the asset key's segments joined by "/".
        source: where from.
        output: what counts for this export.
        head: of the prefix, as it is when the run begins.

    Raises:
        ConfigError: the columns cannot be exported like this; the source is free again.
        SourceError: the source refused.
    """
    subject = f"export {export_name!r}"
    # A snapshot replaces whatever head there is; the seam has made sure that it is ours.
    del head
    stream = source.open(export.source_query)
    try:
        schema = _schema_of(stream, export, subject)
        type_check(schema, format=output.format, subject=subject)
        columns = _columns(schema, stream.columns)
    except BaseException:
        stream.close()
        raise
    database_schema, table = _table_of(export)
    content = Content(
        export_name=export_name,
        identity=Identity(export=export_name, database=f"{source.engine}:{source.database}", relation=export.relation),
        dataset=Dataset.SNAPSHOT,
        strategy=export.mode.kind,
        engine=source.engine,
        database_schema=database_schema,
        table=table,
        format=output.format.kind,
        compression=output.format.compression,
        columns=columns,
    )
    return _extraction(content, output=output, schema=schema, batches=lambda: iter(stream), stop=stream.close)


def plan_value(value: Any, *, export_name: str, output: OutputSettings, head: Manifest | None) -> Extraction:
    """Describe what an asset returned: a pandas DataFrame, an Arrow table, a RecordBatchReader or `Batches`.

    Raises:
        ConfigError: it is something else, or its columns cannot be exported like this.
        ContractError: its values have no one type.
    """
    subject = f"export {export_name!r}"
    # A snapshot replaces whatever head there is; the seam has made sure that it is ours.
    del head
    rows: Rows = rows_of(value, subject=subject)
    try:
        schema = plain_schema(rows.schema)
        name_check(schema.names, subject=subject)
        type_check(schema, format=output.format, subject=subject)
    except BaseException:
        rows.stop()
        raise
    content = Content(
        export_name=export_name,
        identity=Identity(export=export_name),
        format=output.format.kind,
        compression=output.format.compression,
        columns=_columns(schema),
    )
    return _extraction(content, output=output, schema=schema, batches=rows.read, stop=rows.stop)


def _extraction(
    content: Content,
    *,
    output: OutputSettings,
    schema: pa.Schema,
    batches: Callable[[], Iterator[pa.RecordBatch]],
    stop: Callable[[], None],
) -> Extraction:
    return Extraction(
        content=content,
        suffix=output.suffix,
        skip_empty=output.skip_empty,
        output=output,
        schema=schema,
        batches=batches,
        stop=stop,
    )


def _schema_of(stream: ResultStream, export: Export, subject: str) -> pa.Schema:
    names = [c.name for c in stream.columns]
    name_check(names, subject=subject)
    unknown = [name for name in export.columns if name not in names]
    if unknown:
        msg = f"{subject}: columns: expected names of the result's columns {names}, found {unknown}"
        raise ConfigError(msg)
    return plain_schema(pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in stream.columns]))


def _columns(schema: pa.Schema, described: Sequence[ResultColumn] = ()) -> tuple[Column, ...]:
    source_types = {c.name: c.source_type for c in described}
    return tuple(
        Column(name=f.name, type=str(f.type), source_type=source_types.get(f.name), nullable=f.nullable) for f in schema
    )


def _table_of(export: Export) -> tuple[str | None, str | None]:
    """Schema and table, where the name has no quotes that would make a dot mean something else."""
    if export.table is None:
        return None, None
    parts = export.table.strip().split(".")
    if len(parts) == 2 and '"' not in export.table and "`" not in export.table:  # noqa: PLR2004
        return parts[0], parts[1]
    return None, export.table.strip()
