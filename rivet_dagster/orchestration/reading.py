"""Committed deliveries as Arrow datasets, read through the destination: no second way to a store's credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ReadError
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Column, Manifest, Part
from rivet_dagster.orchestration.arrow_types import arrow_type
from rivet_dagster.orchestration.part_file import PartFile

__all__ = ["Delivered", "dataset_of", "table_of"]

# Arrow reads CSV in blocks, and each record has to fit into one of them.
_BLOCKS_BYTES = (1 << 20, 1 << 25, 1 << 30)
_LAZY_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One delivery of a dataset: what its manifest lists is all that is read.

    Attributes:
        destination: where it is.
        prefix: of the dataset.
        manifest: of the delivery.
        columns: of the dataset, where it has others besides: they came later, and are NULL here.
    """

    destination: ObjectDestination
    prefix: Prefix
    manifest: Manifest
    columns: tuple[Column, ...] = ()

    @property
    def parts(self) -> dict[str, Part]:
        """By key, in order."""
        return {self.prefix.at(p.path): p for p in self.manifest.parts if p.status == "committed"}


def dataset_of(deliveries: Sequence[Delivered]) -> ds.Dataset:
    """Lazy: a part is read when the dataset is scanned, and an error of the store is raised then.

    Columns that Arrow reads from no CSV (binary, UUID, JSON, decimals of more than 38 digits, half floats) are text in
    the dataset of a CSV delivery, and a record of it has at most 16 MiB.

    Raises:
        ReadError: a part is not as its manifest says, or columns cannot be read back.
    """
    found = [_dataset(d) for d in deliveries]
    if len(found) == 1:
        return found[0]
    with _of_one_schema(deliveries):
        return ds.dataset(found)


def table_of(deliveries: Sequence[Delivered]) -> pa.Table:
    """All rows, in the order of the deliveries.

    Raises:
        ReadError: a part is not as its manifest says, or columns cannot be read back.
        DestinationError: the store failed.
    """
    tables = [_table(d) for d in deliveries]
    with _of_one_schema(deliveries):
        return pa.concat_tables(tables, promote_options="default")


@contextmanager
def _of_one_schema(deliveries: Sequence[Delivered]) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as e:
        places = f"{deliveries[0].manifest.destination_uri} … {deliveries[-1].manifest.destination_uri}"
        msg = (
            f"{places}: expected one type for each column in all of them, found others ({e}); "
            "export them alike, or read each on its own with the annotation dict[str, …]"
        )
        raise ReadError(msg) from e


def _table(delivered: Delivered) -> pa.Table:
    if delivered.manifest.format != "csv":
        return _dataset(delivered).to_table()
    where = delivered.manifest.destination_uri
    table = _csv_table(delivered)
    content = delivered.manifest.content
    for column in delivered.columns or (content.columns if content else ()):
        kind = arrow_type(column, where=where)
        if _is_bytes(kind):
            hexed = table[column.name].to_pylist()
            read: Any = pa.array([None if x is None else bytes.fromhex(x) for x in hexed], kind)
        elif _is_number_as_text(kind):
            read = table[column.name].cast(kind)
        else:
            continue
        table = table.set_column(table.schema.get_field_index(column.name), column.name, read)
    return table


def _csv_table(delivered: Delivered, blocks_bytes: Sequence[int] = _BLOCKS_BYTES) -> pa.Table:
    try:
        return _dataset(delivered, block_bytes=blocks_bytes[0]).to_table()
    except pa.ArrowException as e:
        if blocks_bytes[1:] and "block size" in str(e):
            return _csv_table(delivered, blocks_bytes[1:])
        msg = (
            f"{delivered.manifest.destination_uri}: Arrow cannot read these rows from CSV ({e}); export them as "
            "Parquet, or read the parts with another tool"
        )
        raise ReadError(msg) from e


