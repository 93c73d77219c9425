"""What PostgreSQL says of a cursor: its kind, its resolution, and whether its values are unique."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rivet_dagster.errors import ConfigError, ContractError
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.rows import Query
from rivet_dagster.sources import postgres_cursor
from rivet_dagster.sources.connect import connect
from rivet_dagster.windows import CursorTerm
from tests.sources.databases import Postgres
from tests.sources.incremental import Incrementally

LOW, HIGH = "018f2c5e-7b5a-7c3e-9f25-0a7a3a1de1b2", "018f2c5e-7b5b-7c3e-8f25-0a7a3a1de1b2"


@pytest.fixture(scope="module")
def kinds(pg: Postgres) -> Postgres:
    pg.execute(
        "CREATE DOMAIN counted AS bigint CHECK (VALUE > 0)",
        "CREATE DOMAIN stamped AS timestamptz(0)",
        "CREATE TABLE kinds (i counted PRIMARY KEY, s smallint, day date UNIQUE, z timestamptz(0), m timestamptz(3), "
        't timestamp, u uuid UNIQUE, x text, n numeric, tz timetz, e interval, c text COLLATE "C", d stamped)',
        "CREATE UNIQUE INDEX ON kinds (s) WHERE s > 0",
        "CREATE VIEW seen AS SELECT * FROM kinds",
        "CREATE TABLE parent (id bigint PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE parted (id bigint PRIMARY KEY, at timestamptz) PARTITION BY RANGE (id)",
    )
    return pg


@pytest.mark.parametrize(
    ("table", "column", "expected"),
    [
        ("kinds", "i", ("integer", "int8", 1, True, False)),
        # Unique among some rows only.
        ("kinds", "s", ("integer", "int2", 1, False, True)),
        ("kinds", "day", ("date", "date", 1, True, True)),
        ("kinds", "z", ("instant", "timestamptz", 1_000_000, False, True)),
        ("kinds", "m", ("instant", "timestamptz", 1_000, False, True)),
        ("kinds", "d", ("instant", "timestamptz", 1_000_000, False, True)),
        ("kinds", "t", ("naive", "timestamp", 1, False, True)),
        ("kinds", "u", ("uuid", "uuid", 1, True, True)),
        ("kinds", "c", ("text", "text", 1, False, True)),
        # Nothing vouches for a view, nor for what other tables may repeat.
        ("seen", "i", ("integer", "int8", 1, False, True)),
        # What it shows may be of whole seconds, and of another type than it says.
        ("seen", "t", ("naive", "timestamp", 1_000_000, False, True)),
        ("seen", "m", ("instant", "timestamptz", 1_000, False, True)),
        ("parent", "id", ("integer", "int8", 1, False, True)),
        ("parted", "id", ("integer", "int8", 1, True, False)),
    ],
)
def test_columns(kinds: Postgres, table: str, column: str, expected: tuple[object, ...]) -> None:
    found = connect(kinds.url).describe_cursor(Query(table=table, casts={}), CursorTerm(column=column))  # type: ignore[attr-defined]
    # Of an integer it says nothing.
    microseconds = found.resolution // timedelta(microseconds=1) if found.kind in {"instant", "naive"} else 1
    assert (found.kind, found.type_name, microseconds, found.unique, found.nullable) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (CursorTerm(column="day"), "date"),
        (CursorTerm(column="u"), "uuid"),
        (CursorTerm(expression="i + 1"), "integer"),
        (CursorTerm(expression="greatest(z, m)"), "instant"),
        (CursorTerm(expression="coalesce(t, '2024-01-01')"), "naive"),
    ],
)
@pytest.mark.parametrize("query", [{"table": "kinds"}, {"sql": "SELECT * FROM kinds"}])
def test_expressions_and_queries(kinds: Postgres, term: CursorTerm, expected: str, query: dict[str, str]) -> None:
    found = connect(kinds.url).describe_cursor(Query(**query, casts={}), term)  # type: ignore[attr-defined]
    assert (found.kind, found.unique and term.column is None) == (expected, False)
    if expected in {"instant", "naive"}:
        # The greatest of timestamptz(0) and timestamptz(3) has a precision that nobody says.
        assert found.resolution == timedelta(seconds=1)


@pytest.mark.parametrize("column", ["n", "tz", "e", "gone"])
def test_what_no_window_can_be_over(kinds: Postgres, column: str) -> None:
    for query in ({"table": "kinds"}, {"sql": "SELECT * FROM kinds"}):
        with pytest.raises(ConfigError, match=rf"'{column}'"):
            connect(kinds.url).describe_cursor(Query(**query, casts={}), CursorTerm(column=column))  # type: ignore[attr-defined]


def test_uuids_that_rise_are_compared_by_the_database(kinds: Postgres, tmp_path: Path) -> None:
    kinds.execute("CREATE TABLE ids (u uuid PRIMARY KEY)", f"INSERT INTO ids VALUES ('{LOW}')")
    mode = Incremental(cursor_column="u", monotonic=True)
    ids = Incrementally(kinds.url, tmp_path, mode, relation={"table": "ids"})
    ids.run()
    kinds.execute(f"INSERT INTO ids VALUES ('{HIGH}')")
    assert ids.run().row_count == 1
    assert ids.rows("u::text") == [LOW, HIGH]
    kinds.execute("INSERT INTO ids VALUES ('f0000000-3b0c-4c1e-9f25-0a7a3a1de1b2')")
    with pytest.raises(ConfigError, match="version 4"):
        ids.run()


def test_partitions_and_infinite_stamps(kinds: Postgres, tmp_path: Path) -> None:
    """A stamp that never comes is left for ever; one that was always there is refused as it is elsewhere."""
    kinds.execute(
        "CREATE TABLE one PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE two PARTITION OF parted FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parted VALUES (1, '2024-01-01'), (11, '2024-01-02'), (12, 'infinity')",
    )
    parted = Incrementally(kinds.url, tmp_path, Incremental(cursor_column="at"), relation={"table": "parted"})
    parted.run()
    assert parted.rows() == [1, 11]
    high = datetime.fromisoformat(parted.manifest["cursor"]["value"].replace("Z", "+00:00"))
    kinds.execute(f"INSERT INTO parted VALUES (2, '{high.isoformat()}'), (3, '-infinity')")
    parted.run()
    assert parted.rows() == [1, 2, 11]


def test_ids_that_begin_again_are_refused_and_rows_that_are_removed_are_not(
    pg: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pg.execute(
        "CREATE TABLE drawn (id bigserial PRIMARY KEY, note text)",
        "INSERT INTO drawn (note) SELECT 'old' FROM generate_series(1, 5)",
    )
    events = Incrementally(pg.url, tmp_path / "lake", Incremental(cursor_column="id"), {"table": "drawn"})
    events.run()
    pg.execute("DELETE FROM drawn WHERE id > 3")
    assert "note" not in events.run().counters["rivet/settle"]
    pg.execute("INSERT INTO drawn (note) VALUES ('new')")
    events.run()
    assert events.rows() == [1, 2, 3, 4, 5, 6]
    assert not caplog.records
    pg.execute("TRUNCATE drawn RESTART IDENTITY", "INSERT INTO drawn (note) VALUES ('again')")
    with pytest.raises(ContractError, match=r"ids behind 6, where the run before ended, found that the next is 2"):
        events.run()
    # Who chose that some are missed is told, and so is who may not read the sequence.
    events.run(Incremental(cursor_column="id", settle="none"))
    pg.execute("ALTER TABLE drawn ALTER id DROP DEFAULT")
    events.run()
    first, second = (record.getMessage() for record in caplog.records)
    assert "the next is 2" in first
    assert "the greatest value is 1, and the run before ended at 6" in second


def test_a_clock_that_was_set_back_is_refused(pg: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pg.execute("CREATE TABLE timed (id integer, at timestamptz DEFAULT now())", "INSERT INTO timed VALUES (1)")
    events = Incrementally(pg.url, tmp_path / "lake", Incremental(cursor_column="at"), {"table": "timed"})
    read = postgres_cursor._clock
    with monkeypatch.context() as ahead:
        ahead.setattr(postgres_cursor, "_clock", lambda *a, **more: read(*a, **more) + timedelta(hours=1))
        events.run()
    with pytest.raises(ContractError, match="set back"):
        events.run()
