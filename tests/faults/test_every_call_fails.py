"""Fail the nth request to the store, for every n, in every way; then look, run once more, and look again.

"dead" is a process killed at that request: nothing that follows reaches the store. On the local file system every
request fails; on a server those that change something, since one that only looks fails alike everywhere.
"""

from __future__ import annotations

import pytest

from rivet_dagster.errors import DestinationError, NoAnswer, RivetError
from rivet_dagster.manifest import Dataset
from tests.faults.kit import FaultyStore, Killed, Rows, Trouble, export, litter, read_as_a_reader
from tests.harnesses import HARNESS_PARAMS, LocalHarness

OLD = [b"old-1", b"old-2"]
NEW = [b"new-1", b"new-2"]
LAST = [b"last-1", b"last-2", b"last-3"]
MOST = 120

WAYS = {
    "refused once": ("before", DestinationError),
    "silent before its effect, once": ("before", NoAnswer),
    "silent after its effect, once": ("after", NoAnswer),
    "interrupted before its effect": ("before", KeyboardInterrupt),
    "interrupted after its effect": ("after", KeyboardInterrupt),
    "killed before its effect": ("dead", Killed),
    "killed after its effect": ("dead-after", Killed),
    "the store is gone from there": ("dead", NoAnswer),
    "the store is gone from there, after its effect": ("dead-after", NoAnswer),
}


# What a step of the commit can meet on a server: a refusal, a lost reply, and the end of the process on either side.
ON_A_SERVER = ["refused once", "silent after its effect, once", "killed before its effect", "killed after its effect"]


@pytest.fixture
def here(tmp_path):
    """The local file system, where a request costs nothing."""
    return LocalHarness(tmp_path)


@pytest.fixture(params=[p for p in HARNESS_PARAMS if p.id in ("s3-1", "gcs-1", "azure-1")])
def server(request, servers, tmp_path):
    """The object stores."""
    found = request.param(servers, tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dataset", [Dataset.SNAPSHOT, Dataset.APPEND], ids=lambda d: d.value)
def test_readers_keep_a_whole_dataset_and_one_clean_run_mends_it(here, way, dataset):
    break_each_call(here, way, dataset)


@pytest.mark.parametrize("way", ON_A_SERVER)
def test_a_server_keeps_a_whole_dataset_too(server, way):
    break_each_call(server, way, Dataset.SNAPSHOT)


@pytest.mark.parametrize("way", WAYS)
def test_the_first_run_of_a_prefix_leaves_nothing_that_is_taken_for_data(here, way):
    break_the_first_run(here, way)


def test_the_first_run_at_a_server_leaves_nothing_that_is_taken_for_data(server):
    break_the_first_run(server, "killed after its effect")


def break_each_call(place, way, dataset):
    when, error = WAYS[way]
    every = isinstance(place, LocalHarness)
    outcomes = {"committed": 0, "failed": 0}
    for nth in range(1, MOST):
        store, raw = place.fresh(), place.raw
        export(store, Rows(OLD), run_id="run-0")
        after = [*OLD, *NEW] if dataset is Dataset.APPEND else NEW
        faulty = FaultyStore(store, [Trouble(when, nth=nth, error=error, changes_only=not every)])
        try:
            export(faulty, Rows(NEW, dataset=dataset), run_id="run-1")
        except (RivetError, KeyboardInterrupt, Killed):
            outcomes["failed"] += 1
            assert read_as_a_reader(raw()) in (OLD, after), f"call {nth}: {faulty.calls[-1]}"
        else:
            outcomes["committed"] += 1
            assert read_as_a_reader(raw()) == after, f"call {nth}: {faulty.calls[-1]}"
        if not faulty.struck:
            break
        committed = read_as_a_reader(raw()) == after
        again = export(
            store, Rows(NEW, dataset=dataset), run_id="run-1b", lineage=frozenset({"run-1b", "run-1"}), over=["run-1"]
        )
        assert again.found or not committed, f"call {nth}: what was committed is exported again"
        assert read_as_a_reader(raw()) == after, f"call {nth}: {faulty.calls[-1]}"
        export(store, Rows(LAST), run_id="run-2", over=["run-1", "run-1b"])
        assert read_as_a_reader(raw()) == LAST
        assert litter(raw()) == [], f"call {nth} ({faulty.calls[-1]})"
        assert not [*store.unfinished("orders/data/")]
    else:
        pytest.fail(f"a run makes more than {MOST} requests")
    assert nth > (20 if every else 10), "the loop must have passed every step"
    if way == "silent after its effect, once" and not every:
        assert not outcomes["failed"], "a lost reply to a change is settled by looking"
    else:
        assert outcomes["failed"], outcomes


def break_the_first_run(place, way):
    when, error = WAYS[way]
    every = isinstance(place, LocalHarness)
    for nth in range(1, MOST):
        store, raw = place.fresh(), place.raw
        faulty = FaultyStore(store, [Trouble(when, nth=nth, error=error, changes_only=not every)])
        try:
            export(faulty, Rows(NEW), run_id="run-1")
        except (RivetError, KeyboardInterrupt, Killed):
            assert read_as_a_reader(raw()) in (None, NEW)
        else:
            assert read_as_a_reader(raw()) == NEW
        if not faulty.struck:
            break
        export(store, Rows(LAST), run_id="run-2", over=["run-1"])
        assert read_as_a_reader(raw()) == LAST
        assert litter(raw()) == [], f"call {nth} ({faulty.calls[-1]})"
    assert nth > (10 if every else 8)
