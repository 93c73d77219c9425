"""From columns of the protocol to arrays of the declared types: exactly, or refused by name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import SourceError
from rivet_dagster.sources.casts import text_as
from rivet_dagster.sources.guards import Misfits, check_temporal, refused
from rivet_dagster.sources.mysql_types import ColumnPlan
from rivet_dagster.sources.mysql_wire import Fields

__all__ = ["column_array"]

_DAY_MICROSECONDS = 86_400_000_000
_MONTHS = 12
_MOST_DECIMALS = 6


def column_array(
    column: str, plan: ColumnPlan, values: pa.Array | Fields, *, decimals: int, misfits: Misfits
) -> pa.Array:
    """Values of one column in many rows, as its declared type.

    Args:
        column: its name.
        plan: what was decided for it.
        values: as `mysql_wire.decode` gives them.
        decimals: how many digits of a second the database shows.
        misfits: what becomes of values that the type cannot hold.

    Raises:
        SourceError: permanent, naming column, value or reason, and remedy.
    """
    wanted = plan.exported_as
    if isinstance(values, Fields):
        is_time = pa.types.is_time(plan.natural)
        if wanted == pa.string():
            return _times_text(values, decimals) if is_time else _moments_text(values, plan.natural, decimals)
        if is_time:
            return _times(column, values, misfits)
        return _moments(column, values, plan.natural, misfits)
    return misfits.converted(column, values, lambda some: _ordinary(column, plan, some))


def _ordinary(column: str, plan: ColumnPlan, values: pa.Array) -> pa.Array:
    wanted = plan.exported_as
    if pa.types.is_decimal(plan.natural) and wanted == pa.string():
        # As it came; Arrow writes small ones with an exponent.
        return _utf8(column, values)
    array = _natural(column, plan, values)
    if array.type == wanted:
        return array
    if plan.digits and wanted == pa.string():
        return pc.utf8_lpad(array.cast(wanted), plan.digits, "0")
    try:
        return _cast(column, array, wanted)
    except pa.ArrowInvalid as error:
        # Arrow's own words repeat the value alone.
        raise refused(column, f"a value is no {wanted}: {error}", remedy="cast the column to another type") from None


def _natural(column: str, plan: ColumnPlan, values: pa.Array) -> pa.Array:
    natural = plan.natural
    if plan.shape is not None or natural == pa.binary():
        return values
    if natural == pa.uint64():
        return _bits(values)
    text = _utf8(column, values)
    if natural == pa.string():
        return text
    try:
        return text.cast(natural)
    except pa.ArrowInvalid:
        raise refused(column, f"a value does not fit {natural}, as which the server described it") from None


def _utf8(column: str, values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise refused(
            column,
            "the database sent text that is not valid UTF-8",
            remedy='to read bytes as they are, set columns={"'
            + column
            + '": rd.cast("binary")}, or leave the cast out',
        ) from None


def _bits(values: pa.Array) -> pa.Array:
    numbers = [None if value is None else int.from_bytes(value, "big") for value in values.to_pylist()]
    return pa.array(numbers, pa.uint64())


def _cast(column: str, array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if wanted == pa.string():
        return _utf8(column, array) if array.type == pa.binary() else array.cast(wanted)
    if wanted == pa.bool_():
        odd = array.filter(pc.invert(pc.is_in(array, value_set=pa.array([0, 1, None], array.type))))
        if len(odd):
            raise refused(column, f"{odd[0].as_py()} is neither 0 nor 1", remedy='cast the column to "bigint"')
        return array.cast(wanted)
    if pa.types.is_decimal(wanted) and pa.types.is_integer(array.type):
        # Arrow wants room for the largest integer there is.
        array = array.cast(pa.string())
    result = text_as(array, wanted) if array.type == pa.string() else array.cast(wanted)
    check_temporal(column, result)
    return result


def _number(values: npt.NDArray[np.uint8], first: int, size: int) -> npt.NDArray[np.int64]:
    raw = np.ascontiguousarray(values[:, first : first + size])
    return raw.view(f"<u{size}").ravel().astype(np.int64)


def _within_day(values: npt.NDArray[np.uint8], first: int, fraction: int) -> npt.NDArray[np.int64]:
    hour, minute, second = (_number(values, first + place, 1) for place in range(3))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + _number(values, fraction, 4)


def _moments(column: str, fields: Fields, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    year, month, day = _number(fields.values, 0, 2), _number(fields.values, 2, 1), _number(fields.values, 3, 1)
    first = (year - 1970).astype("M8[Y]").astype("M8[M]") + np.maximum(month - 1, 0)
    days = first.astype("M8[D]") + (day - 1)
    # Only a day that exists is still in its month.
    real = (month > 0) & (day > 0) & (month <= _MONTHS) & (days.astype("M8[M]") == first) & (year > 0)
    odd = ~real & ~fields.null

    def error() -> SourceError:
        shown = _moments_text(_first(fields, odd), pa.date32(), 0)[0].as_py()
        return refused(column, f"the date {shown} is in no calendar and cannot be exported as {kind}")

    since = days.astype(np.int64)
    if pa.types.is_date32(kind):
        moments = pa.array(since.astype(np.int32), pa.int32(), mask=fields.null)
    else:
        moments = pa.array(since * _DAY_MICROSECONDS + _within_day(fields.values, 4, 7), mask=fields.null)
    return misfits.without(column, moments, pa.array(odd), error).cast(kind)


def _times(column: str, fields: Fields, misfits: Misfits) -> pa.Array:
    values = fields.values
    micros = _number(values, 1, 4) * _DAY_MICROSECONDS + _within_day(values, 5, 8)
    odd = ((values[:, 0] > 0) | (micros >= _DAY_MICROSECONDS)) & ~fields.null

    def error() -> SourceError:
        shown = _times_text(_first(fields, odd), 0)[0].as_py()
        return refused(column, f"the time {shown} is not between 00:00:00 and 24:00:00, and cannot be exported as time")

    times = pa.array(micros, pa.int64(), mask=fields.null)
    return misfits.without(column, times, pa.array(odd), error).cast(pa.time64("us"))


def _first(fields: Fields, odd: npt.NDArray[np.bool_]) -> Fields:
    row = int(np.flatnonzero(odd)[0])
    return Fields(values=fields.values[row : row + 1], null=fields.null[row : row + 1])


def _moments_text(fields: Fields, kind: pa.DataType, decimals: int) -> pa.Array:
    values = fields.values
    date = _joined([_digits(_number(values, 0, 2), 4), _digits(values[:, 2], 2), _digits(values[:, 3], 2)], "-")
    if pa.types.is_date32(kind):
        return _masked(date, fields)
    clock = _clock(values[:, 4], values[:, 5], values[:, 6], _number(values, 7, 4), decimals)
    return _masked(_joined([date, clock], " "), fields)


def _times_text(fields: Fields, decimals: int) -> pa.Array:
    values = fields.values
    hours = _number(values, 1, 4) * 24 + values[:, 5]
    clock = _clock(hours, values[:, 6], values[:, 7], _number(values, 8, 4), decimals)
    sign = pc.if_else(pa.array(values[:, 0] > 0), "-", "")
    return _masked(_joined([sign, clock], ""), fields)


def _clock(
    hours: npt.NDArray[np.integer],
    minutes: npt.NDArray[np.uint8],
    seconds: npt.NDArray[np.uint8],
    micros: npt.NDArray[np.int64],
    decimals: int,
) -> pa.Array:
    text = _joined([_digits(hours, 2), _digits(minutes, 2), _digits(seconds, 2)], ":")
    if not 1 <= decimals <= _MOST_DECIMALS:
        return text
    return _joined([text, pc.utf8_slice_codeunits(_digits(micros, _MOST_DECIMALS), 0, decimals)], ".")


def _digits(numbers: npt.NDArray[np.integer], width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


def _joined(pieces: list[pa.Array], between: str) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, between)


def _masked(text: pa.Array, fields: Fields) -> pa.Array:
    return pc.if_else(pa.array(fields.null), pa.scalar(None, pa.string()), text)
