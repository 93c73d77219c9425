"""Two runs of Dagster at once, each in a process of its own, over one instance and one store, round after round."""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

import rivet_dagster as rd
from tests.faults.crash_matrix import exports, victims
from tests.faults.kit import FaultyStore, is_part
from tests.faults.lakes import Lake
from tests.harnesses import HARNESS_PARAMS
from tests.orchestration.kit import materialization, plain, run, told

ROUNDS = {"local": 20, "s3-2": 10, "gcs-2": 10, "azure-2": 10}
PATIENCE_S = 120
ORDERS = rd.Export(name="orders", table="orders", mode=rd.Incremental(cursor_column="id"), format="csv")


def _instance(home: Path) -> dg.DagsterInstance:
    """One on disk, with all events in one database: half the time of a run is otherwise spent on making a new one."""
    storage = {"module": "dagster._core.storage.event_log", "class": "ConsolidatedSqliteEventLogStorage"}
    quiet = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
    overrides = {"event_log_storage": {**storage, "config": {"base_dir": str(home)}}, "compute_logs": quiet}
    return dg.DagsterInstance.local_temp(str(home), overrides=overrides)


def _export(io_manager: Any, root: Path, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    source = rd.DatabaseResource(url=f"sqlite:///{root / 'shop.db'}")
    return run([rd.build_export_asset(ORDERS)], io_manager, instance, resources={"source": source})


def _taken_apart(found: Any) -> Any:
    """What can be sent to another process of a resource, which itself cannot."""
    if not isinstance(found, BaseModel):
        return found
    return type(found), {name: _taken_apart(getattr(found, name)) for name in type(found).model_fields}


def _put_together(said: Any) -> Any:
    if not isinstance(said, tuple):
        return said
    kind, fields = said
    return kind(**{name: _put_together(value) for name, value in fields.items()})


def _runs(parts: Any, root: Path, name: str, rounds: int, everyone: Any, both: Any, outcomes: Any) -> None:
    """One of the two processes; if it fails, nobody waits for it."""
    try:
        _run(_put_together(parts), root, name, rounds, everyone, both, outcomes)
    except BaseException:
        outcomes.put({"by": name, "run_id": "", "lost": traceback.format_exc()})
        everyone.abort()
        both.abort()
        raise


def _run(io_manager: Any, root: Path, name: str, rounds: int, everyone: Any, both: Any, outcomes: Any) -> None:
    """A run beside the other's in each round, and then, if that was lost, one alone."""
    meets: list[bool] = []

    def meet(operation: str, key: str) -> None:
        if meets and operation == "write" and is_part(key):
            meets.clear()
            both.wait(PATIENCE_S)

    opened = type(io_manager).open_destination
    type(io_manager).open_destination = lambda self, clients: FaultyStore(opened(self, clients), before=meet)
    os.environ.update(json.loads((root / "environment").read_text()))

    def export() -> dict[str, Any]:
        result = _export(io_manager, root, instance)
        if not result.success:
            return {"by": name, "run_id": result.run_id, "lost": told(result, "orders")}
        said = plain(materialization(result, "orders").metadata)
        return {"by": name, "run_id": result.run_id, "lost": None, **said}

    with _instance(root / "home") as instance:
        for number in range(rounds):
            everyone.wait(PATIENCE_S)
            # Every other time neither has seen the other's commit when its first part is written.
            meets[:] = [True] * (number % 2)
            found = export()
            outcomes.put(found)
            everyone.wait(PATIENCE_S)
            everyone.wait(PATIENCE_S)
            if found["lost"]:
                outcomes.put(export())
            everyone.wait(PATIENCE_S)


class Race:
    """Two processes and who starts them, round after round, at one store."""

    def __init__(self, there: Lake, root: Path, rounds: int) -> None:
        self.there, self.root, self.rounds = there, root, rounds
        self.database = root / "shop.db"
        self.conflicts: Counter[int] = Counter()
        self.waiting = 0
        exports.create(self.database)
        io_manager = there.io_manager()
        assert _export(io_manager, root, there.instance).success
        named = {name: value for name, value in os.environ.items() if name.startswith("STORAGE_")}
        (root / "environment").write_text(json.dumps(named))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*victims.PRELOADED])
        self.everyone, self.both, self.outcomes = context.Barrier(3), context.Barrier(2), context.Queue()
        shared = (rounds, self.everyone, self.both, self.outcomes)
        parts = _taken_apart(io_manager)
        self.workers = [context.Process(target=_runs, args=(parts, root, name, *shared)) for name in "ab"]

    def __enter__(self):
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.everyone.abort()
            self.both.abort()
        for worker in self.workers:
            worker.join(10)
            worker.kill()

    def meet(self) -> None:
        self.everyone.wait(PATIENCE_S)

    def told(self) -> dict[str, Any]:
        return self.outcomes.get(timeout=PATIENCE_S)

    def grows(self, rows: int) -> None:
        exports.grow(self.database, rows=rows)
        self.waiting += rows

    def is_whole(self, raw: dict[str, bytes]) -> None:
        assert exports.dataset(raw, "orders/", self.root) == exports.rows_of(self.database)

    def two_at_once(self, number: int) -> tuple[list[Any], list[Any]]:
        """Who has committed, and who has not."""
        self.meet()
        two = [self.told() for _ in "ab"]
        self.meet()
        winners, losers = [one for one in two if not one["lost"]], [one for one in two if one["lost"]]
        raw = self.there.raw
        for loser in losers:
            assert len(winners) == 1, loser["lost"]
            assert "CommitConflict" in loser["lost"]
            assert f"(Dagster run {winners[0]['run_id']})" in loser["lost"], "it says who has won"
            assert not [name for name in raw if f"/part-{loser['run_id']}-" in name]
            records = [json.loads(body) for name, body in raw.items() if f"/manifest-{loser['run_id']}-" in name]
            assert {record["status"] for record in records} <= {"failed"}, "or the winner has cleaned it up"
        assert sum(one["dagster/row_count"] for one in winners) == self.waiting, "each row by one of the two"
        self.waiting = 0
        self.is_whole(raw)
        self.conflicts[number % 2] += len(losers)
        return winners, losers

    def the_loser_alone(self, winner: Any, loser: Any) -> None:
        """It goes on from where the other's commit ended."""
        again = self.told()
        assert (again["by"], again["lost"]) == (loser["by"], None)
        assert again["rivet/window"]["low"] == winner["rivet/cursor"]["value"]
        assert again["dagster/row_count"] == self.waiting
        assert "rivet/adopted" not in again
        self.waiting = 0


@pytest.fixture(params=[pytest.param((p.id, *p.values), id=p.id) for p in HARNESS_PARAMS if p.id in ROUNDS])
def race(request, servers, tmp_path, monkeypatch):
    name, build = request.param
    harness = build(servers, tmp_path)
    harness.fresh()
    (tmp_path / "home").mkdir()
    with _instance(tmp_path / "home") as instance:
        yield Race(Lake(harness, instance, monkeypatch), tmp_path, ROUNDS[name])
    harness.close()


def test_of_two_runs_one_commits_and_the_other_names_it_and_goes_on_from_there(race, tally):
    with race:
        for number in range(race.rounds):
            race.grows(8)
            winners, losers = race.two_at_once(number)
            race.grows(3)
            race.meet()
            if losers:
                race.the_loser_alone(winners[0], losers[0])
            race.meet()
    assert race.conflicts[1] == race.rounds // 2, "wherever both had seen the same head"
    assert _export(race.there.io_manager(), race.root, race.there.instance).success
    race.is_whole(race.there.raw)
    assert race.there.litter() == []
    tally("rounds of two runs of Dagster at once, of 50", race.rounds)


def test_there_are_fifty_rounds():
    assert sum(ROUNDS.values()) == 50
