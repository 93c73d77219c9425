"""Rows of MySQL's binary protocol, decoded a column at a time for many rows at once. Pure, but for reading bytes.

A row is a packet: a zero byte, a bit per column for NULL, then the values that are not NULL, one after the other. So a
column's place in each row is known once the columns before it are read, and one operation reads it in all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Block", "Fields", "WireError", "decode", "rows_of"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_HEADER = 4
_FULL_PACKET = 0xFFFFFF
_ROW, _END, _ERROR = 0x00, 0xFE, 0xFF
_END_LONGEST = 8
_READ_BYTES = 2**18
# Behind a block, so that a NULL in its last row may be "read" like any value, and then be masked.
_PADDING = 16
# A longer average costs more as an index per byte than as a slice per value.
_SHORT_BYTES = 64
# The first byte of a length says how many bytes of it follow.
_LONG_LENGTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_NO_LENGTH = 0xFB


class WireError(Exception):
    """The bytes are not what the protocol says.

    Attributes:
        packet: the server's error, where it sent one in place of a row.
    """

    def __init__(self, message: str, *, packet: bytes = b"") -> None:
        super().__init__(message)
        self.packet = packet


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole rows.

    Attributes:
        data: their bytes.
        starts: where each row begins in them, behind its header.
        stops: where it ends.
    """

    data: bytes
    starts: Sequence[int]
    stops: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """One column of dates or times as the protocol has them.

    Attributes:
        values: the bytes behind the length, one line for each row; zeros where the server sent fewer.
        null: which rows are NULL.
    """

    values: Bytes
    null: Flags


def rows_of(
    read: Callable[[int], bytes], *, sequence: int, most_rows: int, enough_bytes: int
) -> Generator[Block, None, None]:
    """Yield blocks until the server says that the result has ended.

    Args:
        read: waits for one to so many bytes; none mean that the connection is lost.
        sequence: the number of the first packet.
        most_rows: no block has more rows.
        enough_bytes: a block of so many bytes is not waited on to grow.

    Raises:
        WireError: the server sent an error, or bytes that are no rows.
        EOFError: the connection ended before the result.
    """
    held = bytearray()
    at, starts, stops = 0, list[int](), list[int]()
    while True:
        at, sequence, missing = _ordinary(held, at, sequence, starts=starts, stops=stops, most_rows=most_rows)
        if missing and at < enough_bytes:
            _fill(read, held, missing)
        elif starts:
            yield Block(data=bytes(held[:at]), starts=starts, stops=stops)
            del held[:at]
            at, starts, stops = 0, [], []
        else:
            body, sequence = _packet(read, held, sequence)
            if body[0] == _END and len(body) <= _END_LONGEST:
                return
            if body[0] != _ROW:
                raise WireError("a row was expected", packet=body if body[0] == _ERROR else b"")
            yield Block(data=body, starts=[0], stops=[len(body)])


def _ordinary(
    held: bytearray, at: int, sequence: int, *, starts: list[int], stops: list[int], most_rows: int
) -> tuple[int, int, int]:
    """Find the rows of one packet each, from `at` to the first other packet.

    Returns:
        Where it stopped, the next packet's number, and how many bytes are missing to go on.
    """
    filled = len(held)
    while len(starts) < most_rows:
        start = at + _HEADER
        if start > filled:
            return at, sequence, start - filled
        size = held[at] | held[at + 1] << 8 | held[at + 2] << 16
        stop = start + size
        if stop > filled:
            return at, sequence, stop - filled
        if held[at + 3] != sequence or not 0 < size < _FULL_PACKET or held[start] != _ROW:
            return at, sequence, 0
        sequence = (sequence + 1) & 0xFF
        starts.append(start)
        stops.append(stop)
        at = stop
    return at, sequence, 0


def _packet(read: Callable[[int], bytes], held: bytearray, sequence: int) -> tuple[bytes, int]:
    """Take a packet, with those that continue it, from the front; and the next one's number."""
    pieces: list[bytes] = []
    size = _FULL_PACKET
    while size == _FULL_PACKET:
        _fill(read, held, _HEADER - len(held))
        size = held[0] | held[1] << 8 | held[2] << 16
        number = held[3]
        _fill(read, held, _HEADER + size - len(held))
        pieces.append(bytes(held[_HEADER : _HEADER + size]))
        del held[: _HEADER + size]
        if number != sequence:
            if pieces[-1][:1] == bytes([_ERROR]):
                # MariaDB's last words, when it shuts down or is told to end the connection, are numbered zero.
                raise WireError("the server sent an error", packet=pieces[-1])
            raise WireError(f"packet {sequence} was expected, {number} came")
        sequence = (sequence + 1) & 0xFF
    body = b"".join(pieces)
    if not body:
        raise WireError("an empty packet came")
    return body, sequence


