"""The three clouds through Dagster: their IO managers, on the emulators, looked at with the raw clients."""

import json
from dataclasses import dataclass
from itertools import count
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import rivet_dagster as rd
from tests.harnesses import s3
from tests.orchestration.kit import chain, events, failure, materialization, plain, run, told
from tests.servers import azurite
from tests.servers.faultproxy import FaultProxy, answer
from tests.servers.generations import gcs

_numbers = count()


@dataclass
class Cloud:
    """A bucket of its own, and a way to look into it."""

    scheme: str
    server: Any
    client: Any
    bucket: str

    def io_manager(self, *, bucket: str | None = None, server: Any = None, **settings: Any) -> Any:
        place, server = bucket or self.bucket, server or self.server
        match self.scheme:
            case "s3":
                from dagster_aws.s3 import S3Resource

                resource = S3Resource(
                    endpoint_url=server.url,
                    region_name=server.region,
                    aws_access_key_id=server.access_key,
                    aws_secret_access_key=server.secret_key,
                )
                return rd.S3IOManager(s3=resource, bucket=place, **settings)
            case "gs":
                from dagster_gcp.gcs import GCSResource

                return rd.GCSIOManager(gcs=GCSResource(project=server.project), bucket=place, **settings)
            case _:
                from dagster_azure.blob import AzureBlobStorageKeyCredential, AzureBlobStorageResource

                key = AzureBlobStorageKeyCredential(key=server.key)
                resource = AzureBlobStorageResource(account_url=server.url, credential=key)
                return rd.AzureIOManager(blob_storage=resource, container=place, **settings)

    def objects(self) -> dict[str, bytes]:
        match self.scheme:
            case "s3":
                found = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
                return {
                    o["Key"]: self.client.get_object(Bucket=self.bucket, Key=o["Key"])["Body"].read() for o in found
                }
            case "gs":
                return {b.name: b.download_as_bytes() for b in self.client.bucket(self.bucket).list_blobs()}
            case _:
                container = self.client.get_container_client(self.bucket)
                return {n: container.download_blob(n).readall() for n in container.list_blob_names()}


@pytest.fixture(params=["s3", "gs", "azure"])
def cloud(request, servers, monkeypatch):
    starter = {"s3": s3, "gs": gcs, "azure": azurite}[request.param]
    server = servers(starter)
    client = servers.client(starter)
    bucket = f"orchestration-{next(_numbers)}"
    match request.param:
        case "s3":
            client.create_bucket(Bucket=bucket)
        case "gs":
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            client.create_bucket(bucket)
        case _:
            client.create_container(bucket)
    return Cloud(scheme=request.param, server=server, client=client, bucket=bucket)


@pytest.mark.parametrize("prefix", ["", "lake/exports", "lake/exports/"])
def test_an_export_lands_and_is_described_as_it_lies_there(cloud, instance, shop, prefix):
    export = rd.Export(name="orders", table="orders", max_file_size="600B")
    definitions = rd.build_export_definitions(
        [export], source=shop, destination=cloud.io_manager(prefix=prefix), key_prefix="wh"
    )
    said_before = definitions.resolve_asset_graph().get(dg.AssetKey(["wh", "orders"])).metadata["dagster/uri"]
    result = definitions.resolve_job_def("exports").execute_in_process(instance=instance)
    assert result.success
    said = plain(materialization(result, "wh/orders").metadata)
    objects = cloud.objects()
    root = f"{prefix}{'/' if prefix and not prefix.endswith('/') else ''}wh/orders/"
    manifest = json.loads(objects[f"{root}manifest.json"])
    assert said["dagster/uri"] == said_before == f"{said['rivet/manifest'].removesuffix('manifest.json')}"
    assert said["dagster/uri"].endswith(f"{cloud.bucket}/{root}")
    assert said["rivet/commit_protocol"] == "FinalizeOnClose"
    assert said["rivet/checksum"] == objects[f"{root}_SUCCESS"].decode().strip()
    assert said["rivet/verification"] not in ("size", "unknown")
    assert said["dagster/row_count"] == manifest["row_count"] == 100
    assert len(said["rivet/parts"]) == len(manifest["parts"]) > 1
    assert {p["path"] for p in manifest["parts"]} == {
        k.removeprefix(root) for k in objects if k.startswith(f"{root}data/")
    }
    assert [c.passed for c in result.get_asset_check_evaluations()] == [True]


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_what_was_written_is_read_back_through_the_same_client(cloud, instance, file_format):
    rows = pa.table({"id": [1, 2, 3], "note": ["a", None, ""]})
    given = {}

    @dg.asset
    def orders():
        return rows

    @dg.asset(io_manager_key="mem")
    def as_table(orders: pa.Table):
        given["table"] = orders

    @dg.asset(io_manager_key="mem")
    def as_frame(orders: pd.DataFrame):
        given["frame"] = orders

    @dg.asset(io_manager_key="mem")
    def as_dataset(orders: ds.Dataset):
        given["dataset"] = orders.to_table(filter=ds.field("id") > 1)

    io_manager = cloud.io_manager(prefix="lake", format=file_format)
    assets = [orders, as_table, as_frame, as_dataset]
    assert run(assets, io_manager, instance, resources={"mem": dg.mem_io_manager}).success
    assert given["table"].to_pydict() == rows.to_pydict()
    assert given["frame"]["id"].tolist() == [1, 2, 3]
    assert given["dataset"].to_pydict() == {"id": [2, 3], "note": [None, ""]}


