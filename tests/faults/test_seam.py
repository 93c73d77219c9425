"""The rules that make the commit safe, each with a history that goes wrong without it."""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest

from rivet_dagster.commit import CommitSettings
from rivet_dagster.contract import ANY, Checksum
from rivet_dagster.control import md5_of
from rivet_dagster.errors import (
    CommitConflict,
    CommitUnknown,
    ConfigError,
    ContractError,
    DestinationError,
    IntegrityError,
    ReadError,
)
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Dataset, Manifest, Status, fingerprint, marker_body
from rivet_dagster.readback import look, read_record
from rivet_dagster.wire import parse, serialise
from tests.faults.kit import (
    PREFIX,
    FaultyStore,
    Killed,
    Rows,
    Trouble,
    export,
    is_head,
    is_marker,
    is_part,
    is_side,
    litter,
    manifest_of,
    read_as_a_reader,
)
from tests.harnesses import LocalHarness

OLD = [b"old-1", b"old-2"]
NEW = [b"new-1", b"new-2", b"new-3"]


def test_a_commit_asks_the_store_in_one_order(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    watched = FaultyStore(store)
    receipt = export(watched, Rows(NEW))
    writes = [key for operation, key in watched.calls if operation == "write"]
    token = manifest_of(receipt).run_id
    parts = [i for i, key in enumerate(writes) if is_part(key)]
    sides = [i for i, key in enumerate(writes) if is_side(key)]
    head, marker = writes.index("orders/manifest.json"), writes.index("orders/_SUCCESS")
    assert sides[0] == 0, "the side record is there before anything that it speaks for"
    assert sides[2] < parts[0], "the store's conditional writes are proven before the first part"
    assert parts[-1] < sides[-1] < head < marker == len(writes) - 1
    assert writes[sides[-1]] == f"orders/manifest-{token}.json"
    removed = [key for operation, key in watched.calls if operation == "remove"]
    assert watched.calls.index(("write", "orders/_SUCCESS")) < watched.calls.index(("remove", removed[0]))
    assert [is_part(k) for k in removed] == [True, True, False], "of a superseded delivery the side record goes last"
    assert read_as_a_reader(raw()) == NEW
    assert litter(raw()) == []


def test_head_side_record_and_marker_say_the_same(store, raw):
    receipt = export(store, Rows(NEW))
    objects = raw()
    assert objects["orders/manifest.json"] == objects[f"orders/manifest-{manifest_of(receipt).run_id}.json"]
    assert objects["orders/_SUCCESS"] == f"{receipt.fingerprint}\n".encode()
    assert re.fullmatch(rb"xxh3:[0-9a-f]{16}\n", objects["orders/_SUCCESS"])
    assert (receipt.row_count, receipt.size_bytes) == (30, 15)


def test_each_delivery_descends_from_the_one_before(store):
    receipts = [export(store, Rows([b"%d" % n]), run_id=f"run-{n}") for n in range(3)]
    last = manifest_of(receipts[2])
    assert last.sequence == 3
    assert last.previous.fingerprint == receipts[1].fingerprint
    assert [a.fingerprint for a in last.ancestors] == [receipts[1].fingerprint, receipts[0].fingerprint]
    assert [a.dagster_run_id for a in last.ancestors] == ["run-1", "run-0"]


def test_a_failed_gate_publishes_nothing(store, raw):
    export(store, Rows(OLD), run_id="run-0")

    def gate():
        assert any(k.startswith("orders/data/") and b"new" in v for k, v in raw().items()), "judged after the last row"
        raise ContractError("row_count is 30, expected at most 20")

    with pytest.raises(ContractError, match="at most 20"):
        export(store, Rows(NEW, gates=[gate]))
    assert read_as_a_reader(raw()) == OLD
    assert not [k for k, v in raw().items() if b"new" in v and "/data/" in k], "its parts are removed"
    export(store, Rows(NEW), run_id="run-2")
    assert read_as_a_reader(raw()) == NEW
    assert litter(raw()) == []


def test_a_delayed_head_swap_may_land_after_the_run_gave_up(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    slow = FaultyStore(store, [Trouble("late", operation="write", key=is_head, times=99)])
    with pytest.raises(CommitUnknown, match=r"manifest\.json: no answer"):
        export(slow, Rows(NEW), run_id="run-1")
    assert read_as_a_reader(raw()) == OLD
    assert slow.release()[0] == "applied"
    assert read_as_a_reader(raw()) == OLD, "a head without its marker is a commit in flight"
    receipt = export(store, Rows([b"third"]), run_id="run-2", over=["run-1"])
    assert manifest_of(receipt).ancestors[0].dagster_run_id == "run-1", "the late head was finished, not forgotten"
    assert "finished the commit" in receipt.notes[0]
    assert read_as_a_reader(raw()) == [b"third"]
    assert litter(raw()) == []


def test_a_delayed_head_swap_that_comes_too_late_does_nothing(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    slow = FaultyStore(store, [Trouble("late", operation="write", key=is_head, times=99)])
    with pytest.raises(CommitUnknown):
        export(slow, Rows(NEW), run_id="run-1")
    export(store, Rows([b"third"]), run_id="run-2", over=["run-1"])
    assert set(slow.release()) == {"refused"}
    assert read_as_a_reader(raw()) == [b"third"]
    assert litter(raw()) == [], "a final record is cleaned once another head is committed"


@pytest.mark.parametrize("first", [False, True], ids=["over a head", "first of its prefix"])
def test_nobody_cleans_a_final_run_while_its_head_swap_may_still_land(store, raw, first):
    if not first:
        export(store, Rows(OLD), run_id="run-0")
    slow = FaultyStore(store, [Trouble("late", operation="write", key=is_head, times=99)])
    with pytest.raises(CommitUnknown):
        export(slow, Rows(NEW), run_id="run-1")

    def gate():
        raise ContractError("refused")

    with pytest.raises(ContractError, match="refused"):
        export(store, Rows([b"third"], gates=[gate]), run_id="run-2", over=["run-1"])
    assert slow.release()[0] == "applied"
    receipt = export(store, Rows([b"fourth"]), run_id="run-3", over=["run-1", "run-2"])
    assert manifest_of(receipt).ancestors[0].dagster_run_id == "run-1", "it was whole, and is part of the history"
    assert litter(raw()) == []


def _taken(store, raw, token_of_taker):
    """A run was taken over by another; its record says so, and its part is still there."""
    slow = FaultyStore(store, [Trouble("dead", operation="write", key=is_part, nth=2, error=Killed)])
    with pytest.raises(Killed):
        export(slow, Rows([b"adopted", b"x"]), run_id="dead")
    [key] = [k for k, v in raw().items() if "manifest-dead" in k]
    record = read_record(store, PREFIX, key.removeprefix("orders/manifest-").removesuffix(".json"))
    body = serialise(replace(record.manifest, status=Status.INTERRUPTED, taken_over_by=token_of_taker))
    store.write(key, body, md5=md5_of(body), expect=record.version)


def test_only_the_taker_touches_a_taken_over_run_while_it_is_at_work(store, raw):
    """The taker may be about to list its parts as its own."""
    export(store, Rows(OLD), run_id="run-0")

    def meanwhile(n):
        if n == 1:
            [taker] = [k for k, v in raw().items() if is_side(k) and b'"running"' in v]
            _taken(store, raw, taker.removeprefix("orders/manifest-").removesuffix(".json"))
            export(store, Rows(NEW), run_id="bystander")
            assert b"adopted" in raw().values()

    with pytest.raises(CommitConflict):
        export(store, Rows([b"taker-1", b"taker-2"], before_part=meanwhile), run_id="taker")
    export(store, Rows(NEW), run_id="run-2", over=["taker", "dead"])
    assert litter(raw()) == [], "the taker is over, so its charge is anybody's to clean"


def test_nobody_cleans_by_a_head_that_is_older_than_the_records(store, raw):
    """A run reads the head; another one commits, and a third is about to commit on top of that."""
    export(store, Rows(OLD), run_id="run-0")
    final, looked = threading.Event(), threading.Event()

    class WaitsBeforeItsHead(FaultyStore):
        def hold(self, directory):
            final.set()
            assert looked.wait(60)
            return super().hold(directory)

    third = threading.Thread(target=lambda: export(WaitsBeforeItsHead(store), Rows(NEW), run_id="run-2"), daemon=True)

    def meanwhile(operation, _key):
        if operation == "list" and not third.ident:
            export(store, Rows([b"second"]), run_id="run-1")
            third.start()
            assert final.wait(60)

    def gate():
        raise ContractError("refused")

    with pytest.raises((ContractError, CommitConflict)):
        export(FaultyStore(store, before=meanwhile), Rows([b"slow"], gates=[gate]), run_id="slow")
    looked.set()
    third.join(60)
    assert read_as_a_reader(raw()) == NEW


def test_nothing_is_removed_while_the_head_swap_may_still_land(store, raw):
    slow = FaultyStore(store, [Trouble("late", operation="write", key=is_head, times=99)])
    with pytest.raises(CommitUnknown):
        export(slow, Rows(NEW), run_id="run-1")
    assert sorted(v for k, v in raw().items() if "/data/" in k) == NEW
    assert ("remove", "x") not in slow.calls
    assert not [c for c in slow.calls if c[0] == "remove"]


@pytest.mark.parametrize("applied", [True, False])
def test_an_interrupt_between_head_and_marker_is_finished_by_the_next_run(store, raw, applied):
    export(store, Rows(OLD), run_id="run-0")
    trouble = Trouble("after" if applied else "before", operation="write", key=is_marker, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        export(FaultyStore(store, [trouble]), Rows(NEW), run_id="run-1")
    assert read_as_a_reader(raw()) == (NEW if applied else OLD)
    rows = Rows([b"never read"])
    receipt = export(store, rows, run_id="run-1")
    assert receipt.found
    assert receipt.row_count == 30
    assert rows.closed == 0, "a retry whose first attempt has committed exports nothing"
    assert read_as_a_reader(raw()) == NEW
    assert litter(raw()) == []


def test_a_retried_step_returns_what_its_first_attempt_committed(store, raw):
    first = export(store, Rows(NEW), run_id="run-1")
    before = raw()
    again = export(store, Rows([b"other"]), run_id="run-1")
    assert again.found
    assert (again.fingerprint, again.manifest, again.parts) == (first.fingerprint, first.manifest, first.parts)
    assert raw() == before


def test_a_reexecution_returns_what_its_parent_committed(store):
    first = export(store, Rows(NEW), run_id="parent")
    again = export(store, Rows([b"other"]), run_id="child", lineage=frozenset({"child", "parent"}))
    assert again.found
    assert again.fingerprint == first.fingerprint
    fresh = export(store, Rows([b"other"]), run_id="unrelated")
    assert not fresh.found


def test_a_commit_that_was_superseded_meanwhile_is_found_and_what_is_there_is_told(store, raw):
    first = export(store, Rows(NEW), run_id="run-1")
    second = export(store, Rows(OLD), run_id="run-2")
    again = export(store, Rows([b"other"]), run_id="run-1")
    assert again.found
    told = (again.manifest, again.fingerprint, again.parts, again.row_count)
    assert told == (second.manifest, second.fingerprint, second.parts, second.row_count)
    assert first.manifest.run_id in " ".join(again.notes)
    assert read_as_a_reader(raw()) == OLD
    third = export(store, Rows([b"added"], dataset=Dataset.APPEND), run_id="run-3")
    before = export(store, Rows([b"other"]), run_id="run-2")
    assert (before.manifest, before.fingerprint) == (third.manifest, third.fingerprint)
    assert (before.parts, before.row_count) == (second.parts, second.row_count)


def test_a_delivery_of_another_partition_is_not_ours(store):
    export(store, Rows(NEW), run_id="run-1", partition_key="a")
    assert not export(store, Rows(OLD), run_id="run-1", partition_key="b").found


def test_a_zombie_attempt_stops_without_deleting(store, raw):
    """The first attempt was given up by Dagster, which retries the step; it wakes up while the retry is at work."""
    retry = Rows(NEW)
    done = []

    def sleep_through_the_retry(n):
        if n == 1:
            done.append(export(store, retry, run_id="run-1"))

    zombie = FaultyStore(store)
    with pytest.raises(CommitConflict):
        export(zombie, Rows([b"zombie-1", b"zombie-2"], before_part=sleep_through_the_retry), run_id="run-1")
    assert read_as_a_reader(raw()) == NEW
    assert litter(raw()) == [], "the retry took the earlier attempt over and cleaned it"
    assert not [c for c in zombie.calls if c[0] == "remove"]


def test_a_zombie_that_wakes_up_before_own_stops_too(store, raw):
    """Its parts are gone: the retry removed them. Committing its record now would publish a hole."""

    def sleep_through_the_retry(n):
        if n == 1:
            slow = FaultyStore(store, [Trouble("late", operation="write", key=is_head, times=99)])
            with pytest.raises(CommitUnknown):
                export(slow, Rows(NEW), run_id="run-1")

    with pytest.raises(CommitConflict, match=r"taken over by|its record is gone"):
        export(store, Rows([b"zombie"], before_part=sleep_through_the_retry), run_id="run-1")
    assert read_as_a_reader(raw()) is None


def test_a_live_run_is_not_taken_over(store, raw):
    """Two runs at once: the second commits, and leaves the first's parts to the first."""

    def meanwhile(n):
        if n == 1:
            export(store, Rows(NEW), run_id="run-2")
            left = [v for k, v in raw().items() if "/data/" in k]
            assert b"slow-1" in left
            assert sum(b'"running"' in v for k, v in raw().items() if is_side(k)) == 1

    with pytest.raises(CommitConflict, match="Dagster run run-2"):
        export(store, Rows([b"slow-1", b"slow-2"], before_part=meanwhile), run_id="run-1")
    assert read_as_a_reader(raw()) == NEW
    assert b"slow-1" not in raw().values(), "the loser removes its own parts"
    export(store, Rows(OLD), run_id="run-3")
    assert litter(raw()) == []


@pytest.mark.parametrize(
    ("over", "takeover_after"),
    [(["run-1"], timedelta(hours=1)), ([], timedelta(seconds=-1))],
    ids=["run is over", "no heartbeat"],
)
def test_a_taken_over_run_can_neither_commit_nor_delete(store, raw, over, takeover_after):
    def meanwhile(n):
        if n == 1:
            settings = CommitSettings(takeover_after=takeover_after)
            receipt = export(store, Rows(NEW), run_id="run-2", over=over, settings=settings)
            assert any("took over run-1" in note for note in receipt.notes)

    loser = FaultyStore(store)
    with pytest.raises(CommitConflict):
        export(loser, Rows([b"slow-1", b"slow-2"], before_part=meanwhile), run_id="run-1")
    assert not [c for c in loser.calls if c[0] == "remove"]
    assert read_as_a_reader(raw()) == NEW
    assert litter(raw()) == []


@pytest.mark.parametrize("cleaned", [True, False], ids=["cleaned up", "being cleaned up"])
def test_what_arrives_of_a_taken_over_run_after_the_cleaning_goes_with_it(store, raw, cleaned):
    """Its Dagster run counts as over while its process is at work: nothing names its part any more."""
    export(store, Rows(OLD), run_id="run-0")
    listed, ended = threading.Event(), threading.Event()

    def pause(operation, key):
        # It has listed the parts, and is about to remove the record that led it there.
        if operation == "remove" and is_side(key) and "run-1" in key and not cleaned:
            listed.set()
            assert ended.wait(60)

    def clean():
        export(FaultyStore(store, before=pause), Rows(NEW), run_id="run-2", over=["run-1"])
        listed.set()

    def meanwhile(operation, key):
        if operation == "write" and is_part(key) and not cleaner.ident:
            cleaner.start()
            assert listed.wait(60)

    cleaner = threading.Thread(target=clean)
    with pytest.raises(CommitConflict, match=r"taken over|record is gone"):
        export(FaultyStore(store, before=meanwhile), Rows([b"late-1", b"late-2"]), run_id="run-1")
    ended.set()
    cleaner.join()
    assert read_as_a_reader(raw()) == NEW
    assert litter(raw()) == []


def test_what_a_delivery_lists_is_not_late(store, raw, monkeypatch):
    """The record is gone, since its taker has committed; what that one has adopted is its readers'."""
    export(store, Rows(OLD), run_id="run-0")
    adopted = []

    def take(operation, key):
        if operation != "write" or not key.endswith("-00002.csv") or "run-1" not in key or adopted:
            return
        [first] = [k for k in raw() if is_part(k) and "run-1" in k]
        adopted.append(first)

        def with_it(self, parts, *, finished_at, previous):
            listed = replace(parts[0], path=first.removeprefix(PREFIX.root))
            return delivered(self, (listed, *parts[1:]), finished_at=finished_at, previous=previous)

        delivered = Manifest.delivered
        monkeypatch.setattr(Manifest, "delivered", with_it)
        # Of the same bytes, so that what is said of its own first part holds for the adopted one.
        export(store, Rows([b"late-1", b"new-2"]), run_id="run-2", over=["run-1"])

    with pytest.raises(CommitConflict):
        export(FaultyStore(store, before=take), Rows([b"late-1", b"late-2"]), run_id="run-1")
    assert read_as_a_reader(raw()) == [b"late-1", b"new-2"]
    assert adopted[0] in raw()
    assert [k for k in raw() if is_part(k) and "run-1" in k] == adopted


def test_what_the_marker_s_delivery_adopted_outlives_a_head_that_is_rejected(tmp_path, monkeypatch):
    """Cleaning what it came from was left to later runs; the first of them to try has a head that is not whole."""
    place = LocalHarness(tmp_path)
    store = place.fresh()
    dies = Trouble("dead", operation="write", key=lambda key: key.endswith("-00002.csv"), error=Killed)
    with pytest.raises(Killed):
        export(FaultyStore(store, [dies]), Rows([b"adopted", b"lost"]), run_id="run-0")
    [first] = [k for k in place.raw() if is_part(k)]
    delivered = Manifest.delivered

    def with_it(self, parts, *, finished_at, previous):
        listed = replace(parts[0], path=first.removeprefix(PREFIX.root))
        return delivered(self, (listed,), finished_at=finished_at, previous=previous)

    monkeypatch.setattr(Manifest, "delivered", with_it)
    dies = Trouble("dead-after", operation="write", key=is_marker, error=Killed)
    with pytest.raises(Killed):
        export(FaultyStore(store, [dies]), Rows([b"adopted"]), run_id="run-1", over=["run-0"])
    monkeypatch.undo()
    cannot = Trouble("before", operation="remove", times=99)
    dies = Trouble("dead", operation="write", key=is_marker, error=Killed)
    with pytest.raises(Killed):
        export(FaultyStore(store, [cannot, dies]), Rows([b"rejected"]), run_id="run-2")
    store.remove(next(k for k, v in place.raw().items() if v == b"rejected"))

    def look_on(_n):
        assert read_as_a_reader(place.raw()) == [b"adopted"]

    export(store, Rows([b"third"], before_part=look_on), run_id="run-3", over=["run-2"])
    assert read_as_a_reader(place.raw()) == [b"third"]
    assert litter(place.raw()) == []


def test_an_abort_after_a_takeover_deletes_nothing(store, raw):
    """Whoever took the run over may have adopted its parts."""

    def taken_over(n):
        if n == 1:
            [key] = [k for k in raw() if is_side(k)]
            token = key.removeprefix("orders/manifest-").removesuffix(".json")
            record = read_record(store, PREFIX, token)
            body = serialise(replace(record.manifest, status=Status.INTERRUPTED, taken_over_by="another"))
            store.write(key, body, md5=md5_of(body), expect=record.version)
            taker = serialise(replace(record.manifest, run_id="another"))
            store.write(PREFIX.side("another"), taker, md5=md5_of(taker), expect=ANY)
            raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError, match="went away"):
        export(store, Rows([b"slow-1", b"slow-2"], before_part=taken_over), run_id="run-1")
    assert [v for k, v in raw().items() if "/data/" in k] == [b"slow-1"]


def test_an_ordinary_failure_removes_what_the_attempt_made(store, raw):
    export(store, Rows(OLD), run_id="run-0")

    def fail(n):
        if n == 2:
            raise RuntimeError("the database went away")

    rows = Rows(NEW, before_part=fail)
    with pytest.raises(RuntimeError, match="went away"):
        export(store, rows, run_id="run-1")
    assert rows.closed
    assert read_as_a_reader(raw()) == OLD
    assert not [k for k, v in raw().items() if "/data/" in k and v not in OLD]
    [failed] = [k for k, v in raw().items() if is_side(k) and b'"failed"' in v]
    export(store, Rows(NEW), run_id="run-2")
    assert failed not in raw()


def test_the_loser_of_a_race_to_the_head_cleans_up_after_itself(store, raw):
    """The winner commits after the loser's last part: only the swap of the head can tell."""
    export(store, Rows(OLD), run_id="run-0")

    def meanwhile(n):
        if n == 1:
            export(store, Rows(NEW), run_id="winner")

    watched = FaultyStore(store)
    with pytest.raises(CommitConflict, match="Dagster run winner"):
        export(watched, Rows([b"loser"], before_part=meanwhile), run_id="loser")
    assert read_as_a_reader(raw()) == NEW
    assert b"loser" not in raw().values()
    [record] = [json.loads(v) for k, v in raw().items() if is_side(k) and b'"loser' in v]
    assert record["status"] == "failed"


def _head_with_a_missing_part(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    slow = FaultyStore(store, [Trouble("before", operation="write", key=is_marker, error=Killed)])
    with pytest.raises(Killed):
        export(slow, Rows(NEW), run_id="run-1")
    victim = next(k for k, v in raw().items() if v == b"new-2")
    store.remove(victim)
    return victim.removeprefix("orders/")


def test_an_unmarked_head_that_is_not_whole_waits_for_a_reason(store, raw):
    part = _head_with_a_missing_part(store, raw)
    with pytest.raises(DestinationError, match=re.escape(f"{part}: missing")):
        export(store, Rows([b"third"]), run_id="run-2")
    assert read_as_a_reader(raw()) == OLD
    assert not [k for k in raw() if "run-2" in k]


@pytest.mark.parametrize("reason", ["run is over", "no heartbeat"])
def test_an_unmarked_head_that_is_not_whole_is_rejected_with_a_reason(store, raw, reason):
    _head_with_a_missing_part(store, raw)
    over = ["run-1"] if reason == "run is over" else []
    settings = CommitSettings(takeover_after=timedelta(seconds=-1) if reason == "no heartbeat" else timedelta(hours=1))
    receipt = export(store, Rows([b"third"]), run_id="run-2", over=over, settings=settings)
    assert manifest_of(receipt).ancestors[0].dagster_run_id == "run-0", "it continues from the marker's manifest"
    assert manifest_of(receipt).sequence == 2
    assert "rejected the head run-1" in receipt.notes[0]
    assert read_as_a_reader(raw()) == [b"third"]
    assert litter(raw()) == []


def test_a_late_marker_does_not_hide_the_run_that_built_on_ours(store, raw):
    """Between our head and our marker another run finishes our commit, commits on top of it, and cleans up."""
    export(store, Rows(OLD), run_id="run-0")
    done = []

    def meanwhile(operation, key):
        if operation == "write" and is_marker(key) and not done:
            done.append(export(store, Rows([b"third"]), run_id="run-2"))

    receipt = export(FaultyStore(store, before=meanwhile), Rows(NEW), run_id="run-1")
    assert manifest_of(done[0]).ancestors[0].fingerprint == receipt.fingerprint
    assert read_as_a_reader(raw()) == [b"third"]
    assert litter(raw()) == []


def _reject_the_head_of(store, raw, *, marker_trouble=None, before=lambda _operation, _key: None):
    """Run 2 finds the unmarked head of run 1 broken, and run 1 over."""
    store.remove(next(k for k, v in raw().items() if v == b"new-2"))
    watched = FaultyStore(store, [marker_trouble] if marker_trouble else [], before=before)
    return export(watched, Rows([b"third"]), run_id="run-2", over=["run-1"])


def test_a_run_whose_head_was_rejected_before_its_marker_reports_a_conflict(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    rejected = []

    def meanwhile(operation, key):
        if operation == "write" and is_marker(key) and not rejected:
            rejected.append(1)
            with pytest.raises(Killed):
                _reject_the_head_of(
                    store, raw, marker_trouble=Trouble("dead", operation="write", key=is_marker, error=Killed)
                )

    with pytest.raises(CommitConflict, match="Dagster run run-2"):
        export(FaultyStore(store, before=meanwhile), Rows(NEW), run_id="run-1")
    receipt = export(store, Rows([b"fourth"]), run_id="run-3", over=["run-1", "run-2"])
    assert manifest_of(receipt).ancestors[0].dagster_run_id == "run-2", "its head was whole, and is finished"
    assert read_as_a_reader(raw()) == [b"fourth"]
    assert litter(raw()) == []


def test_a_marker_of_a_rejected_run_that_lands_late_is_written_over(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    slow = FaultyStore(store, [Trouble("late", operation="write", key=is_marker, times=99)])
    with pytest.raises(CommitUnknown):
        export(slow, Rows(NEW), run_id="run-1")

    def land(operation, key):
        if operation == "write" and is_marker(key) and slow.delayed:
            assert slow.release()[0] == "applied"

    _reject_the_head_of(store, raw, before=land)
    assert read_as_a_reader(raw()) == [b"third"]
    export(store, Rows([b"fourth"]), run_id="run-3")
    assert litter(raw()) == []


def test_where_neither_head_nor_marker_is_whole_nothing_is_replaced(tmp_path):
    place = LocalHarness(tmp_path)
    store = place.fresh()
    export(store, Rows(NEW), run_id="run-0")
    late = marker_body("xxh3:0123456789abcdef")
    store.write("orders/_SUCCESS", late, md5=md5_of(late), expect=ANY)
    store.remove(next(k for k, v in place.raw().items() if v == b"new-2"))
    before = place.raw()
    with pytest.raises(ReadError, match=r"neither the head run-0.* \(data/part.*missing.*\) nor the marker.*restore"):
        export(store, Rows([b"third"]), run_id="run-1", over=["run-0"])
    assert place.raw() == before


def test_a_marker_that_keeps_changing_is_not_reported_as_ours(tmp_path):
    """At one destination: it is read some two hundred times."""
    place, numbers = LocalHarness(tmp_path), count()
    store = place.fresh()

    def meddle(operation, key):
        if operation == "write" and is_marker(key):
            body = b"xxh3:%016x\n" % next(numbers)
            store.write(key, body, md5=md5_of(body), expect=ANY)

    with pytest.raises(CommitUnknown, match="kept changing"):
        export(FaultyStore(store, before=meddle), Rows(NEW))
    assert next(numbers) == 5
    export(store, Rows([], skip_empty=True), run_id="run-2")
    assert read_as_a_reader(place.raw()) == NEW


@pytest.mark.parametrize("answered", [True, False], ids=["it is none", "no answer"])
def test_a_head_that_cannot_be_read_back_leaves_the_outcome_unknown(tmp_path, answered):
    store = LocalHarness(tmp_path).fresh()

    def meddle(operation, key):
        if operation == "write" and is_marker(key):
            store.write("orders/manifest.json", b"{", md5=md5_of(b"{"), expect=ANY)
            watched.troubles = [] if answered else [Trouble("before", operation="read", times=99)]

    watched = FaultyStore(store, before=meddle)
    with pytest.raises(CommitUnknown, match="looking again failed"):
        export(watched, Rows(NEW))


def test_an_error_while_looking_at_parts_is_not_a_missing_part(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    with pytest.raises(Killed):
        export(FaultyStore(store, [Trouble("before", operation="write", key=is_marker, error=Killed)]), Rows(NEW))
    blind = FaultyStore(store, [Trouble("before", operation="head", key=is_part, error=DestinationError, times=99)])
    with pytest.raises(DestinationError, match="made to fail"):
        export(blind, Rows([b"third"]), run_id="run-2", over=["run-1"])
    receipt = export(store, Rows([b"third"]), run_id="run-3", over=["run-1"])
    assert manifest_of(receipt).ancestors[0].dagster_run_id == "run-1"


def test_a_zero_row_append_leaves_the_head_as_it_was(store, raw):
    first = export(store, Rows(OLD), run_id="run-0")
    before = raw()
    receipt = export(store, Rows([], dataset=Dataset.APPEND), run_id="run-1")
    assert receipt.unchanged
    assert receipt.row_count == 0
    assert (receipt.fingerprint, receipt.manifest) == (first.fingerprint, first.manifest)
    assert raw() == before


def test_a_first_run_without_rows_commits_an_empty_delivery(store, raw):
    receipt = export(store, Rows([]), run_id="run-0")
    assert manifest_of(receipt).parts == ()
    assert read_as_a_reader(raw()) == []


def test_a_full_export_without_rows_replaces_unless_told_to_skip(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    skipped = export(store, Rows([], skip_empty=True), run_id="run-1")
    assert skipped.unchanged
    assert read_as_a_reader(raw()) == OLD
    export(store, Rows([]), run_id="run-2")
    assert read_as_a_reader(raw()) == []
    assert litter(raw()) == []


def test_skip_empty_without_any_delivery_publishes_nothing(store, raw):
    receipt = export(store, Rows([], skip_empty=True))
    assert receipt.manifest is None
    assert not [k for k in raw() if not k.endswith(".rivet.lock")]


def test_appends_add_to_the_dataset_and_are_never_removed(store, raw):
    export(store, Rows([b"a"]), run_id="run-0")
    first = export(store, Rows([b"b"], dataset=Dataset.APPEND), run_id="run-1")
    second = export(store, Rows([b"c", b"d"], dataset=Dataset.APPEND), run_id="run-2")
    assert read_as_a_reader(raw()) == [b"a", b"b", b"c", b"d"]
    assert manifest_of(first).data_version != manifest_of(second).data_version
    export(store, Rows([b"e"]), run_id="run-3")
    assert read_as_a_reader(raw()) == [b"e"]
    assert litter(raw()) == [], "a new snapshot replaces the whole chain"


@pytest.mark.parametrize("retain", [0, 1, 2])
def test_retain_keeps_superseded_deliveries(store, raw, retain):
    settings = CommitSettings(retain=retain)
    for n in range(4):
        export(store, Rows([b"delivery-%d" % n]), run_id=f"run-{n}", settings=settings)
    kept = sorted(v for k, v in raw().items() if "/data/" in k)
    assert kept == [b"delivery-%d" % n for n in range(3 - retain, 4)]
    assert sum(is_side(k) for k in raw()) == retain + 1


def test_a_run_that_died_before_the_first_delivery_is_cleaned_by_any_later_one(tmp_path):
    place = LocalHarness(tmp_path)
    store = place.fresh()
    dead = FaultyStore(store, [Trouble("dead-after", operation="write", key=is_part, error=Killed)])
    with pytest.raises(Killed):
        export(dead, Rows([b"dead"]), run_id="run-0")
    for n in (1, 2, 3):
        assert b"dead" in place.raw().values()
        export(store, Rows([b"%d" % n], dataset=Dataset.APPEND), run_id=f"run-{n}", over=["run-0"] if n == 3 else [])
    assert litter(place.raw()) == []


def test_what_a_retained_delivery_adds_to_is_retained_with_it(tmp_path):
    place = LocalHarness(tmp_path)
    store, settings, found = place.fresh(), CommitSettings(retain=1), []
    for n, dataset in enumerate([Dataset.APPEND, Dataset.APPEND, Dataset.SNAPSHOT, Dataset.SNAPSHOT]):
        export(store, Rows([b"%d" % n], dataset=dataset), run_id=f"run-{n}", settings=settings)
        found.append(sorted(v for k, v in place.raw().items() if is_part(k)))
    assert found == [[b"0"], [b"0", b"1"], [b"0", b"1", b"2"], [b"2", b"3"]]


def test_only_what_our_manifests_name_is_ever_removed(store, raw):
    strange = {
        "orders/data/notes.txt": b"mine",
        "orders/data/part-of-something.parquet": b"mine too",
        "orders/manifest-foreign.json": b"{}",
        "orders_archive/manifest.json": b"neighbour",
        "orders_archive/data/part-1.parquet": b"neighbour",
    }
    for key, body in strange.items():
        store.write(key, body, md5=md5_of(body), expect=ANY)
    for n in range(3):
        export(store, Rows([b"%d" % n]), run_id=f"run-{n}")
    objects = raw()
    assert {k: objects[k] for k in strange} == strange


@pytest.mark.parametrize("by", ["another tool", "somebody"])
def test_what_others_wrote_or_changed_is_superseded_and_not_removed(tmp_path, by):
    place = LocalHarness(tmp_path)
    store = place.fresh()
    name = f"orders/manifest-{manifest_of(export(store, Rows(OLD), run_id='run-0')).run_id}.json"
    found = json.loads(place.raw()[name])
    if by == "another tool":
        for ours in ("identity", "columns", "dataset", "ancestors", "sequence", "dagster", "data_version"):
            found.pop(ours, None)
        body = json.dumps(found).encode()
        for key, written in (("orders/manifest.json", body), ("orders/_SUCCESS", marker_body(fingerprint(body)))):
            store.write(key, written, md5=md5_of(written), expect=ANY)
    else:
        export(store, Rows([b"more"]), run_id="run-1", settings=CommitSettings(retain=1))
        body = json.dumps(found).encode()
    store.write(name, body, md5=md5_of(body), expect=ANY)
    export(store, Rows(NEW), run_id="run-2")
    assert read_as_a_reader(place.raw()) == NEW
    assert litter(place.raw()) == [f"orders/{part['path']}" for part in found["parts"]] + [name]


def test_the_prefix_of_another_export_is_refused(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    before = raw()
    with pytest.raises(ContractError, match=r"export 'customers', found one of 'orders'"):
        export(store, Rows(NEW, export="customers"), run_id="run-1")
    assert raw() == before


def test_a_changed_manifest_is_refused(store, raw):
    export(store, Rows(OLD), run_id="run-0")
    changed = raw()["orders/manifest.json"].replace(b'"rows": 10', b'"rows": 11').replace(b"20", b"22")
    store.write("orders/manifest.json", changed, md5=md5_of(changed), expect=ANY)
    with pytest.raises(ReadError, match=r"_SUCCESS: expected xxh3:[0-9a-f]{16} \(the head\)"):
        export(store, Rows(NEW), run_id="run-1")


def test_a_changed_manifest_and_marker_are_refused_until_they_are_restored_as_the_message_says(store, raw):
    done = export(store, Rows(OLD), run_id="run-0")
    changed = raw()["orders/manifest.json"] + b"\n"
    for key, body in (("orders/manifest.json", changed), ("orders/_SUCCESS", b"done\n")):
        store.write(key, body, md5=md5_of(body), expect=ANY)
    copied = (
        r"found bytes that are no marker; .*: copy manifest-<run id>.json .* over manifest.json, and remove _SUCCESS"
    )
    with pytest.raises(ReadError, match=copied):
        export(store, Rows(NEW), run_id="run-1")
    whole = raw()[f"orders/manifest-{manifest_of(done).run_id}.json"]
    store.write("orders/manifest.json", whole, md5=md5_of(whole), expect=ANY)
    store.remove("orders/_SUCCESS")
    export(store, Rows([b"more"], dataset=Dataset.APPEND), run_id="run-2")
    assert read_as_a_reader(raw()) == [*OLD, b"more"]


def test_a_store_without_conditional_writes_is_refused(store, raw):
    class Unfenced(FaultyStore):
        def write(self, key, body, *, md5, expect):
            return super().write(key, body, md5=md5, expect=ANY)

    with pytest.raises(ConfigError, match="unsafe_unfenced_commits"):
        export(Unfenced(store), Rows(NEW))
    assert not [k for k in raw() if not k.endswith(".rivet.lock")]
    export(Unfenced(store), Rows(NEW), settings=CommitSettings(unsafe_unfenced_commits=True))
    assert read_as_a_reader(raw()) == NEW


def test_other_bytes_at_the_store_are_found_before_anything_is_visible(store, raw):
    export(store, Rows(OLD), run_id="run-0")

    class Flips(FaultyStore):
        def write(self, key, body, *, md5, expect):
            outcome = super().write(key, body, md5=md5, expect=expect)
            if not is_part(key):
                return outcome
            return replace(outcome, checksum=Checksum(kind="md5", value=b"\0" * 16, level="etag-md5"))

    with pytest.raises(IntegrityError, match=r"sent 5 bytes with md5 [0-9a-f]{32}, the store holds 5 with 0{32}"):
        export(Flips(store), Rows(NEW))
    assert read_as_a_reader(raw()) == OLD
    assert b"new-1" not in raw().values(), "the bad object is removed"


def test_readback_compares_what_a_reader_would_get(store, raw):
    settings = CommitSettings(verify="readback")
    receipt = export(store, Rows(NEW), settings=settings)
    assert {p.verification for p in receipt.parts} == {"readback-md5"}

    class Rots(FaultyStore):
        def read(self, key, *, start=0, length=None):
            found = super().read(key, start=start, length=length)
            return replace(found, body=b"rotten") if found and is_part(key) else found

    with pytest.raises(IntegrityError):
        export(Rots(store), Rows([b"fine"]), run_id="run-2", settings=settings)
    assert read_as_a_reader(raw()) == NEW


def test_a_lost_reply_to_a_part_is_settled_by_looking(store, raw):
    lossy = FaultyStore(store, [Trouble("after", operation="write", key=is_part)])
    receipt = export(lossy, Rows(NEW))
    assert lossy.struck == 1
    assert read_as_a_reader(raw()) == NEW
    assert receipt.row_count == 30


@pytest.mark.parametrize("key", [is_head, is_marker, is_side], ids=["head", "marker", "side record"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_unanswered_control_write_is_settled_by_reading_back(store, raw, key, when):
    export(store, Rows(OLD), run_id="run-0")
    lossy = FaultyStore(store, [Trouble(when, operation="write", key=key)])
    export(lossy, Rows(NEW))
    assert lossy.struck == 1
    assert read_as_a_reader(raw()) == NEW
    assert litter(raw()) == []


def test_symlink_manifest_lists_every_part_of_the_dataset(store, raw):
    settings = CommitSettings(symlink_manifest=True)
    export(store, Rows([b"a"]), run_id="run-0", settings=settings)
    export(store, Rows([b"b", b"c"], dataset=Dataset.APPEND), run_id="run-1", settings=settings)
    lines = raw()["orders/_symlink_format_manifest/manifest"].decode().splitlines()
    parts = sorted(k for k in raw() if is_part(k))
    assert sorted(lines) == sorted(store.uri(k) for k in parts)
    assert len(lines) == 3


def test_a_symlink_manifest_that_is_there_is_kept_current(store, raw):
    export(store, Rows([b"a"]), run_id="run-0", settings=CommitSettings(symlink_manifest=True))
    export(store, Rows([b"b"]), run_id="run-1")
    lines = raw()["orders/_symlink_format_manifest/manifest"].decode().splitlines()
    assert lines == [store.uri(k) for k in raw() if is_part(k)]


@pytest.mark.parametrize(
    ("what", "nth"), [("orders/manifest.json", 2), ("orders/_symlink_format_manifest/manifest", 1)]
)
def test_what_fails_after_the_commit_fails_no_run(store, raw, what, nth):
    """The next run finishes it; until then nothing is removed that a list of parts still names."""
    listed = CommitSettings(symlink_manifest=True)
    export(store, Rows(OLD), run_id="run-0", settings=listed)
    broken = FaultyStore(store)
    # The first look at the head after the marker still belongs to the commit.
    of_cleaning = Trouble("before", key=lambda k: k == what and is_marked(broken), nth=nth, times=99)
    broken.troubles.append(of_cleaning)
    receipt = export(broken, Rows(NEW), settings=listed)
    assert broken.struck
    assert raw()["orders/_SUCCESS"].decode().strip() == receipt.fingerprint
    assert "left to the next run" in receipt.notes[-1]
    named = raw()["orders/_symlink_format_manifest/manifest"].decode().splitlines()
    assert {store.uri(k) for k in raw()} >= set(named)
    export(store, Rows(OLD), run_id="run-2", settings=listed)
    assert litter(raw()) == ["orders/_symlink_format_manifest/manifest"]


def is_marked(store):
    return ("write", "orders/_SUCCESS") in store.calls


def test_deliveries_beyond_the_ancestors_are_older_and_not_foreign(store, raw, monkeypatch):
    monkeypatch.setattr("rivet_dagster.manifest.MAX_ANCESTORS", 3)
    for n in range(8):
        kind = Dataset.SNAPSHOT if n == 0 else Dataset.APPEND
        export(store, Rows([b"%d" % n], dataset=kind), run_id=f"run-{n}")
    assert read_as_a_reader(raw()) == [b"%d" % n for n in range(8)]
    assert len(look(store, PREFIX).head.ancestors) == 3


def test_older_deliveries_are_known_by_their_sequence_even_when_they_were_copied(store, raw, monkeypatch):
    """A restored prefix has young time stamps all over."""
    monkeypatch.setattr("rivet_dagster.manifest.MAX_ANCESTORS", 3)
    for n in range(6):
        kind = Dataset.SNAPSHOT if n == 0 else Dataset.APPEND
        export(store, Rows([b"%d" % n], dataset=kind), run_id=f"run-{n}")
    for key, body in raw().items():
        if is_side(key):
            store.write(key, body, md5=md5_of(body), expect=ANY)
    export(store, Rows([b"6"], dataset=Dataset.APPEND), run_id="run-6")
    assert read_as_a_reader(raw()) == [b"%d" % n for n in range(7)]


def test_a_zero_row_append_that_rejects_a_head_puts_a_whole_one_in_its_place(store, raw):
    _head_with_a_missing_part(store, raw)
    receipt = export(store, Rows([], dataset=Dataset.APPEND), run_id="run-2", over=["run-1"])
    assert not receipt.unchanged
    assert look(store, PREFIX).settled
    assert read_as_a_reader(raw()) == OLD


def test_rejecting_a_head_leaves_the_markers_delivery_alone(store, raw):
    """The rejected head is a snapshot whose ancestors would be superseded, had it been committed."""
    _head_with_a_missing_part(store, raw)

    def gate():
        raise ContractError("refused")

    with pytest.raises(ContractError, match="refused"):
        export(store, Rows([b"third"], gates=[gate]), run_id="run-2", over=["run-1"])
    assert read_as_a_reader(raw()) == OLD


def test_removals_and_takeovers_are_logged(store, raw, caplog):
    caplog.set_level(logging.INFO)
    export(store, Rows(OLD), run_id="run-0")
    export(store, Rows(NEW), run_id="run-1")
    assert sum("removed" in r.message and "superseded by run-1" in r.message for r in caplog.records) == 3


def test_an_empty_prefix_and_a_nested_neighbour_do_not_meet(store, raw):
    export(store, Rows(OLD), run_id="run-0", prefix=Prefix(""))
    export(store, Rows(NEW, export="deep"), run_id="run-1", prefix=Prefix("deep/"))
    export(store, Rows([b"x"]), run_id="run-2", prefix=Prefix(""))
    assert read_as_a_reader(raw(), "deep/") == NEW
    assert read_as_a_reader(raw(), "") == [b"x"]


def test_manifest_on_the_store_parses_to_the_receipts(store, raw):
    receipt = export(store, Rows(NEW))
    assert parse(raw()["orders/manifest.json"], where="here") == receipt.manifest
