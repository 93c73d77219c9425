"""Destinations as IO managers: what an asset returns becomes visible whole and verified, or not at all."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import Any, ClassVar, Literal

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr
from typing_extensions import Self

from rivet_dagster.contract import Destination, DestinationCapabilities
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.destinations.stdout import StdoutDestination
from rivet_dagster.errors import DestinationError, RivetError
from rivet_dagster.exports.fields import refuse_unknown
from rivet_dagster.layout import Prefix, asset_prefix
from rivet_dagster.manifest import MAX_ANCESTORS
from rivet_dagster.orchestration.failures import masked
from rivet_dagster.orchestration.outputs import Outlet
from rivet_dagster.orchestration.settings import Directory, Duration, Settings, Size

__all__ = ["IO_MANAGERS", "ExportIOManager", "LocalIOManager", "StdoutIOManager", "stable_uri"]

IO_MANAGERS = {
    "local": "rivet_dagster.orchestration.io_managers.LocalIOManager",
    "s3": "rivet_dagster.orchestration.s3.S3IOManager",
    "gcs": "rivet_dagster.orchestration.gcs.GCSIOManager",
    "azure": "rivet_dagster.orchestration.azure.AzureIOManager",
    "stdout": "rivet_dagster.orchestration.io_managers.StdoutIOManager",
}
"""Where the IO manager of each kind of destination is, so that its SDK loads only where it is used."""


class ExportIOManager(dg.ConfigurableIOManager):
    """What all IO managers of this package have in common; use one of its subclasses.

    An asset may return a `pandas.DataFrame`, `pyarrow.Table`, `pyarrow.RecordBatchReader` or `Batches`; an asset of
    `build_export_asset` streams its rows from a database. `handle_output` returns only after the commit.

    Attributes:
        capabilities: what the destination promises; known without a client.
        kind: of the destination.
    """

    # A setting that is misspelt must not pass for one that is set.
    model_config = ConfigDict(extra="forbid")

    capabilities: ClassVar[DestinationCapabilities]
    kind: ClassVar[str]

    format: Literal["parquet", "csv"] = Field(
        default="parquet", description="Format of the parts: parquet (zstd level 1) or csv (uncompressed)."
    )
    max_file_size: Size | None = Field(
        default=None,
        description='Size from which a part ends and the next begins, e.g. "256MB" or "1GiB"; without it, one part.',
    )
    max_memory: Size | None = Field(
        default=None,
        description='Size that the rows of an export may take on their way, e.g. "256MB": row groups get smaller and'
        " fewer ranges are read at a time; without it, about 150 MB for each range.",
    )
    retain: int = Field(
        default=0,
        ge=0,
        lt=MAX_ANCESTORS,
        description="Superseded deliveries kept besides the newest, for readers that still hold an older manifest.",
    )
    verify: Literal["store", "readback"] = Field(
        default="store",
        description="How parts are verified: by the store's own checksum, or by reading each back (readback).",
    )
    symlink_manifest: bool = Field(
        default=False,
        description="Also write _symlink_format_manifest/manifest, for engines that cannot follow a manifest.",
    )
    takeover_after: Duration = Field(
        default="1h", description="Age of its last heartbeat from which an unfinished run counts as dead."
    )
    unsafe_unfenced_commits: bool = Field(
        default=False,
        description="Go on where the store has no conditional writes; two runs at once may then lose data.",
    )

    _opened: Destination | None = PrivateAttr(default=None)
    _clients: ExitStack = PrivateAttr(default_factory=ExitStack)

    def __new__(cls, *_args: Any, **given: Any) -> Self:
        """Look at the names before pydantic does, which does not say what may be meant."""
        refuse_unknown(cls, given)
        return super().__new__(cls)

    @abstractmethod
    def open_destination(self, clients: ExitStack) -> Destination:
        """Build the destination and the client it needs.

        Args:
            clients: closes what has to be closed after the step.
        """

    @abstractmethod
    def uri(self, prefix: Prefix) -> str | None:
        """Where a dataset is, without a client; `None` where that depends on the environment."""

    @property
    def destination(self) -> Destination:
        """The destination, built at its first use in a process and kept for the step.

        Raises:
            ConfigError: its settings cannot work.
            DestinationError: the client cannot be built.
        """
        # Not in setup_for_execution: Dagster does not retry a resource that fails to start.
        if self._opened is None:
            try:
                self._opened = self.open_destination(self._clients)
            except RivetError:
                raise
            except Exception as e:
                msg = (
                    f"{self.kind}: expected a client, found that its resource cannot build one: "
                    f"{type(e).__name__}: {masked(str(e))}; correct the resource's settings or the environment"
                )
                raise DestinationError(msg) from e
        return self._opened

    @property
    def settings(self) -> Settings:
        """What is set here; what comes from the environment is known only in a step, and is left at its default."""
        said = {name: getattr(self, name) for name in Settings.model_fields}
        return Settings(**{name: value for name, value in said.items() if not isinstance(value, dg.EnvVar)})

    @property
    def outlet(self) -> Outlet:
        """Where what a step returns goes: the one path to a commit, for an output and for an export of a bundle."""
        return Outlet(
            kind=self.kind,
            capabilities=self.capabilities,
            settings=self.settings,
            open_destination=lambda: self.destination,
        )

    @staticmethod
    def prefix_of(asset_key: dg.AssetKey, partition_key: str | None = None) -> Prefix:
        """The directory of an asset's dataset, or of one partition of it."""
        return asset_prefix(asset_key.path, partition_key)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Commit what an asset returned; see `Outlet.write` for what it raises."""
        self.outlet.write(context, obj)

    def load_input(self, context: dg.InputContext) -> Any:
        """Give a downstream asset what its annotation asks for; see `inputs.load`."""
        # pyarrow loads only where rows are read or written.
        from rivet_dagster.orchestration.inputs import load  # noqa: PLC0415

        return load(context, kind=self.kind, open_destination=lambda: self.destination)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the client, if one was built."""
        del context
        self._opened = None
        self._clients.close()


