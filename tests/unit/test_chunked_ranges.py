"""Ranges of a key become parts: each row once, in order whoever is faster, and nothing left over when it fails."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.contract import EncodedPart, Staged
from rivet_dagster.errors import ConfigError, ContractError, SourceError
from rivet_dagster.exports import chunked, memory, reading
from rivet_dagster.exports.chunked import RangesReading, ranges_between, ranges_of
from rivet_dagster.exports.progress import Progress
from rivet_dagster.exports.resume import recorded
from rivet_dagster.rows import Key, KeyRange, Query
from rivet_dagster.sources.ranges import sampled_row_bytes
from tests.unit.encoded import Shelf, body, within
from tests.unit.splittable import KEY, Table, plan


def ids_of(part: EncodedPart) -> list[int]:
    return [int(line.split(b",")[0]) for line in body(part).splitlines()[1:]]


def test_rows_are_sampled_from_a_stream_that_is_closed() -> None:
    table = Table(range(5_000))
    assert sampled_row_bytes(table.open(Query(table="orders", casts={}))) in range(16, 30)
    assert sampled_row_bytes(Table([]).open(Query(table="orders", casts={}))) is None
    assert table.still_open == 0


def in_order(parts: list[EncodedPart]) -> list[EncodedPart]:
    return sorted(parts, key=lambda p: p.order)


def ranges_in(parts: list[EncodedPart]) -> list[tuple[Any, Any]]:
    """The distinct ranges, in the order of the parts."""
    said = [p.key_range or {} for p in in_order(parts)]
    return list(dict.fromkeys(tuple(None if s[e] is None else s[e][0] for e in ("low", "high")) for s in said))


def alive(shelf: Shelf) -> list[Any]:
    return [s for s in shelf.staged if not s.discarded]


def no_worker_is_left() -> bool:
    return not [t.name for t in threading.enumerate() if t.name.startswith(("range-reader", "read-ahead"))]


@settings(max_examples=40)
@given(
    ids=st.sets(st.integers(-(2**63), 2**63 - 1), max_size=60),
    rows=st.integers(1, 25),
    parallel=st.integers(1, 4),
    batch_rows=st.integers(1, 30),
)
def test_every_row_is_in_exactly_one_range(ids: set[int], rows: int, parallel: int, batch_rows: int) -> None:
    table = Table(list(ids), batch_rows=batch_rows)
    planned = plan(table, rows_per_part=rows, parallel=parallel)
    parts = list(planned.parts(Shelf().stage))
    found = [ids_of(p) for p in in_order(parts)]
    assert [i for one in found for i in one] == sorted(ids)
    bounds = ranges_in(parts)
    assert not bounds or (bounds[0][0], bounds[-1][1]) == (None, None)
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    for part, own in zip(in_order(parts), found, strict=True):
        low, high = (part.key_range or {})["low"], (part.key_range or {})["high"]
        assert all((low is None or low[0] <= i) and (high is None or i < high[0]) for i in own)
        assert part.rows == len(own) <= rows
    planned.close()
    assert (table.began, table.ended, table.still_open) == (1, 1, 0)
    assert table.most_open <= parallel
    assert no_worker_is_left()


def test_a_range_without_rows_gives_no_part() -> None:
    class Sparse(Table):
        def boundaries(self, query: Any, key: Any, *, rows: int) -> Any:
            yield from [(10,), (20,), (30,)]

    parts = list(plan(Sparse([11, 12, 35]), rows_per_part=1).parts(Shelf().stage))
    assert [(p.order, ids_of(p)) for p in parts] == [((0, 1, 0), [11, 12]), ((0, 3, 0), [35])]
    assert [p.key_range for p in parts] == [
        {"columns": ["id"], "low": [10], "high": [20], "types": ["int"]},
        {"columns": ["id"], "low": [30], "high": None, "types": ["int"]},
    ]


def test_a_table_without_rows_gives_no_part() -> None:
    shelf = Shelf()
    assert list(plan(Table([]), rows_per_part=5, parallel=3).parts(shelf.stage)) == []
    assert shelf.staged == []


def test_parts_rotate_inside_of_their_range() -> None:
    table = Table(range(4_000), batch_rows=50)
    parts = in_order(list(plan(table, rows_per_part=1_000, parallel=2, max_file_size="4kB").parts(Shelf().stage)))
    per_range = Counter(p.order[1] for p in parts)
    assert sorted(per_range) == [0, 1, 2, 3]
    assert min(per_range.values()) > 2
    assert [p.order[2] for p in parts if p.order[1] == 2] == list(range(per_range[2]))
    assert [p.last for p in parts if p.order[1] == 2] == [False] * (per_range[2] - 1) + [True]
    assert len({str(p.key_range) for p in parts}) == 4
    assert [i for p in parts for i in ids_of(p)] == list(range(4_000))


def test_ranges_are_read_at_the_same_time_and_keep_their_order() -> None:
    """The first range ends last: it waits until the fifth is read, for which the second has to be encoded."""
    second = threading.Barrier(2, timeout=60)
    others = threading.Semaphore(0)

    def wait(low: int | None, n: int) -> None:
        if low is None:
            second.wait()
            for _ in range(3):
                assert others.acquire(timeout=60)
        elif low == 10:
            second.wait()
        else:
            others.release()

    table = Table(range(60), before_batch=wait)
    parts = list(plan(table, rows_per_part=10, parallel=2).parts(Shelf().stage))
    assert parts[0].order != (0, 0, 0)
    assert [p.order for p in in_order(parts)] == [(0, n, 0) for n in range(6)]
    assert [i for p in in_order(parts) for i in ids_of(p)] == list(range(60))


def test_the_next_range_is_read_while_one_is_encoded() -> None:
    """A worker has one stream open, and no part has to be complete before it reads on."""
    following, shelf = threading.Event(), Shelf()
    table = Table(range(30), before_batch=lambda low, _n: following.set() if low == 10 else None)

    def stage() -> Staged:
        assert following.wait(60)
        return shelf.stage()

    parts = list(plan(table, rows_per_part=10).parts(stage))
    assert [ids_of(p) for p in parts] == [[*range(10)], [*range(10, 20)], [*range(20, 30)]]
    assert table.most_open == 1


def test_no_more_ranges_are_read_ahead_than_are_encoded() -> None:
    """Two parts wait to be taken or are taken, two are given, two ranges are read; whoever takes takes no more."""
    table = Table(range(1_000))
    planned = plan(table, rows_per_part=10, parallel=2)
    parts = planned.parts(Shelf().stage)
    next(parts)
    described = 1
    assert within(60, lambda: len(table.opened) == described + 6)
    assert not within(0.3, lambda: len(table.opened) > described + 6)
    planned.close()


@pytest.mark.usefixtures("_no_pause")
def test_a_range_is_read_again_before_the_next_one() -> None:
    """So that there are never more streams than workers."""
    failed: list[int] = []

    def fail(low: int | None, _n: int) -> None:
        if low == 10 and len(failed) < 2:
            failed.append(low)
            raise SourceError("connection lost", transient=True)

    table = Table(range(40), before_batch=fail)
    parts = list(plan(table, rows_per_part=10).parts(Shelf().stage))
    assert [i for p in parts for i in ids_of(p)] == [*range(40)]
    assert [q.within.low for q in table.opened if q.within] == [None, (10,), (10,), (10,), (20,), (30,)]
    assert table.most_open == 1


def test_boundaries_are_found_when_they_are_needed_and_by_one_thread_at_a_time() -> None:
    """Two workers at the same boundary would be an error of the generator itself, so finding one takes a while here."""
    table = Table(range(1_000), batch_rows=5, before_boundary=lambda _n: threading.Event().wait(0.02))
    planned = plan(table, rows_per_part=5, parallel=4)
    assert table.boundaries_asked == 0
    parts = planned.parts(Shelf().stage)
    next(parts)
    # Three workers with a range, the fourth with one or about to take one, and what waits to be taken.
    assert table.boundaries_asked <= 8
    planned.close()


def test_never_more_parts_are_staged_than_workers_and_one_that_waits() -> None:
    """Being encoded or finished by three workers, one that waits, and the one just taken; whoever takes is slow."""
    shelf, most = Shelf(), 0
    for n, part in enumerate(plan(Table(range(200)), rows_per_part=10, parallel=3).parts(shelf.stage)):
        full = min(20, n + 3 + 1 + 1)
        assert within(60, lambda full=full: len(shelf.staged) >= full)  # type: ignore[misc]
        most = max(most, len(alive(shelf)))
        part.staged.discard()
    assert len(shelf.staged) == 20
    assert most == 3 + 1 + 1


def test_nothing_is_staged_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by a worker that did not end in time."""
    monkeypatch.setattr(chunked, "_JOIN_S", 0)
    begun, closed, over = threading.Event(), threading.Event(), threading.Event()

    class Late:
        def fetch(self) -> None:
            pass

        def parts(self, stage: Any) -> Any:
            begun.set()
            assert closed.wait(60)
            try:
                stage()
            finally:
                over.set()
            yield

        def close(self) -> None:
            pass

    shelf = Shelf()
    reading_of: Any = lambda _within: Late()  # noqa: E731
    progress = Progress(logging.getLogger("late"), subject="late")
    ranges = RangesReading(
        ranges_between(KEY, list, lambda it: [it]), reading_of, workers=1, progress=progress, release=lambda: None
    )

    def take() -> None:
        with pytest.raises(SourceError, match="closed"):
            list(ranges.parts(shelf.stage))

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    assert begun.wait(60)
    ranges.close()
    closed.set()
    assert over.wait(60)
    taker.join(60)
    assert shelf.staged == []


