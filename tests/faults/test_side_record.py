"""The heartbeat of an attempt, and what a late one may do."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timezone

import pytest

from rivet_dagster.contract import ABSENT
from rivet_dagster.control import SideRecord, swap
from rivet_dagster.errors import CommitConflict, CommitUnknown, ContractError, NoAnswer
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Dataset, Manifest, Part, Status
from tests.faults.kit import LOG, PREFIX, FaultyStore, Rows, Trouble, export, is_side

TOKEN = "run-1-00000000-abcdef01"
PART = Part(part_id=1, path="data/part-x-00001.csv", rows=1, size_bytes=1, content_fingerprint="xxh3:0", content_md5="")


def record(store, **seconds):
    manifest = Manifest(
        run_id=TOKEN,
        export_name="orders",
        status=Status.RUNNING,
        started_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
        destination_kind="local",
        destination_uri="file:///",
        format="csv",
        compression="none",
    )
    return SideRecord(store, PREFIX, manifest, log=LOG, **seconds)


def now(raw):
    return json.loads(raw()[f"orders/manifest-{TOKEN}.json"])


def test_it_beats_while_no_part_finishes(store, raw):
    beaten = threading.Event()
    counted = []

    def count(operation, key):
        counted.append((operation, key))
        if sum(o == "write" for o, _ in counted) >= 5:
            beaten.set()

    ours = record(FaultyStore(store, after=count), at_least_every=0.1)
    ours.create(unfenced=False)
    assert beaten.wait(30)
    ours.stop()
    assert now(raw)["heartbeat"] >= 2
    assert now(raw)["status"] == "running"
    written = len(counted)
    ours.stop()
    assert len(counted) == written, "stopped is stopped"


def test_parts_are_noted_and_not_more_often_than_allowed(store, raw):
    watched = FaultyStore(store)
    ours = record(watched, at_most_every=3600)
    ours.create(unfenced=False)
    before = len(watched.calls)
    ours.add([PART])
    assert len(watched.calls) == before
    eager = record(watched, at_most_every=0)
    eager._version, eager._running = ours._version, ours._running
    eager.add([PART])
    assert [p["path"] for p in now(raw)["parts"]] == [PART.path]
    ours.stop()


def test_no_two_values_of_a_running_record_are_alike(store, raw):
    seen = set()
    ours = record(
        FaultyStore(store, after=lambda _o, _k: seen.add(raw()[f"orders/manifest-{TOKEN}.json"])), at_most_every=0
    )
    ours.create(unfenced=False)
    for _ in range(4):
        ours.add([])
    ours.stop()
    assert len(seen) == 6


@pytest.mark.parametrize("end", ["own", "fail"])
def test_a_heartbeat_that_lands_late_does_not_take_the_record_away(store, raw, end):
    """The reply was lost, and the request is applied just before the final bytes are sent."""
    slow = FaultyStore(store)
    ours = record(slow, at_most_every=0)
    ours.create(unfenced=False)
    slow.troubles = [Trouble("late", operation="write", key=is_side, times=99)]
    ours.add([PART])
    slow.troubles = []
    del slow.delayed[1:]
    assert slow.release() == ["applied"]
    if end == "own":
        final = b'{"final": true}'
        ours.own(final)
        assert raw()[f"orders/manifest-{TOKEN}.json"] == final
    else:
        assert ours.fail()
        assert now(raw)["status"] == "failed"


def test_a_missed_heartbeat_does_not_stop_the_run(store, raw):
    deaf = FaultyStore(store)
    ours = record(deaf, at_most_every=0)
    ours.create(unfenced=False)
    deaf.troubles = [Trouble("before", operation="write", times=99)]
    ours.add([PART])
    deaf.troubles = []
    ours.add([PART])
    assert now(raw)["parts"]
    assert ours.fail()


def test_a_record_that_was_taken_over_is_noticed_at_the_next_part(store, raw):
    ours = record(store, at_most_every=0)
    ours.create(unfenced=False)
    key = f"orders/manifest-{TOKEN}.json"
    taken = (
        raw()[key]
        .replace(b'"running"', b'"interrupted"')
        .replace(b'"heartbeat"', b'"taken_over_by":"other","heartbeat"')
    )
    swap(store, key, taken, expect=store.head(key).version)
    for _ in range(2):
        # Again, since by now the version that is there is the taker's, and known.
        with pytest.raises(CommitConflict, match="taken over by other"):
            ours.add([PART])
        assert raw()[key] == taken
    assert not ours.fail()
    with pytest.raises(CommitConflict, match="taken over by other"):
        ours.own(b"final")
    assert raw()[key] == taken


def test_the_heartbeat_ends_with_the_attempt_however_that_ends(store):
    def fails():
        raise ContractError("the gate")

    prefix = Prefix("ended/")
    export(store, Rows([b"old"], dataset=Dataset.APPEND), run_id="run-0", prefix=prefix)
    assert export(store, Rows([], dataset=Dataset.APPEND), run_id="run-1", prefix=prefix).unchanged
    with pytest.raises(ContractError):
        export(store, Rows([b"new"], gates=[fails]), run_id="run-2", prefix=prefix)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("heartbeat ended/")]


def test_own_without_an_answer_is_unknown(store):
    deaf = FaultyStore(store)
    ours = record(deaf)
    ours.create(unfenced=False)
    deaf.troubles = [Trouble("before", operation="write", times=99)]
    with pytest.raises(CommitUnknown):
        ours.own(b"final")


def test_a_swap_that_met_its_own_bytes_is_ours(store):
    """An SDK repeats a request whose reply was lost, and is told that the precondition no longer holds."""
    store.write("orders/x", b"ours", md5=__import__("hashlib").md5(b"ours").digest(), expect=ABSENT)
    assert swap(store, "orders/x", b"ours", expect=ABSENT) == store.head("orders/x").version
    assert swap(store, "orders/x", b"other", expect=ABSENT) is None


def test_a_store_that_is_silent_for_ever_is_asked_a_few_times_only(store):
    deaf = FaultyStore(store, [Trouble("before", operation="write", error=NoAnswer, times=99)])
    with pytest.raises(CommitUnknown, match="run again"):
        swap(deaf, "orders/x", b"ours", expect=ABSENT)
    assert sum(o == "write" for o, _ in deaf.calls) == 5
