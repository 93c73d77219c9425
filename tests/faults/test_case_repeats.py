"""A step that fails at every stage of its commit, one after the other, and two runs at once: each row is there once."""

import hashlib
import json
import multiprocessing
import re
import threading
import time

import dagster as dg
import pyarrow as pa
import pytest

import rivet_dagster as rd
from rivet_dagster.errors import NoAnswer
from tests.faults.kit import FaultyStore, Trouble, is_head, is_marker, is_part, is_side
from tests.faults.lakes import S3_ALONE, Lake, materialized, said, table_of

OLD = pa.table({"id": [1, 2, 3]})
NEW = pa.table({"id": range(100), "name": [hashlib.sha256(b"%d" % n).hexdigest() for n in range(100)]})
SHAPE = {"format": "csv", "max_file_size": "3KB"}


def dies(when, key, nth=1, operation="write"):
    """From one request on nothing reaches the store, as if the process were gone."""
    return Trouble(when, operation=operation, key=key, nth=nth, error=NoAnswer)


def before_the_commit():
    """A death for each attempt, ever later; none is the last one that a reader could see."""
    return [
        dies("dead", is_side),
        dies("dead-after", is_side),
        dies("dead", is_part),
        dies("dead-after", is_part),
        dies("dead", is_part, nth=2),
        dies("dead-after", is_part, nth=3),
        # The fourth write of the record is the one that makes it final.
        dies("dead", is_side, nth=4),
        dies("dead-after", is_side, nth=4),
        dies("dead", is_head),
    ]


AT_THE_COMMIT = {
    "head": lambda: dies("dead-after", is_head),
    "marker": lambda: dies("dead", is_marker),
    "marked": lambda: dies("dead-after", is_marker),
    "cleaning": lambda: dies("dead", is_part, operation="remove"),
}


def dying(lake, troubles, seen):
    """The lake's IO manager; each attempt has a client of its own and the next of the troubles."""
    healthy = lake.io_manager(**SHAPE)
    kind = type(healthy)

    class Dying(kind):
        def open_destination(self, clients):
            inner = super().open_destination(clients)
            return FaultyStore(inner, troubles=[troubles.pop(0)] if troubles else [])

        def handle_output(self, context, obj):
            try:
                super().handle_output(context, obj)
            finally:
                self._opened = None
                seen.append(lake.rows())

    return Dying(**{name: getattr(healthy, name) for name in kind.model_fields})


def attempts(result):
    return sum(1 for e in result.all_events if e.is_step_start or e.is_step_restarted)


def test_a_step_that_dies_ever_later_commits_the_new_rows_once(shelf):
    _dies_ever_later(shelf, before_the_commit())


def test_a_step_that_dies_ever_later_commits_the_new_rows_once_in_the_clouds(cloud):
    """After each kind of request; the others leave as little as on a local file system."""
    _dies_ever_later(cloud, [t for t in before_the_commit() if t.when == "dead-after"])


def _dies_ever_later(lake, deaths):
    assert lake.export(OLD, **SHAPE).success
    troubles, seen = [*deaths], []
    policy = dg.RetryPolicy(max_retries=len(troubles))
    done = lake.export(lambda: NEW, io_manager=dying(lake, troubles, seen), policy=policy)
    assert done.success, said(done)
    assert (attempts(done), materialized(done), troubles) == (len(deaths) + 1, 1, [])
    assert seen == [OLD.to_pylist()] * len(deaths) + [NEW.to_pylist()]
    assert lake.litter() == []


@pytest.mark.parametrize("stage", AT_THE_COMMIT)
def test_a_step_that_dies_at_its_commit_is_repeated_without_a_second_export(shelf, stage):
    _dies_at_its_commit(shelf, stage)


@pytest.mark.parametrize("cloud", S3_ALONE, indirect=True)
def test_a_step_that_dies_just_after_its_commit_is_repeated_without_a_second_export(cloud):
    _dies_at_its_commit(cloud, "marked")


def _dies_at_its_commit(lake, stage):
    assert lake.export(OLD, **SHAPE).success
    asked, seen = [], []

    def rows():
        asked.append(1)
        yield NEW

    dies_here = dying(lake, [AT_THE_COMMIT[stage]()], seen)
    done = lake.export(lambda: rd.Batches(rows()), io_manager=dies_here, policy=dg.RetryPolicy(max_retries=1))
    assert (done.success, materialized(done)) == (True, 1), said(done)
    # A run that dies while it cleans up has committed, and what it could not remove is the next run's.
    assert attempts(done) == (1 if stage == "cleaning" else 2)
    committed = stage in ("marked", "cleaning")
    assert seen[0] == (NEW if committed else OLD).to_pylist()
    assert seen[-1] == NEW.to_pylist()
    assert len(asked) == 1, "the rows were read again"
    (event,) = done.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    assert metadata["dagster/row_count"].value == 100
    manifest = json.loads(lake.raw["orders/manifest.json"])
    assert metadata["rivet/run_id"].value == manifest["run_id"]
    assert lake.export(OLD, **SHAPE).success
    assert lake.rows() == OLD.to_pylist()
    assert lake.litter() == []


