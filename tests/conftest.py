"""What all tests share: the servers of a session, and the five destinations."""

from __future__ import annotations

import os
from contextlib import ExitStack

import hypothesis
import pytest

from tests.harnesses import HARNESS_PARAMS, Servers

# The gate judges the change, so it draws the same examples each time; a run by hand looks for new ones.
hypothesis.settings.register_profile("by hand", deadline=None)
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True)
hypothesis.settings.load_profile("gate" if os.environ.get("RIVET_REQUIRE_SERVICES") else "by hand")


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
