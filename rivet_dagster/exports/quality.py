"""What the rows of a run have to be like before anything of it is published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, WrapValidator, field_validator, model_validator

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.fields import Fields, in_one_order
from rivet_dagster.exports.sizes import parse_size

__all__ = ["Quality", "Value"]


def _as_written(value: Any, rest: Callable[[Any], Any]) -> Any:
    # Whether a text is a date is for the column to say, not for JSON.
    return value if isinstance(value, str) else rest(value)


Value = Annotated[bool | int | float | Decimal | datetime | date | time | str, WrapValidator(_as_written)]
"""A value of a column, as Python, YAML or JSON has it."""

_GATES = ("row_count_min", "row_count_max", "null_ratio_max", "unique", "accepted_values", "min", "max")


class Quality(Fields):
    """Gates: all rows of a run are judged as they pass, and unless all gates pass nothing is published.

    A run is one delivery: of an export with partitions each of them is judged on its own, and of an incremental one the
    rows that the run adds. Values are compared in the column's own type. NULL is judged by `null_ratio_max` alone; NaN
    is neither NULL nor within any bounds.

    `unique` compares 128 bits for each key (two keys that are equal are always found; that two different ones pass for
    equal is possible with a probability below 10⁻²⁰ for a billion keys, and would refuse rows, never let any through).
    A row with NULL in one of the columns has no key. -0.0 is 0.0, and NaN is equal to NaN.

    Raises:
        ConfigError: a gate cannot be or is unknown; names the field.
        pydantic.ValidationError: a setting has the wrong type; names the field.
    """

    row_count_min: int | None = Field(default=None, ge=0, description="How many rows a run has at least.")
    row_count_max: int | None = Field(default=None, ge=0, description="How many rows a run has at most.")
    null_ratio_max: Mapping[str, float] = Field(
        default_factory=dict,
        description='By column, which part of the rows may be NULL there, from 0 to 1, e.g. {"email": 0.05}.',
    )
    unique: str | tuple[str | tuple[str, ...], ...] = Field(
        default=(),
        description='Columns whose values differ in every row, e.g. ["id", ["order_id", "line"]]: each on its own, or '
        "those of a list together.",
    )
    accepted_values: Mapping[str, tuple[Value, ...]] = Field(
        default_factory=dict, description='By column, the only values that may be there, e.g. {"status": ["a", "b"]}.'
    )
    min: Mapping[str, Value] = Field(
        default_factory=dict, description='By column, the least value that may be there, e.g. {"price": 0}.'
    )
    max: Mapping[str, Value] = Field(
        default_factory=dict, description='By column, the greatest value that may be there, e.g. {"age": 150}.'
    )
    unique_memory: str | int | None = Field(
        default="64MB",
        description="Memory that `unique` may take, for each run and all its columns together: 32 bytes for each row "
        'and gate. A run that needs more is refused. "64MB" holds 2,000,000 keys; null is no limit.',
    )

    @field_validator("null_ratio_max", mode="before")
    @classmethod
    def _ratios(cls, value: Any) -> Any:
        for column, ratio in value.items() if isinstance(value, Mapping) else ():
            number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
            if not (number and 0 <= ratio <= 1):
                msg = f"quality.null_ratio_max.{column}: expected a number from 0 to 1, found {ratio!r}"
                raise ConfigError(msg)
        return value

    @field_validator("unique", "accepted_values", mode="before")
    @classmethod
    def _as_lists(cls, value: Any) -> Any:
        return in_one_order(value)

    @field_validator("unique", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        for entry in value if isinstance(value, list | tuple) else ():
            names = [entry] if isinstance(entry, str) else entry
            named = isinstance(names, list | tuple) and all(isinstance(c, str) for c in names)
            if not named or not names or len(set(names)) < len(names):
                msg = f'quality.unique: expected a column such as "id", or a list of different ones; found {entry!r}'
                raise ConfigError(msg)
        return value

    @field_validator("accepted_values")
    @classmethod
    def _some(cls, value: Mapping[str, tuple[Value, ...]]) -> Mapping[str, tuple[Value, ...]]:
        for column, accepted in value.items():
            if not accepted:
                msg = f"quality.accepted_values.{column}: expected at least one value, found none; leave the column out"
                raise ConfigError(msg)
        return value

    @field_validator("unique_memory", mode="before")
    @classmethod
    def _is_a_size(cls, value: Any) -> Any:
        if value is not None:
            parse_size(value, field="quality.unique_memory")
        return value

    @model_validator(mode="after")
    def _judges(self) -> Quality:
        if not any(getattr(self, name) not in (None, {}, ()) for name in _GATES):
            msg = f"quality: expected at least one of {', '.join(_GATES)}, found none; set one, or leave quality out"
            raise ConfigError(msg)
        least, most = self.row_count_min, self.row_count_max
        if least is not None and most is not None and least > most:
            msg = f"quality: expected row_count_min to be at most row_count_max, found {least} and {most}"
            raise ConfigError(msg)
        return self

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each entry of `unique`."""
        entries = (self.unique,) if isinstance(self.unique, str) else self.unique
        return tuple((entry,) if isinstance(entry, str) else entry for entry in entries)

    @property
    def memory(self) -> int | None:
        """`unique_memory` in bytes; `None` for no limit."""
        return None if self.unique_memory is None else parse_size(self.unique_memory, field="quality.unique_memory")
