"""A shop to export from, a lake to export to, and an instance to record it."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import dagster as dg
import pytest

import rivet_dagster as rd


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Repeats wait between two tries; here nothing becomes better by waiting."""
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _seconds: None))


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def shop_file(tmp_path):
    """A SQLite database with 100 orders, one of which has no note."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table orders (id integer primary key, note text, price real not null)")
        rows = [(i, None if i == 7 else f"note {i}", i / 4) for i in range(1, 101)]
        connection.executemany("insert into orders values (?, ?, ?)", rows)
    connection.close()
    return path


@pytest.fixture
def shop(shop_file):
    return rd.DatabaseResource(url=f"sqlite:///{shop_file}")


@pytest.fixture
def orders():
    return rd.build_export_asset(rd.Export(name="orders", table="orders"))
