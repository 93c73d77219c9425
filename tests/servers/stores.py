"""The object stores: emulators on loopback, each with the raw client that looks behind the code's back."""

from __future__ import annotations

import base64
import importlib.util
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.servers.process import Unavailable, answers_http, running, scratch

AZURITE = "azurite@3.35.0"
LOCALSTACK = (
    "localstack-core[base-runtime]==4.9.2",
    "cbor2<6",
    "pyopenssl==24.3.0",
    "cryptography<45",
    "service_identity",
)
LOCALSTACK_LAUNCHER = Path(__file__).with_name("localstack_on_loopback.py")
TEST_EXTRA = "python -m pip install -e '.[test]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """An S3 endpoint. `client` never retries, so a test sees each answer of the store."""

    url: str
    region: str = "us-east-1"
    access_key: str = "test"
    secret_key: str = "test"

    def at(self, url: str) -> S3Server:
        """Give the same store as reached through a proxy."""
        return replace(self, url=url)

    def client(self, **config: Any) -> Any:
        """Build a boto3 client; `config` goes to `botocore.config.Config`."""
        import boto3
        from botocore.config import Config

        # Corrupt bytes are to be read as they are.
        settings = {"retries": {"total_max_attempts": 1}, "response_checksum_validation": "when_required", **config}
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(**settings),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GCSServer:
    """A GCS JSON API endpoint; `url` is also what `STORAGE_EMULATOR_HOST` takes."""

    url: str
    project: str = "test"

    def at(self, url: str) -> GCSServer:
        """Give the same store as reached through a proxy."""
        return replace(self, url=url)

    def client(self) -> Any:
        """Build a google-cloud-storage client without credentials.

        Metadata calls never retry. Uploads and downloads do, unless they are given `retry=None`.
        """
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        client = Client(
            project=self.project, credentials=AnonymousCredentials(), client_options={"api_endpoint": self.url}
        )
        request = client._connection.api_request
        client._connection.api_request = lambda *args, **kwargs: request(*args, **{**kwargs, "retry": None})
        return client


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureServer:
    """A Blob service endpoint; `url` ends in the account, as the SDK's `account_url` wants it."""

    url: str
    account: str
    key: str

    def at(self, url: str) -> AzureServer:
        """Give the same store as reached through a proxy at `http://host:port`."""
        return replace(self, url=f"{url}/{self.account}")

    def client(self, **settings: Any) -> Any:
        """Build a `BlobServiceClient` that never retries; `settings` are its keyword arguments."""
        from azure.core.credentials import AzureNamedKeyCredential
        from azure.storage.blob import BlobServiceClient

        credential = AzureNamedKeyCredential(self.account, self.key)
        # Azurite ends idle connections after five seconds, perhaps just as one is used again.
        once = {"retry_total": 0, "headers": {"Connection": "close"}}
        return BlobServiceClient(self.url, credential=credential, **{**once, **settings})


@contextmanager
def moto() -> Iterator[S3Server]:
    """S3 by moto. It never verifies a digest it is sent: what arrives corrupt is stored corrupt."""
    _require_module("moto")
    with (
        scratch() as directory,
        running(
            lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], directory=directory
        ) as port,
    ):
        yield S3Server(url=f"http://127.0.0.1:{port}")


@contextmanager
def localstack() -> Iterator[S3Server]:
    """S3 by LocalStack, the conformance server: it verifies digests and computes full-object checksums.

    It lives in a virtual environment of its own, whose Python is named by RIVET_LOCALSTACK_PYTHON.
    """
    python = os.environ.get("RIVET_LOCALSTACK_PYTHON")
    venv = ".ci/venv-localstack"
    install = (
        f"python3.11 -m venv {venv} && {venv}/bin/python -m pip install {shlex.join(LOCALSTACK)}"
        f" && export RIVET_LOCALSTACK_PYTHON=$PWD/{venv}/bin/python"
    )
    if python is None:
        raise Unavailable("RIVET_LOCALSTACK_PYTHON does not name the Python that LocalStack is installed for", install)
    if not Path(python).is_file():
        raise Unavailable(f"RIVET_LOCALSTACK_PYTHON names {python}, which is not there", install)
    with (
        scratch() as directory,
        running(
            lambda port: ["/usr/bin/env", f"GATEWAY_LISTEN=127.0.0.1:{port}", python, str(LOCALSTACK_LAUNCHER)],
            directory=directory,
            environment={
                "SERVICES": "s3",
                "EAGER_SERVICE_LOADING": "1",
                "DISABLE_EVENTS": "1",
                "SKIP_SSL_CERT_DOWNLOAD": "1",
                "DNS_ADDRESS": "0",
                "FILESYSTEM_ROOT": str(directory),
            },
            ready=lambda port: answers_http(port, "/_localstack/health"),
        ) as port,
    ):
        yield S3Server(url=f"http://127.0.0.1:{port}")


@contextmanager
def gcs_emulator() -> Iterator[GCSServer]:
    """GCS by gcp-storage-emulator. It verifies md5Hash and crc32c and ignores every precondition."""
    _require_module("gcp_storage_emulator")
    module = [sys.executable, "-m", "gcp_storage_emulator", "start", "--quiet", "--in-memory", "--host=127.0.0.1"]
    with (
        scratch() as directory,
        running(lambda port: [*module, f"--port={port}"], directory=directory) as port,
    ):
        yield GCSServer(url=f"http://127.0.0.1:{port}")


@contextmanager
def azurite() -> Iterator[AzureServer]:
    """Azure Blob Storage by azurite, with an account key made for this server."""
    program = _azurite_program()
    account, key = "devstoreaccount1", base64.b64encode(secrets.token_bytes(64)).decode()
    # The SDK is newer than azurite's list of API versions.
    switches = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    with (
        scratch() as directory,
        running(
            lambda port: [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *switches],
            directory=directory,
            environment={"AZURITE_ACCOUNTS": f"{account}:{key}"},
        ) as port,
    ):
        yield AzureServer(url=f"http://127.0.0.1:{port}/{account}", account=account, key=key)


def _require_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise Unavailable(f"the Python package {name} is not installed", TEST_EXTRA)


def _azurite_program() -> str:
    """Find azurite: the one named by RIVET_AZURITE, else of the nearest node_modules, else on the PATH."""
    install = f"npm install --no-save {AZURITE}"
    named = os.environ.get("RIVET_AZURITE")
    if named is not None:
        if not Path(named).is_file():
            raise Unavailable(f"RIVET_AZURITE names {named}, which is not there", install)
        return named
    for parent in Path(__file__).resolve().parents:
        candidate = parent / "node_modules" / ".bin" / "azurite-blob"
        if candidate.is_file():
            return str(candidate)
    found = shutil.which("azurite-blob")
    if found is None:
        raise Unavailable("azurite-blob is neither in node_modules nor on the PATH", install)
    return found
