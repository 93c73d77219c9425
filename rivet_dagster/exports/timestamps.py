"""Timestamps as ISO 8601 text: many at once, which is several times quicker than Arrow's own cast."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.exports.buffers import int32_array, text_array, valid_of, values_of

__all__ = ["iso_text"]

_DAY_SECONDS = 86_400
# How many groups of three digits follow the dot.
_THREES = {"s": 0, "ms": 1, "us": 2, "ns": 3}
# Years of four digits. Outside of them the text has another length, and is rare.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def iso_text(array: pa.Array) -> pa.Array:
    """Text such as `2024-02-29T12:00:00.000001`, with as many digits as the unit has.

    Instants are in UTC and end in `Z`; naive timestamps have no zone. NULL stays NULL.
    """
    unit, threes = array.type.unit, _THREES[array.type.unit]
    is_instant = array.type.tz is not None
    ticks: npt.NDArray[np.int64] = values_of(array, np.int64)
    per_second = 1000**threes
    seconds = ticks // per_second
    days = seconds // _DAY_SECONDS
    if len(days) and (days.min() < _FIRST_DAY or days.max() > _LAST_DAY):
        text = array.cast(pa.timestamp(unit, "UTC" if is_instant else None)).cast(pa.large_string())
        return pc.replace_substring(text, " ", "T", max_replacements=1)

    digits = [(f"three{i}", "S3") for i in range(threes)]
    dot, zone = [("dot", "S1")][: min(threes, 1)], [("zone", "S1")][: int(is_instant)]
    out = np.empty(len(ticks), dtype=[("date", "S10"), ("T", "S1"), ("time", "S8"), *dot, *digits, *zone])
    distinct = int32_array(days).dictionary_encode()
    out["date"] = _fixed(distinct.dictionary.view(pa.date32()), 10)[values_of(distinct.indices, np.int32)]
    out["T"] = b"T"
    out["time"] = _times()[seconds - days * _DAY_SECONDS]
    rest = ticks - seconds * per_second
    for name, _ in digits:
        per_second //= 1000
        three = rest // per_second
        out[name] = _three_digits()[three]
        rest -= three * per_second
    for name, character in (("dot", b"."), ("zone", b"Z")):
        if name in (out.dtype.names or ()):
            out[name] = character
    offsets = np.arange(len(out) + 1, dtype=np.int64) * out.dtype.itemsize
    return text_array(out, offsets, valid_of(array))


def _fixed(values: pa.Array, width: int) -> npt.NDArray[np.bytes_]:
    return np.array(values.cast(pa.string()).to_pylist(), dtype=f"S{width}")


@cache
def _times() -> npt.NDArray[np.bytes_]:
    return _fixed(int32_array(np.arange(_DAY_SECONDS)).view(pa.time32("s")), 8)


@cache
def _three_digits() -> npt.NDArray[np.bytes_]:
    return np.array([f"{i:03}" for i in range(1000)], dtype="S3")
