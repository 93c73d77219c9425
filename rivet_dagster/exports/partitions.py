"""Which rows are of a partition: bounds over a column, compared by the database in the column's own type. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any
from uuid import UUID

from pydantic import Field, model_validator

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.fields import Fields
from rivet_dagster.exports.moments import Unit, Zone, check_clock, value_at
from rivet_dagster.windows import Cursor, CursorKind, CursorTerm, Window

__all__ = ["Partition", "PartitionBy", "partition_window"]


class PartitionBy(Fields):
    """The column, or expression, that says which partition a row is of.

    Partitions of time have the rows from their start to their end, which is left out; any other partition has the rows
    that are equal to its key. Rows without a value are of no partition.

    Raises:
        ConfigError: not exactly one of `column` and `expression` is given, or a setting cannot be; names the field.
        pydantic.ValidationError: a setting has the wrong type; names the field.
    """

    column: str | None = Field(default=None, description='The column, e.g. "created_at", as the database names it.')
    expression: str | None = Field(
        default=None, description='Or an SQL expression over the columns, e.g. "country::text".'
    )
    time_zone: Zone | None = Field(
        default=None,
        description="Whose clock a timestamp without a zone is by, for partitions of time. Of dates, whose day it is; "
        "that of the partitions without it.",
    )
    unit: Unit | None = Field(
        default=None, description="Of an integer that counts time since 1970-01-01 00:00 UTC, for partitions of time."
    )

    @model_validator(mode="after")
    def _one_term(self) -> PartitionBy:
        given = [name for name in ("column", "expression") if (getattr(self, name) or "").strip()]
        if len(given) != 1:
            found = "both" if given else "neither"
            msg = f"partition_by: expected exactly one of column and expression, found {found}"
            raise ConfigError(msg)
        return self

    @property
    def term(self) -> CursorTerm:
        """What a source is asked about."""
        return CursorTerm.of(self.column, self.expression, is_time=self.time_zone is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of an export.

    Attributes:
        key: its name.
        start: of a partition of time, in the zone of the partitions; `None` for any other.
        end: likewise, the first moment that is not of it.
    """

    key: str
    start: datetime | None = None
    end: datetime | None = None


def partition_window(by: PartitionBy, partition: Partition, cursor: Cursor, *, subject: str) -> Window:
    """The rows of a partition.

    Raises:
        ConfigError: the column's values cannot be divided like this; says why, and what to set instead.
    """
    what = f"{subject}: partition {partition.key!r}: {by.term.shown} ({cursor.type_name})"
    if partition.start is None or partition.end is None:
        value = _value_of(partition.key, cursor.kind, what)
        return Window(cursor=cursor, low=value, high=value, high_open=False)
    check_clock(cursor, time_zone=by.time_zone, unit=by.unit, what=what)
    low, high = (_bound(moment, by, cursor, what) for moment in (partition.start, partition.end))
    return Window(cursor=cursor, low=low, high=high, high_open=True)


def _bound(moment: datetime, by: PartitionBy, cursor: Cursor, what: str) -> Any:
    zone = moment.tzinfo or timezone.utc
    value, exact = value_at(moment, cursor, time_zone=by.time_zone, unit=by.unit, day_zone=zone)
    if not exact:
        raise ConfigError(
            f"{what}: a date is of a whole day in {by.time_zone or zone}, and {moment.isoformat()} is not where one "
            "begins; choose partitions of whole days of that zone, or a column with the time of day"
        )
    return value


def _value_of(key: str, kind: CursorKind, what: str) -> Any:
    try:
        value = _READ[kind](key)
    except KeyError:
        msg = f"{what}: a timestamp is not equal to a name; choose partitions of time, another column or an expression"
        raise ConfigError(msg) from None
    except ValueError:
        value = None
    # Two keys for one value would be two deliveries of the same rows.
    if value is None or str(value) != key:
        example = {"integer": "7", "date": "2026-01-31", "uuid": "0f8fad5b-d9cb-469f-a165-70867728950e"}.get(kind)
        raise ConfigError(
            f"{what}: expected a partition key that is a value of the column, written like {example}; found {key!r}"
        )
    return value


def _uuid(key: str) -> str:
    return str(UUID(key))


_READ: dict[CursorKind, Callable[[str], Any]] = {
    "integer": int,
    "date": date.fromisoformat,
    "text": str,
    "uuid": _uuid,
}
