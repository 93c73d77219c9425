"""Which rows a run exports, and in which pieces it reads them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.fields import Fields, in_one_order
from rivet_dagster.exports.moments import Unit, Zone
from rivet_dagster.exports.sizes import parse_duration, parse_size
from rivet_dagster.rows import Consistency
from rivet_dagster.windows import CursorTerm

__all__ = ["Chunked", "Full", "Incremental", "Mode", "TimeWindow"]

_DEFAULT_BYTES = "256MB"


class Full(Fields):
    """Every run exports all rows, read by one statement, and replaces the dataset."""

    kind: Literal["full"] = Field(default="full", description="The mode's name.")


class Chunked(Fields):
    """Every run exports all rows and replaces the dataset, but reads them in ranges: short statements.

    Each row is in exactly one half-open range, and each range with rows becomes a part, or several where
    `max_file_size` divides it further. With neither `rows_per_part` nor `bytes_per_part` a range has about 256 MB.

    With `consistency="statement"`, a run that takes over one that died re-uses the ranges that it had exported, and
    reads the others. With "snapshot" it reads all of them: the state of the database that the first ones were read
    from is gone.

    Raises:
        ConfigError: both sizes are given, or one of them, or the key, cannot be; names the field.
        pydantic.ValidationError: a setting has the wrong type; names the field.
    """

    kind: Literal["chunked"] = Field(default="chunked", description="The mode's name.")
    key: str | tuple[str, ...] | None = Field(
        default=None,
        description="The column, or columns in order, that the rows are divided by: unique together and never NULL. "
        "Without it, where rows lie, if that is enough (ranges of a size, in one snapshot of a PostgreSQL table); else "
        "the table's primary key, or another such key that its catalog knows.",
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

    @field_validator("key", mode="before")
    @classmethod
    def _as_a_list(cls, value: Any) -> Any:
        return in_one_order(value)

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


class Incremental(Fields):
    """Each run exports the rows that came since the one before, and adds them to the dataset.

    A run's window over the cursor is fixed before the first row is read and recorded. The cursor moves with the commit,
    so that each row version that a window can see is in the dataset once.

    Raises:
        ConfigError: not exactly one of `cursor_column` and `cursor_expression` is given, or a setting cannot be; names
            the field.
        pydantic.ValidationError: a setting has the wrong type; names the field.
    """

    kind: Literal["incremental"] = Field(default="incremental", description="The mode's name.")
    cursor_column: str | None = Field(
        default=None,
        description='The column that says which rows are new, e.g. "updated_at", as the database names it.',
    )
    cursor_expression: str | None = Field(
        default=None, description='Or an SQL expression over the columns, e.g. "coalesce(updated_at, created_at)".'
    )
    lag: str | None = Field(
        default=None,
        description='How far the window ends before the source\'s clock, e.g. "5 minutes". Rows that are committed '
        "later than that are missed.",
    )
    settle: Literal["writers", "none"] | None = Field(
        default=None,
        description='What is done about transactions that commit late: "writers" waits for those that are open (the '
        'default on PostgreSQL, SQLite and DuckDB), "none" does nothing; elsewhere it or `lag` must be chosen.',
    )
    settle_timeout: str = Field(default="60s", description="How long to wait for open transactions.")
    nulls: Literal["exclude", "first_run", "fail"] = Field(
        default="exclude",
        description="What becomes of rows whose cursor is NULL: left out and counted, exported by the first run, or "
        "the run fails.",
    )
    time_zone: Zone | None = Field(
        default=None,
        description='Whose clock a timestamp without a zone is by, e.g. "UTC" or "Europe/Berlin"; needed for one.',
    )
    unit: Unit | None = Field(default=None, description="Of an integer that counts time since 1970-01-01 00:00 UTC.")
    monotonic: bool = Field(
        default=False,
        description="The author's word that a text or UUID only rises, as UUIDv7 and ULID do; needed for these.",
    )

    @field_validator("lag", "settle_timeout", mode="before")
    @classmethod
    def _is_a_duration(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            parse_duration(value, field=str(info.field_name))
        return value

    @model_validator(mode="after")
    def _one_cursor(self) -> Incremental:
        given = [name for name in ("cursor_column", "cursor_expression") if (getattr(self, name) or "").strip()]
        if len(given) != 1:
            found = "both" if given else "neither"
            msg = f"mode: expected exactly one of cursor_column and cursor_expression, found {found}"
            raise ConfigError(msg)
        return self

    @property
    def term(self) -> CursorTerm:
        """What a source is asked about."""
        return CursorTerm.of(self.cursor_column, self.cursor_expression, is_time=self.time_zone is not None)

    @property
    def held_back(self) -> timedelta:
        """`lag` as a length of time."""
        return parse_duration(self.lag, field="lag") if self.lag is not None else timedelta()


class TimeWindow(Fields):
    """Every run exports the rows of the last days, by the source's clock, and replaces the dataset.

    These are the rows whose time is not before `now - days`; those of the future are among them. Rows without a time
    are left out.

    Raises:
        ConfigError: a setting cannot be or is unknown; names the field.
        pydantic.ValidationError: a setting has the wrong type; names the field.
    """

    kind: Literal["time_window"] = Field(default="time_window", description="The mode's name.")
    time_column: str = Field(
        description='The column that says when a row was, e.g. "created_at", as the database names it.'
    )
    days: int = Field(ge=1, le=36_500, description="How many times 24 hours the window has.")
    time_zone: Zone | None = Field(
        default=None,
        description="Whose clock a timestamp without a zone is by; needed for one. Of dates, whose day it is.",
    )
    unit: Unit | None = Field(default=None, description="Of an integer that counts time since 1970-01-01 00:00 UTC.")

    @field_validator("time_column")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            msg = f'time_column: expected the name of a column, e.g. "created_at"; found {value!r}'
            raise ConfigError(msg)
        return value

    @property
    def term(self) -> CursorTerm:
        """What a source is asked about."""
        return CursorTerm(column=self.time_column, is_time=self.time_zone is not None)


def as_mode(value: Any) -> Any:
    """Turn the name of a mode into the mode with its default settings; anything else is left as it is."""
    return {"kind": value} if isinstance(value, str) else value


_Settled = Annotated[Full | Chunked | Incremental | TimeWindow, Field(discriminator="kind")]
Mode = Annotated[_Settled, BeforeValidator(as_mode, json_schema_input_type=Literal["full", "chunked"] | _Settled)]
"""A mode with its settings; its name will do where it needs none."""
