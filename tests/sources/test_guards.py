"""What no reader could hold is found at any depth, in exactly the rows that have it, and becomes NULL or an error."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.errors import SourceError
from rivet_dagster.sources.guards import Misfits, check_temporal

MOMENT = pa.timestamp("us", tz="UTC")
# 0001-01-01 and 9999-12-31 23:59:59.999999, then the moments beside them, and what drivers make of infinity.
KEPT = [-62_135_596_800_000_000, 253_402_300_799_999_999, 0]
ODD = [KEPT[0] - 1, KEPT[1] + 1, 2**63 - 1, -(2**63)]
NUMBERS = st.none() | st.sampled_from([*KEPT, *KEPT, *ODD])

SHAPES: dict[str, tuple[Any, Any]] = {
    "flat": (lambda leaf: leaf, NUMBERS),
    "list": (pa.list_, st.none() | st.lists(NUMBERS, max_size=3)),
    "large list": (pa.large_list, st.none() | st.lists(NUMBERS, max_size=3)),
    "fixed list": (lambda leaf: pa.list_(leaf, 2), st.none() | st.lists(NUMBERS, min_size=2, max_size=2)),
    "struct": (
        lambda leaf: pa.struct([("a", leaf), ("b", pa.string()), ("c", leaf)]),
        st.none() | st.fixed_dictionaries({"a": NUMBERS, "b": st.just("x"), "c": NUMBERS}),
    ),
    "map": (
        lambda leaf: pa.map_(pa.string(), leaf),
        st.none() | st.lists(st.tuples(st.just("k"), NUMBERS), max_size=3),
    ),
    "list of maps of lists": (
        lambda leaf: pa.list_(pa.map_(pa.string(), pa.list_(leaf))),
        st.lists(st.lists(st.tuples(st.just("k"), st.none() | st.lists(NUMBERS, max_size=2)), max_size=2), max_size=2),
    ),
}


def odd_in(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(odd_in, value.values()))
    if isinstance(value, list | tuple):
        return any(map(odd_in, value))
    return value in ODD


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=60)
@given(data=st.data())
def test_exactly_the_rows_that_have_one_are_null_and_counted(shape: str, data: st.DataObject) -> None:
    build, values = SHAPES[shape]
    rows = data.draw(st.lists(values, max_size=8))
    first = data.draw(st.integers(0, len(rows)))
    whole = pa.array(rows, build(pa.int64()))
    array = whole.cast(build(MOMENT)).slice(first)
    misfits = Misfits({"x"})
    found = misfits.temporal("x", array)
    odd = [odd_in(row) for row in rows[first:]]
    assert misfits.counts == {"x": sum(odd)}
    assert found.type == array.type
    kept = found.cast(build(pa.int64())).to_pylist()
    assert kept == [None if o else row for o, row in zip(odd, whole.slice(first).to_pylist(), strict=True)]
    refusing = Misfits(())
    if any(odd):
        for check in (check_temporal, refusing.temporal):
            with pytest.raises(SourceError, match=r"column 'x': infinity, (or )?a year"):
                check("x", array)
    else:
        check_temporal("x", array)
        assert refusing.temporal("x", array) is array


def test_each_field_of_a_struct_is_looked_at_in_each_row() -> None:
    kind = pa.struct([("a", pa.date32()), ("b", pa.string()), ("c", pa.date32())])
    rows = [(0, 0), (2**31 - 1, 0), (0, -(2**31)), (None, 0)]
    numbers = [{"a": a, "b": "x", "c": c} for a, c in rows]
    array = pa.array(numbers, pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.int32())])).cast(kind)
    misfits = Misfits({"x"})
    assert [row is None for row in misfits.temporal("x", array).to_pylist()] == [False, True, True, False]
    assert misfits.counts == {"x": 2}


@settings(max_examples=60)
@given(texts=st.lists(st.none() | st.sampled_from(["1", "-7", "x", "", "2.5", "9223372036854775808"]), max_size=20))
def test_what_a_conversion_refuses_is_null_and_the_rest_as_it_would_be(texts: list[str | None]) -> None:
    def convert(some: pa.Array) -> pa.Array:
        try:
            return some.cast(pa.int64())
        except pa.ArrowInvalid:
            raise SourceError("no integer") from None

    misfits = Misfits({"x"})
    found = misfits.converted("x", pa.array(texts, pa.string()), convert)
    fits = {"1": 1, "-7": -7}
    assert found.to_pylist() == [fits.get(text or "") for text in texts]
    assert misfits.counts == {"x": sum(text is not None and text not in fits for text in texts)}
    if misfits.counts["x"]:
        with pytest.raises(SourceError, match="no integer"):
            Misfits({"y"}).converted("x", pa.array(texts, pa.string()), convert)