def stable_uri(scheme: str, container: str, directory: str, prefix: Prefix) -> str | None:
    """Where a dataset is in an object store; `None` where bucket or directory come from the environment."""
    if isinstance(container, dg.EnvVar) or isinstance(directory, dg.EnvVar):
        return None
    below = directory if not directory or directory.endswith("/") else f"{directory}/"
    return f"{scheme}://{container}/{below}{prefix.root}"


class LocalIOManager(ExportIOManager):
    """Exports to a directory of the local file system.

    Example:
        .. code-block:: python

            import dagster as dg
            import pandas as pd
            import rivet_dagster as rd

            @dg.asset
            def orders() -> pd.DataFrame: ...

            defs = dg.Definitions(assets=[orders], resources={"io_manager": rd.LocalIOManager(path="data/exports")})
    """

    capabilities = LocalDestination.capabilities
    kind = LocalDestination.kind

    path: Directory = Field(
        description="Directory that all exports are written below; made when it is not there. A relative one is below "
        "the working directory of the process that runs the step."
    )

    def open_destination(self, clients: ExitStack) -> Destination:
        del clients
        return LocalDestination(self.path, unsafe_unfenced_commits=self.unsafe_unfenced_commits)

    def uri(self, prefix: Prefix) -> str | None:
        if isinstance(self.path, dg.EnvVar):
            return None
        return LocalDestination(self.path).uri(prefix.root)


class StdoutIOManager(ExportIOManager):
    """Streams exports to standard output, for previews and pipes: nothing is recorded and nothing can be read back."""

    capabilities = StdoutDestination.capabilities
    kind = StdoutDestination.kind

    format: Literal["parquet", "csv"] = Field(default="csv", description="Format of the stream: csv or parquet.")

    def open_destination(self, clients: ExitStack) -> Destination:
        del clients
        return StdoutDestination()

    def uri(self, prefix: Prefix) -> str | None:
        return StdoutDestination().uri(prefix.root)
