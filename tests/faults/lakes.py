"""The destinations of the harnesses as a user has them: behind their IO managers, through Dagster."""

import io
import json
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from tests.faults.kit import litter, read_as_a_reader
from tests.harnesses import HARNESS_PARAMS, AzureHarness, GCSHarness, LocalHarness, S3Harness
from tests.servers.messages import Request

MIB = 1 << 20
# For `pytest.mark.parametrize(…, indirect=True)`: where what is tried is the same for all clouds, or S3's alone.
S3_ALONE = [p for p in HARNESS_PARAMS if p.id == "s3-2"]
NO_WAIT = dg.RetryPolicy(max_retries=1)


@dataclass
class Lake:
    """One namespace of a real destination, Dagster's record of it, and a look behind both."""

    harness: Any
    instance: dg.DagsterInstance
    monkeypatch: pytest.MonkeyPatch

    def io_manager(self, *, server: Any = None, prefix: str | None = None, **settings: Any) -> Any:
        """The IO manager of this namespace, through `server` where there is a proxy; no SDK waits before it repeats."""
        harness = self.harness
        if isinstance(harness, LocalHarness):
            return rd.LocalIOManager(path=str(harness.root), **settings)
        server = server or harness.server
        settings["prefix"] = harness.directory if prefix is None else prefix
        if isinstance(harness, S3Harness):
            from dagster_aws.s3 import S3Resource

            resource = S3Resource(
                endpoint_url=server.url,
                region_name=server.region,
                aws_access_key_id=server.access_key,
                aws_secret_access_key=server.secret_key,
                max_attempts=1,
            )
            return rd.S3IOManager(s3=resource, bucket=harness.bucket, **settings)
        if isinstance(harness, GCSHarness):
            from dagster_gcp.gcs import GCSResource

            self.monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            never = SimpleNamespace(sleep=lambda _seconds: None, monotonic=time.monotonic)
            self.monkeypatch.setattr("google.api_core.retry.retry_unary.time", never)
            return rd.GCSIOManager(gcs=GCSResource(project=server.project), bucket=harness.bucket, **settings)
        from dagster_azure.blob import AzureBlobStorageKeyCredential, AzureBlobStorageResource

        assert isinstance(harness, AzureHarness)
        self.monkeypatch.setattr("azure.core.pipeline.transport.HttpTransport.sleep", lambda _self, _seconds: None)
        resource = AzureBlobStorageResource(
            account_url=server.url, credential=AzureBlobStorageKeyCredential(key=server.key)
        )
        return rd.AzureIOManager(blob_storage=resource, container=harness.bucket, **settings)

    def export(
        self,
        value: Any,
        *,
        key: Sequence[str] = ("orders",),
        io_manager: Any = None,
        policy: dg.RetryPolicy | None = None,
        checks: bool = False,
        **settings: Any,
    ) -> dg.ExecuteInProcessResult:
        """Materialize an asset that returns `value` (or what it gives when it is called); a failure is a result."""

        @dg.asset(key=[*key], retry_policy=policy)
        def asset() -> Any:
            return value() if callable(value) else value

        return dg.materialize(
            [asset, *(rd.build_manifest_checks(asset) if checks else ())],
            instance=self.instance,
            resources={"io_manager": io_manager or self.io_manager(**settings)},
            raise_on_error=False,
        )

    def load(self, annotation: Any, *, key: Sequence[str] = ("orders",), **settings: Any) -> Any:
        """What a downstream asset gets of an asset that has been materialized."""
        given = []

        def body(upstream: Any) -> None:
            given.append(upstream)

        body.__annotations__ = {"upstream": annotation}
        upstream = dg.AssetKey([*key])
        asset = dg.asset(name="downstream", ins={"upstream": dg.AssetIn(upstream)}, io_manager_key="memory")(body)
        there = {"io_manager": self.io_manager(**settings), "memory": dg.mem_io_manager}
        source = dg.AssetSpec(upstream).with_io_manager_key("io_manager")
        dg.materialize([source, asset], selection=[asset], instance=self.instance, resources=there)
        return given[0]

    @property
    def raw(self) -> dict[str, bytes]:
        """Everything that is there, by name."""
        return dict(self.harness.raw())

    def rows(self, root: str = "orders/") -> list[dict[str, Any]] | None:
        """What a reader gets, by the rule for readers; `None` where there is no delivery."""
        parts = read_as_a_reader(self.raw, root)
        return None if parts is None else [row for body in parts for row in table_of(body).to_pylist()]

    def litter(self, root: str = "orders/") -> list[str]:
        """What the newest delivery does not account for, uploads that are still open included."""
        return litter(self.raw, root) + self.harness.open_uploads()


def table_of(body: bytes) -> pa.Table:
    """A part as another program reads it."""
    if body.startswith(b"PAR1"):
        return pq.read_table(io.BytesIO(body))
    null = pacsv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    return pacsv.read_csv(io.BytesIO(body), convert_options=null)


def object_of(request: Request) -> str:
    """The name of the object that a request to a store is about."""
    if "uploadType=multipart" in request.target:
        return str(json.loads(request.body.split(b"\r\n\r\n")[1].partition(b"\r\n")[0])["name"])
    return unquote(request.target.partition("?")[0])


def materialized(result: dg.ExecuteInProcessResult) -> int:
    """How many materializations a run recorded."""
    return len(result.get_asset_materialization_events())


def said(result: dg.ExecuteInProcessResult) -> str:
    """All that a person reads of the failed steps of a run: messages of the errors and of what caused them."""
    texts = []
    for event in result.all_events:
        error = event.step_failure_data.error if event.is_step_failure else None
        while error is not None:
            texts.append(error.message)
            error = error.cause or error.context
    return "\n".join(texts)


@contextmanager
def uploads_in_pieces(monkeypatch: pytest.MonkeyPatch):
    """Let the clouds send what is larger than 1 MiB (GCS: 8) in pieces of 1 MiB (S3: 5), as they do from 16 MiB on."""
    from rivet_dagster.destinations.azure import AzureDestination
    from rivet_dagster.destinations.gcs import GCSDestination
    from rivet_dagster.destinations.s3 import S3Destination

    sizes = {S3Destination: 5 * MIB, GCSDestination: MIB, AzureDestination: MIB}
    with monkeypatch.context() as patch:
        for kind, part_bytes in sizes.items():
            given = {**kind.__init__.__kwdefaults__, "single_put_bytes": MIB, "part_bytes": part_bytes}
            patch.setattr(kind.__init__, "__kwdefaults__", given)
        yield


__all__ = ["MIB", "NO_WAIT", "S3_ALONE", "Lake", "materialized", "object_of", "said", "table_of", "uploads_in_pieces"]
