"""What a downstream asset gets of an export: only what a valid manifest lists, as its annotation asks for it."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from rivet_dagster.attempt import ExportReceipt
from rivet_dagster.contract import Destination, ObjectDestination
from rivet_dagster.errors import ConfigError, ReadError, RivetError
from rivet_dagster.layout import Prefix, asset_prefix
from rivet_dagster.manifest import Ancestor, Manifest
from rivet_dagster.orchestration.failures import as_dagster_failure
from rivet_dagster.orchestration.reading import Delivered, dataset_of, table_of
from rivet_dagster.orchestration.run_facts import run_id_of
from rivet_dagster.readback import Sight, deliveries, look, read_record

__all__ = ["load"]

_READINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """The dataset of one prefix: deliveries from its last snapshot on, and the newest one's fingerprint."""

    deliveries: tuple[Delivered, ...]
    fingerprint: str

    @property
    def receipt(self) -> ExportReceipt:
        newest = self.deliveries[-1]
        parts = tuple(p for d in self.deliveries for p in d.manifest.parts)
        return ExportReceipt(
            export_name=newest.manifest.export_name,
            capabilities=newest.destination.capabilities,
            uri=newest.destination.uri(newest.prefix.root),
            manifest=newest.manifest,
            fingerprint=self.fingerprint,
            parts=parts,
            row_count=sum(p.rows for p in parts),
            size_bytes=sum(p.size_bytes for p in parts),
            window=newest.manifest.content.window if newest.manifest.content else None,
            found=True,
        )


def load(context: dg.InputContext, *, kind: str, open_destination: Callable[[], Destination]) -> Any:
    """Load the upstream run's own delivery where both are in one Dagster run, else the newest committed one.

    The annotation of the input says as what: `pandas.DataFrame` (also without one), `pyarrow.Table`,
    `pyarrow.RecordBatchReader`, `pyarrow.dataset.Dataset` (lazy) or `ExportReceipt`. Several partitions come
    concatenated in the order of their keys, or each on its own for a `dict` of these. Where there is
    none, as for the first partition of an asset that depends on its own previous one, it is `None` or an empty `dict`.

    Raises:
        dagster.Failure: there is no complete dataset, or the annotation asks for something else.
        DestinationError: the store failed; it may succeed when it is repeated.
    """
    try:
        if not context.has_asset_key:
            msg = f"input {context.name!r}: expected one that is an asset, found one that is not; load it in an asset"
            raise ConfigError(msg)
        wanted, each = _wanted(context)
        destination = open_destination()
        if not isinstance(destination, ObjectDestination):
            msg = f"{kind} keeps nothing that could be read back: give the upstream asset another IO manager"
            raise ConfigError(msg)
        for more in reversed(range(_READINGS)):
            found = {key: _find(context, destination, key) for key in _keys(context)}
            try:
                return _given(wanted, found, each=each)
            except ReadError:
                # What another run has replaced while it was read is read again, as it is now.
                if not more or not any(map(_is_replaced, found.values())):
                    raise
    except RivetError as e:
        failure = as_dagster_failure(e, capabilities=None, uri=kind)
        raise failure from failure.__cause__


def _given(wanted: Any, found: Mapping[str | None, _Input], *, each: bool) -> Any:
    if each:
        return {key: _as(wanted, [one]) for key, one in found.items()}
    return _as(wanted, list(found.values())) if found else None


def _is_replaced(found: _Input) -> bool:
    newest = found.deliveries[-1]
    return look(newest.destination, newest.prefix).committed_fingerprint != found.fingerprint


def _keys(context: dg.InputContext) -> list[str | None]:
    if not context.has_asset_partitions:
        return [None]
    return [*sorted(str(k) for k in context.asset_partition_keys)]


