"""Google Cloud Storage as an IO manager. Imports dagster-gcp: load it only where it is used."""

from __future__ import annotations

from contextlib import ExitStack

from dagster_gcp.gcs import GCSResource
from pydantic import Field

from rivet_dagster.contract import Destination
from rivet_dagster.destinations.gcs import GCSDestination
from rivet_dagster.layout import Prefix
from rivet_dagster.orchestration.io_managers import ExportIOManager, stable_uri

__all__ = ["GCSIOManager"]


class GCSIOManager(ExportIOManager):
    """Exports to a bucket of Google Cloud Storage.

    Example:
        .. code-block:: python

            import rivet_dagster as rd
            from dagster_gcp.gcs import GCSResource

            lake = rd.GCSIOManager(gcs=GCSResource(project="analytics"), bucket="lake", prefix="exports")
    """

    capabilities = GCSDestination.capabilities
    kind = GCSDestination.kind

    gcs: GCSResource = Field(description="Gives the client, and with it project and credentials.")
    bucket: str = Field(description="Bucket to write to; it has to exist.")
    prefix: str = Field(default="", description="Directory in the bucket that all exports are written below.")

    def open_destination(self, clients: ExitStack) -> Destination:
        client = self.gcs.get_client()
        clients.callback(client.close)
        return GCSDestination(client, bucket=self.bucket, prefix=self.prefix)

    def uri(self, prefix: Prefix) -> str | None:
        return stable_uri(GCSDestination.scheme, self.bucket, self.prefix, prefix)
