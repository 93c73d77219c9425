"""Many deliveries of an append dataset become one: the same rows, the same cursor, committed through the seam."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pt

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt, Head
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import CommitConflict, ReadError
from rivet_dagster.exports.formats import as_format
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.planned import Extraction
from rivet_dagster.exports.progress import Progress
from rivet_dagster.exports.reading import Encoder
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import COMPACT, Dataset, Manifest
from rivet_dagster.orchestration.arrow_types import arrow_type
from rivet_dagster.orchestration.reading import Delivered, dataset_of
from rivet_dagster.parts import read_md5
from rivet_dagster.readback import check_parts, deliveries, look

__all__ = ["Compactable", "compact", "compactable"]

_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactable:
    """Deliveries that make up a dataset, the oldest first."""

    deliveries: Sequence[Manifest]

    @property
    def said(self) -> dict[str, Any]:
        """As metadata."""
        return {
            "deliveries": len(self.deliveries),
            "parts": sum(len(m.parts) for m in self.deliveries),
            "rows": sum(m.row_count for m in self.deliveries),
            "bytes": sum(m.size_bytes for m in self.deliveries),
        }


def compactable(destination: ObjectDestination, prefix: Prefix) -> Compactable | None:
    """What compacting would read; `None` where the dataset is one delivery already, or none.

    Raises:
        ReadError: the dataset is not whole.
        DestinationError: the store failed.
    """
    committed = look(destination, prefix).committed
    if committed is None or committed.dataset is not Dataset.APPEND:
        return None
    return Compactable(deliveries=deliveries(destination, prefix, committed))


def compact(
    destination: ObjectDestination,
    prefix: Prefix,
    *,
    attempt: Attempt,
    settings: CommitSettings,
    output: OutputSettings,
    agree: Callable[[Head], object],
    log: logging.Logger,
) -> ExportReceipt:
    """Commit all rows of an append dataset as one snapshot, which the next incremental run adds to as before.

    Cursor, identity, columns and data version stay; the deliveries that it replaces are superseded. Each part is read
    twice, since bytes are compared with what was recorded before rows are taken from them.

    Args:
        destination: where.
        prefix: of the dataset.
        attempt: who compacts; of the export whose dataset it is.
        settings: of the commit.
        output: how parts come out; in the format that the dataset has.
        agree: called with the head; raises where it is not the state that somebody else remembers.
        log: told of the progress.

    Raises:
        CommitConflict: a run has committed meanwhile; nothing of this is visible.
        ContractError: the dataset is another export's, or not the one that is remembered.
        ReadError: the dataset is not whole, or not as it was recorded; nothing was published.
        DestinationError: see the subclasses for what is left behind.
    """

    def plan(head: Head | None) -> Extraction:
        found = head.manifest if head else None
        if head is None or found is None or found.content is None or found.dataset is not Dataset.APPEND:
            msg = f"{destination.uri(prefix.root)}: expected deliveries to compact, found that a run replaced them"
            raise CommitConflict(f"{msg}; there is nothing to do")
        agree(head)
        chain = Compactable(deliveries=deliveries(destination, prefix, found))
        rewriting = _Rewriting(destination, prefix, chain, head=found)
        return rewriting.extraction(replace(output, format=_format_of(found, output)), log=log)

    return commit_export(destination, prefix=prefix, attempt=attempt, plan=plan, settings=settings, log=log)


def _format_of(head: Manifest, output: OutputSettings) -> Any:
    """The next run adds parts of the same format; in what way they are compressed is the setting's."""
    return output.format if output.format.kind == head.format else as_format(head.format)


class _Rewriting:
    """The rows of all deliveries, in order."""

    def __init__(self, destination: ObjectDestination, prefix: Prefix, chain: Compactable, *, head: Manifest) -> None:
        self._destination, self._prefix, self._chain, self._head = destination, prefix, chain, head
        self._rows = 0
        self._stopped = False
        where = head.destination_uri
        columns = head.content.columns if head.content else ()
        self._schema = pa.schema([pa.field(c.name, arrow_type(c, where=where), nullable=c.nullable) for c in columns])

    def extraction(self, output: OutputSettings, *, log: logging.Logger) -> Extraction:
        content = self._head.content
        if content is None:
            msg = f"{self._head.destination_uri}: the manifest of another tool has no columns"
            raise ReadError(msg)
        subject = f"compacting {content.export_name!r}"
        expected = self._chain.said["rows"]
        progress = Progress(log, subject=subject, estimate=lambda: expected)
        encoder = Encoder(schema=self._schema, output=output, subject=subject, progress=progress)
        return Extraction(
            content=replace(
                content,
                dataset=Dataset.SNAPSHOT,
                strategy=COMPACT,
                compression=output.format.compression,
                window=None,
            ),
            output=output,
            read=lambda stage: encoder.parts(self._batches(), stage),
            stop=self._stop,
            said={"rivet/compacted": self._chain.said},
            gates=(self._all_there,),
        )

    def _stop(self) -> None:
        self._stopped = True

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for manifest in self._chain.deliveries:
            self._verify(manifest)
            delivered = Delivered(destination=self._destination, prefix=self._prefix, manifest=manifest)
            try:
                scanner = dataset_of([delivered]).scanner(
                    batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
                )
                for batch in scanner.to_batches():
                    if self._stopped:
                        return
                    if batch.num_rows:
                        self._rows += batch.num_rows
                        yield self._typed(batch)
            except pa.ArrowException as e:
                msg = f"{manifest.destination_uri}: rows of {manifest.run_id} cannot be read back ({e})"
                raise ReadError(f"{msg}; nothing was published") from e

    def _verify(self, manifest: Manifest) -> None:
        faults = check_parts(self._destination, self._prefix, manifest.parts)
        for fault in faults:
            msg = f"{self._destination.uri(self._prefix.root)}{fault}"
            raise ReadError(f"{msg}; nothing was published: restore it, or export with full_refresh")
        for part in manifest.parts:
            key = self._prefix.at(part.path)
            if part.md5 is not None and read_md5(self._destination, key).value != part.md5:
                msg = f"{self._destination.uri(key)}: expected the bytes that were recorded (MD5), found others"
                raise ReadError(f"{msg}; nothing was published: restore it, or export with full_refresh")

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        there = set(batch.schema.names)
        arrays = [
            _typed(batch.column(f.name), f.type) if f.name in there else pa.nulls(batch.num_rows, f.type)
            for f in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _all_there(self) -> None:
        expected = self._chain.said["rows"]
        if self._rows != expected:
            msg = f"{self._head.destination_uri}: expected to read the {expected} rows of the dataset"
            raise ReadError(f"{msg}, read {self._rows}; nothing was published")


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What was read from CSV as text becomes the value that was written."""
    if array.type == kind:
        return array
    if isinstance(kind, pa.UuidType):
        raw = [None if x is None else UUID(x).bytes for x in array.to_pylist()]
        return pa.ExtensionArray.from_storage(kind, pa.array(raw, kind.storage_type))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array.cast(kind.storage_type))
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.array([None if x is None else bytes.fromhex(x) for x in array.to_pylist()], kind)
    return array.cast(kind)
