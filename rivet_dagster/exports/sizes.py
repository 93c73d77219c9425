"""Sizes and durations as people write them. Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from rivet_dagster.errors import ConfigError

__all__ = ["parse_duration", "parse_size"]

_QUANTITY = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*", re.ASCII)
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
_MICROSECONDS = {
    unit: microseconds
    for units, microseconds in (
        (("ms", "millisecond", "milliseconds"), 1_000),
        (("s", "sec", "second", "seconds"), 1_000_000),
        (("m", "min", "minute", "minutes"), 60_000_000),
        (("h", "hour", "hours"), 3_600_000_000),
        (("d", "day", "days"), 86_400_000_000),
    )
    for unit in units
}
# What a timedelta holds, and more than anyone means.
_LONGEST_DAYS = 36_500


def parse_size(value: str | int, *, field: str) -> int:
    """Read a number of bytes: "256MB" is 256·10⁶, "256MiB" is 2²⁸, "1.5 GB" and a plain 1048576 are read as well.

    Raises:
        ConfigError: it is no size, or less than one byte; names `field`.
    """
    found = _quantity(value, _BYTES) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        found = Decimal(value)
    if found is None or found < 1:
        msg = f'{field}: expected a size of at least one byte, such as "256MB", "1.5 GiB" or 1048576; found {value!r}'
        raise ConfigError(msg)
    return int(found)


def parse_duration(value: str | timedelta, *, field: str) -> timedelta:
    """Read a length of time: "1h", "90s", "5 minutes", "1.5 days"; a unit is required.

    Raises:
        ConfigError: it is no length of time, not positive, or longer than a century; names `field`.
    """
    found: timedelta | None = None
    if isinstance(value, timedelta):
        found = value
    elif isinstance(value, str):
        microseconds = _quantity(value, _MICROSECONDS)
        # Judged before it becomes a timedelta, which overflows.
        if microseconds is not None and microseconds < 10**18:
            found = timedelta(microseconds=int(microseconds))
    if found is None or not timedelta(0) < found <= timedelta(days=_LONGEST_DAYS):
        msg = f'{field}: expected a length of time with a unit, such as "1h", "90s" or "5 minutes"; found {value!r}'
        raise ConfigError(msg)
    return found


def _quantity(text: str, units: dict[str, int]) -> Decimal | None:
    matched = _QUANTITY.fullmatch(text)
    unit = None if matched is None else units.get(matched["unit"].lower())
    return None if matched is None or unit is None else Decimal(matched["number"]) * unit
