"""A run in ranges that died, and the one after it: what is re-used is what the dead one recorded, byte for byte."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rivet_dagster.commit import CommitSettings
from rivet_dagster.contract import ANY
from rivet_dagster.control import SideRecord, md5_of
from rivet_dagster.errors import CommitConflict, ContractError, DestinationError, IntegrityError
from rivet_dagster.readback import read_record
from rivet_dagster.wire import parse, serialise
from tests.faults.kit import (
    PREFIX,
    FaultyStore,
    Killed,
    Rows,
    Trouble,
    export,
    is_part,
    litter,
    manifest_of,
    read_as_a_reader,
)
from tests.faults.ranges import (
    Dying,
    change,
    dataset,
    die,
    export_table,
    parts_of,
    record_of,
    reused,
    rows_of,
    shop,
)
from tests.harnesses import HARNESS_PARAMS, LocalHarness

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _recorded_at_once(monkeypatch):
    """A record is rewritten at most every five seconds, which no run here lasts."""
    monkeypatch.setitem(SideRecord.__init__.__kwdefaults__, "at_most_every", 0.0)


@pytest.fixture
def url(tmp_path):
    return shop(tmp_path / "shop.db")


@pytest.fixture
def place(tmp_path):
    """The local destination; those of the clouds are asked where they answer differently."""
    return LocalHarness(tmp_path)


@pytest.fixture(params=[p for p in HARNESS_PARAMS if p.id in ("local", "s3-1")])
def two_places(request, servers, tmp_path):
    found = request.param(servers, tmp_path)
    yield found
    found.close()


def as_stored(store, keys):
    return {key: (found.version, found.modified_at) for key in keys if (found := store.head(key))}


@pytest.mark.parametrize("parallel", [1, 2])
def test_the_run_after_a_killed_one_reads_the_other_ranges(two_places, url, parallel):
    store = two_places.fresh()
    export(store, Rows([b"old"]), run_id="run-0")
    told = {
        "recipe": two_places.recipe(),
        "nth": 4,
        "signal": "SIGKILL",
        "run_id": "dead",
        "table": {"url": url, "parallel": parallel},
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.victim"],
        cwd=ROOT,
        input=pickle.dumps(told),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    recorded = {PREFIX.root + p["path"] for p in record_of(two_places.raw(), "dead")["parts"]}
    before = as_stored(store, recorded)
    assert len(before) >= 4
    watched = FaultyStore(store)
    receipt = export_table(watched, url, run_id="run-1", over=["dead"], parallel=parallel)
    raw = two_places.raw()
    assert dataset(raw) == rows_of(url)
    assert before == as_stored(store, recorded), "not written again"
    assert len([c for c in watched.calls if c[0] == "write" and is_part(c[1])]) == 10 - len(recorded)
    assert [p.part_id for p in receipt.parts] == list(range(1, 11))
    said = reused(receipt)
    assert (said["parts"], said["rows"], said["quarantined"]) == (len(recorded), 10 * len(recorded), 0)
    assert said["bytes"] == sum(len(raw[key]) for key in recorded)
    assert [it["dagster_run_id"] for it in said["from"]] == ["dead"]
    assert f"re-used {len(recorded)} of the {len(recorded)} parts" in receipt.notes[-1]
    assert litter(raw) == [], "what the dead run had not recorded is gone, and so is its record"
    assert not two_places.open_uploads()
    assert "resume" not in raw["orders/manifest.json"].decode()
    last = export_table(store, url, run_id="run-2")
    assert reused(last) == {}
    assert not set(recorded) & set(two_places.raw()), "superseded parts go, whoever's name they carry"
    assert litter(two_places.raw()) == []


def test_a_run_that_repeats_none_reads_everything_now(place, url):
    """The next run of a schedule is asked for the rows of its own time."""
    store = place.fresh()
    die(store, url, parts=3)
    change(url, "update orders set note = 'changed since'")
    receipt = export_table(store, url, run_id="tomorrow", over=["dead"], repeats=())
    assert reused(receipt) == {}
    assert "does not repeat dead" in receipt.notes[-1]
    assert dataset(place.raw()) == rows_of(url)
    assert litter(place.raw()) == []


def test_the_dataset_is_that_of_an_undisturbed_run(place, url):
    store = place.fresh()
    die(store, url, parts=3)
    resumed = export_table(store, url, run_id="dead")
    assert "earlier attempt of this step" in resumed.notes[0]
    whole = export_table(place.fresh(), url)
    assert manifest_of(resumed).data_version == manifest_of(whole).data_version
    assert [p.key_range for p in resumed.parts] == [p.key_range for p in whole.parts]


def test_rows_that_have_come_and_gone_meanwhile(place, url):
    """Ranges that are re-used are as they were; those that are read are cut anew, and leave no gap."""
    store = place.fresh()
    recorded = die(store, url, parts=3)
    low = recorded[1]["key_range"]["low"][0]
    change(
        url,
        "insert into orders values (100000, 'late'), (-5, 'early')",
        f"delete from orders where id = {low}",
        "insert into orders select id + 1, 'between' from orders where id > 450",
        "update orders set note = 'changed' where id > 600",
    )
    receipt = export_table(store, url, over=["dead"])
    found = {int(row[0]): row[1] for row in dataset(place.raw())}
    now = {int(row[0]): row[1] for row in rows_of(url)}
    assert len(found) == len(dataset(place.raw())), "no key twice"
    assert set(now) - set(found) == {-5}
    assert set(found) - set(now) == {low}
    assert {i: note for i, note in found.items() if i > 400} == {i: note for i, note in now.items() if i > 400}
    assert reused(receipt)["rows"] == 10 * len(recorded)


def test_a_chain_of_dead_runs_loses_nothing(place, url):
    """A died; B took it over, and died; another run is at work and cleans; C has the parts of both."""
    store = place.fresh()
    die(store, url, parts=3, run_id="a")
    recorded = die(store, url, parts=6, run_id="b", over=["a"])
    of_a, of_b = parts_of(place.raw(), "a"), parts_of(place.raw(), "b")
    assert record_of(place.raw(), "a")["status"] == "interrupted"
    with pytest.raises(ContractError, match="not good"):
        export(store, Rows([b"x"], gates=[_not_good]), run_id="bystander")
    assert of_a.items() <= place.raw().items()
    watched = FaultyStore(store)
    receipt = export_table(watched, url, run_id="c", over=["a", "b"])
    assert dataset(place.raw()) == rows_of(url)
    assert reused(receipt)["parts"] == len(recorded)
    assert sorted(it["dagster_run_id"] for it in reused(receipt)["from"]) == ["a", "b"]
    kept = parts_of(place.raw(), "a") | parts_of(place.raw(), "b")
    assert kept.items() <= (of_a | of_b).items()
    assert len(kept) == len(recorded)
    assert litter(place.raw()) == []


def _not_good():
    raise ContractError("not good")


def test_a_taker_that_died_before_it_recorded_anything(place, url):
    """The dead run's own record still says what there is."""
    store = place.fresh()
    recorded = die(store, url, parts=4, run_id="a")
    die(store, url, parts=0, run_id="nobody-over")
    look = Trouble("dead", operation="head", key=is_part, error=Killed)
    with pytest.raises(Killed):
        export_table(FaultyStore(store, [look]), url, run_id="b", over=["a"])
    assert record_of(place.raw(), "a")["taken_over_by"].startswith("b-")
    receipt = export_table(store, url, run_id="c", over=["b", "nobody-over"])
    assert reused(receipt)["parts"] == len(recorded)
    assert dataset(place.raw()) == rows_of(url)
    assert litter(place.raw()) == []


