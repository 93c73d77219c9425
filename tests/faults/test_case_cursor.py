"""Cursors that lose or repeat rows elsewhere: ties, NULLs, kinds, digits, zones and failures, on each database."""

import itertools
import json
import time
from datetime import date, datetime, timedelta, timezone

import pytest

import rivet_dagster as rd
from rivet_dagster.errors import DestinationError, NoAnswer
from tests.faults.kit import FaultyStore, Trouble, is_head, is_marker, is_part
from tests.orchestration.kit import NO_WAIT, faulty_local, materialization, plain, run
from tests.sources.databases import KINDS, Sqlite, new_database
from tests.sources.incremental import Incrementally

# As each database spells a time with all its digits, without a zone and with one.
NAIVE = {"postgresql": "timestamp", "mysql": "datetime(6)", "sqlite": "datetime", "duckdb": "timestamp"}
AWARE = {"postgresql": "timestamptz", "mysql": "timestamp(6)", "duckdb": "timestamptz"}


@pytest.fixture(params=KINDS)
def database(request, servers, tmp_path):
    """An empty database of each kind."""
    return new_database(request.param, servers, tmp_path)


@pytest.fixture
def export(database, tmp_path):
    """Makes an incremental export of the table `events`."""

    def made(**mode):
        # Nothing is promised on MySQL: one has to choose.
        settle = {"settle": "none"} if database.kind == "mysql" and "lag" not in mode else {}
        return Incrementally(database.url, tmp_path / "lake", rd.Incremental(**{**settle, **mode}))

    return made


def test_a_row_of_the_day_that_was_exported_last_is_not_skipped(database, export):
    """A day is a unit as any other: it leaves when it is over, with all of its rows."""
    day = datetime.now(timezone.utc).date() + timedelta(days=1)
    database.execute(
        "CREATE TABLE events (id integer, seen date)",
        f"INSERT INTO events VALUES (0, '{day - timedelta(days=4)}'), (1, '{day - timedelta(days=3)}'), (2, '{day}')",
    )
    events = export(cursor_column="seen", time_zone="UTC")
    events.run()
    assert events.rows() == [0, 1]
    assert day - timedelta(days=1) <= date.fromisoformat(events.manifest["cursor"]["value"]) <= day
    database.execute(f"INSERT INTO events VALUES (3, '{day}')")
    events.run()
    assert events.rows() == [0, 1]
    # Once the day is over, which is the same as when it and the cursor were earlier.
    set_back(events, (day - timedelta(days=2)).isoformat())
    database.execute(f"UPDATE events SET seen = '{day - timedelta(days=2)}' WHERE id > 1")
    events.run()
    assert events.rows() == [0, 1, 2, 3]


