"""Between the source and the encoder: bounded, nothing lost, nothing hung, and a failure is never the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.errors import SourceError
from rivet_dagster.exports import memory, read_ahead, reading
from rivet_dagster.exports.extraction import Extraction, plan_export
from rivet_dagster.exports.handoff import Handoff
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.pace import Pace
from rivet_dagster.exports.spec import Export, cast
from rivet_dagster.rows import Query
from tests.unit.encoded import Shelf, bodies, within
from tests.unit.splittable import Table, plan


class TestHandoff:
    @settings(max_examples=60)
    @given(
        weights=st.lists(st.lists(st.integers(1, 9), max_size=25), min_size=1, max_size=4),
        most=st.integers(1, 12),
    )
    def test_all_that_is_given_is_taken_in_order(self, weights: list[list[int]], most: int) -> None:
        queue: Handoff[tuple[int, int]] = Handoff(givers=len(weights), most=most)

        def give(giver: int) -> None:
            for n, weight in enumerate(weights[giver]):
                assert queue.give((giver, n), weight=weight)
            queue.end()

        threads = [threading.Thread(target=give, args=(n,), daemon=True) for n in range(len(weights))]
        for thread in threads:
            thread.start()
        taken = list(queue.items())
        for giver, own in enumerate(weights):
            assert [n for g, n in taken if g == giver] == list(range(len(own)))
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    @pytest.mark.parametrize(("weight", "fit"), [(1, 5), (2, 2), (5, 1), (100, 1)])
    def test_no_more_waits_than_may(self, weight: int, fit: int) -> None:
        queue: Handoff[int] = Handoff(givers=1, most=5)
        given: list[int] = []

        def give() -> None:
            for n in range(20):
                queue.give(n, weight=weight)
                given.append(n)
            queue.end()

        thread = threading.Thread(target=give, daemon=True)
        thread.start()
        assert within(60, lambda: len(given) == fit)
        items = queue.items()
        for n in range(20):
            assert next(items) == n
            assert len(given) <= n + 1 + fit + 1
        assert list(items) == []
        thread.join(60)

    @settings(max_examples=60)
    @given(after=st.integers(0, 10), how=st.sampled_from(["close", "error", "taker"]), givers=st.integers(1, 4))
    def test_nobody_waits_for_ever(self, after: int, how: str, givers: int) -> None:
        """Givers that are stopped in the middle, by each way to stop them."""
        queue: Handoff[int] = Handoff(givers=givers + 1, most=2)
        refused = threading.Semaphore(0)

        def give() -> None:
            while queue.give(1):
                pass
            refused.release()
            queue.end()

        threads = [threading.Thread(target=give, daemon=True) for _ in range(givers)]
        for thread in threads:
            thread.start()
        items = queue.items()
        for _ in range(after):
            next(items)
        if how == "error":
            queue.end(RuntimeError("cut"))
            with pytest.raises(RuntimeError, match="cut"):
                list(items)
        elif how == "close":
            queue.close()
            with pytest.raises(SourceError, match="closed"):
                next(items)
        else:
            items.close()  # type: ignore[attr-defined]
            queue.close()
        for _ in range(givers):
            assert refused.acquire(timeout=60)
        for thread in threads:
            thread.join(60)
        assert queue.give(1) is False

    def test_a_taker_that_waits_is_let_go(self) -> None:
        queue: Handoff[int] = Handoff(givers=1, most=1)
        found: list[BaseException] = []

        def take() -> None:
            try:
                list(queue.items())
            except SourceError as e:
                found.append(e)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        queue.close()
        thread.join(60)
        assert not thread.is_alive()
        assert len(found) == 1, "to be closed is not the end"

    def test_what_fails_because_it_was_closed_is_not_told_as_the_cause(self) -> None:
        queue: Handoff[int] = Handoff(givers=1, most=1)
        queue.close()
        queue.end(RuntimeError("cancelled"))
        with pytest.raises(SourceError, match="closed"):
            list(queue.items())

    def test_what_failed_before_it_was_closed_is(self) -> None:
        queue: Handoff[int] = Handoff(givers=2, most=1)
        queue.end(RuntimeError("cut"))
        queue.close()
        queue.end(RuntimeError("cancelled"))
        with pytest.raises(RuntimeError, match="cut"):
            list(queue.items())

    def test_what_nobody_took_is_told(self) -> None:
        queue: Handoff[int] = Handoff(givers=1, most=9)
        for n in range(3):
            queue.give(n)
        assert next(queue.items()) == 0
        assert (queue.close(), queue.close()) == ([1, 2], [])

    def test_somebody_who_waits_is_told_from_time_to_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rivet_dagster.exports.handoff._IDLE_S", 0.01)
        queue: Handoff[int] = Handoff(givers=1, most=1)
        idle: list[int] = []

        def tell() -> None:
            idle.append(1)
            if len(idle) == 3:
                queue.give(7)
                queue.end()

        assert list(queue.items(idle=tell)) == [7]


def whole(source: Any, **settings: Any) -> Extraction:
    export = Export(name="orders", table="orders", **settings)
    output = resolve_output(export=export, format="csv")
    return plan_export(export, export_name="orders", source=source, output=output, head=None)


class TestAWholeTable:
    def test_is_read_ahead_but_not_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The reader is ahead of the encoder, which waits for it; and it waits in turn."""
        read: list[int] = []
        table = Table(range(1_000), batch_rows=1, before_batch=lambda _low, n: read.append(n))
        size = pa.RecordBatch.from_pydict({"id": [1], "text": ["row 100"]}).nbytes
        monkeypatch.setattr(memory, "_AHEAD_BYTES", 10 * size)
        ahead: list[int] = []

        class Slow(Shelf):
            def stage(self) -> Any:
                assert within(60, lambda: len(read) >= 8)
                threading.Event().wait(0.05)
                ahead.append(len(read))
                return super().stage()

        planned = whole(table, format="csv", max_file_size=50)
        parts = planned.parts(Slow().stage)
        next(parts)
        planned.close()
        assert 8 <= ahead[0] <= 20
        assert table.still_open == 0

    def test_the_parts_are_the_same(self) -> None:
        found = []
        for batch_rows in (1, 7, 1_000):
            planned = whole(Table(range(2_000), batch_rows=batch_rows), max_file_size="4kB")
            found.append(bodies(list(planned.parts(Shelf().stage))))
            planned.close()
        assert len(found[0]) > 3
        assert found[0] == found[1] == found[2]

    @pytest.mark.parametrize("transient", [False, True])
    def test_a_failure_is_told_once_a_part_is_finished(self, transient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
        # So that what comes before the failure is encoded before the failure is known.
        monkeypatch.setattr(memory, "_AHEAD_BYTES", 1)

        def fail(_low: Any, n: int) -> None:
            if n == 50:
                raise SourceError("the connection is cut", transient=transient)

        table, shelf = Table(range(6_000), batch_rows=100, before_batch=fail), Shelf()
        planned = whole(table, max_file_size="4kB")
        taken: list[Any] = []
        with pytest.raises(SourceError, match="is cut"):
            taken.extend(p.staged for p in planned.parts(shelf.stage))
        planned.close()
        assert len(taken) > 2
        assert [s for s in shelf.staged if not s.discarded] == taken
        assert (len(table.opened), table.still_open) == (1, 0)

    def test_a_failure_that_passes_is_not_noticed_but_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
        failures: list[int] = []

        def fail(_low: Any, n: int) -> None:
            if n == 50 and len(failures) < 2:
                failures.append(n)
                raise SourceError("the connection is cut", transient=True)

        table, shelf = Table(range(1_000), before_batch=fail), Shelf()
        planned = whole(table)
        (part,) = planned.parts(shelf.stage)
        planned.close()
        assert part.rows == 1_000
        assert [s for s in shelf.staged if not s.discarded] == [part.staged]
        assert planned.counters() == {"rivet/source_retries": {"count": 2, "causes": ["the connection is cut"] * 2}}
        assert (len(table.opened), table.still_open) == (3, 0)

    @pytest.mark.parametrize("workers", [None, 3])
    def test_values_of_a_reading_that_failed_are_not_counted(
        self, monkeypatch: pytest.MonkeyPatch, workers: int | None
    ) -> None:
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
        failures: list[int] = []

        def fail(_low: Any, n: int) -> None:
            if n == 5 and len(failures) < 2:
                failures.append(n)
                raise SourceError("the connection is cut", transient=True)

        columns, table, shelf = {"text": cast(errors="coerce")}, Table(range(1_000), before_batch=fail), Shelf()
        planned = plan(table, columns=columns, rows_per_part=100, parallel=workers) if workers else None
        planned = planned or whole(table, columns=columns)
        assert planned.counters()["rivet/coerced"] == {"text": 0}
        assert sum(part.rows for part in planned.parts(shelf.stage)) == 1_000
        planned.close()
        assert len(failures) == 2
        assert planned.counters()["rivet/coerced"] == {"text": 1_000}

    def test_a_failure_that_cannot_pass_is_not_tried_again(self) -> None:
        def fail(_low: Any, n: int) -> None:
            raise SourceError("no such function")

        table = Table(range(10), before_batch=fail)
        with pytest.raises(SourceError, match="no such function"):
            list(whole(table).parts(Shelf().stage))
        assert len(table.opened) == 1

    def test_who_waits_to_try_again_is_let_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Closed in the pause between two attempts: at once, and nothing is opened again."""
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 3_600)
        failed = threading.Event()

        def fail(_low: Any, n: int) -> None:
            failed.set()
            raise SourceError("cut", transient=True)

        table = Table(range(10), before_batch=fail)
        planned = whole(table)
        found: list[BaseException] = []

        def read() -> None:
            try:
                list(planned.parts(Shelf().stage))
            except SourceError as e:
                found.append(e)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert failed.wait(60)
        assert within(60, lambda: planned.counters() != {})
        planned.close()
        thread.join(60)
        assert not thread.is_alive()
        assert "closed" in str(found[0])
        assert (len(table.opened), table.still_open) == (1, 0)

    def test_who_closes_it_while_it_begins_again_closes_that_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
        begun: list[threading.Thread] = []

        def begin(*given: Any, **more: Any) -> read_ahead.ReadAhead:
            begun.append(threading.Thread(target=planned.close, daemon=True) if begun else threading.current_thread())
            if len(begun) == 2:
                begun[1].start()
                begun[1].join(0.2)
            return read_ahead.ReadAhead(*given, **more)

        def fail_or_wait(_low: Any, _n: int) -> None:
            if len(begun) == 1:
                raise SourceError("cut", transient=True)
            within(60, lambda: table.still_open == 0)

        monkeypatch.setattr(reading, "ReadAhead", begin)
        table = Table(range(10), before_batch=fail_or_wait)
        planned = whole(table)
        with pytest.raises(SourceError, match="closed"):
            list(planned.parts(Shelf().stage))
        begun[1].join(60)
        assert table.still_open == 0

    @settings(max_examples=30)
    @given(taken=st.integers(0, 5), closes=st.integers(1, 3))
    def test_it_may_be_closed_at_any_time(self, taken: int, closes: int) -> None:
        table, shelf = Table(range(5_000), batch_rows=20), Shelf()
        planned = whole(table, max_file_size=500)
        parts = planned.parts(shelf.stage)
        mine = [next(parts).staged for _ in range(taken)]
        for _ in range(closes):
            planned.close()
        assert table.still_open == 0
        assert not [t for t in threading.enumerate() if t.name == "read-ahead"]
        with pytest.raises(SourceError, match="closed"):
            list(parts)
        assert [s for s in shelf.staged if not s.discarded] == mine

    def test_what_is_opened_after_it_was_closed_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody waits for ever for a database that does not answer; if it does after all, no statement runs."""
        monkeypatch.setattr(read_ahead, "_END_S", 0)
        asked, answers, read = threading.Event(), threading.Event(), list[int]()
        table = Table(range(10), before_batch=lambda _low, n: read.append(n))

        def open_stream() -> Any:
            asked.set()
            assert answers.wait(60)
            return table.open(Query(table="orders", casts={}))

        ahead = read_ahead.ReadAhead(open_stream, Pace(None), most=1)
        ahead.start()
        assert asked.wait(60)
        ahead.close()
        answers.set()
        assert within(60, lambda: bool(table.opened) and table.still_open == 0)
        assert read == []
        with pytest.raises(SourceError, match="closed"):
            list(ahead.batches())

    def test_who_closes_it_waits_for_its_thread(self) -> None:
        """Also for one that still connects: nothing reads from the source any more afterwards."""
        asked, answers, over = threading.Event(), threading.Event(), threading.Event()

        def open_stream() -> Any:
            asked.set()
            assert answers.wait(60)
            raise SourceError("refused")

        ahead = read_ahead.ReadAhead(open_stream, Pace(None), most=1)
        ahead.start()
        assert asked.wait(60)
        closer = threading.Thread(target=lambda: (ahead.close(), over.set()), daemon=True)
        closer.start()
        assert not over.wait(0.3)
        answers.set()
        assert over.wait(60)

    def test_who_closes_it_as_it_starts_waits_for_its_thread_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow(threading.Thread):
            def start(self) -> None:
                closer.start()
                closer.join(0.2)
                super().start()

        table = Table(range(10))
        ahead = read_ahead.ReadAhead(lambda: table.open(Query(table="orders", casts={})), Pace(None), most=1)
        closer = threading.Thread(target=ahead.close, daemon=True)
        monkeypatch.setattr(read_ahead, "threading", SimpleNamespace(Thread=Slow, Lock=threading.Lock))
        ahead.start()
        closer.join(60)
        assert table.still_open == 0
        assert not [t for t in threading.enumerate() if t.name == "read-ahead"]

    def test_an_interrupt_of_the_reader_is_told_where_the_rows_are_taken(self) -> None:
        class Interrupted(BaseException):
            pass

        def fail(_low: Any, n: int) -> None:
            raise Interrupted

        with pytest.raises(Interrupted):
            list(whole(Table(range(10), before_batch=fail)).parts(Shelf().stage))


def test_values_of_assets_are_read_in_the_thread_that_exports() -> None:
    """A generator of an asset may hold what is bound to its thread, as SQLite's own connections are."""
    import pandas as pd

    from rivet_dagster.exports.extraction import plan_value
    from rivet_dagster.exports.spec import Batches

    threads: list[str] = []

    def rows() -> Iterator[pd.DataFrame]:
        for n in range(3):
            threads.append(threading.current_thread().name)
            yield pd.DataFrame({"id": [n]})

    planned = plan_value(Batches(rows()), export_name="a", output=resolve_output(format="csv"), head=None)
    list(planned.parts(Shelf().stage))
    assert set(threads) == {threading.current_thread().name}
