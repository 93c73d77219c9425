"""A part is uploaded while the next is encoded, and never more than a few are staged."""

from __future__ import annotations

import threading

import pytest

from rivet_dagster.contract import EncodedPart
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import DestinationError
from tests.faults.kit import FaultyStore, Rows, Trouble, export, is_part, read_as_a_reader


class Hurrying(Rows):
    """Encodes as fast as it is asked to; notes what is staged at a time."""

    def parts(self, stage):
        self.alive, self.most, self.count = set(), 0, 0
        lock = threading.Lock()
        for n, body in enumerate(self.bodies):
            staged = stage()
            with lock:
                self.alive.add(n)
                self.most = max(self.most, len(self.alive))
            self._watch(staged, n)
            staged.write(body)
            staged.close()
            self.count = n + 1
            yield EncodedPart(staged=staged, rows=10)

    def _watch(self, staged, n):
        discard = staged.discard

        def discarded():
            discard()
            self.alive.discard(n)

        staged.discard = discarded


def look(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_the_next_part_is_encoded_while_one_is_on_its_way(tmp_path):
    rows = Hurrying([b"%d" % n for n in range(12)])
    overlapped = threading.Event()

    def slow(operation, key):
        if operation == "write" and is_part(key) and key.endswith("-00001.csv"):
            # Lets go only once the encoder is ahead: without a second thread it never is.
            for _ in range(600):
                if rows.count >= 3:
                    overlapped.set()
                    return
                threading.Event().wait(0.05)

    export(FaultyStore(LocalDestination(tmp_path), before=slow), rows)
    assert overlapped.is_set()
    assert rows.most <= 4, "one is encoded, one on its way, two wait at most"
    assert read_as_a_reader(look(tmp_path)) == list(rows.bodies), "in the order in which they were encoded"


@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_part_that_fails_stops_those_behind_it(tmp_path, nth):
    rows = Hurrying([b"%d" % n for n in range(12)])
    store = FaultyStore(
        LocalDestination(tmp_path), [Trouble("before", operation="write", key=is_part, nth=nth, error=DestinationError)]
    )
    with pytest.raises(DestinationError, match="made to fail"):
        export(store, rows)
    assert rows.count <= nth + 3
    assert not [k for k in look(tmp_path) if "/data/" in k], "nothing is left, staged or written"
    assert not rows.alive
