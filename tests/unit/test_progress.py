"""How far a long export is: at most every ten seconds, in one place for every way to read."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_dagster.errors import SourceError
from rivet_dagster.exports import reading
from rivet_dagster.exports.extraction import plan_export, plan_value
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.progress import Progress, estimate_of
from rivet_dagster.exports.spec import Batches, Export
from tests.unit.encoded import Shelf
from tests.unit.splittable import Table, plan

LOG = logging.getLogger("tests.progress")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 100.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger=LOG.name)
    return lambda: [r.getMessage() for r in caplog.records if r.name == LOG.name]


def batches(*rows: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"id": list(range(n))}) for n in rows]


def test_rows_rate_part_and_estimate_at_most_every_ten_seconds(said: Any) -> None:
    clock, asked = Clock(), []
    progress = Progress(LOG, subject="export 'a'", clock=clock, estimate=lambda: asked.append(1) or 5_000)
    for n, _ in enumerate(progress.over(batches(*[1_000] * 5))):
        clock.now += (9.9, 0.2, 9.9, 0.1, 0)[n]
        if n == 2:
            progress.part()
    assert said() == [
        "export 'a': 3,000 of about 5,000 rows, 297 rows/s, part 1",
        "export 'a': 5,000 of about 5,000 rows, 249 rows/s, part 2",
    ]
    assert len(asked) == 1, "and only because it came to a line"


def test_a_short_export_says_and_asks_nothing(said: Any) -> None:
    clock = Clock()
    progress = Progress(LOG, subject="export 'a'", clock=clock, estimate=lambda: pytest.fail("asked"))
    for _ in progress.over(batches(10, 10)):
        clock.now += 4
    progress.part()
    assert said() == []


def test_without_an_estimate_nothing_is_made_up(said: Any) -> None:
    clock = Clock()
    progress = Progress(LOG, subject="export 'a'", clock=clock)
    for _ in progress.over(batches(10, 20)):
        clock.now += 10
    assert said() == ["export 'a': 30 rows, 3 rows/s, part 1"]


def test_rows_that_are_read_again_count_once(said: Any) -> None:
    clock = Clock()
    progress = Progress(LOG, subject="export 'a'", clock=clock)

    def cut() -> Any:
        yield from batches(100, 100)
        raise SourceError("cut", transient=True)

    with pytest.raises(SourceError):
        list(progress.over(cut()))
    clock.now += 10
    list(progress.over(batches(50)))
    assert said() == ["export 'a': 50 rows, 5 rows/s, part 1"]


def test_only_the_thread_of_the_log_logs(said: Any) -> None:
    clock = Clock(step=20)
    progress = Progress(LOG, subject="export 'a'", clock=clock)

    def work() -> None:
        list(progress.over(batches(10)))
        progress.warn("tried again")

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert said() == []
    progress.tell()
    assert [line.split(",")[0] for line in said()] == ["export 'a': tried again", "export 'a': 10 rows"]


def test_the_readme_shows_a_line_as_it_is_written(said: Any) -> None:
    clock = Clock()
    progress = Progress(LOG, subject="export 'events'", clock=clock, estimate=lambda: 30_000_000)
    progress._count(14_200_000)
    for _ in range(14):
        progress.part()
    clock.now += 14_200_000 / 1_180_000
    progress.tell()
    (line,) = said()
    assert f"\n{line}\n" in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


class TestEveryWayToRead:
    """The clock leaps ten seconds whenever it is asked: each batch that passes is a line."""

    def test_a_whole_table(self, said: Any) -> None:
        export = Export(name="orders", table="orders")
        planned = plan_export(
            export,
            export_name="orders",
            source=Table(range(30)),
            output=resolve_output(format="csv"),
            head=None,
            log=LOG,
            clock=Clock(step=10),
        )
        list(planned.parts(Shelf().stage))
        assert said()[0].startswith("export 'orders': 10 of about 30 rows, ")
        assert said()[0].endswith(" rows/s, part 1")
        assert "30 of about 30 rows" in said()[2]

    def test_a_value(self, said: Any) -> None:
        planned = plan_value(
            Batches(batches(10, 20)),
            export_name="prices",
            output=resolve_output(format="csv"),
            head=None,
            log=LOG,
            clock=Clock(step=10),
        )
        list(planned.parts(Shelf().stage))
        assert said()[:2] == [
            "export 'prices': 10 rows, 1 rows/s, part 1",
            "export 'prices': 30 rows, 2 rows/s, part 1",
        ]

    def test_ranges(self, said: Any) -> None:
        planned = plan(Table(range(40)), rows_per_part=10, parallel=2, log=LOG, clock=Clock(step=10))
        parts = list(planned.parts(Shelf().stage))
        assert len(parts) == 4
        assert len(said()) >= 4
        assert said()[-1].startswith("export 'orders': 40 of about 40 rows")
        assert said()[-1].endswith("part 5")

    def test_a_range_that_takes_long(self, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """No part is finished, and still there is a line."""
        monkeypatch.setattr("rivet_dagster.exports.handoff._IDLE_S", 0.01)
        told = threading.Event()

        class Log(logging.Logger):
            def info(self, *args: Any, **kwargs: Any) -> None:
                super().info(*args, **kwargs)
                told.set()

        def wait(_low: Any, n: int) -> None:
            if n == 2:
                assert told.wait(60)

        table = Table(range(30), before_batch=wait)
        list(plan(table, parallel=2, log=Log("long"), clock=Clock(step=10)).parts(Shelf().stage))
        assert told.is_set()

    def test_a_reading_that_is_tried_again(self, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0)
        failed: list[int] = []

        def fail(low: Any, n: int) -> None:
            if low == 10 and not failed:
                failed.append(n)
                raise SourceError("cut", transient=True)

        table = Table(range(40), before_batch=fail)
        list(plan(table, rows_per_part=10, log=LOG, clock=Clock()).parts(Shelf().stage))
        assert said() == [
            "export 'orders': reading is tried again from its first row, after attempt 1: cut",
        ]


def test_a_source_that_cannot_say_gives_no_estimate() -> None:
    class Refuses(Table):
        def estimated_rows(self, query: Any) -> int | None:
            raise SourceError("no")

    query = Export(name="a", table="a").source_query
    assert estimate_of(Refuses([1]), query) is None
    assert estimate_of(object(), query) is None  # type: ignore[arg-type]
    assert estimate_of(Table([1, 2]), query) == 2
