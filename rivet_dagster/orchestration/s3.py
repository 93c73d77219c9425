"""S3 and stores that speak its protocol, as an IO manager. Imports dagster-aws: load it only where it is used."""

from __future__ import annotations

from contextlib import ExitStack

from dagster_aws.s3 import S3Resource
from pydantic import Field

from rivet_dagster.contract import Destination
from rivet_dagster.destinations.s3 import S3Destination
from rivet_dagster.layout import Prefix
from rivet_dagster.orchestration.io_managers import ExportIOManager, stable_uri

__all__ = ["S3IOManager"]


class S3IOManager(ExportIOManager):
    """Exports to a bucket of S3, or of a store that speaks its protocol.

    Example:
        .. code-block:: python

            import dagster as dg
            import rivet_dagster as rd
            from dagster_aws.s3 import S3Resource

            lake = rd.S3IOManager(s3=S3Resource(region_name="eu-central-1"), bucket="lake", prefix="exports")
    """

    capabilities = S3Destination.capabilities
    kind = S3Destination.kind

    s3: S3Resource = Field(description="Gives the client, and with it endpoint, region and credentials.")
    bucket: str = Field(description="Bucket to write to; it has to exist.")
    prefix: str = Field(default="", description="Directory in the bucket that all exports are written below.")

    def open_destination(self, clients: ExitStack) -> Destination:
        client = self.s3.get_client()
        clients.callback(client.close)
        return S3Destination(client, bucket=self.bucket, prefix=self.prefix)

    def uri(self, prefix: Prefix) -> str | None:
        return stable_uri(S3Destination.scheme, self.bucket, self.prefix, prefix)
