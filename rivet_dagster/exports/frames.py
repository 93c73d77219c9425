"""A pandas DataFrame as an Arrow table: no value changes, and none is lost without a word."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from rivet_dagster.errors import ConfigError, ContractError
from rivet_dagster.exports.columns import name_check

__all__ = ["table_of"]

# `bool` before `int` and `datetime` before `date`, whose subclasses they are.
_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("bool", (bool, np.bool_)),
    ("int", (int, np.integer)),
    ("float", (float, np.floating)),
    ("str", (str,)),
    ("bytes", (bytes, bytearray)),
    ("Decimal", (Decimal,)),
    ("datetime", (dt.datetime, np.datetime64)),
    ("date", (dt.date,)),
    ("time", (dt.time,)),
    ("timedelta", (dt.timedelta, np.timedelta64)),
    ("dict", (dict,)),
    ("list", (list, tuple, np.ndarray)),
)
# pyarrow refuses a whole number that the common type cannot hold exactly.
_MIXES = (frozenset({"int", "float"}), frozenset({"int", "Decimal"}))


def table_of(frame: pd.DataFrame, *, subject: str) -> pa.Table:
    """Convert a DataFrame, each column typed by all of its values. NaN in a float column is NULL, as in pandas.

    An index with names becomes the first columns; one without is left out, unless it holds more than row numbers.

    Raises:
        ConfigError: column names that are not unique, or an index that would be lost.
        ContractError: a column whose values have no one type; names the column.
    """
    if isinstance(frame.columns, pd.MultiIndex):
        msg = f"{subject}: expected one name per column, found {frame.columns.nlevels} levels; join them into one"
        raise ConfigError(msg)
    frame = _with_index(frame, subject)
    names = [str(name) for name in frame.columns]
    name_check(names, subject=subject)
    columns = [_array(frame.iloc[:, i], f"{subject}: column {name!r}") for i, name in enumerate(names)]
    return pa.table(columns, names=names)


def _with_index(frame: pd.DataFrame, subject: str) -> pd.DataFrame:
    index = frame.index
    if all(name is not None for name in index.names):
        levels = [index.get_level_values(i) for i in range(index.nlevels)]
        named = [pd.Series(level, index=index, name=name) for level, name in zip(levels, index.names, strict=True)]
        return pd.concat([*named, frame], axis="columns")
    if index.nlevels == 1 and (len(index) == 0 or pd.api.types.is_integer_dtype(index.dtype)):
        return frame
    msg = (
        f"{subject}: the index of the DataFrame has values but no name, so they would be lost; name it "
        "(rename_axis) to export it as a column, or drop it with reset_index(drop=True)"
    )
    raise ConfigError(msg)


def _array(series: pd.Series[Any], where: str) -> pa.Array | pa.ChunkedArray:
    if isinstance(series.dtype, pd.SparseDtype):
        series = series.astype(series.dtype.subtype)
    objects: list[Any] = []
    if series.dtype == object:
        objects = [*series[series.notna()]]
    elif isinstance(series.dtype, pd.CategoricalDtype) and series.dtype.categories.dtype == object:
        objects = [*series.dtype.categories]
    _one_type(objects, where)
    try:
        array = _exact(pa.array(series, from_pandas=True), series, objects)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as e:
        msg = (
            f'{where}: its values do not fit one Arrow type ({e}); convert the column first, e.g. with astype("string")'
        )
        raise ContractError(msg) from e
    if isinstance(array.type, pa.BaseExtensionType) and array.type.extension_name.startswith("pandas."):
        msg = f'{where}: expected values that others can read, found {series.dtype}; convert it with astype("string")'
        raise ContractError(msg)
    return array


def _exact(array: pa.Array | pa.ChunkedArray, series: pd.Series[Any], objects: Sequence[Any]) -> Any:
    """The same, with the nanoseconds that pyarrow leaves out of objects unless it is told the unit."""
    kind = array.type
    if not _have_nanoseconds(objects):
        return array
    if pa.types.is_dictionary(kind):
        kind, series = kind.value_type, series.astype(object)
    unit = pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("ns")
    return pa.array(series, unit, from_pandas=True)


def _one_type(values: Sequence[Any], where: str) -> None:
    """Refuse what pyarrow would merge or cut: a datetime among dates loses its time, an aware one its zone."""
    families = frozenset(_family(kind) for kind in {type(v) for v in values})
    if len(families) > 1 and families not in _MIXES:
        msg = f"{where}: expected values of one type, found {', '.join(sorted(families))}; convert the column first"
        raise ContractError(msg)
    if families == {"datetime"} and len({getattr(v, "tzinfo", None) is None for v in values}) > 1:
        msg = (
            f"{where}: expected times either all with or all without a time zone, found both; convert the column first"
        )
        raise ContractError(msg)
    if families == {"time"} and any(v.tzinfo is not None for v in values):
        msg = f"{where}: expected times of day without a time zone, found one with; convert the column first"
        raise ContractError(msg)
    for name, inner in _within(families, values).items():
        within = f"{where}, within {name}"
        _one_type(inner, within)
        if _have_nanoseconds(inner):
            msg = f"{within}: expected no more than microseconds, found nanoseconds; round them, or take them apart"
            raise ContractError(msg)


def _within(families: frozenset[str], values: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """What lists and dicts hold; an array of numpy has one type by itself."""
    found: dict[str, list[Any]] = defaultdict(list)
    if families == {"list"}:
        for value in values:
            if not isinstance(value, np.ndarray) or value.dtype == object:
                found["its lists"] += filter(_is_there, value)
    if families == {"dict"}:
        for value in values:
            for key, inner in value.items():
                if _is_there(inner):
                    found[repr(key)].append(inner)
    return found


def _is_there(value: Any) -> bool:
    return not (value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and isnan(value)))


def _have_nanoseconds(values: Sequence[Any]) -> bool:
    """Whether one has a part below the microsecond; only pandas' own kinds have."""
    kinds = {type(v) for v in values} & {pd.Timestamp, pd.Timedelta}
    return bool(kinds) and any(getattr(v, "nanosecond", 0) or getattr(v, "nanoseconds", 0) for v in values)


def _family(kind: type) -> str:
    return next((name for name, kinds in _FAMILIES if issubclass(kind, kinds)), kind.__name__)
