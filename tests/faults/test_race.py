"""Several processes at one prefix: whoever commits is in the history, whoever does not is gone without a trace."""

from __future__ import annotations

import json
import multiprocessing
from functools import partial

import pytest

from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import CommitConflict
from rivet_dagster.manifest import fingerprint
from rivet_dagster.readback import look
from tests.faults.crash_matrix import exports, victims
from tests.faults.kit import PREFIX, Rows, export, litter, read_as_a_reader
from tests.harnesses import HARNESS_PARAMS

ROUNDS = 15
PAIRS = {"local": 5, "s3-1": 10, "gcs-1": 10, "azure-1": 10}


def _contend(path, name, barrier, outcomes):
    for number in range(ROUNDS):
        barrier.wait()
        run_id = f"{name}-{number}"
        try:
            receipt = export(LocalDestination(path), Rows([run_id.encode()]), run_id=run_id)
        except CommitConflict as e:
            outcomes.put((run_id, None, str(e)))
        else:
            outcomes.put((run_id, receipt.fingerprint, ""))


def test_processes_that_swap_one_head_never_lose_a_commit(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, outcomes = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_contend, args=(tmp_path, name, barrier, outcomes)) for name in "abc"]
    for worker in workers:
        worker.start()
    said = [outcomes.get(timeout=200) for _ in range(3 * ROUNDS)]
    for worker in workers:
        worker.join()
    committed = {run_id: f for run_id, f, _ in said if f}
    conflicts = [(run_id, why) for run_id, f, why in said if not f]
    sight = look(LocalDestination(tmp_path), PREFIX)
    line = {sight.head.dagster_run_id: sight.head_fingerprint} | {
        a.dagster_run_id: a.fingerprint for a in sight.head.ancestors
    }
    assert line == committed, "what was reported as committed is the history, and nothing else is"
    assert sight.head.sequence == len(committed)
    assert conflicts, "the race is tight enough to have losers"
    assert all("found" in why for _, why in conflicts)
    export(LocalDestination(tmp_path), Rows([b"last"]), run_id="last", over=[r for r, _ in conflicts])
    raw = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert read_as_a_reader(raw) == [b"last"]
    assert litter(raw) == []
    assert fingerprint(raw["orders/manifest.json"]) == raw["orders/_SUCCESS"].decode().strip()


@pytest.fixture(params=[pytest.param((p.id, *p.values), id=p.id) for p in HARNESS_PARAMS if p.id in PAIRS])
def pairs(request, servers, tmp_path):
    """A store, and how many rounds are tried there."""
    name, build = request.param
    place = build(servers, tmp_path)
    yield place, PAIRS[name]
    place.close()


def _add(recipe, database, name, rounds, barrier, outcomes):
    """Twice a round: with the other, and then alone, if that was lost."""
    go = partial(exports.run, "incremental", recipe(), database)
    for number in range(rounds):
        run_id, lost = f"{name}-{number}", None
        barrier.wait(60)
        try:
            receipt = go(run_id=run_id)
        except CommitConflict as conflict:
            lost = str(conflict)
        outcomes.put((run_id, lost, 0 if lost else receipt.row_count))
        barrier.wait(60)
        barrier.wait(60)
        if lost is not None:
            go(run_id=f"{run_id}-again")
        barrier.wait(60)


def test_of_two_runs_that_add_rows_one_commits_and_the_other_goes_on_from_there(pairs, tmp_path, tally):
    place, rounds = pairs
    store, database = place.fresh(), tmp_path / "shop.db"
    exports.create(database)
    exports.run("incremental", store, database, run_id="first")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*victims.PRELOADED])
    barrier, outcomes = context.Barrier(3), context.Queue()
    told = [(place.recipe(), database, name, rounds, barrier, outcomes) for name in "ab"]
    workers = [context.Process(target=_add, args=args) for args in told]
    for worker in workers:
        worker.start()
    conflicts = 0
    try:
        for _ in range(rounds):
            exports.grow(database, rows=8)
            barrier.wait(60)
            two = [outcomes.get(timeout=60) for _ in "ab"]
            barrier.wait(60)
            raw = dict(place.raw())
            assert exports.dataset(raw, "orders/", tmp_path) == exports.rows_of(database)
            assert sum(rows for *_, rows in two) == 8, "the rows of a round are added by one of the two"
            for (run_id, lost, _), (other, *_) in (two, two[::-1]):
                if lost is not None:
                    conflicts += 1
                    assert f"(Dagster run {other})" in lost, "it says who has won"
                    assert not [name for name in raw if f"/part-{run_id}-" in name]
                    records = [json.loads(body) for name, body in raw.items() if f"/manifest-{run_id}-" in name]
                    assert {record["status"] for record in records} <= {"failed"}, "or the winner has cleaned it up"
            exports.grow(database, rows=3)
            barrier.wait(60)
            barrier.wait(60)
    finally:
        for worker in workers:
            worker.join(10)
            worker.kill()
    assert conflicts, "the race is tight enough to have losers"
    exports.run("incremental", store, database, run_id="last")
    raw = dict(place.raw())
    assert exports.dataset(raw, "orders/", tmp_path) == exports.rows_of(database)
    assert [name for name in litter(raw) if "_symlink" not in name] == []
    assert place.open_uploads() == []
    tally("rounds of two runs at once", rounds)
