"""Which rows a run exports, and in which pieces it reads them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.sizes import parse_size
from rivet_dagster.rows import Consistency

__all__ = ["Chunked", "Full", "Mode"]

_DEFAULT_BYTES = "256MB"


class Full(BaseModel):
    """Every run exports all rows, read by one statement, and replaces the dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["full"] = Field(default="full", description="The mode's name.")


class Chunked(BaseModel):
    """Every run exports all rows and replaces the dataset, but reads them in ranges of a key: short statements.

    Each row is in exactly one half-open range, and each range with rows becomes a part, or several where
    `max_file_size` divides it further. With neither `rows_per_part` nor `bytes_per_part` a range has about 256 MB.

    With `consistency="statement"`, a run that takes over one that died re-uses the ranges that it had exported, and
    reads the others. With "snapshot" it reads all of them: the state of the database that the first ones were read
    from is gone.

    Raises:
        ConfigError: both sizes are given, or one of them, or the key, cannot be; names the field.
        pydantic.ValidationError: a setting has the wrong type or is unknown; names the field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["chunked"] = Field(default="chunked", description="The mode's name.")
    key: str | tuple[str, ...] | None = Field(
        default=None,
        description="The column, or columns in order, that the rows are divided by: unique together and never NULL. "
        "Without it, the table's primary key, or another such key that its catalog knows.",
    )
    rows_per_part: int | None = Field(default=None, ge=1, description="How many rows a range has.")
    bytes_per_part: str | int | None = Field(
        default=None, description='About how much a range has, as it is read and before it is encoded, e.g. "256MB".'
    )
    parallel: int = Field(
        default=1,
        ge=1,
        le=64,
        description="How many ranges are read at a time, each on a connection of its own, encoded and uploaded.",
    )
    consistency: Consistency = Field(
        default="snapshot",
        description='"snapshot": all ranges are read from one state of the database. "statement": each from its own, '
        "which holds no transaction open; a row whose key changes meanwhile may then be missing, or be there twice.",
    )

    @field_validator("key", mode="after")
    @classmethod
    def _is_a_key(cls, value: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        columns = (value,) if isinstance(value, str) else value
        if not columns or len(set(columns)) < len(columns) or not all(c.strip() for c in columns):
            msg = f'key: expected a column such as "id", or several different ones; found {value!r}'
            raise ConfigError(msg)
        return columns

    @field_validator("bytes_per_part", mode="before")
    @classmethod
    def _is_a_size(cls, value: Any) -> Any:
        if value is not None:
            parse_size(value, field="bytes_per_part")
        return value

    @model_validator(mode="after")
    def _one_size(self) -> Chunked:
        if self.rows_per_part is not None and self.bytes_per_part is not None:
            msg = (
                "mode: expected one of rows_per_part and bytes_per_part, found both "
                f"({self.rows_per_part}, {self.bytes_per_part!r}); leave one out"
            )
            raise ConfigError(msg)
        return self

    @property
    def key_columns(self) -> tuple[str, ...] | None:
        """The key, where one is given."""
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def range_bytes(self) -> int:
        """The size of a range, where it has no number of rows."""
        return parse_size(self.bytes_per_part or _DEFAULT_BYTES, field="bytes_per_part")


Mode = Annotated[Full | Chunked, Field(discriminator="kind")]
"""A mode with its settings."""
