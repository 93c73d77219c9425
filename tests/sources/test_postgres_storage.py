"""PostgreSQL tables divided by where their rows lie: exactly, in one snapshot, without a key and without a walk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Key, KeyRange, Query
from tests.sources.databases import Postgres
from tests.sources.ranges import between, query_of, read_in_ranges, rows_in, run
from tests.sources.test_chunked_export import Lake, dataset, export, manifest
from tests.sources.test_postgres_faults import eventually, sessions

BLOCKS = Key(columns=("ctid",), storage=True)
WIDE = "repeat(md5(i::text), 30)"


@pytest.fixture
def shop(pg: Postgres) -> Iterator[Postgres]:
    pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    # About seven rows to a block, in no order that a key would have; a third of them were deleted.
    pg.execute(
        "CREATE TABLE t (id int, note text)",
        f"INSERT INTO t SELECT i * 7919 % 1009, {WIDE} FROM generate_series(1, 1008) AS i",
        "DELETE FROM t WHERE id % 3 = 0",
    )
    eventually(lambda: sessions(pg) == 0)
    yield pg
    eventually(lambda: sessions(pg) == 0)


def ids(pg: Postgres, table: str = "t") -> list[int]:
    return list(pg.row(f"SELECT array_agg(id ORDER BY id) FROM {table}")[0])


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("rows", [1, 40, 10_000])
def test_each_row_is_in_one_range(shop: Postgres, statistics: bool, rows: int) -> None:
    if statistics:
        shop.execute("ANALYZE t")
    with run(shop) as snapshot:
        assert snapshot.storage_key(query_of()) == BLOCKS
        parts = read_in_ranges(snapshot, BLOCKS, rows=rows)
    assert sorted(row[0] for part in parts for row in part) == ids(shop)
    blocks = shop.row("SELECT pg_relation_size('t') / current_setting('block_size')::int")[0]
    assert len(parts) == {1: blocks, 10_000: 1}.get(rows, len(parts))
    if rows == 40:
        assert all(20 <= len(part) <= 80 for part in parts[:-1])


def test_the_snapshot_is_read_whatever_is_written_meanwhile(shop: Postgres) -> None:
    before = ids(shop)
    with run(shop) as snapshot:
        key = snapshot.storage_key(query_of())
        assert key is not None
        bounds = list(snapshot.boundaries(query_of(), key, rows=100))
        shop.execute(
            "UPDATE t SET id = id + 100000",
            "DELETE FROM t WHERE id % 2 = 0",
            f"INSERT INTO t SELECT i, {WIDE} FROM generate_series(5000, 6000) AS i",
            "VACUUM t",
        )
        found = [row for within in between(bounds, key) for row in rows_in(snapshot, query_of(within=within))]
    assert sorted(row[0] for row in found) == before


@pytest.mark.parametrize("statement", ["VACUUM FULL t", "TRUNCATE t", "ALTER TABLE t ALTER id TYPE bigint"])
def test_nothing_rewrites_the_table_under_the_run(shop: Postgres, statement: str) -> None:
    with run(shop) as snapshot:
        snapshot.storage_key(query_of())
        with pytest.raises(Exception, match="lock timeout"):
            shop.execute("SET lock_timeout = '100ms'", statement)
    shop.execute(statement)


def test_a_range_reads_its_own_blocks_alone(shop: Postgres) -> None:
    def looked_at() -> int:
        return int(shop.row("SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = 't'")[0])

    shop.execute("ANALYZE t")
    blocks = shop.row("SELECT pg_relation_size('t') / current_setting('block_size')::int")[0]
    assert blocks > 100
    with run(shop) as snapshot:
        assert snapshot.storage_key(query_of()) == BLOCKS
        eventually(lambda: sessions(shop) == 1)
        before = looked_at()
        assert rows_in(snapshot, query_of(within=KeyRange(key=BLOCKS, low=(10,), high=(20,))))
    # A session says what it has read when its transaction ends.
    eventually(lambda: looked_at() - before >= 10)
    assert looked_at() - before < 20


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("a view", Query(table="seen", casts={})),
        ("a table with children", Query(table="parent", casts={})),
        ("a partitioned table", Query(table="parted", casts={})),
        ("a query", Query(sql="SELECT * FROM t", casts={})),
    ],
)
def test_what_has_no_blocks_of_its_own_is_not_divided_by_them(shop: Postgres, name: str, query: Query) -> None:
    shop.execute(
        "CREATE VIEW seen AS SELECT * FROM t",
        "CREATE TABLE parent (id int)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE parted (id int) PARTITION BY LIST (id)",
    )
    with run(shop) as snapshot:
        assert snapshot.storage_key(query) is None


def test_blocks_outlive_no_snapshot(shop: Postgres) -> None:
    with run(shop, "statement") as snapshot:
        assert snapshot.storage_key(query_of()) is None
    with run(shop) as snapshot:
        pass
    with pytest.raises(SourceError, match="has ended"):
        snapshot.storage_key(query_of())


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_table_without_a_key_is_exported_in_ranges(shop: Postgres, tmp_path: Path, parallel: int) -> None:
    export(shop, Lake(tmp_path / "lake"), table="t", bytes_per_part="100kB", parallel=parallel)
    assert [row[0] for row in dataset(tmp_path / "lake", "id")] == ids(shop)
    parts = manifest(tmp_path / "lake")["parts"]
    assert len(parts) > 3
    ranges = [part["key_range"] for part in parts]
    assert {tuple(r["columns"]) for r in ranges} == {("ctid",)}
    assert (ranges[0]["low"], ranges[-1]["high"]) == (None, None)
    assert all(one["high"] == other["low"] for one, other in pairwise(ranges))


@pytest.mark.parametrize(
    "more", [{"rows_per_part": 100}, {"key": "id", "bytes_per_part": "100kB"}, {"consistency": "statement"}]
)
def test_who_asks_for_more_than_a_size_gets_a_key(shop: Postgres, tmp_path: Path, more: dict[str, Any]) -> None:
    shop.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    export(shop, Lake(tmp_path / "lake"), table="t", **more)
    assert {tuple(p["key_range"]["columns"]) for p in manifest(tmp_path / "lake")["parts"]} == {("id",)}
