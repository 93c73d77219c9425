"""Rows or disks that give out half-way: the old delivery stays byte for byte, and nothing of the new one is seen."""

import hashlib
import json
import os
import sqlite3
import tempfile
from pathlib import Path

import dagster as dg
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from tests.faults.lakes import MIB, NO_WAIT, S3_ALONE, materialized, said

OLD = pa.table({"id": [1, 2, 3], "name": ["a", None, ""]})


def some(first, rows=50):
    numbers = range(first, first + rows)
    return pa.table({"id": numbers, "name": [hashlib.sha256(b"%d" % n).hexdigest() for n in numbers]})


class Breaks(Exception):
    """Not one of ours."""


def breaking():
    """Enough for several parts, then nothing more."""
    for first in range(0, 500, 50):
        yield some(first)
    raise Breaks


def only_its_record(lake, before):
    """What is new is one record of a failed attempt, and everything old is as it was."""
    after = lake.raw
    assert before.items() <= after.items()
    (left,) = after.keys() - before.keys()
    assert json.loads(after[left])["status"] == "failed"
    assert lake.harness.open_uploads() == []


def test_rows_that_break_leave_the_old_delivery_byte_for_byte(lake):
    """After several parts have been sent."""
    _breaks_and_recovers(lake, format="csv", max_file_size="2KB")


def test_rows_that_break_in_the_only_part_leave_the_old_delivery_byte_for_byte(shelf):
    _breaks_and_recovers(shelf, format="parquet")


def test_rows_that_break_in_the_first_delivery_leave_nothing_to_read(shelf):
    assert not shelf.export(lambda: rd.Batches(breaking()), max_file_size="2KB").success
    assert shelf.rows() is None
    only_its_record(shelf, {})


def _breaks_and_recovers(lake, **shape):
    assert lake.export(OLD, **shape).success
    before = lake.raw
    broken = lake.export(lambda: rd.Batches(breaking()), **shape)
    assert (broken.success, materialized(broken)) == (False, 0)
    assert "Breaks" in said(broken)
    only_its_record(lake, before)

    assert lake.export(some(7), **shape).success
    assert [r["id"] for r in lake.rows()] == [*range(7, 57)]
    assert lake.litter() == []


def _reader():
    return pa.RecordBatchReader.from_batches(some(0).schema, (b for t in breaking() for b in t.to_batches()))


def _export(mode):
    return rd.build_export_asset(rd.Export(name="orders", table="orders", mode=mode))


@pytest.mark.parametrize("mode", [rd.Full(), rd.Chunked(rows_per_part=100, parallel=2)], ids=lambda m: m.kind)
def test_a_database_that_breaks_leaves_the_old_delivery_byte_for_byte(shelf, tmp_path, mode):
    """A value that its column cannot have, far behind the first part."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("create table orders (id integer primary key, name date)")
        database.executemany("insert into orders values (?, '2024-01-31')", ((i,) for i in range(2000)))
    shop = {"source": rd.DatabaseResource(url=f"sqlite:///{path}")}

    def run():
        there = {"io_manager": shelf.io_manager(max_file_size="1KB"), **shop}
        return dg.materialize([_export(mode)], instance=shelf.instance, resources=there, raise_on_error=False)

    assert run().success
    before = shelf.raw
    with database:
        database.execute("update orders set name = 'no date' where id = 1500")
    broken = run()
    assert (broken.success, materialized(broken)) == (False, 0)
    assert "name" in said(broken)
    only_its_record(shelf, before)
    with database:
        database.execute("delete from orders where id = 1500")
    database.close()
    assert run().success
    assert sorted(r["id"] for r in shelf.rows()) == sorted({*range(2000)} - {1500})
    assert shelf.litter() == []


def test_a_stream_of_batches_that_breaks_leaves_the_old_delivery_byte_for_byte(shelf):
    assert shelf.export(OLD).success
    before = shelf.raw
    broken = shelf.export(_reader, max_file_size="2KB")
    assert not broken.success
    only_its_record(shelf, before)


def test_while_parts_are_made_a_glob_finds_whole_parts_only(shelf):
    data = shelf.harness.root / "orders" / "data"
    seen = []

    def rows():
        for first in range(0, 1000, 50):
            yield some(first)
            hidden = [p for p in data.iterdir() if p.name.startswith(".")] if data.exists() else []
            named = [Path(n) for (n,) in duckdb.execute("select file from glob(?)", [f"{data}/*.parquet"]).fetchall()]
            seen.append((hidden, named))

    assert shelf.export(lambda: rd.Batches(rows()), max_file_size="10KB").success
    assert any(hidden for hidden, _ in seen), "something was unfinished when it was looked for"
    listed = {name for _, names in seen for name in names}
    assert listed
    for name in listed:
        assert pq.ParquetFile(name).metadata.num_rows > 0
    assert seen[-1][1], "parts are there long before the end"


@pytest.fixture
def large():
    """Three times what the small disk has."""
    return pa.table({"noise": [os.urandom(64 << 10) for _ in range(6 * MIB >> 16)]})


def attempts(result):
    return [e for e in result.all_events if e.is_step_start or e.is_step_restarted]


def test_a_full_disk_fails_as_often_as_the_policy_says_and_frees_its_room(shelf, small_disk, large):
    there = rd.LocalIOManager(path=str(small_disk / "lake"))
    assert shelf.export(OLD, io_manager=there).success
    before = _files(small_disk)
    broken = shelf.export(large, io_manager=there, policy=NO_WAIT)
    assert (broken.success, len(attempts(broken))) == (False, 2)
    assert "No space left" in said(broken)
    assert "free space" in said(broken)
    after = _files(small_disk)
    assert before.items() <= after.items()
    assert {json.loads(after[k])["status"] for k in after.keys() - before.keys()} == {"failed"}
    assert shelf.export(some(5), io_manager=there).success
    assert not any(k.endswith(".tmp") for k in _files(small_disk))


@pytest.mark.parametrize("cloud", S3_ALONE, indirect=True)
def test_a_full_disk_of_this_machine_leaves_a_cloud_as_it_was(cloud, small_disk, large, monkeypatch):
    """Parts are spooled before they are sent."""
    assert cloud.export(OLD).success
    before = cloud.raw
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    broken = cloud.export(large)
    assert (broken.success, materialized(broken)) == (False, 0)
    assert "No space left" in said(broken)
    only_its_record(cloud, before)
    assert cloud.export(some(5)).success
    assert cloud.litter() == []


def _files(root):
    found = (p for p in root.rglob("*") if p.is_file() and p.name != ".rivet.lock")
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in found}
