"""Arrow arrays as numpy arrays and back, by their buffers.

`to_numpy`, `pa.array` and `pa.scalar` make pyarrow import pandas where it is installed: half a second and forty
megabytes for a process that never sees a DataFrame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

__all__ = ["int32_array", "offsets_of", "text_array", "text_scalar", "valid_of", "values_of"]


def values_of(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of a fixed-width array; anything at all behind a NULL."""
    return np.frombuffer(array.buffers()[1] or b"", dtype)[array.offset : array.offset + len(array)]


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Where each value of a text, binary, list or map begins, and where the last one ends."""
    kind = array.type
    is_large = pt.is_large_string(kind) or pt.is_large_binary(kind) or pt.is_large_list(kind)
    if len(array) == 0:
        return np.zeros(1, np.int64)
    found = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)
    return found[array.offset : array.offset + len(array) + 1].astype(np.int64)


def valid_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are not NULL."""
    bits = array.buffers()[0]
    if array.null_count == 0 or bits is None:
        return np.full(len(array), array.null_count == 0)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return unpacked[array.offset : array.offset + len(array)].astype(np.bool_)


def int32_array(values: npt.NDArray[np.int64]) -> pa.Array:
    """Integers that fit 32 bits."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values.astype(np.int32))])


def text_array(data: Any, offsets: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Texts that lie one after the other in `data`, which must be UTF-8."""
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.large_string(), len(valid), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def text_scalar(value: str) -> pa.Scalar:
    """A text."""
    data = value.encode()
    return text_array(data, np.array([0, len(data)], np.int64), np.ones(1, np.bool_))[0]