def test_a_run_after_one_that_died_has_its_own_rows_and_no_others(shelf):
    assert shelf.export(OLD, **SHAPE).success
    seen = []
    dead = shelf.export(NEW, io_manager=dying(shelf, [dies("dead-after", is_part, nth=3)], seen))
    assert (dead.success, materialized(dead)) == (False, 0)
    assert seen == [OLD.to_pylist()]
    assert len([k for k in shelf.raw if "/data/" in k]) == 1 + 3, "what it left is there"
    assert shelf.export(NEW, **SHAPE).success
    assert shelf.rows() == NEW.to_pylist()
    assert shelf.litter() == []


def test_runs_within_one_instant_share_no_name(shelf, monkeypatch):
    _within_one_instant(shelf, monkeypatch)


@pytest.mark.parametrize("cloud", S3_ALONE, indirect=True)
def test_runs_within_one_instant_share_no_name_in_a_cloud(cloud, monkeypatch):
    _within_one_instant(cloud, monkeypatch)


def _within_one_instant(lake, monkeypatch):
    """With a clock that stands still no stamp could tell them apart."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    tables = [pa.table({"id": range(n, n + 5)}) for n in range(2)]
    for table in tables:
        assert lake.export(table, retain=1).success
    raw = lake.raw
    sides = [k for k in raw if re.search(r"/manifest-.+\.json$", k)]
    parts = [json.loads(raw[k])["parts"] for k in sides]
    found = [table_of(raw[f"orders/{p['path']}"])["id"].to_pylist() for listed in parts for p in listed]
    assert sorted(found) == [t["id"].to_pylist() for t in tables]
    assert len({p["path"] for listed in parts for p in listed}) == 2
    assert lake.rows() == tables[-1].to_pylist()


def rows_of(writer, number):
    for first in range(0, 100, 20):
        yield pa.table({"writer": [writer] * 20, "number": [number] * 20, "row": range(first, first + 20)})


def contend(path, writer, barrier, outcomes):
    """One process, several runs of one asset, each begun together with the other's."""
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Lake(None, instance, None)
        for number in range(3):
            io_manager = rd.LocalIOManager(path=path, max_file_size="1KB", format="csv")
            barrier.wait(60)
            done = lake.export(lambda n=number: rd.Batches(rows_of(writer, n)), io_manager=io_manager)
            outcomes.put((writer, number, done.success, materialized(done), said(done)))


def test_two_processes_that_export_one_asset_at_once_never_mix_their_rows(shelf):
    context = multiprocessing.get_context("spawn")
    barrier, outcomes = context.Barrier(2), context.Queue()
    path = str(shelf.harness.root)
    workers = [context.Process(target=contend, args=(path, name, barrier, outcomes)) for name in "ab"]
    for worker in workers:
        worker.start()
    said_of = [outcomes.get(timeout=120) for _ in range(6)]
    for worker in workers:
        worker.join()
    _never_mixed(shelf, said_of)


def _never_mixed(lake, said_of):
    assert all(recorded == (1 if success else 0) for _, _, success, recorded, _ in said_of)
    assert all("CommitConflict" in text for _, _, success, _, text in said_of if not success)
    committed = {(name, number) for name, number, success, _, _ in said_of if success}
    rows = lake.rows()
    assert {(r["writer"], r["number"]) for r in rows} <= committed
    assert len({(r["writer"], r["number"]) for r in rows}) == 1
    assert [r["row"] for r in rows] == [*range(100)]
    head = json.loads(lake.raw["orders/manifest.json"])
    assert head["sequence"] == len(committed), "every run that was told so is in the history"
    assert lake.export(OLD, **SHAPE).success
    assert lake.rows() == OLD.to_pylist()


def test_two_runs_that_export_one_asset_at_once_never_mix_their_rows_in_the_clouds(cloud):
    barrier, said_of = threading.Barrier(2, timeout=60), []

    def work(writer):
        with dg.DagsterInstance.ephemeral() as instance:
            lake = Lake(cloud.harness, instance, cloud.monkeypatch)
            barrier.wait()
            done = lake.export(lambda: rd.Batches(rows_of(writer, 0)), **SHAPE)
            said_of.append((writer, 0, done.success, materialized(done), said(done)))

    workers = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(said_of) == 2
    _never_mixed(cloud, said_of)


@pytest.mark.parametrize("cloud", S3_ALONE, indirect=True)
def test_an_upload_that_a_dead_run_left_open_is_discarded_by_the_next_and_no_other_is(cloud):
    """The other stores drop it themselves."""
    dead = cloud.export(NEW, io_manager=dying(cloud, [dies("dead-after", is_part)], []))
    assert not dead.success
    (record,) = [name for name in cloud.raw if is_side(name)]
    token = json.loads(cloud.raw[record])["run_id"]
    theirs = [f"orders/data/part-{token}-00009.csv"]
    others = ["orders/data/mine.csv", "orders2/data/part-x-00001.csv", f"orders/data/part-{token}1-00001.csv"]
    client = cloud.harness.server.client()
    for name in theirs + others:
        client.create_multipart_upload(Bucket=cloud.harness.bucket, Key=f"{cloud.harness.directory}{name}")
    client.close()
    assert cloud.export(NEW, **SHAPE).success
    assert sorted(cloud.harness.open_uploads()) == sorted(f"{cloud.harness.directory}{name}" for name in others)
