"""What a run costs does not grow with the number of deliveries there ever were."""

from __future__ import annotations

from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.manifest import Dataset
from tests.faults.kit import FaultyStore, Rows, export, is_side


def test_a_run_does_not_read_the_record_of_every_delivery(tmp_path, monkeypatch):
    monkeypatch.setattr("rivet_dagster.manifest.MAX_ANCESTORS", 2)
    reads = []
    for n in range(8):
        watched = FaultyStore(LocalDestination(tmp_path))
        kind = Dataset.SNAPSHOT if n == 0 else Dataset.APPEND
        export(watched, Rows([b"%d" % n], dataset=kind), run_id=f"run-{n}")
        reads.append(sum(o == "read" and is_side(k) for o, k in watched.calls))
    assert len(set(reads[3:])) == 1, reads
