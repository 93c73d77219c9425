"""Tables of real databases, exported in ranges of a key: the dataset is the table, at one moment, whoever is faster."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import Staged
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.exports import memory, reading
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.modes import Chunked
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import Prefix
from rivet_dagster.sources.connect import connect
from tests.sources.databases import Database, Postgres, Sqlite

LOG = logging.getLogger("tests.chunked")
# Ids that are far apart, in no order, some of them negative.
IDS = [((i * 7_919) % 3_001 - 1_500) * 10**12 for i in range(3_001)]


def fill(database: Database) -> None:
    values = ", ".join(f"({i}, 'row {i}', {i % 97})" for i in IDS)
    database.execute(
        f"CREATE TABLE orders (id {database.bigint} NOT NULL PRIMARY KEY, note text, number integer)",
        f"INSERT INTO orders VALUES {values}",
    )


class Lake(LocalDestination):
    """A local destination that says when a part is begun."""

    def __init__(self, path: Path, before_part: Callable[[int], None] = lambda _n: None) -> None:
        super().__init__(path)
        self.before_part = before_part
        self.begun = 0

    def stage(self, key: str) -> Staged:
        self.begun += 1
        self.before_part(self.begun)
        return super().stage(key)


def export(database: Database, lake: LocalDestination, *, table: str = "orders", **more: Any) -> ExportReceipt:
    """One run of the seam."""
    output = {k: more.pop(k) for k in ("format", "max_file_size") if k in more}
    wanted = Export(name="orders", table=table, mode=Chunked(**more), **output)
    return commit_export(
        lake,
        prefix=Prefix("orders/"),
        attempt=Attempt(export_name="orders", dagster_run_id="run-1"),
        plan=lambda head: plan_export(
            wanted,
            export_name="orders",
            source=connect(database.url, batch_rows=100),
            output=resolve_output(export=wanted),
            head=head and head.manifest,
            log=LOG,
        ),
        settings=CommitSettings(),
        log=LOG,
    )


def manifest(lake: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lake / "orders" / "manifest.json").read_bytes())
    return found


def dataset(lake: Path, columns: str = "id, note, number", order: str = "id") -> list[tuple[Any, ...]]:
    """What a reader finds who takes names from the manifest."""
    paths = [str(lake / "orders" / p["path"]) for p in manifest(lake)["parts"]]
    read = "read_csv" if paths[0].endswith(".csv") else "read_parquet"
    return duckdb.sql(f"SELECT {columns} FROM {read}({paths}) ORDER BY {order}").fetchall()


def published(lake: Path) -> list[str]:
    return [p.name for p in (lake / "orders").rglob("*") if p.is_file() and "/data/" in p.as_posix()]


ROWS = sorted((i, f"row {i}", i % 97) for i in IDS)


@pytest.mark.parametrize("parallel", [1, 2])
def test_the_dataset_is_the_table_in_ranges_that_cover_all_once(
    database: Database, tmp_path: Path, parallel: int
) -> None:
    fill(database)
    receipt = export(database, Lake(tmp_path / "lake"), rows_per_part=500, parallel=parallel)
    assert dataset(tmp_path / "lake") == ROWS
    assert receipt.counters == {"rivet/consistency": "snapshot"}
    written = manifest(tmp_path / "lake")
    assert written["source"]["extraction"]["strategy"] == "chunked"
    parts = written["parts"]
    assert [p["part_id"] for p in parts] == list(range(1, 8))
    assert [p["rows"] for p in parts] == [500] * 6 + [1]
    ranges = [p["key_range"] for p in parts]
    assert (ranges[0]["low"], ranges[-1]["high"]) == (None, None)
    assert all(one["high"] == other["low"] for one, other in pairwise(ranges))
    assert [r["low"] for r in ranges[1:]] == [[ROWS[n][0]] for n in range(500, 3_001, 500)]
    for part in parts:
        low, high = part["key_range"]["low"], part["key_range"]["high"]
        at = tmp_path / "lake" / "orders" / part["path"]
        (found,) = duckdb.sql(f"SELECT min(id), max(id), count(*) FROM '{at}'").fetchall()
        assert low is None or found[0] >= low[0]
        assert high is None or found[1] < high[0]
        assert found[2] == part["rows"]


def test_the_data_version_does_not_depend_on_the_number_of_workers(database: Database, tmp_path: Path) -> None:
    fill(database)
    found = []
    for name, parallel in (("one", 1), ("two", 2), ("four", 4)):
        # Whoever begins first is held up until others have begun.
        wait = threading.Event()

        def hold(n: int, wait: threading.Event = wait) -> None:
            if n == 1:
                wait.wait(0.5)
            else:
                wait.set()

        export(database, Lake(tmp_path / name, hold), rows_per_part=300, parallel=parallel)
        written = manifest(tmp_path / name)
        for part in written["parts"]:
            del part["path"]
        found.append((written["data_version"], written["parts"]))
    assert found[0] == found[1] == found[2]


def test_parts_rotate_inside_of_their_ranges(database: Database, tmp_path: Path) -> None:
    fill(database)
    export(database, Lake(tmp_path / "lake"), rows_per_part=1_000, parallel=2, format="csv", max_file_size="8kB")
    parts = manifest(tmp_path / "lake")["parts"]
    assert len(parts) > 8
    assert len({json.dumps(p["key_range"]) for p in parts}) == 4
    assert dataset(tmp_path / "lake") == ROWS


@pytest.mark.parametrize("parallel", [1, 2])
def test_what_changes_during_the_run_is_not_in_its_snapshot(database: Database, tmp_path: Path, parallel: int) -> None:
    if not database.others_write:
        pytest.skip("nobody can write to it meanwhile")
    fill(database)

    def change(n: int) -> None:
        if n == 1:
            database.execute(
                f"INSERT INTO orders VALUES ({10**17}, 'late', 0), (1, 'between', 0)",
                f"DELETE FROM orders WHERE id = {max(IDS)}",
                "UPDATE orders SET note = 'changed' WHERE id > 0",
            )

    export(database, Lake(tmp_path / "lake", change), rows_per_part=100, parallel=parallel)
    assert dataset(tmp_path / "lake") == ROWS


def test_with_statement_each_range_sees_its_own_moment(database: Database, tmp_path: Path) -> None:
    if not database.others_write:
        pytest.skip("nobody can write to it meanwhile")
    fill(database)

    def change(n: int) -> None:
        if n == 1:
            database.execute(f"INSERT INTO orders VALUES ({10**17}, 'late', 0)")

    receipt = export(database, Lake(tmp_path / "lake", change), rows_per_part=100, consistency="statement")
    assert receipt.counters == {"rivet/consistency": "statement"}
    assert dataset(tmp_path / "lake") == [*ROWS, (10**17, "late", 0)]


def test_a_key_of_several_columns(database: Database, tmp_path: Path) -> None:
    rows = sorted((f"r{i % 5}", i) for i in range(1_000))
    values = ", ".join(f"('{region}', {i})" for region, i in reversed(rows))
    database.execute(
        f"CREATE TABLE pairs (region varchar(9) NOT NULL, i {database.bigint} NOT NULL, PRIMARY KEY (region, i))",
        f"INSERT INTO pairs VALUES {values}",
    )
    lake = tmp_path / "lake"
    export(database, Lake(lake), table="pairs", key=["region", "i"], rows_per_part=150, parallel=2)
    assert dataset(lake, "region, i", "region, i") == rows
    ranges = [p["key_range"] for p in manifest(lake)["parts"]]
    assert [r["low"] for r in ranges[1:]] == [list(rows[n]) for n in range(150, 1_000, 150)]


def test_an_empty_table_is_committed_without_parts(database: Database, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE orders (id {database.bigint} NOT NULL PRIMARY KEY)")
    receipt = export(database, Lake(tmp_path / "lake"), parallel=2)
    assert (receipt.row_count, manifest(tmp_path / "lake")["parts"]) == (0, [])


def test_the_default_size_makes_one_part_of_a_small_table(database: Database, tmp_path: Path) -> None:
    fill(database)
    export(database, Lake(tmp_path / "lake"))
    assert [p["rows"] for p in manifest(tmp_path / "lake")["parts"]] == [3_001]


def test_a_size_in_bytes_divides_by_what_the_rows_weigh(database: Database, tmp_path: Path) -> None:
    fill(database)
    export(database, Lake(tmp_path / "lake"), bytes_per_part="20kB")
    assert 3 <= len(manifest(tmp_path / "lake")["parts"]) <= 20
    assert dataset(tmp_path / "lake") == ROWS


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("plain", None, "primary key.*never NULL"),
        ("plain", "id", "nothing makes|no key"),
        ("plain", "nothing", "no column"),
    ],
)
def test_without_a_key_nothing_is_written(
    database: Database, tmp_path: Path, table: str, key: str | None, said: str
) -> None:
    database.execute(f"CREATE TABLE plain (id {database.bigint} NOT NULL)", "INSERT INTO plain VALUES (1), (2)")
    with pytest.raises(ConfigError, match=said):
        export(database, Lake(tmp_path / "lake"), table=table, key=key, rows_per_part=1)
    assert not (tmp_path / "lake" / "orders" / "manifest.json").exists()


@pytest.mark.parametrize("parallel", [1, 2])
def test_an_attempt_that_fails_leaves_nothing_and_the_database_free(
    database: Database, tmp_path: Path, parallel: int
) -> None:
    fill(database)

    def fail(n: int) -> None:
        if n == 4:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        export(database, Lake(tmp_path / "lake", fail), rows_per_part=100, parallel=parallel)
    assert published(tmp_path / "lake") == []
    assert not (tmp_path / "lake" / "orders" / "manifest.json").exists()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("range-reader", "read-ahead", "upload"))]
    database.execute("DROP TABLE orders")


def test_sqlite_reads_one_range_at_a_time_in_a_snapshot(
    lite: Sqlite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(lite)
    export(lite, Lake(tmp_path / "lake"), rows_per_part=500, parallel=2)
    assert "parallel=2" in caplog.text
    caplog.clear()
    export(lite, Lake(tmp_path / "other"), rows_per_part=500, parallel=2, consistency="statement")
    assert caplog.text == ""
    assert dataset(tmp_path / "lake") == dataset(tmp_path / "other") == ROWS


class TestLostConnections:
    """PostgreSQL ends sessions in the middle of their work."""

    WIDE = 24_000

    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
        # So that most of a range is still to come when its part is begun.
        monkeypatch.setattr(memory, "_AHEAD_BYTES", 2**20)

    @pytest.fixture
    def wide(self, pg: Postgres) -> Iterator[Postgres]:
        """Ranges of 12,000 rows are more than what waits on the way."""
        pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        pg.execute(
            "CREATE TABLE orders AS SELECT i AS id, repeat(md5(i::text), 40) AS note, i % 97 AS number "
            f"FROM generate_series(1, {self.WIDE}) AS i",
            "ALTER TABLE orders ADD PRIMARY KEY (id)",
        )
        ours = "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity WHERE application_name = 'rivet_dagster'"
        before = set(pg.row(ours)[0])
        yield pg
        # The server notices an ended connection when it next looks: late, where it has little of the machine.
        for _ in range(1200):
            if set(pg.row(ours)[0]) <= before:
                break
            threading.Event().wait(0.05)
        assert set(pg.row(ours)[0]) <= before, "no session is left"

    def test_a_worker_that_is_cut_reads_its_range_again_in_the_same_snapshot(
        self, wide: Postgres, tmp_path: Path
    ) -> None:
        def cut(n: int) -> None:
            if n == 1:
                wide.execute("UPDATE orders SET note = 'changed'")
                assert wide.row(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE application_name = 'rivet_dagster' AND query LIKE 'COPY%' AND state = 'active'"
                ) != (0,)

        receipt = export(wide, Lake(tmp_path / "lake", cut), rows_per_part=12_000, parallel=2, format="csv")
        retried = receipt.counters["rivet/source_retries"]
        assert retried["count"] >= 1
        assert "57P01" in retried["causes"][0] or "08006" in retried["causes"][0]
        found = dataset(tmp_path / "lake", "count(*), count(DISTINCT id), sum(id), min(length(note))", "1")
        assert found == [(self.WIDE, self.WIDE, self.WIDE * (self.WIDE + 1) // 2, 1_280)]

    @pytest.mark.parametrize("parallel", [1, 2])
    def test_without_the_session_that_holds_the_snapshot_nothing_is_published(
        self, wide: Postgres, tmp_path: Path, parallel: int
    ) -> None:
        def cut(n: int) -> None:
            if n == 2:
                wide.row(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE application_name = 'rivet_dagster' AND state = 'idle in transaction'"
                )

        with pytest.raises(SourceError, match=r"snapshot|57P01|terminat"):
            export(wide, Lake(tmp_path / "lake", cut), rows_per_part=2_000, parallel=parallel, format="csv")
        assert published(tmp_path / "lake") == []
        assert not (tmp_path / "lake" / "orders" / "manifest.json").exists()

    def test_a_server_that_ends_every_worker_is_told(self, wide: Postgres, tmp_path: Path) -> None:
        def cut(_n: int) -> None:
            wide.row(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE application_name = 'rivet_dagster' AND query LIKE 'COPY%' AND state = 'active'"
            )

        with pytest.raises(SourceError, match=r"57P01|08006") as e:
            export(wide, Lake(tmp_path / "lake", cut), rows_per_part=12_000, parallel=2, format="csv")
        assert e.value.transient, "a policy may repeat the step"
        assert published(tmp_path / "lake") == []
