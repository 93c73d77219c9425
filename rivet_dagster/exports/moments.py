"""Moments as values of a column: what a zone's clock shows, days, and counts of time. Pure."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator

from rivet_dagster.errors import ConfigError
from rivet_dagster.windows import Cursor

__all__ = [
    "EPOCH",
    "LAST_ZONE",
    "UNITS",
    "Unit",
    "Zone",
    "check_clock",
    "check_has_zone",
    "check_settings",
    "count_of",
    "day_of",
    "value_at",
    "wall_clock",
]

Unit = Literal["s", "ms", "us"]
"""What an integer counts, since 1970-01-01 00:00 UTC."""

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
UNITS = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}
# Where a day ends last: by then it is over everywhere.
LAST_ZONE = timezone(-timedelta(hours=12))
_TICK = timedelta(microseconds=1)


def _known(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        msg = f'time_zone: expected the name of a time zone, such as "UTC" or "Europe/Berlin"; found {name!r}'
        raise ConfigError(msg) from None
    return name


Zone = Annotated[str, AfterValidator(_known)]
"""The name of a time zone; a `ConfigError` where there is no such zone."""


def check_settings(cursor: Cursor, *, time_zone: str | None, unit: Unit | None, what: str) -> None:
    """Refuse settings that do not go with a column.

    Raises:
        ConfigError: names the setting.
    """
    if unit is not None and cursor.kind != "integer":
        raise ConfigError(f"{what}: unit={unit!r} is of an integer that counts time; leave it out")
    if time_zone is not None and cursor.kind not in {"naive", "date"}:
        raise ConfigError(f"{what}: time_zone is of timestamps without a zone, and dates; leave it out")


def check_has_zone(cursor: Cursor, *, time_zone: str | None, what: str) -> None:
    """Refuse a timestamp that nobody knows the zone of.

    Raises:
        ConfigError: says what to set.
    """
    if cursor.kind == "naive" and time_zone is None:
        raise ConfigError(
            f'{what}: a timestamp without a zone needs time_zone="UTC", or the name of the zone whose clock wrote it'
        )


def check_clock(cursor: Cursor, *, time_zone: str | None, unit: Unit | None, what: str) -> None:
    """Refuse a column that holds no times, and settings that do not go with the one it is.

    Raises:
        ConfigError: says why, and what to set instead.
    """
    if unit is None and cursor.kind == "integer":
        raise ConfigError(
            f'{what}: a whole number is no time; set unit="s", "ms" or "us" if it counts time since 1970, or choose '
            "another column"
        )
    check_settings(cursor, time_zone=time_zone, unit=unit, what=what)
    check_has_zone(cursor, time_zone=time_zone, what=what)
    if cursor.kind in {"text", "uuid"}:
        raise ConfigError(
            f"{what}: a text or UUID is no time; choose a timestamp, a date or a number that counts time; for ISO "
            "texts in SQLite, set time_zone"
        )


def wall_clock(moment: datetime, zone: tzinfo) -> datetime:
    """The earliest time that a zone's clock shows from a moment on, without the zone.

    That is the time it shows then, unless the clock will be set back behind it: rows that are stamped when an hour
    comes again must not be older than a bound that has passed.
    """
    local = moment.astimezone(zone)
    again = local.replace(fold=1)
    before, after = moment.astimezone(timezone.utc), again.astimezone(timezone.utc)
    if local.fold == 1 or after <= before:
        return local.replace(tzinfo=None)
    while after - before > _TICK:
        between = before + (after - before) / 2
        if between.astimezone(zone).utcoffset() == again.utcoffset():
            after = between
        else:
            before = between
    return after.astimezone(zone).replace(tzinfo=None, fold=0)


def day_of(moment: datetime, zone: tzinfo) -> tuple[date, bool]:
    """The day that a moment is of in a zone, and whether it is the first of that day."""
    day = moment.astimezone(zone).date()
    return day, (moment.astimezone(timezone.utc) - _TICK).astimezone(zone).date() < day


def value_at(
    moment: datetime, cursor: Cursor, *, time_zone: str | None, unit: Unit | None, day_zone: tzinfo
) -> tuple[Any, bool]:
    """A moment as a value of a column that `check_clock` lets pass, and whether it is that exactly.

    Of dates it is so only where a day begins, of `time_zone`, or of `day_zone` without one.
    """
    if unit is not None:
        return count_of(moment, unit), True
    if cursor.kind == "instant":
        return moment.astimezone(timezone.utc), True
    if cursor.kind == "naive":
        return wall_clock(moment, ZoneInfo(str(time_zone))), True
    return day_of(moment, ZoneInfo(time_zone) if time_zone is not None else day_zone)


def count_of(moment: datetime, unit: Unit) -> int:
    """The least count of time that is not before a moment."""
    return -((EPOCH - moment) // UNITS[unit])
