"""Rows become CSV after RFC 4180."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from rivet_dagster.exports.buffers import offsets_of, text_array, text_scalar, valid_of
from rivet_dagster.exports.formats import Csv
from rivet_dagster.exports.sink import Sink
from rivet_dagster.exports.timestamps import iso_text

__all__ = ["CsvEncoding", "CsvPart", "writable_as_text"]

_END = "\r\n"
_GZIP_LEVEL = 6
# A gzip header of zlib's own, whose modification time is 0.
_GZIP_WINDOW = 31
_UUID_HYPHENS = (8, 12, 16, 20, 32)


class CsvEncoding:
    """How every part of one export is encoded."""

    def __init__(self, first: pa.Table, settings: Csv) -> None:
        """Nothing depends on the rows."""
        self.settings = settings
        self.header = (",".join(_quoted(name) for name in first.column_names) + _END).encode()

    def begin(self, sink: Sink) -> CsvPart:
        """Begin a part with its header."""
        return CsvPart(sink, self)


class CsvPart:
    """One part being encoded."""

    def __init__(self, sink: Sink, encoding: CsvEncoding) -> None:
        self._out = _codec(sink, encoding.settings)
        self._out.write(encoding.header)

    def write(self, rows: pa.Table) -> None:
        """Append rows; all of their bytes have reached the part afterwards."""
        self._out.write(_records(rows))
        self._out.flush()

    def finish(self) -> None:
        """Write what ends the compressed stream."""
        self._out.close()


def writable_as_text(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a CSV field."""
    return _text_of(kind) is not None


class _Out(Protocol):
    def write(self, data: Any, /) -> Any: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class _Gzip:
    def __init__(self, sink: Sink, level: int) -> None:
        self._sink = sink
        self._zlib = zlib.compressobj(level, wbits=_GZIP_WINDOW)

    def write(self, data: Any, /) -> None:
        self._sink.write(self._zlib.compress(data))

    def flush(self) -> None:
        self._sink.write(self._zlib.flush(zlib.Z_SYNC_FLUSH))

    def close(self) -> None:
        self._sink.write(self._zlib.flush(zlib.Z_FINISH))


def _codec(sink: Sink, settings: Csv) -> _Out:
    match settings.compression:
        case "none":
            return sink
        case "gzip":
            return _Gzip(sink, _GZIP_LEVEL if settings.level is None else settings.level)
        case "zstd":
            # One frame from end to end: many readers stop after the first.
            stream: _Out = pa.CompressedOutputStream(sink, "zstd")
            return stream


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _records(rows: pa.Table) -> memoryview:
    fields = []
    for column in rows.columns:
        array = column.combine_chunks()
        text_of = _text_of(array.type)
        if text_of is None:
            msg = f"no CSV text for {array.type}"
            raise TypeError(msg)
        fields.append(text_of(array))
    lines = _join(_join(*fields, between=",", null_handling="replace"), _END)
    # The values of a fresh array lie one after the other: this is the text.
    return memoryview(lines.buffers()[2])


def _text_of(kind: pa.DataType) -> Callable[[Any], pa.Array] | None:
    if isinstance(kind, pa.UuidType):
        return _uuid_text
    if isinstance(kind, pa.JsonType):
        return lambda array: _quote(array.storage)
    if isinstance(kind, pa.BaseExtensionType):
        return None
    for matches, text in _TEXTS:
        if any(m(kind) for m in matches):
            return text
    return None


def _join(*pieces: Any, between: str = "", null_handling: str = "emit_null") -> pa.Array:
    typed = [text_scalar(piece) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*typed, text_scalar(between), null_handling=null_handling, null_replacement="")


def _quote(array: pa.Array) -> pa.Array:
    text = array.cast(pa.large_string())
    return _join('"', pc.replace_substring(text, '"', '""'), '"')


def _plain(array: pa.Array) -> pa.Array:
    return pc.cast(array, pa.large_string())


def _decimal_text(array: pa.Array) -> pa.Array:
    text = _plain(array)
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    kind = array.type
    whole = pa.decimal256(kind.precision, 0) if pt.is_decimal256(kind) else pa.decimal128(kind.precision, 0)
    # The same integers without their scale never show an exponent.
    digits = _plain(pa.Array.from_buffers(whole, len(array), array.buffers(), offset=array.offset))
    if kind.scale <= 0:
        zero = pc.equal(digits, text_scalar("0"))
        return pc.if_else(zero, digits, _join(digits, "0" * -kind.scale))
    sign = pc.if_else(pc.starts_with(digits, "-"), text_scalar("-"), text_scalar(""))
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), kind.scale + 1, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -kind.scale)
    after = pc.utf8_slice_codeunits(digits, -kind.scale)
    return _join(sign, before, ".", after)


def _float_text(array: pa.Array) -> pa.Array:
    # A whole number keeps a fraction, so that a reader which guesses types still sees floats.
    text = pc.replace_substring_regex(_plain(array), r"^(-?\d+)$", r"\1.0")
    return pc.replace_substring(text, "nan", "NaN")


def _hex(array: pa.Array) -> pa.Array:
    # A copy whose values lie one after the other, and nothing else.
    empty = text_scalar("").cast(pa.large_binary())
    array = pc.binary_join_element_wise(array.cast(pa.large_binary()), empty, empty)
    return text_array(binascii.hexlify(array.buffers()[2] or b""), offsets_of(array) * 2, valid_of(array))


def _uuid_text(array: Any) -> pa.Array:
    digits = _hex(array.storage)
    starts = (0, *_UUID_HYPHENS[:-1])
    groups = [pc.utf8_slice_codeunits(digits, a, b) for a, b in zip(starts, _UUID_HYPHENS, strict=True)]
    return _join(*groups, between="-")


_TEXTS: Sequence[tuple[Sequence[Callable[[pa.DataType], bool]], Callable[[Any], pa.Array]]] = (
    ((pt.is_string, pt.is_large_string), _quote),
    ((pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary), lambda array: _quote(_hex(array))),
    ((pt.is_decimal,), _decimal_text),
    ((pt.is_floating,), _float_text),
    ((pt.is_timestamp,), iso_text),
    ((pt.is_boolean, pt.is_integer, pt.is_date, pt.is_time, pt.is_null), _plain),
)
