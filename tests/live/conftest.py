"""A Dagster instance on disk that a test shares with the processes that it starts."""

from __future__ import annotations

import dagster as dg
import pytest

SETTINGS = """
telemetry:
  enabled: false
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
concurrency:
  runs:
    max_concurrent_runs: 1
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Made here, before any other process sees it: two that make it at once break it."""
    place = tmp_path / "home"
    place.mkdir()
    (place / "dagster.yaml").write_text(SETTINGS)
    monkeypatch.setenv("DAGSTER_HOME", str(place))
    with dg.DagsterInstance.get() as instance:
        yield instance
