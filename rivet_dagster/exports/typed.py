"""Values that somebody wrote, as values of an Arrow type: what is none of it is refused, never rounded."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.buffers import text_array
from rivet_dagster.exports.quality import Value

__all__ = ["typed_bound", "typed_set", "without_sign_of_zero"]


def typed_bound(value: Value, kind: pa.DataType, *, what: str) -> pa.Scalar:
    """A value that others are compared with.

    Raises:
        ConfigError: it is no value of the type, or such values have no order.
    """
    found = _typed(value, kind, what)[0]
    if pt.is_floating(kind) and pc.is_nan(found).as_py():
        raise ConfigError(f"{what}: expected a bound, found NaN, which nothing is less or greater than")
    return found


def typed_set(values: Iterable[Value], kind: pa.DataType, *, what: str) -> pa.Array:
    """Values that others are looked for in.

    Raises:
        ConfigError: one is no value of the type.
    """
    return without_sign_of_zero(pa.concat_arrays([_typed(value, kind, what) for value in values]))


def without_sign_of_zero(array: pa.Array) -> pa.Array:
    """-0.0 is 0.0, as databases have it and Arrow's sets do not."""
    return pc.add(array, _as_array("0", array.type)[0]) if pt.is_floating(array.type) else array


def _typed(value: Value, kind: pa.DataType, what: str) -> pa.Array:
    """An array of one value."""
    if isinstance(kind, pa.BaseExtensionType) or pt.is_nested(kind) or _is_binary(kind):
        msg = f"{what}: expected a column of single values that can be written, found {kind}; cast it, or leave it out"
        raise ConfigError(msg)
    fits = isinstance(value, str) if _is_text(kind) else pt.is_boolean(kind) or not isinstance(value, bool)
    try:
        if fits:
            found = _time(value, kind) if pt.is_time(kind) else _as_array(_text(value, kind), kind)
            # Before the first row it is known, too, whether such values can be compared at all.
            pc.less(found, found)
            return found
    except (pa.ArrowException, ValueError, OverflowError):
        pass
    raise ConfigError(f"{what}: expected a value of the column's type {kind}, found {value!r}; {_remedy(kind)}")


def _as_array(text: str, kind: pa.DataType) -> pa.Array:
    data = text.encode()
    return text_array(data, np.array([0, len(data)], np.int64), np.ones(1, np.bool_)).cast(kind)


def _text(value: Value, kind: pa.DataType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal) and pt.is_integer(kind) and value == int(value):
        return str(int(value))
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _time(value: Any, kind: pa.DataType) -> pa.Array:
    # Arrow reads no times from text.
    moment = value if isinstance(value, time) else time.fromisoformat(str(value))
    micros = ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1_000_000 + moment.microsecond
    return _as_array(str(micros), pa.int64()).cast(pa.time64("us")).cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _remedy(kind: pa.DataType) -> str:
    if pt.is_timestamp(kind):
        return "write it like 2026-01-31T12:00:00" + ("Z, with a time zone" if kind.tz else ", without a time zone")
    return "put it in quotes" if _is_text(kind) else "write one that it can hold exactly"