def _dataset(delivered: Delivered, *, block_bytes: int = _LAZY_BLOCK_BYTES) -> ds.Dataset:
    parts = delivered.parts
    csv = delivered.manifest.format == "csv"
    if not parts:
        schema = _schema(delivered, csv=csv, whole=True)
        # Not `empty_table`, which knows no extension types within others.
        return ds.dataset(pa.table([pa.chunked_array([], f.type) for f in schema], schema=schema))
    # Arrow knows a codec by the end of a name, and this one under its own name only.
    shown = {f"{key}d" if key.endswith(".zst") else key: key for key in parts}
    files = pafs.PyFileSystem(_Files(delivered.destination, parts, shown))
    schema = _schema(delivered, csv=True) if csv else None
    layout = ds.ParquetFileFormat() if schema is None else _csv(schema, block_bytes=block_bytes)
    dataset = ds.dataset(list(shown), schema=schema, format=layout, filesystem=files)
    names = dataset.schema.names
    if {c.name for c in delivered.columns} <= set(names):
        return dataset
    whole = _schema(delivered, csv=csv, whole=True)
    return dataset.replace_schema(pa.schema([dataset.schema.field(f.name) if f.name in names else f for f in whole]))


def _schema(delivered: Delivered, *, csv: bool, whole: bool = False) -> pa.Schema:
    """Of the delivery, or with `whole` of the dataset."""
    manifest = delivered.manifest
    if manifest.content is None:
        msg = f"{manifest.destination_uri}: the manifest of another tool has no columns; read its parts with that tool"
        raise ReadError(msg)
    fields = []
    for c in (delivered.columns if whole else ()) or manifest.content.columns:
        kind = arrow_type(c, where=manifest.destination_uri)
        fields.append(pa.field(c.name, pa.string() if csv and _is_text_in_csv(kind) else kind, nullable=c.nullable))
    return pa.schema(fields)


def _is_text_in_csv(kind: pa.DataType) -> bool:
    return _is_bytes(kind) or _is_number_as_text(kind) or isinstance(kind, pa.BaseExtensionType)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_number_as_text(kind: pa.DataType) -> bool:
    """Arrow converts these from text, but not while it reads CSV."""
    return bool(pa.types.is_decimal256(kind) or pa.types.is_float16(kind))


def _csv(schema: pa.Schema, *, block_bytes: int) -> ds.CsvFileFormat:
    # Text is always quoted and NULL never is; a single NULL column makes an empty line.
    convert = pacsv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["true"],
        false_values=["false"],
    )
    parse = pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    read = pacsv.ReadOptions(block_size=block_bytes)
    return ds.CsvFileFormat(parse_options=parse, convert_options=convert, read_options=read)


class _Files(pafs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """The parts of one delivery, under the names they are shown by, as a read-only file system with nothing else."""

    def __init__(self, destination: ObjectDestination, parts: Mapping[str, Part], shown: Mapping[str, str]) -> None:
        self._destination = destination
        self._parts = {name: (key, parts[key]) for name, key in shown.items()}

    def get_type_name(self) -> str:
        return f"rivet-{self._destination.kind}"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self._info(p) for p in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        if path not in self._parts:
            return pafs.FileInfo(path, pafs.FileType.NotFound)
        return pafs.FileInfo(path, pafs.FileType.File, size=self._parts[path][1].size_bytes)

    def open_input_file(self, path: str) -> pa.PythonFile:
        if path not in self._parts:
            raise FileNotFoundError(path)
        key, part = self._parts[path]
        return pa.PythonFile(PartFile(self._destination, key, size_bytes=part.size_bytes), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def get_file_info_selector(self, selector: Any) -> NoReturn:
        del selector
        _read_only()

    def create_dir(self, path: str, recursive: bool) -> NoReturn:  # noqa: FBT001 - pyarrow's signature
        del path, recursive
        _read_only()

    def delete_dir(self, path: str) -> NoReturn:
        del path
        _read_only()

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> NoReturn:  # noqa: FBT001, FBT002
        del path, missing_dir_ok
        _read_only()

    def delete_root_dir_contents(self) -> NoReturn:
        _read_only()

    def delete_file(self, path: str) -> NoReturn:
        del path
        _read_only()

    def move(self, src: str, dest: str) -> NoReturn:
        del src, dest
        _read_only()

    def copy_file(self, src: str, dest: str) -> NoReturn:
        del src, dest
        _read_only()

    def open_output_stream(self, path: str, metadata: Any) -> NoReturn:
        del path, metadata
        _read_only()

    def open_append_stream(self, path: str, metadata: Any) -> NoReturn:
        del path, metadata
        _read_only()


def _read_only() -> NoReturn:
    msg = "a committed delivery is read-only, and only the parts that its manifest lists can be opened"
    raise NotImplementedError(msg)
