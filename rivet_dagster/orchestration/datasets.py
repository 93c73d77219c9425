"""Which datasets assets have: of each its destination, what it exports, and its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.assets import Defined, KeyPrefix, defined, export_key

__all__ = ["Dataset", "datasets_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """An asset whose value an IO manager keeps.

    Attributes:
        key: of the asset.
        io_manager_key: of its destination.
        metadata: of its definition.
        partitions_def: its partitions, where it has some.
        resource_defs: what the asset brings itself.
        given: the export itself, where there is no asset that says what it exports.
    """

    key: dg.AssetKey
    io_manager_key: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    resource_defs: Mapping[str, Any] = field(default_factory=dict)
    given: Export | None = None

    @property
    def name(self) -> str:
        """As manifests and people know it."""
        return "/".join(self.key.path)

    @property
    def defined(self) -> Defined | None:
        """What it exports, and from which database; `None` for the value of a plain asset."""
        return defined(self.metadata)

    @property
    def export(self) -> Export | None:
        """What it exports; `None` for the value of a plain asset."""
        found = self.defined
        return self.given if found is None else found.export

    def partitions(self, instance: dg.DagsterInstance) -> Sequence[str | None]:
        """Those that there are, and those that there were; `None` alone for an asset without partitions."""
        if self.partitions_def is None:
            return [None]
        known = [str(k) for k in self.partitions_def.get_partition_keys(dynamic_partitions_store=instance)]
        return [*known, *sorted(set(instance.get_materialized_partitions(self.key)) - set(known))]


def datasets_of(
    assets: Iterable[Any],
    *,
    io_manager_key: str | None = None,
    key_prefix: KeyPrefix = None,
) -> Iterator[Dataset]:
    """The datasets of assets, and of exports whose assets live elsewhere; each key once.

    Args:
        assets: what `build_export_asset` or `@dg.asset` made, exports, or asset specs, which have no dataset.
        io_manager_key: of all destinations; read from the assets unless given.
        key_prefix: of the keys of what is given as `Export`.

    Raises:
        ConfigError: something else is among them.
    """
    seen: set[dg.AssetKey] = set()
    for found in (d for asset in assets for d in _of_one(asset, io_manager_key, key_prefix)):
        if found.key not in seen:
            seen.add(found.key)
            yield found


def _of_one(asset: Any, io_manager_key: str | None, key_prefix: KeyPrefix) -> Iterator[Dataset]:
    if isinstance(asset, Export):
        key = export_key(asset, key_prefix)
        yield Dataset(key=key, io_manager_key=io_manager_key or "io_manager", given=asset)
    elif isinstance(asset, dg.AssetsDefinition):
        for key in sorted(asset.keys if asset.is_executable else ()):
            yield Dataset(
                key=key,
                io_manager_key=io_manager_key or asset.get_io_manager_key_for_asset_key(key),
                metadata=asset.metadata_by_key.get(key, {}),
                partitions_def=asset.partitions_def,
                resource_defs=asset.resource_defs,
            )
    elif not isinstance(asset, dg.AssetSpec | dg.SourceAsset):
        msg = f"expected assets (what build_export_asset or @dg.asset made) or exports, found {type(asset).__name__}"
        raise ConfigError(msg)
