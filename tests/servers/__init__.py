"""Real servers for the tests: each a context manager on a free loopback port, ended by process id when it is left.

`require(moto)` is the way in for fixtures: it skips with the install command where a server cannot be had, and
fails instead where `RIVET_REQUIRE_SERVICES=1` is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

from tests.servers.databases import MariaDBServer, PostgresServer, mariadb, postgres
from tests.servers.process import StartFailed, Unavailable
from tests.servers.stores import AzureServer, GCSServer, S3Server, azurite, gcs_emulator, localstack, moto

__all__ = [
    "AzureServer",
    "GCSServer",
    "MariaDBServer",
    "PostgresServer",
    "S3Server",
    "StartFailed",
    "Unavailable",
    "azurite",
    "gcs_emulator",
    "localstack",
    "mariadb",
    "moto",
    "postgres",
    "require",
]

Server = TypeVar("Server")


@contextmanager
def require(starter: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """Start a server for a fixture; skip, or fail where services are required, when this machine has none."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(starter())
        except Unavailable as missing:
            if os.environ.get("RIVET_REQUIRE_SERVICES") == "1":
                pytest.fail(str(missing), pytrace=False)
            pytest.skip(str(missing))
        yield server