@pytest.mark.parametrize(("parallel", "streams"), [(True, 3), (False, 1)])
def test_workers_are_as_many_as_the_snapshot_allows(
    parallel: bool, streams: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(range(100), parallel=parallel)
    planned = plan(table, rows_per_part=10, parallel=3)
    assert planned.parallel == streams
    assert len(list(planned.parts(Shelf().stage))) == 10
    assert table.most_open <= streams
    assert ("one after the other" in caplog.text) is not parallel


def test_the_content_and_the_metadata_say_how_it_was_read() -> None:
    for consistency in ("snapshot", "statement"):
        table = Table(range(3))
        planned = plan(table, consistency=consistency)
        assert planned.content.strategy == "chunked"
        list(planned.parts(Shelf().stage))
        assert planned.counters() == {"rivet/consistency": consistency}
        assert table.consistency == consistency


def test_the_size_of_a_range_may_be_given_in_bytes() -> None:
    for given_size, ranges in (({"bytes_per_part": "1kB"}, 10), ({}, 1), ({"bytes_per_part": 1}, 100)):
        parts = list(plan(Table(range(100)), **given_size).parts(Shelf().stage))
        assert len(parts) == ranges, "a row has 100 bytes"


class TestRefusals:
    """Before the first query of data, and nothing stays open."""

    def test_a_source_that_cannot_be_split(self) -> None:
        class Plain:
            engine, database = "generic", "shop"

            def open(self, query: Any) -> Any:
                raise AssertionError

        with pytest.raises(ConfigError, match=r"orders.*Chunked.*generic.*Full"):
            plan(Plain())

    def test_a_table_without_a_key(self) -> None:
        table = Table([1], keys=())
        with pytest.raises(ConfigError, match=r"orders.*primary key.*never NULL.*Full"):
            plan(table)
        assert (table.opened, table.began, table.ended) == ([], 1, 1)

    def test_a_key_that_the_catalog_does_not_vouch_for(self) -> None:
        table = Table([1])
        with pytest.raises(ConfigError, match="no key"):
            plan(table, key="text")
        assert (table.opened, table.began, table.ended) == ([], 1, 1)

    def test_columns_that_cannot_be_written(self) -> None:
        class Odd(Table):
            def open(self, query: Any) -> Any:
                stream = super().open(query)
                stream.columns = stream.columns * 2
                return stream

        odd = Odd([1])
        with pytest.raises(ConfigError, match="more than one column"):
            plan(odd)
        assert (odd.began, odd.ended, odd.still_open) == (1, 1, 0)


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)


