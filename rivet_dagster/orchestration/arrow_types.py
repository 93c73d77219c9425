"""Arrow types from their text, as manifests hold them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from rivet_dagster.errors import ReadError
from rivet_dagster.manifest import Column

__all__ = ["arrow_type"]


def arrow_type(column: Column, *, where: str) -> pa.DataType:
    """The type that a column of a manifest has.

    Raises:
        ReadError: it cannot be known from its text alone; names the column and `where`.
    """
    found = _parsed(column.type)
    if found is None:
        msg = (
            f"{where}: the type {column.type!r} of column {column.name!r} cannot be read back from the manifest; "
            "ask for pyarrow.dataset.Dataset of a Parquet export with rows, or read the parts themselves"
        )
        raise ReadError(msg)
    return found


def _parsed(text: str) -> pa.DataType | None:
    with suppress(ValueError):
        return pa.type_for_alias(text)
    for pattern, build in _BUILT:
        if m := pattern.fullmatch(text):
            return build(m)
    return None


def _list(m: re.Match[str]) -> pa.DataType | None:
    of = _parsed(m["of"])
    if of is None:
        return None
    item = pa.field(m["name"], of, nullable=m["required"] is None)
    return pa.large_list(item) if m["large"] else pa.list_(item)


_DECIMALS = {"32": pa.decimal32, "64": pa.decimal64, "128": pa.decimal128, "256": pa.decimal256}
_BUILT: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], pa.DataType | None]], ...] = (
    (re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]"), lambda m: pa.timestamp(m[1], tz=m[2])),
    (re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)"), lambda m: _DECIMALS[m[1]](int(m[2]), int(m[3]))),
    (re.compile(r"fixed_size_binary\[(\d+)\]"), lambda m: pa.binary(int(m[1]))),
    (re.compile(r"extension<arrow\.uuid.*>"), lambda _: pa.uuid()),
    (re.compile(r"extension<arrow\.json.*>"), lambda _: pa.json_()),
    (re.compile(r"(?P<large>large_)?list<(?P<name>[^:<>]+): (?P<of>.+?)(?P<required> not null)?>"), _list),
)
