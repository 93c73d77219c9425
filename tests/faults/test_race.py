"""Several processes at one prefix: whoever commits is in the history, whoever does not is gone without a trace."""

from __future__ import annotations

import multiprocessing

from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import CommitConflict
from rivet_dagster.manifest import fingerprint
from rivet_dagster.readback import look
from tests.faults.kit import PREFIX, Rows, export, litter, read_as_a_reader

ROUNDS = 15


def _contend(path, name, barrier, outcomes):
    for number in range(ROUNDS):
        barrier.wait()
        run_id = f"{name}-{number}"
        try:
            receipt = export(LocalDestination(path), Rows([run_id.encode()]), run_id=run_id)
        except CommitConflict as e:
            outcomes.put((run_id, None, str(e)))
        else:
            outcomes.put((run_id, receipt.fingerprint, ""))


def test_processes_that_swap_one_head_never_lose_a_commit(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, outcomes = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_contend, args=(tmp_path, name, barrier, outcomes)) for name in "abc"]
    for worker in workers:
        worker.start()
    said = [outcomes.get(timeout=200) for _ in range(3 * ROUNDS)]
    for worker in workers:
        worker.join()
    committed = {run_id: f for run_id, f, _ in said if f}
    conflicts = [(run_id, why) for run_id, f, why in said if not f]
    sight = look(LocalDestination(tmp_path), PREFIX)
    line = {sight.head.dagster_run_id: sight.head_fingerprint} | {
        a.dagster_run_id: a.fingerprint for a in sight.head.ancestors
    }
    assert line == committed, "what was reported as committed is the history, and nothing else is"
    assert sight.head.sequence == len(committed)
    assert conflicts, "the race is tight enough to have losers"
    assert all("found" in why for _, why in conflicts)
    export(LocalDestination(tmp_path), Rows([b"last"]), run_id="last", over=[r for r, _ in conflicts])
    raw = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert read_as_a_reader(raw) == [b"last"]
    assert litter(raw) == []
    assert fingerprint(raw["orders/manifest.json"]) == raw["orders/_SUCCESS"].decode().strip()
