"""Whatever fails, and wherever a secret was written: nothing a person or Dagster keeps of it shows the secret."""

import json
import logging
from urllib.parse import quote

import dagster as dg
import pyarrow as pa
import pytest
from dagster_aws.s3 import S3Resource
from dagster_azure.blob import (
    AzureBlobStorageAnonymousCredential,
    AzureBlobStorageKeyCredential,
    AzureBlobStorageResource,
    AzureBlobStorageSASTokenCredential,
)

import rivet_dagster as rd
from tests.orchestration.kit import everything

PASSWORD = "hunter2 p@ss/wörd%"
ENCODED = quote(PASSWORD, safe="")
SIGNATURE = "verysecret+signature="
KEY = "c2VjcmV0a2V5c2VjcmV0a2V5c2VjcmV0a2V5"
PIECES = {"hunter2", "verysecret", KEY, ENCODED, PASSWORD, "c2VjcmV0"}
# Nothing listens there.
CLOSED = "127.0.0.1:9"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr("azure.core.pipeline.transport.HttpTransport.sleep", lambda _self, _seconds: None)


@dg.asset
def orders():
    return pa.table({"id": [1]})


@dg.asset(io_manager_key="memory")
def downstream(orders: pa.Table):
    raise AssertionError


# What an SDK tells whoever asks for its own debugging is its own.
OTHERS = ("azure", "boto", "urllib3")


def nothing_is_shown(instance, capfd, caplog):
    out, err = capfd.readouterr()
    logged = "\n".join(caplog.handler.format(r) for r in caplog.records if not r.name.startswith(OTHERS))
    kept = {"Dagster's record": everything(instance), "the output": out + err, "the log": logged}
    for where, text in kept.items():
        spelled = (*PIECES, *(json.dumps(p)[1:-1] for p in PIECES), *(repr(p)[1:-1] for p in PIECES))
        assert not [p for p in spelled if p in text], where


def fails_everywhere(instance, io_manager, capfd, caplog):
    """Writing, reading and checking; each has its own way to Dagster."""
    there = {"io_manager": io_manager, "memory": dg.mem_io_manager}
    checks = rd.build_manifest_checks(orders)
    selections = [[orders], [downstream], dg.AssetSelection.checks_for_assets(orders)]
    with caplog.at_level(logging.DEBUG):
        for selection in selections:
            done = dg.materialize(
                [orders, downstream, *checks],
                instance=instance,
                resources=there,
                selection=selection,
                raise_on_error=False,
            )
            assert not done.success
    assert "rivet_dagster.errors" in everything(instance)
    nothing_is_shown(instance, capfd, caplog)


def azure(url, credential):
    return rd.AzureIOManager(
        blob_storage=AzureBlobStorageResource(account_url=url, credential=credential), container="lake"
    )


SAS = AzureBlobStorageSASTokenCredential(token=f"sv=2024-01-01&sig={quote(SIGNATURE)}")
ANONYMOUS = AzureBlobStorageAnonymousCredential()
CONNECTION = f"DefaultEndpointsProtocol=https;AccountName=lake;AccountKey={KEY}==;EndpointSuffix=core.windows.net"
ACCOUNTS = {
    "a signature as credential": (f"http://{CLOSED}/lake", SAS),
    "a signature in the URL": (f"http://{CLOSED}/lake?sv=2024-01-01&sig={quote(SIGNATURE)}", ANONYMOUS),
    "a key": (f"http://{CLOSED}/lake", AzureBlobStorageKeyCredential(key=f"{KEY}==")),
    "a key that is none": (f"http://{CLOSED}/lake", AzureBlobStorageKeyCredential(key=PASSWORD)),
    "a password in the URL": (f"http://me:{ENCODED}@{CLOSED}/lake", ANONYMOUS),
    "a connection string for the URL": (CONNECTION, ANONYMOUS),
    "a signature for the URL": (f"sv=2024-01-01&sig={quote(SIGNATURE)}", SAS),
    "a key for the URL": (f"{KEY}==", ANONYMOUS),
}


@pytest.mark.parametrize("account", ACCOUNTS)
def test_an_azure_account_that_does_not_answer_shows_no_secret(instance, capfd, caplog, account):
    fails_everywhere(instance, azure(*ACCOUNTS[account]), capfd, caplog)


ENDPOINTS = {
    "a key": f"http://{CLOSED}",
    "a password in the URL": f"http://me:{ENCODED}@{CLOSED}",
    "a query in the URL": f"http://{CLOSED}/?X-Amz-Signature={quote(SIGNATURE)}",
    "a key for the URL": f"{KEY}==",
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_s3_endpoint_that_does_not_answer_shows_no_secret(instance, capfd, caplog, endpoint):
    resource = S3Resource(
        endpoint_url=ENDPOINTS[endpoint],
        region_name="us-east-1",
        aws_access_key_id="me",
        aws_secret_access_key=KEY,
        aws_session_token=SIGNATURE,
        max_attempts=1,
    )
    fails_everywhere(instance, rd.S3IOManager(s3=resource, bucket="lake"), capfd, caplog)


DATABASES = [
    f"postgresql://me:{ENCODED}@{CLOSED}/shop",
    f"postgresql+psycopg://me:{ENCODED}@{CLOSED}/shop",
    f"postgresql://{CLOSED}/shop?user=me&password={ENCODED}",
    f"postgresql://{CLOSED}/shop?user=me&PASSWORD={ENCODED}",
    f"postgresql://me@{CLOSED}/shop?sslmode=require&sslpassword={ENCODED}",
    f"postgresql://me:{ENCODED}@/shop?host=127.0.0.1&port=9",
    f"postgresql://me:{ENCODED}@{CLOSED},127.0.0.1:10/shop",
    f"postgresql://me:{ENCODED}@127.0.0.1:port/shop",
    f"postgresql://me:{ENCODED}@{CLOSED}/shop?nonsense={ENCODED}",
    f"postgresql://me:{PASSWORD}@{CLOSED}/shop",
    f"mysql://me:{ENCODED}@{CLOSED}/shop",
    f"oracle://me:{ENCODED}@{CLOSED}/shop",
    f"me:{ENCODED}@{CLOSED}/shop",
    f"postgresql:me:{ENCODED}@{CLOSED}/shop",
    "host=127.0.0.1 port=9 user=me password=hunter2",
]


@pytest.mark.parametrize("url", DATABASES, ids=lambda url: url.replace(ENCODED, "x").replace(PASSWORD, "y"))
def test_a_database_that_does_not_answer_shows_no_secret(instance, tmp_path, capfd, caplog, url):
    asset = rd.build_export_asset(rd.Export(name="orders", query="select 1 as id"))
    there = {"io_manager": rd.LocalIOManager(path=str(tmp_path)), "source": rd.DatabaseResource(url=url)}
    with caplog.at_level(logging.DEBUG):
        done = dg.materialize([asset], instance=instance, resources=there, raise_on_error=False)
    assert not done.success
    assert "rivet_dagster.errors" in everything(instance)
    nothing_is_shown(instance, capfd, caplog)
    assert not any(p.is_file() and p.name != ".rivet.lock" for p in tmp_path.rglob("*"))


def test_the_look_for_secrets_would_find_one(instance, capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("postgresql://me:%s@host", ENCODED)
    with pytest.raises(AssertionError, match="the log"):
        nothing_is_shown(instance, capfd, caplog)
