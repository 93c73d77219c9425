"""What `DatabaseResource` sets on its sessions."""

from __future__ import annotations

import pytest

import rivet_dagster as rd
from rivet_dagster.errors import ConfigError
from rivet_dagster.sources.postgres_session import PostgresSettings
from rivet_dagster.sources.postgresql import PostgresSource

URL = "postgresql://user@host/shop"


def settings(**given: str) -> PostgresSettings | None:
    source = rd.DatabaseResource(url=URL, **given).source()
    assert isinstance(source, PostgresSource)
    return source._settings


def test_nothing_is_set_unless_it_is_asked_for() -> None:
    assert settings() == PostgresSettings(statement_timeout=None, lock_timeout=None, application_name=None)


def test_timeouts_are_written_with_their_unit() -> None:
    found = settings(statement_timeout="1.5 minutes", lock_timeout="250ms", application_name="nightly")
    assert found == PostgresSettings(statement_timeout=90.0, lock_timeout=0.25, application_name="nightly")


@pytest.mark.parametrize("value", ["5", "", "soon", "0s", "100 days"])
def test_what_is_no_timeout_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match="lock_timeout"):
        settings(lock_timeout=value)


def test_a_file_has_no_sessions_to_be_gentle_with() -> None:
    with pytest.raises(ConfigError, match=r"lock_timeout: for postgresql:// only, found sqlite://"):
        rd.DatabaseResource(url="sqlite:///shop.db", lock_timeout="5s").source()
