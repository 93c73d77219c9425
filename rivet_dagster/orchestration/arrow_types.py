"""Arrow types from their text, as manifests hold them."""

from __future__ import annotations

import re
from collections.abc import Callable

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
    try:
        found, rest = _type(text)
    except (ValueError, KeyError):
        return None
    return None if rest else found


def _type(text: str) -> tuple[pa.DataType, str]:
    """The type that a text begins with, and what follows it; a `ValueError` where it begins with none."""
    if m := _SCALAR.match(text):
        return _scalar(m[0]), text[m.end() :]
    begun = _NESTED.match(text)
    if begun is None:
        msg = f"no type: {text}"
        raise ValueError(msg)
    rest, fields = text[begun.end() :], []
    if begun["kind"] == "map":
        key, rest = _type(rest)
        item, rest = _type(rest.removeprefix(", "))
        return pa.map_(key, item), _after(">", rest)
    while not rest.startswith(">"):
        name, _, rest = rest.removeprefix(", ").partition(": ")
        kind, rest = _type(rest)
        fields.append(pa.field(name, kind, nullable=not rest.startswith(_REQUIRED)))
        rest = rest.removeprefix(_REQUIRED)
    rest = _after(">", rest)
    if begun["kind"] == "struct":
        return pa.struct(fields), rest
    (item,) = fields
    if begun["kind"] == "fixed_size_list":
        size, _, rest = _after("[", rest).partition("]")
        return pa.list_(item, int(size)), rest
    return (pa.large_list if begun["kind"] == "large_list" else pa.list_)(item), rest


def _after(mark: str, text: str) -> str:
    if not text.startswith(mark):
        msg = f"no {mark}: {text}"
        raise ValueError(msg)
    return text[len(mark) :]


def _scalar(text: str) -> pa.DataType:
    for pattern, build in _BUILT:
        if m := pattern.fullmatch(text):
            return build(m)
    return pa.type_for_alias(text)


_REQUIRED = " not null"
_NESTED = re.compile(r"(?P<kind>struct|list|large_list|fixed_size_list|map)<")
_SCALAR = re.compile(r"extension<arrow\.(uuid|json|bool8)[^<>]*>|decimal\d+\([^()]*\)|\w+(\[[^\[\]]*\])?(?!\w|<)")
_DECIMALS = {"32": pa.decimal32, "64": pa.decimal64, "128": pa.decimal128, "256": pa.decimal256}
_EXTENSIONS = {"uuid": pa.uuid, "json": pa.json_, "bool8": pa.bool8}
_BUILT: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], pa.DataType]], ...] = (
    (re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]"), lambda m: pa.timestamp(m[1], tz=m[2])),
    (re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)"), lambda m: _DECIMALS[m[1]](int(m[2]), int(m[3]))),
    (re.compile(r"fixed_size_binary\[(\d+)\]"), lambda m: pa.binary(int(m[1]))),
    (re.compile(r"extension<arrow\.(uuid|json|bool8).*>"), lambda m: _EXTENSIONS[m[1]]()),
)
