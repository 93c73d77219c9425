"""What the manifest will say of rows that are not read yet."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.columns import name_check, plain_schema, type_check
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.spec import Export
from rivet_dagster.manifest import Column, Content, Dataset, Identity
from rivet_dagster.rows import ResultColumn, Source

__all__ = ["content_of_export", "content_of_value", "identity_of", "schema_of_export", "schema_of_value"]


def schema_of_export(
    described: Sequence[ResultColumn], export: Export, *, output: OutputSettings, subject: str
) -> pa.Schema:
    """The schema that a result is written with.

    Raises:
        ConfigError: the columns cannot be exported like this.
    """
    names = [c.name for c in described]
    name_check(names, subject=subject)
    unknown = [name for name in export.columns if name not in names]
    if unknown:
        msg = f"{subject}: columns: expected names of the result's columns {names}, found {unknown}"
        raise ConfigError(msg)
    schema = plain_schema(pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in described]))
    type_check(schema, format=output.format, subject=subject)
    return schema


def schema_of_value(found: pa.Schema, *, output: OutputSettings, subject: str) -> pa.Schema:
    """The schema that an asset's value is written with.

    Raises:
        ConfigError: the columns cannot be exported like this.
    """
    schema = plain_schema(found)
    name_check(schema.names, subject=subject)
    type_check(schema, format=output.format, subject=subject)
    return schema


def identity_of(export: Export, *, export_name: str, source: Source) -> Identity:
    """Whose dataset it is; nothing of where the database is."""
    return Identity(export=export_name, database=f"{source.engine}:{source.database}", relation=export.relation)


def content_of_export(
    export: Export,
    *,
    export_name: str,
    source: Source,
    output: OutputSettings,
    schema: pa.Schema,
    described: Sequence[ResultColumn],
) -> Content:
    """All that is known of an export's delivery; no SQL, and nothing of where the database is."""
    database_schema, table = _table_of(export)
    return Content(
        export_name=export_name,
        identity=identity_of(export, export_name=export_name, source=source),
        dataset=Dataset.SNAPSHOT,
        strategy=export.mode.kind,
        engine=source.engine,
        database_schema=database_schema,
        table=table,
        format=output.format.kind,
        compression=output.format.compression,
        columns=_columns(schema, described),
    )


def content_of_value(*, export_name: str, output: OutputSettings, schema: pa.Schema) -> Content:
    """All that is known of the delivery of an asset's value."""
    return Content(
        export_name=export_name,
        identity=Identity(export=export_name),
        format=output.format.kind,
        compression=output.format.compression,
        columns=_columns(schema),
    )


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