def test_a_bucket_that_is_not_there_is_one_clear_error(cloud, instance, shop, orders):
    result = run([orders], cloud.io_manager(bucket="no-such-bucket"), instance, resources={"source": shop})
    assert not result.success
    said = told(result, "orders")
    assert "no-such-bucket" in said
    assert "DestinationError" in {e.cls_name for e in chain(failure(result, "orders").error)}
    assert cloud.objects() == {}


def test_two_exports_in_one_process_share_a_client_and_close_it(cloud, instance, shop, monkeypatch):
    opened, closed = [], []
    io_manager = cloud.io_manager()
    kind = type(io_manager)
    open_destination = kind.open_destination

    def counted(self, clients):
        opened.append(1)
        clients.callback(lambda: closed.append(1))
        return open_destination(self, clients)

    monkeypatch.setattr(kind, "open_destination", counted)
    assets = [rd.build_export_asset(rd.Export(name=n, table="orders")) for n in ("one", "two")]
    assert run(assets, io_manager, instance, resources={"source": shop}).success
    assert opened == closed == [1]


def test_no_client_is_built_before_the_first_output(cloud, monkeypatch, instance):
    """A resource that fails to start is not retried by Dagster; so nothing happens at the start."""
    io_manager = cloud.io_manager()
    opened = []
    monkeypatch.setattr(type(io_manager), "open_destination", lambda *_: opened.append(1))

    @dg.asset
    def elsewhere(context) -> None:
        assert context.resources is not None

    @dg.asset
    def orders():
        raise LookupError

    result = run([elsewhere, orders], io_manager, instance)
    assert not result.success
    assert opened == []


def test_a_wrong_key_is_one_clear_error_without_the_key(servers, instance, shop, orders):
    import base64
    from dataclasses import replace

    server = servers(azurite)
    client = servers.client(azurite)
    bucket = f"orchestration-{next(_numbers)}"
    client.create_container(bucket)
    wrong = base64.b64encode(b"another key, as long as a key is: 64 bytes").decode()
    cloud = Cloud(scheme="azure", server=replace(server, key=wrong), client=client, bucket=bucket)
    result = run([orders], cloud.io_manager(), instance, resources={"source": shop})
    said = told(result, "orders")
    assert "AuthenticationFailed" in said or "403" in said
    assert wrong not in said
    assert server.key not in said
    assert "STEP_UP_FOR_RETRY" not in events(instance, result.run_id)


def test_a_refused_key_of_s3_is_one_clear_error(servers, instance, shop, orders):
    server = servers(s3)
    client = servers.client(s3)
    bucket = f"orchestration-{next(_numbers)}"
    client.create_bucket(Bucket=bucket)
    body = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>"
    with FaultProxy(server.url) as proxy:
        proxy.on(".*", ".*", answer(403, body), times=None)
        cloud = Cloud(scheme="s3", server=server.at(proxy.url), client=client, bucket=bucket)
        result = run([orders], cloud.io_manager(), instance, resources={"source": shop})
    said = told(result, "orders")
    assert "InvalidAccessKeyId" in said or "403" in said
    assert bucket in said
    assert server.secret_key not in said.split()
    assert cloud.objects() == {}
