"""Dead or alive: a run in a process of its own that beats, hangs or is gone, while Dagster goes on to call it started.

Its age is told by the store's clock alone: here that is a file, far behind the clock of this machine.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest

import rivet_dagster as rd
from rivet_dagster.control import SideRecord
from tests.faults.crash_matrix import exports, victims
from tests.faults.kit import FaultyStore, Trouble, is_part, litter, read_as_a_reader
from tests.orchestration.kit import chain, materialization, on_disk, plain, run, told

PATIENCE_S = 120
ORDERS = rd.Export(name="orders", table="orders", mode=rd.Chunked(rows_per_part=4, consistency="statement"))


class ByItsClock(FaultyStore):
    """Says of control objects that they were written at the time that a file tells."""

    root: Path
    clock: Path

    def write(self, key: str, body: Any, **how: Any) -> Any:
        found = super().write(key, body, **how)
        if not is_part(key):
            now = float(self.clock.read_text())
            os.utime(self.root / key, (now, now))
        return found


class Lake(rd.LocalIOManager):
    """At a store with a clock of its own, where runs may fail at their first part, or stand still at their second.

    Attributes:
        clock: the file.
        fails: whether a run fails.
        stands: what a run is to do at its second part.
    """

    clock: str
    fails: bool = False
    stands: ClassVar[Callable[[], None] | None] = None

    def open_destination(self, clients: Any) -> Any:
        trouble = Trouble(when="before", operation="write", key=is_part, error=rd.DestinationError, times=9)
        found = ByItsClock(super().open_destination(clients), troubles=[trouble] if self.fails else [])
        found.root, found.clock = Path(self.path), Path(self.clock)
        if self.stands is not None:
            found.before = lambda operation, key: operation == "write" and "-00002." in key and self.stands()
        return found


class Place:
    """A shop, its lake, the store's clock, and an instance on disk, which each process opens for itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database, self.lake, self.clock = root / "shop.db", root / "lake", root / "clock"

    def __reduce__(self) -> Any:
        return Place, (self.root,)

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.local_temp(str(self.root / "home"))

    def export(self, **lake: Any) -> dg.ExecuteInProcessResult:
        return run(
            [rd.build_export_asset(ORDERS)],
            Lake(path=str(self.lake), clock=str(self.clock), takeover_after="1h", **lake),
            self.instance,
            resources={"source": rd.DatabaseResource(url=f"sqlite:///{self.database}")},
        )

    def is_tried(self) -> None:
        """Another run comes, looks for dead ones, and fails before it has anything to commit."""
        assert "made to fail" in told(self.export(fails=True), "orders")

    def passes(self, **how_long: float) -> None:
        now = float(self.clock.read_text()) + timedelta(**how_long).total_seconds()
        # In one step: it is being read.
        beside = self.clock.with_name("clock.new")
        beside.write_text(str(now))
        beside.replace(self.clock)

    def dataset(self) -> list[Any]:
        raw = on_disk(self.lake)
        assert read_as_a_reader(raw) is not None
        return exports.dataset(raw, "orders/", self.root)


def _export_slowly(place: Place, half_way: Any, go_on: Any) -> None:
    """In a process of its own."""

    def stand_still() -> None:
        half_way.set()
        go_on.wait()

    victims.record_at_once()
    SideRecord.__init__.__kwdefaults__["at_least_every"] = 0.2
    Lake.stands = staticmethod(stand_still)
    place.export()


