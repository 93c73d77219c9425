"""How many rows a database has now that a delivery was made of: in every mode, by the rows that the run really saw."""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.attempt import Attempt, CommitSettings
from rivet_dagster.commit import commit_export
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import ContractError, SourceError
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.modes import Chunked, Incremental, TimeWindow
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.partitions import Partition, PartitionBy
from rivet_dagster.exports.recount import Recount, recount
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Manifest
from rivet_dagster.rows import CountingSource, Query
from rivet_dagster.sources.connect import connect
from tests.sources.databases import Database, DuckDB, MySQL, Postgres, Sqlite

LOG = logging.getLogger("tests.recount")
NOW = datetime.now(timezone.utc).replace(tzinfo=None, microsecond=0)
DAY = NOW.replace(hour=0, minute=0, second=0)
RUNS = count(1)


@dataclass
class Events:
    """A table of ten rows, one each hour of yesterday, in two countries; rows 9 and 10 have no time."""

    database: Database
    lake: Path
    exported: Manifest | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        d = self.database
        self.run(f"CREATE TABLE events (id {d.bigint} NOT NULL PRIMARY KEY, country {d.text}, stamp {d.naive} NULL)")
        self.run(*(self.row(n, None if n > 8 else DAY - timedelta(hours=n)) for n in range(1, 11)))

    def run(self, *statements: str) -> None:
        self.database.execute(*statements)

    def insert(self, n: int, *, at: datetime | None = None) -> None:
        self.run(self.row(n, at))

    @staticmethod
    def row(n: int, at: datetime | None) -> str:
        moment = "NULL" if at is None else f"'{at}'"
        return f"INSERT INTO events VALUES ({n}, '{'de' if n % 2 else 'fr'}', {moment})"

    def deliver(self, export: Export, partition: Partition | None = None) -> Manifest:
        run_id = f"run-{next(RUNS)}"
        receipt = commit_export(
            LocalDestination(self.lake),
            prefix=Prefix(f"{export.name}/"),
            attempt=Attempt(export_name=export.name, dagster_run_id=run_id, lineage=frozenset({run_id})),
            plan=lambda head: plan_export(
                export,
                export_name=export.name,
                source=connect(self.database.url),
                output=resolve_output(export=export),
                head=head and head.manifest,
                partition=partition,
                log=LOG,
            ),
            settings=CommitSettings(),
            log=LOG,
        )
        assert receipt.manifest is not None
        return receipt.manifest

    def again(self, export: Export, manifest: Manifest) -> Recount:
        return recount(export, connect(self.database.url), manifest, export_name=export.name)


@pytest.fixture(params=["postgresql", "sqlite"])
def events(request: pytest.FixtureRequest, tmp_path: Path) -> Events:
    if request.param == "sqlite":
        return Events(Sqlite(tmp_path / "shop.sqlite"), tmp_path / "lake")
    pg: Postgres = request.getfixturevalue("pg")
    pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return Events(pg, tmp_path / "lake")


YESTERDAY = Partition(
    key="yesterday",
    start=(DAY - timedelta(days=1)).replace(tzinfo=timezone.utc),
    end=DAY.replace(tzinfo=timezone.utc),
)
BY_TIME = PartitionBy(column="stamp", time_zone="UTC")
LATER = DAY + timedelta(hours=1)

