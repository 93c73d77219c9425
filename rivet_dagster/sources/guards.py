"""Values that a driver hands over wrong, or that no reader could hold: refused with column and remedy, or made NULL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import SourceError

__all__ = ["Misfits", "check_temporal", "holds_temporal", "refused"]

# Days and seconds from 1970-01-01 to 0001-01-01 and to 9999-12-31, the years that readers agree on.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_SECONDS = 86_400
# In nanoseconds, int64 ends before the year 9999, and its last values stand for infinity.
_NEARLY_INFINITE = 2**63 - 2
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def refused(column: str, found: str, *, remedy: str = "") -> SourceError:
    """The error for a value that cannot be exported as its column's type."""
    if not remedy:
        as_text, as_null = (f'{{"{column}": rd.cast({how})}}' for how in ('"text"', 'errors="coerce"'))
        remedy = f"to read the column as text, set columns={as_text}, to have NULL instead, columns={as_null}"
    return SourceError(f"column {column!r}: {found}; {remedy}, or change the query")


class Misfits:
    """What becomes of the values of one result that their columns cannot hold: an error, or NULL and a count.

    Of one reading, by one thread.
    """

    def __init__(self, coerced: Collection[str]) -> None:
        """Count nothing yet.

        Args:
            coerced: the columns in which such a value becomes NULL; in all others it is an error.
        """
        self._counts = dict.fromkeys(sorted(coerced), 0)

    def __contains__(self, column: object) -> bool:
        """Whether values of this column become NULL."""
        return column in self._counts

    @property
    def counts(self) -> Mapping[str, int]:
        """How many values became NULL, by column; zeros too."""
        return dict(self._counts)

    def count(self, column: str, values: int) -> None:
        """Count values that were made NULL elsewhere."""
        self._counts[column] += values

    def without(self, column: str, values: pa.Array, odd: pa.Array, error: Callable[[], SourceError]) -> pa.Array:
        """Values with NULL where `odd` is true.

        Raises:
            SourceError: `error`, there is one and the column is none that is coerced.
        """
        found = pc.sum(odd).as_py() or 0
        if not found:
            return values
        if column not in self._counts:
            raise error() from None
        self.count(column, found)
        return pc.if_else(odd, pa.scalar(None, values.type), values)

    def converted(self, column: str, values: Any, convert: Callable[[Any], pa.Array]) -> pa.Array:
        """What `convert` makes of values, an array or a sequence, of which it may refuse some.

        Raises:
            SourceError: it refused one, and the column is none that is coerced.
        """
        try:
            return convert(values)
        except SourceError:
            if column not in self._counts:
                raise
        if len(values) == 1:
            self.count(column, 1)
            return convert(values[:0]).take(pa.array([None], pa.int8()))
        # Those that are refused are few, or the column would be another one.
        half = len(values) // 2
        return pa.concat_arrays([self.converted(column, some, convert) for some in (values[:half], values[half:])])

    def temporal(self, column: str, values: pa.Array) -> pa.Array:
        """Values that `check_temporal` lets pass; where it would not, the whole value is NULL or it is refused.

        Raises:
            SourceError: permanent, naming the column.
        """
        odd = _odd(values)
        return values if odd is None else self.without(column, values, odd, lambda: _no_moment(column, values.type))


def holds_temporal(arrow_type: pa.DataType) -> bool:
    """Whether a type is, or contains, a date, a time or a timestamp."""
    if pa.types.is_nested(arrow_type):
        return any(holds_temporal(arrow_type.field(i).type) for i in range(arrow_type.num_fields))
    return bool(pa.types.is_date32(arrow_type) or pa.types.is_timestamp(arrow_type) or pa.types.is_time(arrow_type))


def check_temporal(column: str, values: pa.Array) -> None:
    """Refuse infinity, years before 1 and after 9999, and the time 24:00:00, at any depth.

    Drivers hand infinity over as an ordinary, wrong instant far outside these years, which no reader would notice.

    Raises:
        SourceError: permanent, naming the column.
    """
    if _odd(values) is not None:
        raise _no_moment(column, values.type)


def _odd(values: pa.Array) -> pa.Array | None:
    """Which values no reader could hold, at any depth; `None` where there is none."""
    if not holds_temporal(values.type):
        return None
    if isinstance(values, pa.MapArray):
        # Of a slice, keys and items are still those of the whole; so are the offsets into them.
        entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
        values = pa.ListArray.from_arrays(values.offsets, entries)
    if isinstance(values, pa.StructArray):
        found = [odd for inner in values.flatten() if (odd := _odd(inner)) is not None]
        return reduce(pc.or_, found) if found else None
    if pa.types.is_nested(values.type):
        inner = _odd(values.flatten())
        if inner is None:
            return None
        rows = pc.list_parent_indices(values).filter(inner).cast(pa.int64())
        return pc.is_in(pa.array(range(len(values)), pa.int64()), value_set=rows)
    low, high = _bounds(values.type)
    numbers = values.view(pa.int32() if pa.types.is_date32(values.type) else f"int{values.type.bit_width}")
    extremes = pc.min_max(numbers)
    least, most = extremes["min"].as_py(), extremes["max"].as_py()
    if least is None or (least >= low and most <= high):
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, low), pc.greater(numbers, high)), fill_value=False)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_date32(kind):
        return _FIRST_DAY, _LAST_DAY
    if pa.types.is_timestamp(kind):
        per_second = _PER_SECOND[kind.unit]
        return (
            max(_FIRST_DAY * _DAY_SECONDS * per_second, -_NEARLY_INFINITE),
            min((_LAST_DAY + 1) * _DAY_SECONDS * per_second - 1, _NEARLY_INFINITE),
        )
    return 0, _DAY_SECONDS * _PER_SECOND[kind.unit] - 1


def _no_moment(column: str, kind: pa.DataType) -> SourceError:
    found = "the time 24:00:00" if pa.types.is_time(kind) else "infinity, or a year outside 1 to 9999,"
    if pa.types.is_nested(kind):
        found = "infinity, a year outside 1 to 9999, or the time 24:00:00 in it"
    return refused(column, f"{found} cannot be exported as {kind}")