class Slow:
    """A run that has written one part, and then stands still; but its heart beats, as long as the process goes on."""

    def __init__(self, place: Place) -> None:
        self.place = place
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*victims.PRELOADED])
        half_way, self.go_on = context.Event(), context.Event()
        self.process = context.Process(target=_export_slowly, args=(place, half_way, self.go_on))
        self.process.start()
        patience = time.monotonic() + PATIENCE_S
        while not half_way.wait(0.1):
            assert self.process.is_alive(), "it has come to its end"
            assert time.monotonic() < patience
        [self.record] = [p for p in place.lake.rglob("manifest-*.json") if self._status(p) == "running"]
        self.token = self.record.stem.removeprefix("manifest-")
        self.parts = {p: p.read_bytes() for p in place.lake.rglob(f"part-{self.token}-*")}
        assert self.parts
        [self.run_id] = [r.run_id for r in place.instance.get_runs() if self.token.startswith(r.run_id)]

    @property
    def status(self) -> str:
        """As Dagster calls it."""
        return self.place.instance.get_run_by_id(self.run_id).status.value

    @staticmethod
    def _status(record: Path) -> str:
        return json.loads(record.read_bytes())["status"]

    @property
    def is_its_own(self) -> bool:
        return self._status(self.record) == "running" and all(p.read_bytes() == b for p, b in self.parts.items())

    def beats(self) -> None:
        """Wait for the next beat, which the store dates by its clock."""
        patience = time.monotonic() + PATIENCE_S
        while self.record.stat().st_mtime != float(self.place.clock.read_text()):
            assert time.monotonic() < patience, "it does not beat"
            time.sleep(0.01)

    def stops(self) -> None:
        """Stop its process, where it holds no lock: nobody comes by it as long as it does."""
        patience = time.monotonic() + PATIENCE_S
        while True:
            os.kill(self.process.pid, signal.SIGSTOP)
            while "State:\tT" not in Path(f"/proc/{self.process.pid}/status").read_text():
                time.sleep(0.001)
            with (self.record.parent / ".rivet.lock").open() as lock, suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Nor between what it writes and the date of that.
                if self.record.stat().st_mtime == float(self.place.clock.read_text()):
                    return
            assert time.monotonic() < patience
            os.kill(self.process.pid, signal.SIGCONT)
            time.sleep(0.01)

    def ends(self) -> str:
        """Let it go on; how Dagster calls it then."""
        self.go_on.set()
        self.process.join(PATIENCE_S)
        return self.status


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    (tmp_path / "home").mkdir()
    # 2026-01-01: whoever asks the clock of this machine finds every heartbeat far too old.
    found.clock.write_text("1767225600")
    exports.create(found.database)
    assert found.export().success
    exports.grow(found.database)
    yield found
    found.instance.dispose()


@pytest.fixture
def slow(place):
    found = Slow(place)
    yield found
    found.process.kill()
    found.process.join()


def test_a_run_that_is_slow_but_beats_is_never_taken_over(place, slow):
    """For eight hours, by the store's clock; somebody comes just before its last beat is too old, each time."""
    old = place.dataset()
    for _ in range(8):
        place.passes(minutes=59)
        place.is_tried()
        assert slow.is_its_own
        slow.beats()
    place.is_tried()
    assert slow.is_its_own
    assert place.dataset() == old
    assert slow.ends() == "SUCCESS"
    assert place.dataset() == exports.rows_of(place.database)


@pytest.mark.parametrize("blow", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "is-gone"])
def test_a_run_that_is_started_for_ever_is_taken_over_once_its_last_beat_is_old(place, slow, blow):
    slow.stops()
    os.kill(slow.process.pid, blow)
    last = slow.record.stat().st_mtime
    place.passes(minutes=59)
    place.is_tried()
    assert slow.is_its_own
    assert slow.record.stat().st_mtime == last
    place.passes(minutes=2)
    result = place.export()
    assert slow.status == "STARTED"
    notes = plain(materialization(result, "orders").metadata)["rivet/notes"]
    assert f"took over {slow.token}: no heartbeat for 1:01:00" in notes
    new = exports.rows_of(place.database)
    assert place.dataset() == new
    assert litter(on_disk(place.lake)) == []
    if blow is signal.SIGSTOP:
        os.kill(slow.process.pid, signal.SIGCONT)
        assert slow.ends() == "FAILURE"
        said = failed(place.instance, slow.run_id)
        assert "CommitConflict" in said
        assert "expected this attempt to be running" in said
        assert place.dataset() == new
        assert place.export().success
        assert litter(on_disk(place.lake)) == []


def failed(instance: dg.DagsterInstance, run_id: str) -> str:
    """What a person reads of the step that failed."""
    entries = (e.dagster_event for e in instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE))
    [error] = [event.step_failure_data.error for event in entries if event is not None]
    return "\n".join(found.message for found in chain(error))
