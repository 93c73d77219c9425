"""Values that a driver hands over wrong, or that no reader could hold: refused, with column and remedy."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import SourceError

__all__ = ["check_temporal", "holds_temporal", "refused"]

# Days and seconds from 1970-01-01 to 0001-01-01 and to 9999-12-31, the years that readers agree on.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_SECONDS = 86_400
# In nanoseconds, int64 ends before the year 9999, and its last values stand for infinity.
_NEARLY_INFINITE = 2**63 - 2
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def refused(column: str, found: str, *, remedy: str = "") -> SourceError:
    """The error for a value that cannot be exported as its column's type."""
    remedy = remedy or f'to read the column as text, set columns={{"{column}": rd.cast("text")}}'
    return SourceError(f"column {column!r}: {found}; {remedy}, or change the query")


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
    kind = values.type
    if pa.types.is_nested(kind):
        for inner in _children(values):
            if holds_temporal(inner.type):
                check_temporal(column, inner)
        return
    if not holds_temporal(kind):
        return
    if pa.types.is_date32(kind):
        low, high = _FIRST_DAY, _LAST_DAY
    elif pa.types.is_timestamp(kind):
        per_second = _PER_SECOND[kind.unit]
        low = max(_FIRST_DAY * _DAY_SECONDS * per_second, -_NEARLY_INFINITE)
        high = min((_LAST_DAY + 1) * _DAY_SECONDS * per_second - 1, _NEARLY_INFINITE)
    else:
        low, high = 0, _DAY_SECONDS * _PER_SECOND[kind.unit] - 1
    extremes = pc.min_max(values.view(pa.int32() if pa.types.is_date32(kind) else f"int{kind.bit_width}"))
    least, most = extremes["min"].as_py(), extremes["max"].as_py()
    if least is not None and (least < low or most > high):
        found = "the time 24:00:00" if pa.types.is_time(kind) else "infinity, or a year outside 1 to 9999,"
        raise refused(column, f"{found} cannot be exported as {kind}")


def _children(values: pa.Array) -> list[pa.Array]:
    if isinstance(values, pa.MapArray):
        return [values.keys, values.items]
    if isinstance(values, pa.StructArray):
        return list(values.flatten())
    if pa.types.is_fixed_size_list(values.type) or pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return [values.flatten()]
    return []
