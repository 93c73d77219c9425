"""Where the seam is tried: every destination that leaves objects at rest."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Repeats wait between two tries; here nothing becomes better by waiting."""
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _seconds: None))


@pytest.fixture
def fresh_store(tmp_path):
    """A function that gives a new, empty destination and a look behind its back."""
    from rivet_dagster.destinations.local import LocalDestination

    numbers = count()

    def fresh():
        root = tmp_path / f"lake-{next(numbers)}"

        def look():
            files = (p for p in root.rglob("*") if p.is_file())
            return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}

        return LocalDestination(root), look

    return fresh


@pytest.fixture
def _place(fresh_store):
    return fresh_store()


@pytest.fixture
def store(_place):
    return _place[0]


@pytest.fixture
def raw(_place):
    return _place[1]
