"""Row groups become Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from rivet_dagster.exports.formats import Parquet
from rivet_dagster.exports.sink import Sink

__all__ = ["ParquetEncoding", "ParquetPart"]

# The first rows of an export decide how its columns are encoded.
_SAMPLE_ROWS = 16_384
# A dictionary pays where a value comes back so often. Whole numbers differ less than they are apart, so for them it
# has to be really short.
_REPEATS = 4
_FEW_NUMBERS = 256


class ParquetEncoding:
    """How every part of one export is encoded, decided by its first row group and the settings."""

    def __init__(self, first: pa.Table, settings: Parquet) -> None:
        """Choose between dictionary, delta and plain for each leaf column."""
        dictionary: list[str] = []
        delta: dict[str, str] = {}
        sample = zip(first.column_names, first.slice(0, _SAMPLE_ROWS).columns, strict=True)
        leaves = [found for name, column in sample for found in _leaves(name, column.combine_chunks())]
        named = Counter(path for path, _ in leaves)
        for path, leaf in leaves:
            # A column `a.b` and the field `b` of a column `a` have one name here: neither can be chosen for.
            if named[path] == 1:
                if _repeats(leaf):
                    dictionary.append(path)
                elif _counts(leaf.type):
                    delta[path] = "DELTA_BINARY_PACKED"
        level = settings.level
        if level is None and settings.compression == "zstd":
            level = 1
        self.schema: pa.Schema = first.schema
        self.options: dict[str, Any] = {
            "compression": settings.compression,
            "compression_level": level,
            "use_dictionary": dictionary or False,
            "column_encoding": delta or None,
            # Short decimals as integers: smaller, and quicker to read.
            "store_decimal_as_integer": True,
        }

    def begin(self, sink: Sink) -> ParquetPart:
        """Begin a part."""
        return ParquetPart(sink, self)


class ParquetPart:
    """One part being encoded."""

    def __init__(self, sink: Sink, encoding: ParquetEncoding) -> None:
        self._writer = pq.ParquetWriter(sink, encoding.schema, **encoding.options)

    def write(self, rows: pa.Table) -> None:
        """Append one row group."""
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def finish(self) -> None:
        """Write the footer; without it the part is not readable."""
        self._writer.close()


def _leaves(path: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(path, column.storage)
    elif pt.is_struct(kind):
        for i, child in enumerate(column.flatten()):
            yield from _leaves(f"{path}.{kind.field(i).name}", child)
    elif pt.is_map(kind):
        entries = _entries(column)
        yield from _leaves(f"{path}.key_value.key", entries.field(0))
        yield from _leaves(f"{path}.key_value.value", entries.field(1))
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        yield from _leaves(f"{path}.list.element", column.flatten())
    else:
        yield path, column


def _entries(maps: pa.Array) -> pa.Array:
    offsets = maps.offsets
    return maps.values.slice(offsets[0].as_py(), offsets[len(maps)].as_py() - offsets[0].as_py())


def _repeats(leaf: pa.Array) -> bool:
    if pt.is_boolean(leaf.type) or pt.is_null(leaf.type):
        return False
    found = len(leaf) - leaf.null_count
    distinct = len(pc.unique(leaf.drop_null()))
    return distinct * _REPEATS <= found and (distinct <= _FEW_NUMBERS or not _counts(leaf.type))


def _counts(kind: pa.DataType) -> bool:
    """Whether it is stored as a 32 or 64 bit integer."""
    if pt.is_decimal128(kind):
        return bool(kind.precision <= 18)  # noqa: PLR2004 (what 64 bits hold)
    return bool(
        pt.is_integer(kind) or pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_time(kind) or pt.is_duration(kind)
    )
