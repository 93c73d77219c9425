"""What all tests share: the servers of a session, and the five destinations."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.harnesses import HARNESS_PARAMS, Servers


@pytest.fixture(scope="session")
def servers():
    """Start a server when it is first asked for: `servers(moto)`."""
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(params=HARNESS_PARAMS)
def harness(request, servers, tmp_path):
    """Each destination in turn, with a look behind its back."""
    found = request.param(servers, tmp_path)
    yield found
    found.close()