def _fill(read: Callable[[int], bytes], held: bytearray, missing: int) -> None:
    while missing > 0:
        data = read(max(missing, _READ_BYTES))
        if not data:
            raise EOFError
        held += data
        missing -= len(data)


def decode(block: Block, shapes: Sequence[np.dtype[Any] | int | None]) -> list[pa.Array | Fields]:
    """Columns of a block of rows.

    Args:
        block: whole rows.
        shapes: of each column: a numpy type for a number, how many bytes there are at most of a date or time, or
            `None` for bytes behind their length.

    Raises:
        WireError: the rows do not have these shapes.
    """
    buffer = np.frombuffer(block.data + bytes(_PADDING), np.uint8)
    starts, stops = np.array(block.starts, np.int64), np.array(block.stops, np.int64)
    # Two bits of the bitmap are not used.
    at = starts + 1 + (len(shapes) + 7 + 2) // 8
    columns: list[pa.Array | Fields] = []
    try:
        for bit, shape in enumerate(shapes, 2):
            null = (buffer[starts + 1 + (bit >> 3)] >> (bit & 7) & 1).astype(np.bool_)
            if shape is None:
                first, sizes = _lengths(buffer, at, null)
                columns.append(_binary(block.data, buffer, first, sizes, null))
                at = first + sizes
            elif isinstance(shape, int):
                sizes = np.where(null, 0, buffer[at].astype(np.int64))
                columns.append(_fields(buffer, at + 1, sizes, null, shape))
                at += np.where(null, 0, sizes + 1)
            else:
                raw = np.ascontiguousarray(buffer[at[:, None] + np.arange(shape.itemsize)])
                columns.append(pa.array(raw.view(shape).ravel(), mask=null))
                at += np.where(null, 0, shape.itemsize)
    except IndexError:
        raise WireError("a row is shorter than its columns") from None
    if not np.array_equal(at, stops):
        raise WireError("a row is not as long as its columns")
    return columns


def _lengths(buffer: Bytes, at: Ints, null: Flags) -> tuple[Ints, Ints]:
    """Where values begin that follow their length, and the lengths."""
    marks = np.where(null, 0, buffer[at].astype(np.int64))
    begin, sizes = at + ~null, marks.copy()
    for mark in np.unique(marks[marks >= _NO_LENGTH]).tolist():
        if mark not in _LONG_LENGTHS:
            raise WireError("a value has no length")
        width, rows = _LONG_LENGTHS[mark], np.flatnonzero(marks == mark)
        raw = np.zeros((len(rows), 8), np.uint8)
        raw[:, :width] = buffer[begin[rows][:, None] + np.arange(width)]
        sizes[rows] = raw.view("<i8").ravel()
        begin[rows] += width
    if (sizes < 0).any() or (begin + sizes > len(buffer) - _PADDING).any():
        raise WireError("a value is longer than its row")
    return begin, sizes


def _binary(data: bytes, buffer: Bytes, begin: Ints, sizes: Ints, null: Flags) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    total = int(offsets[-1])
    if total > _SHORT_BYTES * len(sizes):
        body = b"".join(data[start : start + size] for start, size in zip(begin.tolist(), sizes.tolist(), strict=True))
    else:
        body = buffer[np.repeat(begin - offsets[:-1], sizes) + np.arange(total)].tobytes()
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(sizes), [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(body)]
    )


def _fields(buffer: Bytes, begin: Ints, sizes: Ints, null: Flags, width: int) -> Fields:
    if (sizes > width).any():
        raise WireError("a date or time is longer than any can be")
    values = np.zeros((len(sizes), width), np.uint8)
    for size in np.unique(sizes):
        rows = sizes == size
        values[rows, :size] = buffer[begin[rows][:, None] + np.arange(size)]
    return Fields(values=values, null=null)
