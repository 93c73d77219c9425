"""Where the seam is tried: every destination that leaves objects at rest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rivet_dagster.contract import ObjectDestination
from tests.harnesses import HARNESS_PARAMS


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Repeats wait between two tries; here nothing becomes better by waiting."""
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _seconds: None))


@pytest.fixture(params=[p for p in HARNESS_PARAMS if p.id in ("local", "s3-1", "s3-3", "gcs-1", "azure-1")])
def place(request, servers, tmp_path):
    """A harness of each destination that leaves objects at rest; of S3, moto and LocalStack."""
    found = request.param(servers, tmp_path)
    assert isinstance(found.fresh(), ObjectDestination)
    yield found
    found.close()


@pytest.fixture
def store(place):
    """A new, empty destination."""
    return place.fresh()


@pytest.fixture
def raw(store, place):
    """A look behind its back."""
    return place.raw