@pytest.mark.usefixtures("_no_pause")
class TestFailures:
    @pytest.mark.parametrize("parallel", [1, 3])
    @pytest.mark.parametrize(
        "error", [SourceError("cut"), SourceError("cut", transient=True), RuntimeError("cut"), ContractError("cut")]
    )
    def test_one_worker_stops_all(self, parallel: int, error: Exception) -> None:
        def fail(low: int | None, n: int) -> None:
            if low == 50 and n == 1:
                raise error

        table, shelf = Table(range(10_000), batch_rows=5, before_batch=fail), Shelf()
        planned = plan(table, rows_per_part=10, parallel=parallel)
        taken: list[Any] = []
        with pytest.raises(type(error), match="cut"):
            taken.extend(part.staged for part in planned.parts(shelf.stage))
        planned.close()
        assert [s for s in alive(shelf) if s not in taken] == [], "what nobody took is discarded"
        assert (table.ended, table.still_open) == (1, 0)
        assert table.boundaries_asked < 100, "promptly"
        assert no_worker_is_left()

    def test_a_boundary_that_cannot_be_found_is_no_end(self) -> None:
        def fail(n: int) -> None:
            if n == 3:
                raise SourceError("the index is broken")

        for parallel in (1, 2, 4):
            table = Table(range(100), before_boundary=fail)
            with pytest.raises(SourceError, match="broken"):
                list(plan(table, rows_per_part=5, parallel=parallel).parts(Shelf().stage))
            assert (table.ended, table.still_open) == (1, 0)

    def test_an_error_while_staging_is_told_as_it_is(self) -> None:
        shelf = Shelf()

        def stage() -> Any:
            if len(shelf.staged) == 3:
                raise OSError("no space left")
            return shelf.stage()

        table = Table(range(100))
        planned = plan(table, rows_per_part=5, parallel=2)
        taken: list[Any] = []
        with pytest.raises(OSError, match="no space"):
            taken.extend(part.staged for part in planned.parts(stage))
        assert [s for s in alive(shelf) if s not in taken] == []
        assert (table.ended, table.still_open) == (1, 0)

    def test_a_range_is_read_again_where_the_failure_may_pass(self) -> None:
        failures = Counter[Any]()

        def fail(low: int | None, n: int) -> None:
            if low in (20, 70) and n == 1 and failures[low] < 2:
                failures[low] += 1
                raise SourceError(f"cut {low}", transient=True)

        table, shelf = Table(range(100), batch_rows=5, before_batch=fail), Shelf()
        planned = plan(table, rows_per_part=10, parallel=2)
        parts = in_order(list(planned.parts(shelf.stage)))
        assert [i for p in parts for i in ids_of(p)] == list(range(100))
        retried = planned.counters()["rivet/source_retries"]
        assert retried["count"] == 4
        assert Counter(retried["causes"]) == {"cut 20": 2, "cut 70": 2}
        assert len(alive(shelf)) == 10

    def test_a_failure_that_does_not_pass_is_raised_after_three_attempts(self) -> None:
        attempts = []

        def fail(low: int | None, n: int) -> None:
            if low == 20:
                attempts.append(n)
                raise SourceError("cut", transient=True)

        with pytest.raises(SourceError, match="cut"):
            list(plan(Table(range(100), before_batch=fail), rows_per_part=10).parts(Shelf().stage))
        assert len(attempts) == 3

    def test_a_range_of_which_a_part_is_finished_is_not_read_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        attempts = []

        def fail(low: int | None, n: int) -> None:
            if low == 2_000 and n == 0:
                attempts.append(n)
            if low == 2_000 and n == 15:
                raise SourceError("cut", transient=True)

        # So that what comes before the failure is encoded before the failure is known.
        monkeypatch.setattr(memory, "_AHEAD_BYTES", 1)
        table = Table(range(4_000), batch_rows=100, before_batch=fail)
        planned = plan(table, rows_per_part=2_000, max_file_size="4kB")
        with pytest.raises(SourceError, match="cut"):
            list(planned.parts(Shelf().stage))
        assert len(attempts) == 1


