"""What all tests share: the servers of a session, and the five destinations."""

from __future__ import annotations

import os
from collections import Counter
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


@pytest.fixture
def tally(record_property):
    """Count something up, to be said at the end of the session: `tally("cases", 3)`, in whichever worker."""
    return lambda what, number: record_property("tally", (what, number))


def pytest_terminal_summary(terminalreporter):
    """Say what was counted."""
    reports = (report for some in terminalreporter.stats.values() for report in some)
    counted: Counter[str] = Counter()
    for report in reports:
        if getattr(report, "when", None) == "call":
            for name, value in report.user_properties:
                if name == "tally":
                    counted.update(dict([value]))
    for what, number in sorted(counted.items()):
        terminalreporter.write_line(f"{what}: {number}")
