"""Where the seam is tried: every destination that leaves objects at rest."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import dagster as dg
import pytest

from rivet_dagster.contract import ObjectDestination
from tests.faults.lakes import Lake
from tests.harnesses import HARNESS_PARAMS, LocalHarness


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


@pytest.fixture
def instance():
    """Dagster's record of the runs of one test."""
    with dg.DagsterInstance.ephemeral() as found:
        yield found


CLOUDS = [p for p in HARNESS_PARAMS if p.id in ("s3-2", "gcs-2", "azure-2")]


@pytest.fixture(params=[HARNESS_PARAMS[0], *CLOUDS])
def lake(request, servers, tmp_path, instance, monkeypatch):
    """Each destination that leaves objects at rest, behind its IO manager and through Dagster."""
    yield from _lake(request, servers, tmp_path, instance, monkeypatch)


@pytest.fixture(params=CLOUDS)
def cloud(request, servers, tmp_path, instance, monkeypatch):
    """Those that are reached through a network."""
    yield from _lake(request, servers, tmp_path, instance, monkeypatch)


def _lake(request, servers, tmp_path, instance, monkeypatch):
    harness = request.param(servers, tmp_path)
    harness.fresh()
    yield Lake(harness, instance, monkeypatch)
    harness.close()


@pytest.fixture
def shelf(tmp_path, instance, monkeypatch):
    """The local one alone."""
    harness = LocalHarness(tmp_path)
    harness.fresh()
    return Lake(harness, instance, monkeypatch)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    root = tmp_path / "disk"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(root)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system can only be mounted by root with CAP_SYS_ADMIN")
    try:
        yield root
    finally:
        # Lazily: a failed test may still have a file open there.
        subprocess.run(["umount", "--lazy", str(root)], check=True)
