"""Read every part of a delivery again: are bytes, rows and columns what its manifest says?

In pieces of a bounded size, never a whole part; a Parquet footer is held as a whole.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.destinations.staging import Digests
from rivet_dagster.errors import ReadError
from rivet_dagster.exports.columns import plain_schema
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Column, Manifest, Part
from rivet_dagster.orchestration.judgement import Findings, unknown_objects
from rivet_dagster.orchestration.part_file import PartFile
from rivet_dagster.readback import Fault

__all__ = ["PIECE_BYTES", "read_again"]

PIECE_BYTES = 8 * 2**20
# What the work on a piece takes is a few times its size.
_COUNTED_BYTES = 2**18
_LONGEST_HEADER = 2**20
_XXH3 = re.compile(r"xxh3:([0-9a-f]{16})")
_CODECS = {"gzip": "gzip", "zstd": "zstd"}
_QUOTE, _LINE_FEED = ord('"'), ord("\n")


def read_again(
    destination: ObjectDestination, prefix: Prefix, manifest: Manifest, *, piece_bytes: int = PIECE_BYTES
) -> Findings:
    """Hash each part as its manifest records it, count its rows, and compare its columns.

    What a foreign manifest does not record is not compared: of a part without a digest, all rows are decoded instead.

    Raises:
        DestinationError: the store could not be asked, so there is nothing to say.
    """
    delivery = _Delivery(destination, prefix, manifest, piece_bytes)
    for part in manifest.parts:
        delivery.look_at(part)
    notes = []
    if manifest.content is None:
        notes.append("the manifest of another tool records no columns; those of its parts were compared with the first")
    if delivery.without_digest:
        notes.append(
            f"{len(delivery.without_digest)} parts have no digest in the manifest (the first: "
            f"{delivery.without_digest[0]}): their rows were decoded instead, which does not find every other byte"
        )
    parts, unknown = len(manifest.parts), unknown_objects(destination, prefix, manifest)
    return Findings(
        said=f"{parts} part{'' if parts == 1 else 's'} read again, bytes, rows and columns as recorded",
        faults=tuple(delivery.faults),
        notes=tuple(notes),
        unknown=unknown,
        numbers={
            "rivet/parts_checked": parts,
            "rivet/unknown_objects": len(unknown),
            "rivet/rows": delivery.rows,
            "rivet/bytes_read": delivery.bytes_read,
        },
    )


@dataclass(slots=True)
class _Delivery:
    """What was found of the parts so far."""

    destination: ObjectDestination
    prefix: Prefix
    manifest: Manifest
    piece_bytes: int
    faults: list[Fault] = field(default_factory=list)
    rows: int = 0
    bytes_read: int = 0
    without_digest: list[str] = field(default_factory=list)
    first: pa.Schema | None = None

    def look_at(self, part: Part) -> None:
        """Read a part once from end to end, and of Parquet the footer besides."""
        key = self.prefix.at(part.path)
        meta = self.destination.head(key)
        if meta is None:
            self._fault(part, "missing", f"{part.size_bytes} bytes", "no object")
            return
        file = PartFile(self.destination, key, size_bytes=meta.size_bytes)
        pieces = _Pieces(file, self.piece_bytes)
        try:
            rows = self._csv_rows(part, pieces) if self.manifest.format == "csv" else None
            pieces.drain()
            self._bytes(part, pieces.digests.by_kind(), size_bytes=meta.size_bytes)
            if self.manifest.format != "csv":
                rows = self._parquet_rows(part, file)
        except ReadError as e:
            # Gone or replaced while it was read.
            self._fault(part, "unreadable", "a part that stays", str(e))
            return
        self.bytes_read += meta.size_bytes
        if rows is not None:
            self.rows += rows
            if rows != part.rows:
                self._fault(part, "rows", f"{part.rows} rows", f"{rows} rows")

    def _bytes(self, part: Part, found: dict[str, bytes], *, size_bytes: int) -> None:
        recorded = _recorded(part)
        if not recorded:
            self.without_digest.append(part.path)
        if size_bytes != part.size_bytes:
            self._fault(part, "size", f"{part.size_bytes} bytes", f"{size_bytes} bytes")
            return
        for kind, value in recorded.items():
            if found[kind] != value:
                self._fault(part, "checksum", f"{kind} {value.hex()}", f"{kind} {found[kind].hex()}")
                return

    def _csv_rows(self, part: Part, pieces: _Pieces) -> int | None:
        records = _Records()
        codec = _CODECS.get(self.manifest.compression)
        try:
            for piece in _decompressed(pieces, codec):
                records.add(piece)
        except (pa.ArrowException, OSError) as e:
            self._fault(part, "unreadable", f"CSV in {codec}", str(e))
            return None
        names = records.header()
        if not names:
            self._fault(part, "unreadable", "CSV that begins with a header", "no header")
            return None
        expected = [c.name for c in self._columns]
        if expected and names != expected:
            self._fault(part, "schema", f"columns {expected}", f"columns {names}")
        return records.count - 1

    def _parquet_rows(self, part: Part, file: PartFile) -> int | None:
        try:
            # Its own buffers are as large as what is read at once.
            with pq.ParquetFile(pa.PythonFile(file, mode="r"), buffer_size=_COUNTED_BYTES, pre_buffer=False) as parquet:
                return self._of_footer(part, parquet)
        except (pa.ArrowException, OSError) as e:
            self._fault(part, "unreadable", "Parquet with a footer and statistics", str(e))
            return None

    def _of_footer(self, part: Part, parquet: pq.ParquetFile) -> int:
        footer, rows = parquet.metadata, 0
        for i in range(footer.num_row_groups):
            group = footer.row_group(i)
            rows += group.num_rows
            for j in range(group.num_columns):
                statistics = group.column(j).statistics
                if statistics is not None and statistics.has_min_max:
                    _ = statistics.min_raw, statistics.max_raw
        if rows != footer.num_rows:
            self._fault(part, "rows", f"{footer.num_rows} rows in the row groups of its footer", f"{rows} rows")
        self._schema(part, plain_schema(parquet.schema_arrow))
        if not _recorded(part):
            rows = sum(batch.num_rows for batch in parquet.iter_batches(batch_size=1024))
        return rows

    def _schema(self, part: Part, found: pa.Schema) -> None:
        self.first = self.first or found
        expected = self._columns or _columns(self.first)
        for one, other in zip_longest(expected, _columns(found)):
            if one != other:
                self._fault(part, "schema", _shown(one), _shown(other))
                return

    @property
    def _columns(self) -> tuple[Column, ...]:
        return _plain(self.manifest.content.columns) if self.manifest.content else ()

    def _fault(self, part: Part, kind: str, expected: str, found: str) -> None:
        self.faults.append(Fault(path=part.path, kind=kind, expected=expected, found=found))  # type: ignore[arg-type]


def _recorded(part: Part) -> dict[str, bytes]:
    """The digests that a manifest has of a part, by kind, as far as they are of a kind that is known."""
    found = {} if part.md5 is None else {"md5": part.md5}
    if digits := _XXH3.fullmatch(part.content_fingerprint):
        found["xxh3"] = bytes.fromhex(digits[1])
    return found


def _plain(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Without what the parts do not say."""
    return tuple(Column(name=c.name, type=c.type, nullable=c.nullable) for c in columns)


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    return tuple(Column(name=f.name, type=str(f.type), nullable=f.nullable) for f in schema)