DAMAGES = {
    "other bytes": lambda body: bytes([body[0] ^ 1]) + body[1:],
    "shorter": lambda body: body[:-1],
    "longer": lambda body: body + b"x",
    "gone": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_put_aside_and_its_range_is_read_again(two_places, url, damage):
    store = two_places.fresh()
    recorded = die(store, url, parts=3)
    path = recorded[1]["path"]
    body = two_places.raw()[PREFIX.root + path]
    store.remove(PREFIX.root + path)
    odd = DAMAGES[damage](body) if DAMAGES[damage] else None
    if odd is not None:
        store.write(PREFIX.root + path, odd, md5=md5_of(odd), expect=ANY)
    receipt = export_table(store, url, over=["dead"])
    raw = two_places.raw()
    assert dataset(raw) == rows_of(url)
    said = reused(receipt)
    assert (said["parts"], said["quarantined"]) == (len(recorded) - 1, int(odd is not None))
    token = path.removeprefix("data/part-").rpartition("-")[0]
    aside = {key: body for key, body in raw.items() if "_quarantine" in key}
    assert aside == ({} if odd is None else {f"orders/_quarantine/{token}/{path}": odd})
    assert any(path in note and ("gone" in note or "moved to quarantine" in note) for note in receipt.notes)
    assert litter(raw) == sorted(aside)


@pytest.mark.parametrize("harness", [p for p in HARNESS_PARAMS if p.id in ("local", "s3-3", "gcs-1")])
def test_parts_are_read_again_only_where_the_store_keeps_no_checksum(servers, tmp_path, url, harness):
    place = harness(servers, tmp_path)
    store = place.fresh()
    recorded = {PREFIX.root + p["path"] for p in die(store, url, parts=2)}
    watched = FaultyStore(store)
    receipt = export_table(watched, url, over=["dead"])
    assert reused(receipt)["parts"] == len(recorded)
    read = {key for operation, key in watched.calls if operation == "read" and is_part(key)}
    assert read == (recorded if isinstance(place, LocalHarness) else set())
    assert dataset(place.raw()) == rows_of(url)
    place.close()


def test_readback_reads_parts_again_whatever_the_store_says(two_places, url):
    store = two_places.fresh()
    recorded = die(store, url, parts=2)
    receipt = export_table(store, url, over=["dead"], settings=CommitSettings(verify="readback"))
    assert {p.verification for p in receipt.parts} == {"readback-md5"}
    assert reused(receipt)["parts"] == len(recorded)


def test_a_range_of_several_parts_is_re_used_whole_or_not_at_all(place, url):
    more = {"rows_per_part": 50, "max_file_size": "100"}
    store = place.fresh()
    recorded = die(store, url, parts=14, **more)
    first = [p for p in recorded if p["key_range"]["low"] is None]
    assert 1 < len(first) < len(recorded)
    receipt = export_table(store, url, over=["dead"], **more)
    assert reused(receipt)["parts"] == len(first)
    assert dataset(place.raw()) == rows_of(url)
    assert litter(place.raw()) == []
    # One of its parts is damaged: the others are of no use.
    store = place.fresh()
    store.remove(PREFIX.root + die(store, url, parts=14, **more)[1]["path"])
    receipt = export_table(store, url, over=["dead"], **more)
    assert reused(receipt) == {}
    assert dataset(place.raw()) == rows_of(url)
    assert litter(place.raw()) == []


def _moved(url, tmp_path):
    """The same rows, in a file of the same name elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(url.removeprefix("sqlite:///"), tmp_path / "elsewhere" / "shop.db")
    return f"sqlite:///{tmp_path / 'elsewhere' / 'shop.db'}"


DIFFERENT = {
    "another database": (lambda url, tmp_path: {"url": _moved(url, tmp_path)}, "resume"),
    "another schema": (lambda url, _: change(url, "alter table orders add column more integer"), "columns"),
    "another format": (lambda *_: {"format": "parquet"}, "format"),
    "a cast": (lambda *_: {"columns": {"id": "text"}}, "columns"),
    "a snapshot": (lambda *_: {"consistency": "snapshot"}, "consistency='snapshot'"),
}


@pytest.mark.parametrize("different", DIFFERENT)
def test_what_would_be_other_rows_is_not_re_used(place, url, tmp_path, different):
    store = place.fresh()
    die(store, url, parts=3)
    make, why = DIFFERENT[different]
    more = {"url": url, **(make(url, tmp_path) or {})}
    receipt = export_table(store, more.pop("url"), over=["dead"], **more)
    assert reused(receipt) == {}
    (said,) = (note for note in receipt.notes if "no part of dead-" in note)
    assert why in said
    assert not parts_of(place.raw(), "dead")
    assert litter(place.raw()) == []
    assert receipt.row_count == 100


def test_ranges_of_a_snapshot_are_not_mixed_with_later_ones(place, url):
    store = place.fresh()
    die(store, url, parts=3, consistency="snapshot")
    assert "resume" not in record_of(place.raw(), "dead")
    receipt = export_table(store, url, over=["dead"])
    assert reused(receipt) == {}
    assert dataset(place.raw()) == rows_of(url)


def _rewritten(store, raw, run_id, rewrite):
    """Change a side record as nobody should."""
    token = record_of(raw, run_id)["run_id"]
    found = read_record(store, PREFIX, token)
    body = serialise(replace(found.manifest, parts=tuple(rewrite(list(found.manifest.parts)))))
    store.write(PREFIX.side(token), body, md5=md5_of(body), expect=found.version)


def _with_range(part, **bounds):
    return replace(part, key_range={**part.key_range, **bounds})


TOLD = {
    "overlapping": lambda parts: [*parts[:2], _with_range(parts[2], low=parts[1].key_range["low"]), *parts[3:]],
    "in another order": lambda parts: [
        replace(p, resume={**p.resume, "order": [0, 10 - n, 0]}) for n, p in enumerate(parts)
    ],
    "twice the same place": lambda parts: [parts[0], replace(parts[1], resume=parts[0].resume), *parts[2:]],
    "another type": lambda parts: [*parts[:2], _with_range(parts[2], low=["140"]), *parts[3:]],
    "no type": lambda parts: [replace(p, key_range={**p.key_range, "types": [None]}) for p in parts],
    "another key": lambda parts: [_with_range(p, columns=["note"]) for p in parts],
}


@pytest.mark.parametrize("told", TOLD)
def test_a_record_that_contradicts_itself_is_not_believed(place, url, told):
    store = place.fresh()
    die(store, url, parts=3)
    _rewritten(store, place.raw(), "dead", TOLD[told])
    receipt = export_table(store, url, over=["dead"])
    assert reused(receipt) == {}
    assert any("does not say exactly" in note for note in receipt.notes)
    assert dataset(place.raw()) == rows_of(url)


def test_an_adopted_part_that_vanishes_before_the_commit_fails_the_run(place, url):
    store = place.fresh()
    export(store, Rows([b"old"]), run_id="run-0")
    recorded = die(store, url, parts=3)

    def lose():
        store.remove(PREFIX.root + recorded[1]["path"])

    with pytest.raises(IntegrityError, match="no object; nothing was published"):
        export_table(Dying(store, parts=6, then=lose), url, over=["dead"])
    raw = place.raw()
    assert read_as_a_reader(raw) == [b"old"]
    assert record_of(raw, "run-1")["status"] == "failed"
    receipt = export_table(store, url, run_id="run-2")
    assert reused(receipt) == {}
    assert dataset(place.raw()) == rows_of(url)
    assert litter(place.raw()) == []


def test_an_abort_of_the_taker_removes_only_what_it_made(place, url):
    store = place.fresh()
    die(store, url, parts=3)
    adopted = parts_of(place.raw(), "dead")

    def fail():
        raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError, match="went away"):
        export_table(Dying(store, parts=6, then=fail), url, over=["dead"])
    assert parts_of(place.raw(), "dead") == adopted
    assert not parts_of(place.raw(), "run-1")
    receipt = export_table(store, url, run_id="run-2")
    assert reused(receipt) == {}, "only a takeover may adopt, and a failed run is nobody's to take over"
    assert dataset(place.raw()) == rows_of(url)
    assert litter(place.raw()) == []


def test_a_dead_run_that_wakes_up_can_neither_commit_nor_delete(place, url):
    store = place.fresh()
    receipts = []

    def sleep():
        receipts.append(export_table(store, url, run_id="run-2", over=["zombie"]))

    zombie = Dying(store, parts=4, then=sleep)
    with pytest.raises(CommitConflict):
        export_table(zombie, url, run_id="zombie")
    # Uploads that it began and did not finish are its own, and no part of anything.
    assert not [call for call in zombie.calls if call[0] in ("remove", "move")]
    assert reused(receipts[0])["parts"] >= 4
    assert dataset(place.raw()) == rows_of(url)
    assert manifest_of(receipts[0]) == parse(place.raw()["orders/manifest.json"], where="here")


def test_nobody_cleans_what_a_taker_that_was_not_listed_is_adopting(place, url):
    """A run lists the records; then another one begins, takes the dead one over, and adopts from it."""
    store = place.fresh()
    recorded = die(store, url, parts=3)
    reading, cleaned = threading.Event(), threading.Event()
    receipts = []

    def pause():
        reading.set()
        assert cleaned.wait(60)

    taker = Dying(store, parts=6, then=pause)
    thread = threading.Thread(
        target=lambda: receipts.append(export_table(taker, url, run_id="taker", over=["dead"])), daemon=True
    )

    def meanwhile(operation, key):
        if operation == "list" and key == "orders/" and not thread.ident:
            thread.start()
            assert reading.wait(60)

    bystander = FaultyStore(store, after=meanwhile)
    with pytest.raises(ContractError, match="not good"):
        export(bystander, Rows([b"x"], gates=[_not_good]), run_id="bystander")
    assert len(parts_of(place.raw(), "dead")) >= len(recorded)
    cleaned.set()
    thread.join(60)
    assert reused(receipts[0])["parts"] == len(recorded)
    assert dataset(place.raw()) == rows_of(url)


def test_a_retained_delivery_keeps_the_parts_that_it_adopted(place, url):
    """Though the dead run, whose name is on them, is cleaned up only when that delivery has been superseded."""
    store = place.fresh()
    recorded = die(store, url, parts=3)
    settings = CommitSettings(retain=2)
    for run_id in ("run-1", "run-2"):
        unable = Trouble("before", operation="remove", error=DestinationError, times=999)
        export_table(FaultyStore(store, [unable]), url, run_id=run_id, over=["dead"], settings=settings)
    assert record_of(place.raw(), "dead")["status"] == "interrupted"
    export_table(store, url, run_id="run-3", settings=settings)
    left = set(parts_of(place.raw(), "dead"))
    assert left == {PREFIX.root + p["path"] for p in recorded}
    assert not [key for key in place.raw() if "/manifest-dead-" in key]
    export_table(store, url, run_id="run-4")
    assert not parts_of(place.raw(), "dead")
    assert litter(place.raw()) == []


def test_what_cannot_be_looked_at_is_not_damaged(place, url):
    store = place.fresh()
    die(store, url, parts=3)
    blind = FaultyStore(store, before=_blind)
    receipt = export_table(blind, url, over=["dead"])
    assert reused(receipt) == {}
    assert not [key for key in place.raw() if "_quarantine" in key]
    assert dataset(place.raw()) == rows_of(url)


def _blind(operation, key):
    if operation == "head" and "/part-dead-" in key:
        raise DestinationError("the store is not well")


def test_rows_that_are_judged_are_read(place, url):
    store = place.fresh()
    die(store, url, parts=3)
    receipt = export_table(store, url, over=["dead"], gates=[lambda: None])
    assert reused(receipt) == {}
    assert any("gates" in note for note in receipt.notes)


def test_the_record_of_a_taker_lists_what_it_adopted_in_its_order(place, url):
    store = place.fresh()
    of_a = die(store, url, parts=3, run_id="a")
    store.remove(PREFIX.root + of_a[1]["path"])
    of_b = die(store, url, parts=6, run_id="b", over=["a"])
    parts = sorted(of_b, key=lambda p: p["resume"]["order"])
    lows = [p["key_range"]["low"] for p in parts]
    assert lows == sorted(lows, key=lambda low: (low is not None, low))
    assert json.dumps(parts).count("/part-a-") == len(of_a) - 1
    receipt = export_table(store, url, run_id="c", over=["b"])
    assert reused(receipt)["parts"] == len(of_b)
    assert dataset(place.raw()) == rows_of(url)
