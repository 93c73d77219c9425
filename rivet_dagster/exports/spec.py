"""What an export is, as its author writes it: checked when it is written, changed by nobody afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import xxhash
from pydantic import Field, ValidationInfo, field_validator, model_validator

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.drift import DriftPolicy
from rivet_dagster.exports.fields import Fields
from rivet_dagster.exports.formats import Format
from rivet_dagster.exports.modes import Chunked, Full, Mode
from rivet_dagster.exports.partitions import PartitionBy
from rivet_dagster.exports.quality import Quality
from rivet_dagster.exports.sizes import parse_size
from rivet_dagster.manifest import MAX_ANCESTORS
from rivet_dagster.rows import Query

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batches", "Cast", "Export", "cast"]


class Cast(Fields):
    """How one column is read; see `cast`."""

    type: str | None = Field(
        default=None, min_length=1, description='The type to read the column as, e.g. "text"; its own without it.'
    )
    errors: Literal["raise", "coerce"] = Field(
        default="raise",
        description='What becomes of a value that the type cannot hold: the export fails, or it is NULL ("coerce").',
    )

    @model_validator(mode="after")
    def _something(self) -> Cast:
        if self.type is None and self.errors == "raise":
            msg = 'cast: expected a type, errors="coerce" or both, found neither'
            raise ConfigError(msg)
        return self


def cast(type_name: str | None = None, *, errors: Literal["raise", "coerce"] = "raise") -> Cast:
    """Say how a column is read: a value of `Export.columns`.

    Args:
        type_name: the type to read it as, e.g. "text"; `None` leaves it the type it has.
        errors: what becomes of a value that the type cannot hold, like an infinite date. "raise": the export fails and
            names the column. "coerce": it becomes NULL and is counted in the metadata, `rivet/coerced`.
    """
    return Cast(type=type_name, errors=errors)


class Export(Fields):
    """A table or query, and how it is exported. What is `None` is the IO manager's setting.

    Raises:
        ConfigError: a setting cannot work or is unknown; names the field.
        pydantic.ValidationError: a setting has the wrong type; names the field.
    """

    name: str = Field(description="The asset's name, the last segment of its key.")
    table: str | None = Field(default=None, description='The table to read, e.g. "public.orders"; or give `query`.')
    query: str | None = Field(default=None, description="One select statement; or give `table`.")
    mode: Mode = Field(default_factory=Full, description="Which rows a run exports, and in which pieces.")
    partition_by: str | PartitionBy | None = Field(
        default=None, description="The column that says which partition a row is of, for an asset with partitions."
    )
    format: Format | None = Field(default=None, description='"parquet", "csv", or either with settings.')
    max_file_size: str | int | None = Field(
        default=None, description='Size from which a part ends and the next begins, e.g. "256MB".'
    )
    max_memory: str | int | None = Field(
        default=None, description='Size that the rows of a run may take on their way, e.g. "256MB".'
    )
    retain: int | None = Field(
        default=None, ge=0, lt=MAX_ANCESTORS, description="Superseded deliveries kept besides the newest."
    )
    symlink_manifest: bool | None = Field(
        default=None, description="Also write a list of the parts for engines that cannot follow a manifest."
    )
    verify: Literal["store", "readback"] | None = Field(
        default=None,
        description='How parts are verified: by the store\'s own checksum, or by reading back ("readback").',
    )
    skip_empty: bool = Field(
        default=False, description="A run without rows leaves the dataset as it was instead of emptying it."
    )
    columns: Mapping[str, Cast] = Field(
        default_factory=dict,
        description='How columns are read that are not read as they are, e.g. {"tags": cast("text")}.',
    )
    quality: Quality | None = Field(
        default=None, description="What the rows of a run have to be like before anything of it is published."
    )
    on_schema_drift: DriftPolicy | None = Field(
        default=None,
        description='What becomes of a run whose columns differ from those of the dataset: "warn", "allow" or "fail". '
        'Without it, a dataset that is replaced has "warn", and one that is added to "fail"; to that only new columns '
        "that can be NULL may come.",
    )

    @field_validator("name")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            msg = f'name: expected the name of the export, e.g. "orders"; found {value!r}'
            raise ConfigError(msg)
        return value

    @field_validator("max_file_size", "max_memory", mode="before")
    @classmethod
    def _sized(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            parse_size(value, field=str(info.field_name))
        return value

    @field_validator("columns", mode="before", json_schema_input_type=Mapping[str, Cast | str])
    @classmethod
    def _casts(cls, value: Any) -> Any:
        # {"x": "text"} is what the YAML face has to say.
        if not isinstance(value, Mapping):
            return value
        return {name: Cast(type=how) if isinstance(how, str) else how for name, how in value.items()}

    @model_validator(mode="after")
    def _one_relation(self) -> Export:
        given = [field for field in ("table", "query") if (getattr(self, field) or "").strip()]
        if len(given) != 1:
            found = "both" if given else "neither"
            msg = f"export {self.name!r}: expected exactly one of `table` and `query`, found {found}"
            raise ConfigError(msg)
        return self

    @model_validator(mode="after")
    def _ranges_of_a_table(self) -> Export:
        if isinstance(self.mode, Chunked) and self.query is not None:
            msg = (
                f"export {self.name!r}: expected a table for Chunked, found a query: only a table's catalog can vouch "
                "for a key; give `table`, or export the query with Full()"
            )
            raise ConfigError(msg)
        return self

    @model_validator(mode="after")
    def _whole_partitions(self) -> Export:
        by = self.partitioned_by
        if by is not None and not isinstance(self.mode, Full):
            msg = (
                f"export {self.name!r}: partition_by and {type(self.mode).__name__} do not go together: a run exports "
                "all rows of a partition, and replaces it; leave the mode out, or partition_by"
            )
            raise ConfigError(msg)
        return self

    @property
    def partitioned_by(self) -> PartitionBy | None:
        """`partition_by` with its settings."""
        return PartitionBy(column=self.partition_by) if isinstance(self.partition_by, str) else self.partition_by

    @property
    def relation(self) -> str:
        """What is exported, for the dataset's identity: the table's name, or a hash of the query's text.

        White space and a final semicolon do not make another query.
        """
        if self.query is None:
            return (self.table or "").strip()
        text = " ".join(self.query.split()).rstrip("; ")
        return f"query:xxh3:{xxhash.xxh3_64_hexdigest(text.encode())}"

    @property
    def source_query(self) -> Query:
        """What a source is asked for."""
        casts = {name: how.type for name, how in self.columns.items() if how.type is not None}
        coerce = frozenset(name for name, how in self.columns.items() if how.errors == "coerce")
        return Query(table=self.table and self.table.strip(), sql=self.query, casts=casts, coerce=coerce)


class Batches:
    """Rows that come in pieces: what an asset returns that does not hold all of them at once.

    The first piece fixes the schema unless `schema` does; later pieces must match it.
    """

    def __init__(self, batches: Iterable[Any], *, schema: pa.Schema | None = None) -> None:
        """Wrap pandas DataFrames, Arrow tables or record batches, read once and in order.

        Args:
            batches: an iterable or generator of them.
            schema: needed where the first piece does not show every column's type (all NULL, or no piece at all).
        """
        self.batches = batches
        self.schema = schema
