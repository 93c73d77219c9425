"""The rows of the last days, and those of one partition, on each database: none is missed and none is there twice."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rivet_dagster.errors import ConfigError, RivetError
from rivet_dagster.exports.modes import TimeWindow
from rivet_dagster.exports.partitions import Partition, PartitionBy
from tests.sources.databases import Database, Postgres
from tests.sources.snapshots import Snapshots

HOUR = timedelta(hours=1)
UTC = timezone.utc
# The day in Berlin that has 25 hours.
LONG_DAY = datetime(2024, 10, 26, 22, tzinfo=UTC)
BOUNDS = [LONG_DAY - 24 * HOUR, LONG_DAY, LONG_DAY + 25 * HOUR, LONG_DAY + 49 * HOUR]
DAYS = {
    key: Partition(
        key=key, start=low.astimezone(ZoneInfo("Europe/Berlin")), end=high.astimezone(ZoneInfo("Europe/Berlin"))
    )
    for key, low, high in zip(("2024-10-26", "2024-10-27", "2024-10-28"), BOUNDS, BOUNDS[1:], strict=False)
}


def text(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds").removesuffix(".000000")


def instants(database: Database) -> str:
    return {"postgresql": "timestamptz", "mysql": "timestamp(6) NULL", "duckdb": "timestamptz"}[database.kind]


def since_epoch(database: Database) -> str:
    return "from_unixtime" if database.kind == "mysql" else "to_timestamp"


def fill(database: Database, kind: str, *values: str) -> None:
    rows = ", ".join(f"({i}, {value})" for i, value in enumerate(values, start=1))
    database.execute(f"CREATE TABLE events (id integer, seen {kind})", f"INSERT INTO events VALUES {rows}")


def test_the_last_days_end_with_the_future_and_replace_those_before(database: Database, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    ages = [-48 * HOUR, HOUR, 71 * HOUR, 73 * HOUR]
    fill(database, database.naive, *[f"'{text(now - age)}'" for age in ages], "NULL", "NULL")
    events = Snapshots(database.url, tmp_path)
    mode = TimeWindow(time_column="seen", days=3, time_zone="UTC")
    receipt = events.run(mode=mode)
    assert events.ids() == [1, 2, 3]
    assert receipt.counters["rivet/nulls_excluded"] == 2
    head = events.manifest()
    assert (head["dataset"], head.get("cursor")) == ("snapshot", None)
    low = datetime.fromisoformat(head["window"].pop("low")).replace(tzinfo=UTC)
    assert abs(now - timedelta(days=3) - low) < timedelta(minutes=1)
    assert head["window"] == {"column": "seen", "low_open": False, "high": None, "high_open": True, "nulls": False}
    extraction = head["source"]["extraction"]
    assert (extraction["strategy"], extraction["cursor_column"]) == ("time_window", "seen")
    database.execute(f"UPDATE events SET seen = '{text(now - 80 * HOUR)}' WHERE id < 3")
    events.run(mode=mode)
    assert events.ids() == [3]
    assert len(list((tmp_path / "events" / "data").iterdir())) == 1


def test_the_last_days_of_instants_dates_and_counts(database: Database, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    kinds: dict[str, tuple[str, dict[str, Any], list[str]]] = {
        "date": ("date", {}, [f"'{(now - timedelta(days=d)).date()}'" for d in (0, 1, 4)]),
        "ms": (
            database.bigint,
            {"unit": "ms"},
            [str(int(time.time() * 1000) - hours * 3_600_000) for hours in (0, 47, 49)],
        ),
    }
    if database.kind != "sqlite":
        ages = [f"{time.time() - hours * 3600:.6f}" for hours in (0, 47, 49)]
        kinds["instant"] = (instants(database), {}, [f"{since_epoch(database)}({age})" for age in ages])
    for name, (kind, more, values) in kinds.items():
        database.execute("DROP TABLE IF EXISTS events")
        fill(database, kind, *values)
        events = Snapshots(database.url, tmp_path / name)
        events.run(mode=TimeWindow(time_column="seen", days=2, **more))
        assert events.ids() == [1, 2], name
    low = datetime.fromisoformat(Snapshots(database.url, tmp_path / "date").manifest()["window"]["low"]).date()
    # Wherever the day was written, it has not begun later.
    assert low in {(now - timedelta(days=days)).date() for days in (2, 3)}


def test_each_row_is_in_the_partition_of_its_time(database: Database, tmp_path: Path) -> None:
    """Rows around the bounds of a day of 25 hours, and in the hour that comes twice."""
    edge = timedelta(microseconds=1) if database.kind != "sqlite" else timedelta(seconds=1)
    moments = [m for bound in BOUNDS for m in (bound - edge, bound)] + [LONG_DAY + hours * HOUR for hours in (2, 3, 4)]
    expected = {"2024-10-26": [2, 3], "2024-10-27": [4, 5, 9, 10, 11], "2024-10-28": [6, 7]}
    cases: dict[str, tuple[str, Any, list[str]]] = {
        "berlin": (
            database.naive,
            PartitionBy(column="seen", time_zone="Europe/Berlin"),
            # Berlin's clock: two hours ahead of UTC before it is set back, one hour after.
            [text(m + (2 if m < LONG_DAY + 3 * HOUR else 1) * HOUR) for m in moments],
        ),
        "date": (
            "date",
            PartitionBy(column="seen", time_zone="Europe/Berlin"),
            [str((m + (2 if m < LONG_DAY + 3 * HOUR else 1) * HOUR).date()) for m in moments],
        ),
    }
    if database.kind in {"postgresql", "duckdb"}:
        cases["instant"] = (instants(database), "seen", [f"{text(m)}+00" for m in moments])
    for name, (kind, by, values) in cases.items():
        database.execute("DROP TABLE IF EXISTS events")
        fill(database, kind, *(f"'{value}'" for value in values), "NULL")
        events = Snapshots(database.url, tmp_path / name)
        counters = [events.run(partition, partition_by=by).counters for partition in DAYS.values()]
        assert {key: events.ids(key) for key in DAYS} == expected, name
        assert [c["rivet/nulls_excluded"] for c in counters] == [1, 1, 1]


def test_a_partition_that_is_run_again_has_what_is_there_now(database: Database, tmp_path: Path) -> None:
    fill(database, "date", "'2024-10-26'", "'2024-10-27'", "'2024-10-27'")
    events = Snapshots(database.url, tmp_path)
    for partition in DAYS.values():
        events.run(partition, partition_by="seen")
    other = {p: p.read_bytes() for p in (tmp_path / "events" / "partition=2024-10-26").rglob("*") if p.is_file()}
    database.execute(
        "DELETE FROM events WHERE id = 2", "INSERT INTO events VALUES (4, '2024-10-27'), (5, '2024-10-26')"
    )
    events.run(DAYS["2024-10-27"], partition_by="seen")
    assert {key: events.ids(key) for key in DAYS} == {"2024-10-26": [1], "2024-10-27": [3, 4], "2024-10-28": []}
    assert {p: p.read_bytes() for p in other} == other
    assert events.manifest("2024-10-27")["window"] == {
        "column": "seen",
        "low": "2024-10-27",
        "low_open": False,
        "high": "2024-10-28",
        "high_open": True,
        "nulls": False,
    }


def test_a_partition_of_a_name_has_the_rows_that_are_exactly_it(database: Database, tmp_path: Path) -> None:
    names = ["EU", "eu", "EU ", "é", "O'Neil/1%", ""]
    quoted = [f"'{name.replace(chr(39), chr(39) * 2)}'" for name in names]
    fill(database, "varchar(20)", *quoted, "NULL")
    events = Snapshots(database.url, tmp_path)
    for i, name in enumerate(names, start=1):
        if name:
            events.run(Partition(key=name), partition_by="seen")
            assert events.ids(name) == [i], name
    sql = {"mysql": "concat(upper(seen), '!')"}.get(database.kind, "upper(seen) || '!'")
    events.run(Partition(key="EU!"), partition_by=PartitionBy(expression=sql))
    assert events.ids("EU!") == [1, 2]
    assert events.manifest("EU!")["window"]["column"].startswith("expression:xxh3:")
    assert "upper" not in str(events.manifest("EU!"))


def test_texts_that_an_expression_calls_equal_are_in_partitions_of_their_own(
    database: Database, tmp_path: Path
) -> None:
    if isinstance(database, Postgres):
        if not database.row("SELECT count(*) FROM pg_collation WHERE collprovider = 'i'")[0]:
            pytest.skip("this server is built without ICU")
        database.execute("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    collation = "utf8mb4_general_ci" if database.kind == "mysql" else "nocase"
    fill(database, f"varchar(20) COLLATE {collation}", "'EU'", "'eu'", "'EU'")
    by = PartitionBy(expression="seen")
    for n, relation in enumerate(({"table": "events"}, {"query": "SELECT * FROM events"})):
        events = Snapshots(database.url, tmp_path / str(n), relation=relation)
        for key, ids in (("EU", [1, 3]), ("eu", [2])):
            events.run(Partition(key=key), partition_by=by)
            assert events.ids(key) == ids


def test_a_query_is_divided_too_and_numbers_are_names(database: Database, tmp_path: Path) -> None:
    fill(database, database.bigint, "7", "8", "7", "NULL")
    events = Snapshots(database.url, tmp_path, relation={"query": "SELECT id, seen AS shop FROM events -- all"})
    receipt = events.run(Partition(key="7"), partition_by="shop")
    assert events.ids("7") == [1, 3]
    assert "rivet/nulls_excluded" not in receipt.counters
    with pytest.raises(ConfigError, match="found 'seven'"):
        events.run(Partition(key="seven"), partition_by="shop")
    with pytest.raises(RivetError, match=r"no column 'seen'|no such column"):
        events.run(Partition(key="7"), partition_by="seen")


def test_a_column_that_says_nothing_of_time_is_refused(database: Database, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE events (id {database.bigint}, seen {database.naive}, x double precision)")
    events = Snapshots(database.url, tmp_path)
    for mode, expected in (
        (TimeWindow(time_column="seen", days=1), 'time_zone="UTC"'),
        (TimeWindow(time_column="id", days=1), 'unit="s"'),
        (TimeWindow(time_column="x", days=1), "choose another column, or an expression"),
        (TimeWindow(time_column="gone", days=1), "no column 'gone'"),
        (TimeWindow(time_column="seen", days=1, time_zone="UTC", unit="s"), "leave it out"),
    ):
        with pytest.raises(ConfigError, match=expected):
            events.run(mode=mode)
    assert not (tmp_path / "events" / "manifest.json").exists()


def test_a_partition_that_is_not_over_is_said_to_be(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(database, "date", "'2024-10-26'")
    now = datetime.now(UTC)
    with caplog.at_level(logging.WARNING):
        events = Snapshots(database.url, tmp_path)
        events.run(DAYS["2024-10-26"], partition_by="seen")
        assert not caplog.records
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        events.run(Partition(key="today", start=day, end=day + 24 * HOUR), partition_by="seen")
    (said,) = [r.getMessage() for r in caplog.records]
    assert "expected partition 'today' to be over" in said
    assert "run it again" in said
