"""A part is uploaded while the next is encoded, and never more than a few are staged."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

import rivet_dagster as rd
from rivet_dagster.contract import EncodedPart
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import DestinationError
from tests.faults.kit import FaultyStore, Rows, Trouble, export, is_part, manifest_of, read_as_a_reader
from tests.faults.lakes import S3_ALONE
from tests.servers.faultproxy import FaultProxy, park


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


class AnyOrder(Rows):
    """Parts that are finished in another order than theirs."""

    places: tuple[tuple[int, int], ...] = ()

    def parts(self, stage):
        for body, place in zip(self.bodies, self.places, strict=True):
            staged = stage()
            staged.write(body)
            staged.close()
            yield EncodedPart(staged=staged, rows=10, order=place, key_range={"place": place[0]})


def test_as_many_parts_are_on_their_way_as_are_encoded_at_a_time(tmp_path):
    together = threading.Barrier(3, timeout=60)

    def wait(operation, key):
        if operation == "write" and is_part(key):
            together.wait()

    rows = Hurrying([b"%d" % n for n in range(9)], parallel=3)
    export(FaultyStore(LocalDestination(tmp_path), before=wait), rows)
    assert read_as_a_reader(look(tmp_path)) == list(rows.bodies)
    assert rows.most <= 1 + 3 + 1 + 1, "one is encoded, three on their way, two wait at most"


def test_the_manifest_has_the_order_of_the_parts_whichever_came_first(tmp_path):
    places = ((2, 0), (0, 1), (10, 0), (0, 0), (1, 0), (0, 2))
    rows = AnyOrder([b"%d-%d" % place for place in places], parallel=2)
    rows.places = places
    receipt = export(LocalDestination(tmp_path), rows)
    assert read_as_a_reader(look(tmp_path)) == [b"0-0", b"0-1", b"0-2", b"1-0", b"2-0", b"10-0"]
    manifest = manifest_of(receipt)
    assert [p.part_id for p in manifest.parts] == [1, 2, 3, 4, 5, 6]
    assert [p.key_range["place"] for p in manifest.parts] == [0, 0, 0, 1, 2, 10]
    assert receipt.parts == manifest.parts


def test_the_data_version_is_that_of_the_rows_not_of_who_was_faster(tmp_path):
    found = set()
    for n, places in enumerate([((0, 0), (1, 0), (2, 0)), ((2, 0), (0, 0), (1, 0)), ((1, 0), (2, 0), (0, 0))]):
        rows = AnyOrder([b"%d" % place[0] for place in places], parallel=3)
        rows.places = places
        found.add(manifest_of(export(LocalDestination(tmp_path / str(n)), rows)).data_version)
    assert len(found) == 1


@pytest.mark.parametrize("nth", [1, 4])
def test_of_several_on_their_way_one_that_fails_stops_all(tmp_path, nth):
    rows = Hurrying([b"%d" % n for n in range(30)], parallel=3)
    trouble = Trouble("before", operation="write", key=is_part, nth=nth, error=DestinationError)
    with pytest.raises(DestinationError, match="made to fail"):
        export(FaultyStore(LocalDestination(tmp_path), [trouble]), rows)
    assert rows.count <= nth + 8
    assert rows.closed
    assert not [k for k in look(tmp_path) if "/data/" in k], "nothing is left, staged or written"
    assert not rows.alive


def test_the_source_is_free_before_the_last_part_has_arrived(tmp_path):
    rows = Hurrying([b"%d" % n for n in range(3)])
    free: list[int] = []

    def wait(operation, key):
        if operation == "write" and key.endswith("-00003.csv"):
            for _ in range(600):
                if rows.closed:
                    free.append(rows.closed)
                    return
                threading.Event().wait(0.05)

    export(FaultyStore(LocalDestination(tmp_path), before=wait), rows)
    assert free


@pytest.mark.parametrize("cloud", S3_ALONE, indirect=True)
def test_a_store_that_is_slow_holds_up_nobody_who_encodes(cloud):
    """The first part has not arrived before the rows of the third are asked for: by their order, not by a clock."""
    with FaultProxy(cloud.harness.server.url) as proxy:
        slow = proxy.on("PUT", r"/data/part-.*-00001\.", park())
        told = []

        def rows():
            for n in range(5):
                if n == 2:
                    slow.wait_for_hit()
                    told.extend(name for name in cloud.raw if "-00001." in name)
                    slow.release()
                yield pa.table({"id": [n] * 100})

        server = cloud.harness.server.at(proxy.url)
        result = cloud.export(rd.Batches(rows()), server=server, format="csv", max_file_size="300B")
    assert result.success
    assert told == [], "the first part is not there yet"
    assert [row["id"] for row in cloud.rows()] == [n for n in range(5) for _ in range(100)]