MODES: dict[str, tuple[dict[str, Any], Partition | None, int]] = {
    "a table": ({"table": "events"}, None, 10),
    "a query": ({"query": "SELECT * FROM events WHERE country = 'de' ORDER BY id -- of all\n;"}, None, 5),
    "ranges": ({"table": "events", "mode": Chunked(rows_per_part=3)}, None, 10),
    "cast columns": ({"table": "events", "columns": {"id": "text"}}, None, 10),
    "what is new": ({"table": "events", "mode": Incremental(cursor_column="id")}, None, 10),
    "the last days": ({"table": "events", "mode": TimeWindow(time_column="stamp", days=3, time_zone="UTC")}, None, 8),
    "a day": ({"table": "events", "partition_by": BY_TIME}, YESTERDAY, 8),
    "a country": ({"table": "events", "partition_by": "country"}, Partition(key="fr"), 5),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_rows_of_the_delivery_are_counted_and_what_came_or_went_since(events: Events, mode: str) -> None:
    given, partition, expected = MODES[mode]
    export = Export(name="events", **given)
    manifest = events.deliver(export, partition)
    found = events.again(export, manifest)
    assert (found.rows, manifest.row_count) == (expected, expected)
    assert found.lost == (mode == "what is new")
    events.run("DELETE FROM events WHERE id IN (1, 2)")
    gone = {"a query": 1, "a country": 1}.get(mode, 2)
    assert events.again(export, manifest).rows == expected - gone
    # Of a later time and a higher id: in the window of no delivery that has one with an end.
    events.insert(111, at=LATER)
    came = {"what is new": 0, "a day": 0, "a country": 0}.get(mode, 1)
    assert events.again(export, manifest).rows == expected - gone + came


def test_each_delivery_of_an_incremental_export_is_counted_by_its_own_window(events: Events) -> None:
    export = Export(name="events", table="events", mode=Incremental(cursor_column="id"))
    first = events.deliver(export)
    for n in (20, 30):
        events.insert(n)
    second = events.deliver(export)
    assert [m.row_count for m in (first, second)] == [10, 2]
    assert [events.again(export, m).rows for m in (first, second)] == [10, 2]
    # Committed late, below a cursor that has moved on.
    events.insert(15)
    assert [events.again(export, m).rows for m in (first, second)] == [10, 3]
    assert "no later run" in events.again(export, second).means


def test_an_export_without_rows_has_an_empty_window(events: Events) -> None:
    events.run("DELETE FROM events")
    export = Export(name="events", table="events", mode=Incremental(cursor_column="id"))
    manifest = events.deliver(export)
    events.insert(1)
    assert events.again(export, manifest).rows == 0


@pytest.mark.parametrize("kind", ["mysql", "duckdb"])
def test_the_other_engines_count_windows_too(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    database: MySQL | DuckDB = request.getfixturevalue("maria" if kind == "mysql" else "duck")
    events = Events(database, tmp_path / "lake")
    for given, partition, expected in (MODES["a query"], MODES["the last days"], MODES["a day"], MODES["a country"]):
        export = Export(name="events", **given)
        manifest = events.deliver(export, partition)
        assert events.again(export, manifest).rows == expected == manifest.row_count
    events.run("DELETE FROM events WHERE id = 2")
    assert events.again(export, manifest).rows == expected - 1


def test_what_the_delivery_was_not_made_of_is_not_compared(lite: Sqlite, tmp_path: Path) -> None:
    events = Events(lite, tmp_path / "lake")
    export = Export(name="events", table="events")
    manifest = events.deliver(export)
    for other, said in (
        (Export(name="events", query="select 1 as x"), "the relation was 'events'"),
        (Export(name="events", table="events", mode=TimeWindow(time_column="stamp", days=1)), "the mode was 'full'"),
        (Export(name="events", table="events", partition_by="country"), "of no window, and the export has one now"),
    ):
        found = events.again(other, manifest)
        assert (found.rows, said in found.counted) == (None, True), found
    of_a_day = events.deliver(Export(name="days", table="events", partition_by=BY_TIME), YESTERDAY)
    found = events.again(Export(name="days", table="events"), of_a_day)
    assert (found.rows, found.counted) == (None, "the delivery is of a window, and the export has none now")
    theirs = replace(manifest, content=None, source={"extraction": {"strategy": "chunked"}})
    assert events.again(export, theirs).rows == 10
    theirs = replace(manifest, content=None, source={"extraction": {"strategy": "incremental"}})
    assert "not recorded" in events.again(export, theirs).counted
    assert manifest.content is not None
    wrong = {"low": "x", "low_open": True, "high": 3, "high_open": False, "nulls": False}
    incremental = Export(name="events", table="events", mode=Incremental(cursor_column="id"))
    delivered = events.deliver(replace_name(incremental))
    assert delivered.content is not None
    for window in (wrong, {}):
        broken = replace(delivered, content=replace(delivered.content, window=window))
        with pytest.raises(ContractError, match="expected a window over a cursor of kind 'integer'"):
            events.again(replace_name(incremental), broken)


def replace_name(export: Export) -> Export:
    return export.model_copy(update={"name": "other"})


def test_any_url_counts_tables_and_queries(tmp_path: Path) -> None:
    events = Events(Sqlite(tmp_path / "shop.sqlite"), tmp_path / "lake")
    source = connect(events.database.url.replace("sqlite://", "sqlite+pysqlite://"))
    assert isinstance(source, CountingSource)
    assert source.count(Query(table="events", casts={})) == 10
    assert source.count(Query(sql="select id, id as twice from events where id < 4", casts={})) == 3
    with pytest.raises(SourceError, match="no such"):
        source.count(Query(sql="select * from nowhere", casts={}))


# A thread that waits for a statement without an end holds up whoever raises in the main one.
@pytest.mark.timeout(60, method="thread")
def test_an_interruption_stops_the_statement(database: Database) -> None:
    source = connect(database.url)
    assert isinstance(source, CountingSource)

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            source.count(Query(sql=database.endless, casts={}))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if isinstance(database, Postgres):
        active = "state = 'active' AND pid <> pg_backend_pid() AND query LIKE '%COUNT(*) AS n%'"
        assert database.row(f"SELECT count(*) FROM pg_stat_activity WHERE {active}") == (0,)
