"""The matrix through Dagster's multiprocess executor: each step of a run ends at another failpoint, then all run clean.

What a step leaves is what the seam leaves by itself; here Dagster says who is over, who is repeated, and what was told.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.faults.crash_matrix import exports
from tests.faults.crash_matrix.dagster_runs import CASES, KILL, OVER_A_DEAD_RUN, PARTITION, TERM, Case, crashes
from tests.faults.crash_matrix.points import COMMITTED, FAILPOINTS, OLD, UNSENT
from tests.faults.kit import followed, litter, read_as_a_reader
from tests.orchestration.kit import materialization, on_disk, plain


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("home"))) as instance:
        yield instance


class Shop:
    """A table, exported by every case into a prefix of its own, and the runs of the job."""

    def __init__(self, root: Path, home: dg.DagsterInstance, cases: list[Case]) -> None:
        self.root, self.home, self.cases = root, home, cases
        self.database, self.lake = root / "shop.db", root / "lake"
        self.scratch = root / "scratch"
        exports.create(self.database)

    def config(self, **lake: Any) -> dict[str, Any]:
        there = {"path": str(self.lake), "verify": "readback", "symlink_manifest": True, **lake}
        source = {"url": f"sqlite:///{self.database}"}
        return {"resources": {"io_manager": {"config": there}, "source": {"config": source}}}

    def run_here(self, run_id: str) -> dg.ExecuteInProcessResult:
        """All cases, one after the other in this process, left alone."""
        return crashes().execute_in_process(
            instance=self.home,
            run_id=run_id,
            run_config=self.config(),
            partition_key=PARTITION,
            asset_selection=[case.key for case in self.cases],
        )

    def run(self, *, again: dg.ReexecutionOptions | None = None, **lake: Any) -> dg.JobExecutionResult:
        """Each case in a process of its own."""
        return dg.execute_job(
            dg.reconstructable(crashes),
            instance=self.home,
            run_config=self.config(**lake),
            tags={"dagster/partition": PARTITION},
            asset_selection=[case.key for case in self.cases],
            reexecution_options=again,
        )

    def rows(self, case: Case) -> list[Any]:
        return [r for r in exports.rows_of(self.database) if case.kind != "partitioned" or str(r[0] % 2) == PARTITION]

    def dataset(self, case: Case) -> list[Any]:
        """What readers have."""
        raw = on_disk(self.lake)
        assert read_as_a_reader(raw, case.root) is not None
        directory = self.scratch / case.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return exports.dataset(raw, case.root, directory)

    def delivered_by(self, case: Case) -> set[str]:
        return {m["dagster"]["run_id"] for m in followed(on_disk(self.lake), case.root) or ()}

    def parts_of(self, result: dg.JobExecutionResult, case: Case) -> list[str]:
        return [name for name in on_disk(self.lake) if name.startswith(f"{case.root}data/part-{result.run_id}")]

    def left_over(self, case: Case) -> list[str]:
        return [n for n in litter(on_disk(self.lake), case.root) if "_symlink_format_manifest" not in n]


@pytest.mark.parametrize("blow", [KILL, TERM], ids=lambda blow: blow.name)
def test_steps_that_end_at_every_failpoint_are_made_good_by_the_next_run(home, blow, tmp_path, tally):
    """Killed ones by a run of its own; terminated ones by the re-execution from failure."""
    cases = [case for case in CASES if case.blow is blow]
    shop = Shop(tmp_path, home, cases)
    assert shop.run_here(OLD + str(uuid.uuid4())[len(OLD) :]).success
    old = {case: shop.rows(case) for case in cases}
    exports.grow(shop.database)

    first = shop.run(ends=True)
    over_a_dead_run = [case for case in cases if case.point in OVER_A_DEAD_RUN]
    steps = [f"{case.name}__orders" for case in over_a_dead_run]
    second = shop.run(ends=True, dead=first.run_id, again=dg.ReexecutionOptions(first.run_id, step_selection=steps))
    ended_in = {case: second if case in over_a_dead_run else first for case in cases}
    for case in cases:
        committed = case.retried or case.point in COMMITTED
        assert shop.dataset(case) == (shop.rows(case) if committed else old[case]), case.name
        assert (ended_in[case].run_id in shop.delivered_by(case)) == committed, case.name
        if blow is TERM and case.point in UNSENT and not case.retried:
            assert shop.parts_of(ended_in[case], case) == [], f"{case.name} takes back what it wrote"
    recorded = {case.key for case in cases if case.retried}
    assert {e.asset_key for r in (first, second) for e in r.get_asset_materialization_events()} == recorded
    assert [ends(home, r) for r in (first, second)] == [(16, 0), (2, 0)] if blow is KILL else [(2, 14), (0, 2)]

    if blow is KILL:
        exports.grow(shop.database, rows=2)
        clean = shop.run_here(str(uuid.uuid4()))
    else:
        clean = shop.run(again=dg.ReexecutionOptions.from_failure(first.run_id, home))
    assert clean.success
    for case in cases:
        assert shop.dataset(case) == shop.rows(case), case.name
        assert shop.left_over(case) == [], case.name
        if case.retried:
            told = plain(materialization(first, case.key.to_user_string()).metadata)
            assert told["rivet/attempts"] == 2, case.name
            because = "it is an earlier attempt of this step"
        else:
            told = plain(materialization(clean, case.key.to_user_string()).metadata)
            because = f"its Dagster run {ended_in[case].run_id} is over"
            lost = blow is KILL and case.kind == "incremental" and case.point in (*COMMITTED, "head swapped")
            assert (told.get("rivet/adopted", {}).get("dagster_run_id") == ended_in[case].run_id) == lost, case.name
        notes = " ".join(told.get("rivet/notes", ()))
        # A terminated step says itself that it has failed, once it knows that its record is there.
        assert (because in notes) == (case.point in (UNSENT if blow is KILL else ["side record created"])), case.name
        assert ("finished the commit of" in notes) == (case.point == "head swapped"), case.name
    tally(f"cases of the crash matrix through Dagster, of {len(CASES)}", len(cases))


def ends(home: dg.DagsterInstance, result: dg.JobExecutionResult) -> tuple[int, int]:
    """How many steps of a run were killed, and how many interrupted, as its event log has it."""
    entries = home.all_logs(result.run_id)
    killed = [e for e in entries if "was terminated by signal 9" in e.message]
    failures = [
        e.dagster_event.event_specific_data.error
        for e in entries
        if e.dagster_event and e.dagster_event.is_step_failure
    ]
    return len(killed), len([e for e in failures if "DagsterExecutionInterruptedError" in e.cls_name])


def test_each_failpoint_is_tried_with_both_blows_and_a_retry_before_and_after_the_head():
    assert Counter((case.point, case.blow) for case in CASES if not case.retried) == Counter(
        product(FAILPOINTS, (KILL, TERM))
    )
    assert (len(CASES), len({case.name for case in CASES})) == (32, 32)