def set_back(events, value):
    """The head's cursor, with a marker that fits: as if the last run had been earlier."""
    import xxhash

    found = events.manifest
    found["cursor"]["value"] = value
    body = json.dumps(found).encode()
    prefix = events.lake / "events"
    (prefix / "manifest.json").write_bytes(body)
    (prefix / f"manifest-{found['run_id']}.json").write_bytes(body)
    (prefix / "_SUCCESS").write_text(f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n")


def test_ties_are_not_lost_wherever_a_window_ends(database, export):
    """Rows of one moment, of which some come between two runs. Clocks of SQLite and MySQL give whole seconds."""
    database.execute(f"CREATE TABLE events (id integer, seen {NAIVE[database.kind]})")
    events = export(cursor_column="seen", time_zone="UTC")
    ids = itertools.count()

    def insert(*stamps):
        database.execute(*(f"INSERT INTO events VALUES ({next(ids)}, '{s}')" for s in stamps))

    for _ in range(3):
        now = datetime.now(timezone.utc).replace(tzinfo=None)
        if database.kind in ("sqlite", "mysql"):
            now = now.replace(microsecond=0)
        insert(now, now, now + timedelta(seconds=1))
        events.run()
        end = datetime.fromisoformat(events.manifest["cursor"]["value"])
        insert(end, max(end, now + timedelta(seconds=1)))
    time.sleep(2.1)
    events.run()
    assert events.rows() == list(range(next(ids)))


@pytest.mark.parametrize("nulls", ["exclude", "first_run", "fail"])
def test_what_is_said_of_nulls_is_done_in_the_database(database, export, nulls, caplog, monkeypatch):
    """And those that sort last neither freeze the cursor nor empty it."""
    database.execute(
        f"CREATE TABLE events (id integer, n {database.bigint} UNIQUE)",
        "INSERT INTO events VALUES (1, 1), (2, NULL), (3, 3), (4, NULL), (5, 2)",
    )
    events = export(cursor_column="n", nulls=nulls)
    if nulls == "fail":
        with pytest.raises(rd.ContractError, match=r"column 'n'.*no NULL, found 2 of them.*nulls="):
            events.run()
        assert not (events.lake / "events" / "manifest.json").exists()
        database.execute("UPDATE events SET n = 100 + id WHERE n IS NULL")
        events.run()
        database.execute("INSERT INTO events VALUES (6, NULL)")
        with pytest.raises(rd.ContractError, match="found 1"):
            events.run()
        assert events.rows() == [1, 2, 3, 4, 5]
        return
    assert events.run().counters.get("rivet/nulls_excluded") == (2 if nulls == "exclude" else None)
    assert events.manifest["cursor"]["value"] == 3

    def lost():
        caplog.clear()
        found = events.run().counters.get("rivet/nulls_excluded")
        return found, sum("without one" in message for message in caplog.messages)

    was = 2 if nulls == "exclude" else 0
    assert events.manifest["cursor"]["nulls"] == 2
    assert lost() == (was, 0)
    database.execute("INSERT INTO events VALUES (6, NULL)")
    assert lost() == (was + 1, 1)
    assert "found 3 without one (2 when it was last delivered)" in caplog.text
    database.execute("INSERT INTO events VALUES (7, 7)")
    assert lost() == (was + 1, 1)
    assert events.manifest["cursor"]["value"] == 7
    # What the first run has exported stays what is compared with; what is left out on purpose is old news now.
    assert lost() == (was + 1, 0 if nulls == "exclude" else 1)
    monkeypatch.setattr("rivet_dagster.exports.window._NULLS_BELOW", 3)
    assert lost() == (None, 0)
    assert events.run().counters["rivet/settle"]["nulls"] == "not counted: 3 or more"
    assert events.rows() == ([1, 3, 5, 7] if nulls == "exclude" else [1, 2, 3, 4, 5, 7])


@pytest.mark.parametrize("kind", ["naive", "aware"])
def test_the_second_run_reads_the_kind_of_time_that_the_first_one_wrote(database, export, kind):
    spelled = (NAIVE if kind == "naive" else AWARE).get(database.kind)
    if spelled is None:
        pytest.skip("SQLite has no times with a zone")
    database.execute(f"CREATE TABLE events (id integer, seen {spelled})")
    zone = "+00" if kind == "aware" and database.kind != "mysql" else ""
    database.execute(f"INSERT INTO events VALUES (1, '2024-02-29 23:59:59.999999{zone}')")
    events = export(cursor_column="seen", **({"time_zone": "UTC"} if kind == "naive" else {}))
    events.run()
    value = events.manifest["cursor"]["value"]
    assert value.endswith("Z") is (kind == "aware")
    stamp = value.replace("T", " ").removesuffix("Z")
    database.execute(f"INSERT INTO events VALUES (2, '{stamp}{zone}')")
    time.sleep(1.1)
    events.run()
    assert events.rows() == [1, 2]
    assert events.manifest["window"]["low"] == value
    events.run()
    assert events.rows() == [1, 2]


def test_no_digit_of_a_stamp_is_cut(database, export):
    """A row at the very end of a window is in one window, and in one only."""
    database.execute(
        f"CREATE TABLE events (id integer, seen {NAIVE[database.kind]})",
        "INSERT INTO events VALUES (1, '2024-01-01 10:00:00.031152'), (2, '2024-01-01 10:00:00.031153'), "
        "(3, '2024-01-01 10:00:00.031154')",
    )
    events = export(cursor_column="seen", time_zone="UTC")
    events.run()
    for at, expected in (
        ("2024-01-01T10:00:00.031153", [1, 2, 2, 3, 3]),
        ("2024-01-01T10:00:00.031154", [1, 2, 2, 3, 3, 3]),
        ("2024-01-01T10:00:00.031155", [1, 2, 2, 3, 3, 3]),
    ):
        set_back(events, at)
        events.run()
        assert events.rows() == expected


ELSEWHERE = {
    "postgresql": ["ALTER DATABASE {database} SET timezone TO 'America/New_York'"],
    "mysql": ["SET GLOBAL time_zone = '-05:00'"],
}


@pytest.mark.parametrize("kind", ["naive", "aware"])
def test_the_zone_of_the_session_shifts_no_window(database, export, kind, request):
    if database.kind not in ELSEWHERE:
        pytest.skip("its sessions have no zone of their own")
    for statement in ELSEWHERE[database.kind]:
        database.execute(statement.format(database=database.server.database))
    if database.kind == "mysql":
        request.addfinalizer(lambda: database.execute("SET GLOBAL time_zone = 'SYSTEM'"))
    spelled = (NAIVE if kind == "naive" else AWARE)[database.kind]
    now = (
        "now()"
        if kind == "aware"
        else {"postgresql": "now() AT TIME ZONE 'UTC'", "mysql": "UTC_TIMESTAMP(6)"}[database.kind]
    )
    database.execute(
        f"CREATE TABLE events (id integer, seen {spelled})",
        f"INSERT INTO events VALUES (1, {now})",
        f"INSERT INTO events VALUES (2, {now} + INTERVAL '1' HOUR)",
    )
    time.sleep(1.1)
    events = export(cursor_column="seen", **({"time_zone": "UTC"} if kind == "naive" else {}))
    events.run()
    assert events.rows() == [1]
    database.execute(f"INSERT INTO events VALUES (3, {now})")
    time.sleep(1.1)
    events.run()
    assert events.rows() == [1, 3]


def test_a_lag_waits_for_who_commits_late(database, export):
    """What `settle` does on PostgreSQL, for its length, everywhere."""
    database.execute(f"CREATE TABLE events (id integer, seen {NAIVE[database.kind]})")
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    database.execute(
        f"INSERT INTO events VALUES (1, '{now - timedelta(hours=2)}'), (2, '{now - timedelta(minutes=1)}')"
    )
    events = export(cursor_column="seen", time_zone="UTC", lag="1h")
    events.run()
    assert events.rows() == [1]
    # It had begun before the run, and is committed after it.
    database.execute(f"INSERT INTO events VALUES (3, '{now - timedelta(minutes=30)}')")
    assert events.run(rd.Incremental(**{**events.mode.model_dump(), "lag": "1s"})).row_count == 2
    assert events.rows() == [1, 2, 3]


@pytest.mark.parametrize("what", ["part", "head", "marker"])
def test_no_cursor_moves_where_the_destination_fails(database, export, what):
    key = {"part": is_part, "head": is_head, "marker": is_marker}[what]
    database.execute(
        f"CREATE TABLE events (id {database.bigint} NOT NULL PRIMARY KEY, note varchar(99))",
        "INSERT INTO events VALUES (1, 'one')",
    )
    events = export(cursor_column="id")
    events.run()
    database.execute("INSERT INTO events VALUES (2, 'two'), (3, 'three')")
    before = events.manifest
    dead = Trouble("dead", operation="write", key=key, error=NoAnswer)
    events.wrapped = lambda destination: FaultyStore(destination, troubles=[dead], calls=[])
    with pytest.raises(rd.DestinationError):
        events.run()
    marker = (events.lake / "events" / "_SUCCESS").read_text().strip()
    if what != "marker":
        assert events.manifest == before
    events.wrapped = lambda destination: destination
    events.run()
    assert events.rows() == [1, 2, 3]
    assert marker != (events.lake / "events" / "_SUCCESS").read_text().strip()


def test_a_step_that_is_repeated_adds_each_row_once(tmp_path, instance):
    """Of several parts, the second fails at first; and an earlier attempt had been committed already."""
    database = Sqlite(tmp_path / "shop.sqlite")
    note = "x" * 200
    rows = ", ".join(f"({n}, '{note}{n}')" for n in range(400))
    database.execute("CREATE TABLE events (id integer primary key, note text)", f"INSERT INTO events VALUES {rows}")
    mode = rd.Incremental(cursor_column="id")
    export = rd.Export(name="events", table="events", mode=mode, format="csv", max_file_size="20KB")
    asset = rd.build_export_asset(export, retry_policy=NO_WAIT)
    source = {"source": rd.DatabaseResource(url=database.url)}
    events = Incrementally(database.url, tmp_path / "lake", mode)
    for key, nth in ((is_part, 2), (is_marker, 1)):
        trouble = Trouble("before", operation="write", key=key, nth=nth, error=DestinationError)
        result = run([asset], faulty_local(events.lake, trouble), instance, resources=source)
        assert result.success
        assert [e for e in result.all_events if e.is_step_up_for_retry]
        highest = max(events.rows())
        assert events.rows() == list(range(highest + 1))
        database.execute(f"INSERT INTO events VALUES ({highest + 1}, 'more')")
    result = run([asset], rd.LocalIOManager(path=str(events.lake)), instance, resources=source)
    assert plain(materialization(result, "events").metadata)["dagster/row_count"] == 1
    assert events.rows() == list(range(402))
    assert sum(p["rows"] for m in events.chain() for p in m["parts"]) == 402
    assert len(events.chain()[0]["parts"]) > 2
    names = [p["path"] for m in events.chain() for p in m["parts"]]
    assert len(set(names)) == len(names)