def _shown(column: Column | None) -> str:
    if column is None:
        return "no further column"
    return f"column {column.name!r} {column.type}{'' if column.nullable else ' not null'}"


class _Pieces(io.RawIOBase):
    """A file that is read in pieces and hashed, whoever reads it in however small ones."""

    def __init__(self, file: PartFile, piece_bytes: int) -> None:
        super().__init__()
        self.digests = Digests()
        self._file, self._piece_bytes = file, piece_bytes
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if not self._held:
            self._held = memoryview(self._file.read(self._piece_bytes))
            self.digests.update(self._held)
        taken = self._held if size is None or size < 0 else self._held[:size]
        self._held = self._held[len(taken) :]
        return bytes(taken)

    def drain(self) -> None:
        """Hash what nobody has read."""
        self._held = memoryview(b"")
        while self.read():
            pass


def _decompressed(pieces: _Pieces, codec: str | None) -> Iterator[bytes]:
    if codec is None:
        while piece := pieces.read(_COUNTED_BYTES):
            yield piece
        return
    with pa.CompressedInputStream(pa.PythonFile(pieces, mode="r"), codec) as stream:
        while piece := stream.read(_COUNTED_BYTES):
            yield piece


class _Records:
    """Counts the records of CSV: lines that do not end within quotes."""

    def __init__(self) -> None:
        self.count = 0
        self._quotes = 0
        self._begun = False
        self._first = bytearray()

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        if not self.count and len(self._first) < _LONGEST_HEADER:
            self._first += piece
        found = np.frombuffer(piece, dtype=np.uint8)
        # How many quotes there were before each byte; that it overflows leaves it odd or even.
        quotes = np.cumsum(found == _QUOTE, dtype=np.uint8) + np.uint8(self._quotes)
        ends = (found == _LINE_FEED) & (quotes & 1 == 0)
        self.count += int(np.count_nonzero(ends))
        self._quotes = int(quotes[-1]) & 1
        self._begun = not ends[-1]

    def header(self) -> list[str]:
        """The names in the first record; all has been taken."""
        if self._begun:
            # The last line has no end.
            self.count += 1
            self._begun = False
        try:
            return next(csv.reader(io.StringIO(self._first.decode(errors="replace"), newline="")), [])
        except csv.Error:
            return []
