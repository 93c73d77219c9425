"""Azure Blob Storage as an IO manager. Imports dagster-azure: load it only where it is used."""

from __future__ import annotations

from contextlib import ExitStack

from dagster_azure.blob import AzureBlobStorageResource
from pydantic import Field

from rivet_dagster.contract import Destination
from rivet_dagster.destinations.azure import AzureDestination
from rivet_dagster.layout import Prefix
from rivet_dagster.orchestration.io_managers import ExportIOManager, stable_uri

__all__ = ["AzureIOManager"]


class AzureIOManager(ExportIOManager):
    """Exports to a container of Azure Blob Storage.

    Example:
        .. code-block:: python

            import dagster as dg
            import rivet_dagster as rd
            from dagster_azure.blob import AzureBlobStorageKeyCredential, AzureBlobStorageResource

            account = AzureBlobStorageResource(
                account_url=dg.EnvVar("AZURE_ACCOUNT_URL"),
                credential=AzureBlobStorageKeyCredential(key=dg.EnvVar("AZURE_STORAGE_KEY")),
            )
            lake = rd.AzureIOManager(blob_storage=account, container="lake", prefix="exports")
    """

    capabilities = AzureDestination.capabilities
    kind = AzureDestination.kind

    blob_storage: AzureBlobStorageResource = Field(description="Gives the client, and with it account and credential.")
    container: str = Field(description="Container to write to; it has to exist.")
    prefix: str = Field(default="", description="Directory in the container that all exports are written below.")

    def open_destination(self, clients: ExitStack) -> Destination:
        client = clients.enter_context(self.blob_storage.get_client())
        return AzureDestination(client, container=self.container, prefix=self.prefix)

    def uri(self, prefix: Prefix) -> str | None:
        return stable_uri(AzureDestination.scheme, self.container, self.prefix, prefix)
