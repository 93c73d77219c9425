"""Transactions that commit late on SQLite: the run is the only writer while it notes where its window ends."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError, ContractError, SourceError
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.sources.sqlite import SqliteSource
from tests.sources.databases import Sqlite
from tests.sources.incremental import Incrementally

BY_ID = Incremental(cursor_column="id", settle_timeout="20s")
BY_CLOCK = Incremental(cursor_column="seen", time_zone="UTC", settle_timeout="20s")


@pytest.fixture(params=["wal", "delete"])
def events(request: pytest.FixtureRequest, lite: Sqlite, tmp_path: Path) -> Incrementally:
    lite.execute(
        f"PRAGMA journal_mode = {request.param}",
        "CREATE TABLE events (id integer primary key, seen timestamp DEFAULT CURRENT_TIMESTAMP, note text)",
        "INSERT INTO events VALUES (1, '2024-01-01', 'first')",
    )
    return Incrementally(lite.url, tmp_path / "lake", BY_ID)


def test_a_run_waits_for_the_writer_and_keeps_others_out_only_while_it_begins(
    lite: Sqlite, events: Incrementally
) -> None:
    with closing(sqlite3.connect(lite.path, isolation_level=None)) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO events (note) VALUES ('late')")
        run = pool.submit(events.run)
        threading.Event().wait(0.5)
        assert not run.done()
        writer.execute("COMMIT")
        run.result(timeout=60)
        # Nothing of the run is left that another writer would wait for.
        writer.execute("INSERT INTO events (note) VALUES ('later')")
    assert events.rows("note") == ["first", "late"]
    events.run()
    assert events.rows("note") == ["first", "late", "later"]


def test_when_the_time_is_up_nothing_moves(lite: Sqlite, events: Incrementally) -> None:
    with closing(sqlite3.connect(lite.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(SourceError, match=r"another connection is writing.*settle_timeout") as told:
            events.run(BY_ID.model_copy(update={"settle_timeout": "200ms"}))
        assert told.value.transient
        writer.execute("ROLLBACK")
    assert not (events.lake / "events" / "manifest.json").exists()


def test_a_file_that_cannot_be_written_to_needs_another_choice(
    events: Incrementally, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = SqliteSource._connect

    def only_to_read(self: Any, what: str, _mode: str, busy_seconds: float) -> Any:
        return connect(self, what, "ro", busy_seconds)

    monkeypatch.setattr(SqliteSource, "_connect", only_to_read)
    with pytest.raises(ConfigError, match=r'read-only here.*lag="5 minutes".*settle="none"'):
        events.run(BY_CLOCK)
    events.run(BY_CLOCK.model_copy(update={"settle": "none"}))
    assert events.rows() == [1]


@pytest.mark.parametrize(
    "other", ["'2024-01-01T10:00:00'", "'2024-01-01 10:00:00Z'", "'yesterday'", "1704103200", "x'32'", "2460311.5"]
)
def test_times_of_another_form_are_refused_wherever_they_would_sort(
    lite: Sqlite, events: Incrementally, other: str
) -> None:
    """They would be taken for earlier or later than they are."""
    lite.execute("INSERT INTO events VALUES (2, '2024-01-02 10:00', 'second')")
    events.run(BY_CLOCK)
    lite.execute("INSERT INTO events VALUES (3, '2030-01-02 10:00:00.5', 'future')")
    events.run(BY_CLOCK)
    # As they come: stamps that lie before the window are no longer looked at.
    late = other.replace("2024-01", "2031-01")
    lite.execute(f"INSERT INTO events VALUES (4, {late}, 'other')")
    with pytest.raises(ContractError, match=r"all in one form.*cursor_expression"):
        events.run(BY_CLOCK)
    assert events.rows() == [1, 2]


def test_texts_are_times_where_a_zone_says_so(lite: Sqlite, tmp_path: Path) -> None:
    lite.execute(
        "CREATE TABLE events (id integer, seen text)",
        "INSERT INTO events VALUES (1, '2024-01-01T10:00:00'), (2, '2024-01-01'), (3, '2999-01-01T00:00')",
    )
    events = Incrementally(lite.url, tmp_path / "lake", BY_CLOCK)
    events.run()
    assert events.rows() == [1, 2]
    assert events.manifest["cursor"]["kind"] == "naive"


def test_numbers_that_are_none_are_refused(lite: Sqlite, tmp_path: Path) -> None:
    lite.execute("CREATE TABLE events (id integer)", "INSERT INTO events VALUES (1), (2)")
    events = Incrementally(lite.url, tmp_path / "lake", BY_ID)
    events.run()
    for other in ("'many'", "2.5"):
        lite.execute(f"INSERT INTO events VALUES ({other})")
        with pytest.raises(ContractError, match="expected whole numbers"):
            events.run()
        lite.execute(f"DELETE FROM events WHERE id = {other}")


@pytest.mark.parametrize("again", [True, False], ids=["rowid", "autoincrement"])
def test_ids_of_deleted_rows_that_are_given_again_are_refused(lite: Sqlite, tmp_path: Path, *, again: bool) -> None:
    """Without AUTOINCREMENT the next id is one more than the greatest that is there."""
    numbered = "/* no autoincrement */" if again else "autoincrement"
    lite.execute(
        f"CREATE TABLE events (id integer primary key {numbered}, x text)",
        "INSERT INTO events (x) VALUES ('1'), ('2'), ('3')",
    )
    events = Incrementally(lite.url, tmp_path / "lake", BY_ID)
    said = events.run().counters["rivet/settle"].get("note", "")
    assert ("AUTOINCREMENT" in said) == again
    lite.execute("DELETE FROM events WHERE id > 1")
    if again:
        with pytest.raises(ContractError, match=r"ids behind 3.*the next is 2.*AUTOINCREMENT.*full_refresh"):
            events.run()
        return
    events.run()
    lite.execute("INSERT INTO events (x) VALUES ('4')")
    events.run()
    assert events.rows("id, x") == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
    lite.execute("DELETE FROM events", "DELETE FROM sqlite_sequence", "INSERT INTO events (x) VALUES ('5')")
    with pytest.raises(ContractError, match=r"ids behind 4.*the next is 2"):
        events.run()
