"""Maintenance on each store: what is dead or superseded goes, what is alive or a stranger's stays."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest

from rivet_dagster.attempt import Attempt, CommitSettings
from rivet_dagster.destinations.watched import RehearsedDestination, WatchedDestination
from rivet_dagster.errors import ContractError, NoAnswer
from rivet_dagster.maintenance import maintain
from tests.faults.kit import (
    LOG,
    PREFIX,
    FaultyStore,
    Killed,
    Rows,
    Trouble,
    export,
    is_head,
    is_part,
    litter,
    read_as_a_reader,
)
from tests.harnesses import HARNESS_PARAMS

DAY = timedelta(days=1)
# What stores differ in here is how they list and which time they tell; the rest is the same code on all of them.
EACH = pytest.mark.parametrize(
    "place", [p for p in HARNESS_PARAMS if p.id in ("local", "s3-1", "gcs-1", "azure-1")], indirect=True
)
LOCAL = pytest.mark.parametrize("place", [p for p in HARNESS_PARAMS if p.id == "local"], indirect=True)


def maintained(
    destination, *, over=(), retain=0, quarantined_for=DAY, takeover_after=timedelta(hours=1), name="orders"
):
    """One run of maintenance; what it says and what it removed."""
    found = maintain(
        destination,
        PREFIX,
        attempt=Attempt(export_name=name, dagster_run_id="maintenance", is_over=lambda run_id: run_id in over),
        settings=CommitSettings(retain=retain, takeover_after=takeover_after),
        quarantined_for=quarantined_for,
        log=LOG,
    )
    return found, {r.key: r.size_bytes for r in getattr(destination, "removed", ())}


def died(store, run_id, *, at=is_part, nth=2):
    """A run is killed with a part behind it."""
    killing = FaultyStore(store, troubles=[Trouble("dead-after", operation="write", key=at, nth=nth, error=Killed)])
    with pytest.raises(Killed):
        export(killing, Rows([b"lost 1", b"lost 2", b"lost 3"]), run_id=run_id)


def inside(raw):
    return {k: v for k, v in raw().items() if not k.startswith("../")}


@EACH
def test_what_a_dead_run_left_goes_once_it_is_known_to_be_over(store, raw):
    export(store, Rows([b"good"]), run_id="run-0")
    before = inside(raw)
    died(store, "run-1")
    left = {k: len(v) for k, v in inside(raw).items() if k not in before}
    assert len(left) == 3
    found, _ = maintained(WatchedDestination(store))
    assert (len(found.alive), found.taken_over) == (1, ())
    assert {k: len(v) for k, v in inside(raw).items() if k not in before} == left
    # A rehearsal says what the real one does, and does nothing.
    rehearsed, would_go = maintained(RehearsedDestination(store), over=("run-1",))
    assert {k: len(v) for k, v in inside(raw).items() if k not in before} == left
    found, went = maintained(WatchedDestination(store), over=("run-1",))
    assert went.keys() == would_go.keys() == left.keys()
    assert (found.taken_over, found.alive) == (rehearsed.taken_over, ()) == ((*found.taken_over,), ())
    assert len(found.taken_over) == 1
    assert inside(raw) == before


@LOCAL
def test_a_run_that_is_alive_goes_on_and_commits(store, raw):
    """Maintained before each of its parts, with as little patience as its heartbeat allows."""
    calls = []

    def before_part(_n):
        calls.append(maintained(WatchedDestination(store), takeover_after=timedelta(minutes=2))[1])

    export(store, Rows([b"old"]), run_id="run-0")
    export(store, Rows([b"new 1", b"new 2"], before_part=before_part), run_id="run-1")
    assert calls == [{}, {}, {}]
    assert read_as_a_reader(raw()) == [b"new 1", b"new 2"]
    assert litter(raw()) == []


@LOCAL
def test_silence_counts_by_the_stores_clock(store, raw):
    export(store, Rows([b"good"]), run_id="run-0")
    died(store, "run-1")
    time.sleep(0.01)
    found, went = maintained(WatchedDestination(store), takeover_after=timedelta())
    assert len(found.taken_over) == 1
    assert len(went) == 3
    assert litter(raw()) == []


@LOCAL
def test_an_unmarked_head_is_finished_and_nothing_of_it_removed(store, raw):
    export(store, Rows([b"old"]), run_id="run-0")
    died(store, "run-1", at=is_head, nth=1)
    maintained(WatchedDestination(store))
    assert read_as_a_reader(raw()) == [b"lost 1", b"lost 2", b"lost 3"]
    assert litter(raw()) == []


@LOCAL
def test_superseded_deliveries_go_beyond_those_that_are_retained(store, raw):
    kept = CommitSettings(retain=2)
    for n in range(3):
        export(store, Rows([f"delivery {n}".encode()]), run_id=f"run-{n}", settings=kept)
    _, went = maintained(WatchedDestination(store), retain=2)
    assert went == {}
    _, went = maintained(WatchedDestination(store), retain=1)
    assert len(went) == 2
    assert {v for k, v in raw().items() if is_part(k)} == {b"delivery 1", b"delivery 2"}


@EACH
def test_quarantine_is_emptied_of_what_is_ours_and_old(store, place, raw):
    export(store, Rows([b"good"]), run_id="run-0")
    before = inside(raw)
    ours = "orders/_quarantine/run-9-00000000-abcdef12/data/part-run-9-00000000-abcdef12-00001.csv"
    strangers = {"orders/_quarantine/run-9-00000000-abcdef12/data/notes.txt": b"mine", "orders/notes.txt": b"mine"}
    for key, body in {ours: b"damaged", **strangers}.items():
        place.put(key, body)
    found, went = maintained(WatchedDestination(store))
    assert (went, found.quarantined) == ({}, 1)
    # Some stores tell seconds only.
    time.sleep(1.1)
    found, went = maintained(WatchedDestination(store), quarantined_for=timedelta())
    assert (went, found.quarantined) == ({ours: 7}, 0)
    assert inside(raw) == before | strangers


@LOCAL
def test_another_exports_dataset_is_refused(store, raw):
    export(store, Rows([b"good"]), run_id="run-0")
    died(store, "run-1")
    before = raw()
    with pytest.raises(ContractError, match="'customers'"):
        maintained(WatchedDestination(store), over=("run-1",), name="customers")
    assert raw() == before


@LOCAL
def test_what_cannot_be_removed_is_said_and_left_to_the_next(store, raw):
    export(store, Rows([b"good"]), run_id="run-0")
    died(store, "run-1")
    stuck = FaultyStore(store, troubles=[Trouble("before", operation="remove", key=is_part, error=NoAnswer)])
    watched = WatchedDestination(stuck)
    maintained(watched, over=("run-1",))
    assert len(watched.failed) == 1
    assert [json.loads(v)["status"] for k, v in raw().items() if "/manifest-run-1" in k] == ["interrupted"]
    maintained(WatchedDestination(store))
    assert litter(raw()) == []
