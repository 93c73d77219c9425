"""The stores behind their proxies, each started when a test first asks for it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.servers import azurite, localstack, moto
from tests.servers.generations import gcs
from tests.transport.backends import GCS, S3, Azure, Moto

BACKENDS = {"moto": (Moto, moto), "localstack": (S3, localstack), "gcs": (GCS, gcs), "azure": (Azure, azurite)}


@pytest.fixture(scope="session")
def backends(servers):
    """`backends("moto")`."""
    known = {}
    with ExitStack() as stack:

        def backend(name):
            if name not in known:
                kind, starter = BACKENDS[name]
                known[name] = kind(servers(starter))
                stack.enter_context(known[name].proxy)
            known[name].begin()
            return known[name]

        yield backend


@pytest.fixture(params=BACKENDS)
def backend(request, backends):
    """Each store in turn."""
    return backends(request.param)


@pytest.fixture(params=["moto", "localstack"])
def s3(request, backends):
    return backends(request.param)


@pytest.fixture
def azure(backends):
    return backends("azure")


@pytest.fixture
def google(backends):
    return backends("gcs")