def _find(context: dg.InputContext, destination: ObjectDestination, key: str | None) -> _Input:
    prefix = asset_prefix(context.asset_key.path, key)
    sight = look(destination, prefix)
    if sight.committed is None or sight.committed_fingerprint is None:
        msg = (
            f"{destination.uri(prefix.root)}: expected a committed delivery of {context.asset_key.to_user_string()}"
            f"{'' if key is None else f' for partition {key!r}'}, found no _SUCCESS; materialize it first"
        )
        raise ReadError(msg)
    own = _own_run(context, key, sight)
    if own is None or own.run_id == sight.committed.run_id:
        return _whole(destination, prefix, sight.committed, sight.committed_fingerprint)
    copy = read_record(destination, prefix, own.run_id)
    if copy is None or copy.fingerprint != own.fingerprint:
        msg = (
            f"{destination.uri(prefix.root)}: expected the delivery {own.run_id} of this Dagster run, found that "
            f"{sight.committed.run_id} has replaced it; run the downstream asset again, or set retain"
        )
        raise ReadError(msg)
    return _whole(destination, prefix, copy.manifest, copy.fingerprint)


def _own_run(context: dg.InputContext, key: str | None, sight: Sight) -> Ancestor | None:
    """The newest delivery of the Dagster run that the input is loaded in, where the head is or descends from one."""
    run_id = run_id_of(context)
    if run_id is None or sight.committed is None or sight.committed_fingerprint is None:
        return None
    line = sight.committed.as_ancestors(sight.committed_fingerprint)
    return next((a for a in line if a.dagster_run_id == run_id and a.partition_key == key), None)


def _whole(destination: ObjectDestination, prefix: Prefix, manifest: Manifest, fingerprint: str) -> _Input:
    chain = deliveries(destination, prefix, manifest)
    columns = manifest.content.columns if manifest.content else ()
    return _Input(
        deliveries=tuple(Delivered(destination=destination, prefix=prefix, manifest=m, columns=columns) for m in chain),
        fingerprint=fingerprint,
    )


def _wanted(context: dg.InputContext) -> tuple[Any, bool]:
    """The type of one value, and whether each partition is wanted on its own."""
    try:
        said: Any = context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:
        said = Any
    if typing.get_origin(said) in (typing.Union, types.UnionType):
        said = next(a for a in typing.get_args(said) if a is not type(None))
    each = said is dict or typing.get_origin(said) in (dict, Mapping)
    if each:
        said = typing.get_args(said)[1] if typing.get_args(said) else Any
    if said in (Any, object):
        said = pd.DataFrame
    if said not in (pd.DataFrame, pa.Table, pa.RecordBatchReader, ds.Dataset, ExportReceipt):
        msg = (
            f"input of {context.asset_key.to_user_string()}: expected the annotation pandas.DataFrame, pyarrow.Table, "
            f"pyarrow.RecordBatchReader, pyarrow.dataset.Dataset, ExportReceipt or a dict of one of them, found {said}"
        )
        raise ConfigError(msg)
    return said, each


def _as(wanted: Any, inputs: Sequence[_Input]) -> Any:
    parts = [d for one in inputs for d in one.deliveries]
    if wanted is ExportReceipt:
        if len(inputs) != 1:
            msg = f"found receipts of {len(inputs)} partitions for one ExportReceipt; annotate dict[str, ExportReceipt]"
            raise ConfigError(msg)
        return inputs[0].receipt
    if wanted is ds.Dataset:
        return dataset_of(parts)
    if wanted is pa.RecordBatchReader:
        return dataset_of(parts).scanner().to_reader()
    table = table_of(parts)
    return table if wanted is pa.Table else _frame(table, where=parts[0].manifest.destination_uri)


def _frame(table: pa.Table, *, where: str) -> pd.DataFrame:
    """As pandas, where integers beside NULL stay exact instead of becoming float, within lists and structs too."""
    try:
        # Slower, and of no use to plain columns, which get a type of their own below.
        within = any(pa.types.is_nested(field.type) for field in table.schema)
        frame: pd.DataFrame = table.to_pandas(integer_object_nulls=within)
    except (pa.ArrowException, ValueError, OverflowError) as e:
        msg = f"{where}: pandas cannot hold a value of these rows ({e}); annotate the input pyarrow.Table"
        raise ReadError(msg) from e
    for i, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if column.null_count and pa.types.is_integer(field.type):
            frame.isetitem(i, column.to_pandas(types_mapper=_NULLABLE.get))
    return frame


_NULLABLE = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
}
