"""A Dagster instance on disk that a test shares with the processes that it starts."""

from __future__ import annotations

import dagster as dg
import pytest
import yaml


@pytest.fixture
def settings():
    """More of the instance's settings; a module may have its own."""
    return {}


@pytest.fixture
def home(tmp_path, monkeypatch, settings):
    """Made here, before any other process sees it: two that make it at once break it."""
    place = tmp_path / "home"
    place.mkdir()
    (place / "dagster.yaml").write_text(yaml.safe_dump({"telemetry": {"enabled": False}, **settings}))
    monkeypatch.setenv("DAGSTER_HOME", str(place))
    with dg.DagsterInstance.get() as instance:
        yield instance
