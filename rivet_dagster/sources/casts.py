"""Type names that a cast may use where the driver's values are converted here and not by the database."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import ConfigError
from rivet_dagster.sources.description import decimal_type

__all__ = ["cast_type", "number_text", "text_as"]

_NAMES = {
    r"text|char|varchar|string|longtext": pa.string(),
    r"bigint|int|integer|signed( integer)?": pa.int64(),
    r"bigint unsigned|unsigned( integer)?": pa.uint64(),
    r"double( precision)?|float8": pa.float64(),
    r"bool|boolean": pa.bool_(),
    r"date": pa.date32(),
    r"time( ?\([0-6]\))?": pa.time64("us"),
    r"(datetime|timestamp)( ?\([0-6]\))?": pa.timestamp("us"),
    r"timestamptz|timestamp with time zone": pa.timestamp("us", tz="UTC"),
    r"binary|varbinary|blob|longblob|bytea": pa.binary(),
}


def cast_type(column: str, cast: str) -> pa.DataType:
    """What a cast to a named type makes.

    Raises:
        ConfigError: there is no such cast; names those that are.
    """
    name = " ".join(cast.lower().split())
    found = next((arrow for pattern, arrow in _NAMES.items() if re.fullmatch(pattern, name)), None)
    if match := re.fullmatch(r"(?:decimal|numeric) ?\( ?(\d+) ?(?:, ?(\d+) ?)?\)", name):
        found = decimal_type(int(match.group(1)), int(match.group(2) or 0))
    if found is None:
        raise ConfigError(
            f"column {column!r}: cast to {cast!r}: expected text, bigint, bigint unsigned, double, decimal(p, s), "
            "boolean, date, time, datetime, timestamptz or binary"
        )
    return found


def number_text(value: str) -> str:
    """A text that is to be a number, if databases would take it for one: Python also takes `1_000`, and other digits.

    Raises:
        ValueError: it is none.
    """
    if "_" in value or not value.isascii():
        raise ValueError
    return value


def text_as(text: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Text as another type, exactly.

    Raises:
        pa.ArrowInvalid: a value is none of the type.
    """
    if pa.types.is_time(wanted):
        # Arrow reads no times from text, but moments.
        moments = pc.binary_join_element_wise(pa.scalar("1970-01-01"), text, pa.scalar(" "))
        return moments.cast(pa.timestamp("us")).cast(wanted)
    if pa.types.is_integer(wanted) and pc.any(pc.match_substring_regex(text, "^-?0[xX]")).as_py():
        msg = "hexadecimal digits are text"
        raise pa.ArrowInvalid(msg)
    result = text.cast(wanted)
    if pa.types.is_floating(wanted):
        endless = pc.and_(pc.is_inf(result), pc.match_substring_regex(text, "[0-9]"))
        if pc.any(endless).as_py():
            msg = "a number is too large"
            raise pa.ArrowInvalid(msg)
    return result
