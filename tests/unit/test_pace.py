"""Rows come no faster than they may, whoever reads them, and a reading that is closed waits for nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.errors import SourceError
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.modes import Chunked, Full
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.pace import Pace
from rivet_dagster.exports.spec import Export
from tests.unit.encoded import Shelf
from tests.unit.splittable import Table


class Time:
    """A clock that only rises when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return False


@given(batches=st.lists(st.integers(0, 5_000), max_size=20), rate=st.integers(1, 2_000))
def test_so_many_rows_take_as_long_as_they_must(batches: list[int], rate: int) -> None:
    time = Time()
    pace = Pace(rate, clock=time.clock)
    for rows in batches:
        pace.keep(rows, time.pass_by)
    assert time.now == pytest.approx(sum(batches) / rate)
    assert all(0 < wait <= 1 for wait in time.waits)


def test_what_was_not_used_is_not_saved_up() -> None:
    time = Time()
    pace = Pace(100, clock=time.clock)
    time.now = 3_600.0
    pace.keep(50, time.pass_by)
    assert time.now == pytest.approx(3_600.5)


def test_those_who_read_together_share_it() -> None:
    time = Time()
    pace = Pace(100, clock=time.clock)
    stopped: list[float] = []

    def never(seconds: float) -> bool:
        stopped.append(seconds)
        return True

    pace.keep(100, never)
    pace.keep(100, time.pass_by)
    assert time.now == pytest.approx(2), "the second pays for the first, too"
    assert stopped == [1.0]


def test_without_a_limit_nobody_waits() -> None:
    Pace(None).keep(10**9, lambda _s: pytest.fail("it waits"))


@pytest.mark.parametrize("mode", [Full(), Chunked(rows_per_part=50, parallel=2)], ids=["full", "chunked"])
def test_an_export_that_waits_for_its_next_rows_ends_at_once_when_it_is_closed(mode: Any) -> None:
    export = Export(name="orders", table="orders", mode=mode)
    extraction = plan_export(
        export,
        export_name="orders",
        source=Table(range(200)),
        output=resolve_output(export=export),
        head=None,
        max_rows_per_second=1,
    )
    waiting = threading.Event()
    keep = Pace.keep

    def kept(pace: Pace, rows: int, stopped_within: Any) -> None:
        waiting.set()
        keep(pace, rows, stopped_within)

    def read() -> None:
        with pytest.raises(SourceError, match="closed"):
            list(extraction.parts(Shelf().stage))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Pace, "keep", kept)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert waiting.wait(30)
        extraction.close()
        # 200 rows would take 200 seconds.
        reader.join(60)
    assert not reader.is_alive()