class TestClosing:
    @settings(max_examples=30)
    @given(after=st.integers(0, 12), parallel=st.integers(1, 4), from_another=st.booleans())
    def test_at_any_time_frees_everything(self, after: int, parallel: int, from_another: bool) -> None:
        table, shelf = Table(range(10_000), batch_rows=3), Shelf()
        planned = plan(table, rows_per_part=10, parallel=parallel)
        parts = planned.parts(shelf.stage)
        taken = [next(parts).staged for _ in range(after)]
        if from_another:
            closer = threading.Thread(target=planned.close)
            closer.start()
            closer.join(60)
            assert not closer.is_alive()
        planned.close()
        assert (table.began, table.ended, table.still_open) == (1, 1, 0)
        assert [s for s in alive(shelf) if s not in taken] == []
        staged = len(shelf.staged)
        if after:
            with pytest.raises(SourceError, match="closed"):
                next(parts)
        assert len(shelf.staged) == staged
        assert no_worker_is_left()

    def test_lets_go_a_worker_that_waits_for_the_database(self) -> None:
        reached, cancelled = threading.Event(), threading.Event()

        def wait(low: int | None, n: int) -> None:
            if low == 30:
                reached.set()
                assert cancelled.wait(60)

        class Cancelled(Table):
            def open(self, query: Any) -> Any:
                stream = super().open(query)
                close = stream.close
                stream.close = lambda: (
                    cancelled.set() if query.within and query.within.low == (30,) else None,
                    close(),
                )
                return stream

        table, shelf = Cancelled(range(100), before_batch=wait), Shelf()
        planned = plan(table, rows_per_part=10, parallel=2)
        parts = planned.parts(shelf.stage)
        next(parts)
        next(parts)
        assert reached.wait(60)
        parts.close()
        assert cancelled.is_set()
        assert (table.ended, table.still_open) == (1, 0)
        assert no_worker_is_left()

    def test_without_reading_frees_the_snapshot(self) -> None:
        table = Table(range(100))
        planned = plan(table)
        planned.close()
        planned.close()
        assert (table.began, table.ended, table.still_open) == (1, 1, 0)


def test_a_boundary_that_comes_twice_is_no_endless_loop() -> None:
    with pytest.raises(SourceError, match=r"id.*twice"):
        list(ranges_of(KeyRange(key=KEY, low=None, high=None), [(1,), (1,)]))


def test_bounds_are_recorded_as_json_holds_them() -> None:
    values = (1, "a", True, 1.5, Decimal("1E+2"), date(2024, 2, 29), datetime(2024, 2, 29, 12, tzinfo=timezone.utc))
    more = (b"\x01\xff", UUID(int=1), float("inf"))
    key = Key(columns=tuple("abcdefghij"))
    said = recorded(KeyRange(key=key, low=None, high=(*values, *more)))
    assert said == {
        "columns": list("abcdefghij"),
        "low": None,
        "high": [
            *(1, "a", True, 1.5, "100", "2024-02-29", "2024-02-29T12:00:00+00:00"),
            *("01ff", "00000000-0000-0000-0000-000000000001", "inf"),
        ],
    }
