"""Looking at objects, moving and removing them: these and no others."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from rivet_dagster.contract import ABSENT
from rivet_dagster.errors import DestinationError, PreconditionFailed
from tests.contract.kit import KEY, LARGE, SMALL, content, objects, staged, write


@pytest.fixture
def destination(harness):
    return objects(harness)


def test_where_there_is_no_object_there_is_none(harness, destination):
    """Nor where a name is only the beginning of another, or a directory."""
    if destination is None:
        return
    for key in ["orders/data/part-1", "orders/data", "orders", "orders/data/part-1.csv/below"]:
        assert destination.head(key) is None
        assert destination.read(key) is None
    write(destination, "orders/data/part-1.csv", b"rows")
    for key in ["orders/data/part-1", "orders/data", "orders", "orders/data/part-1.csv/below"]:
        assert destination.head(key) is None
        assert destination.read(key) is None
    assert list(destination.list("elsewhere/")) == []
    assert harness.raw() == {"orders/data/part-1.csv": b"rows"}


@pytest.mark.parametrize("size_bytes", [0, SMALL, LARGE])
def test_an_object_is_described_alike_by_all_who_speak_of_it(harness, destination, size_bytes):
    if destination is None:
        return
    body = content(size_bytes)
    outcome = write(destination, KEY, body)
    head = destination.head(KEY)
    assert head.key == KEY
    assert head.size_bytes == outcome.size_bytes == size_bytes
    assert head.version == outcome.version
    assert head.modified_at.utcoffset() is not None
    assert destination.read(KEY).meta.version == head.version
    assert destination.read(KEY).meta.size_bytes == size_bytes
    (listed,) = destination.list("orders/data/")
    assert (listed.key, listed.size_bytes, listed.version) == (KEY, size_bytes, head.version)
    assert abs(listed.modified_at - head.modified_at) <= timedelta(seconds=1)
    assert harness.again().head(KEY) == head


def test_another_content_is_another_version(destination):
    if destination is None:
        return
    versions = [write(destination, KEY, content(SMALL, seed)).version for seed in ("a", "b", "c")]
    assert len(set(versions)) == 3
    assert destination.head(KEY).version == versions[-1]


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, None), (0, 0), (0, 1), (5, 3), (SMALL - 1, None), (SMALL - 1, 9), (0, SMALL), (7, 10**9)],
)
def test_a_range_is_read(harness, destination, start, length):
    if destination is None:
        return
    body = content(SMALL)
    harness.put(KEY, body)
    found = destination.read(KEY, start=start, length=length)
    assert found.body == (body[start:] if length is None else body[start : start + length])
    assert found.meta.size_bytes == SMALL


@pytest.mark.parametrize(("start", "length"), [(SMALL, None), (SMALL, 1), (SMALL + 5, 10)])
def test_a_range_behind_the_end_is_empty(harness, destination, start, length):
    if destination is None:
        return
    harness.put(KEY, content(SMALL))
    assert destination.read(KEY, start=start, length=length).body == b""


def test_an_empty_object_is_read(harness, destination):
    if destination is None:
        return
    harness.put(KEY, b"")
    assert destination.read(KEY).body == b""
    assert destination.read(KEY, start=0, length=10).body == b""


def test_a_large_object_is_read_whole(harness, destination):
    if destination is None:
        return
    body = content(LARGE)
    harness.put(KEY, body)
    assert destination.read(KEY).body == body
    assert destination.read(KEY, start=LARGE - 10).body == body[-10:]


def test_a_listing_is_of_one_directory(harness, destination):
    """More than a page, not what is deeper, and not the neighbour whose name begins alike."""
    if destination is None:
        return
    inside = {f"event/part-{n}" for n in range(7)}
    beside = {"event.json", "events/part-0", "event-2/part-0", "event/deeper/part-0", "event/deeper/yet/part-0", "f"}
    for key in inside | beside:
        harness.put(key, key.encode())
    assert {found.key for found in destination.list("event/")} == inside
    assert {found.key for found in destination.list("")} == {"event.json", "f"}
    assert {found.key for found in destination.list("event/deeper/")} == {"event/deeper/part-0"}
    assert {found.key: found.size_bytes for found in destination.list("event/")} == {k: len(k) for k in inside}


def test_directories_are_those_of_one_directory(harness, destination):
    if destination is None:
        return
    inside = {f"event/run-{n}/data/part-{n}" for n in range(7)}
    for key in inside | {"event/part-0", "events/run/part-0", "event-2/part-0", "f"}:
        harness.put(key, b"rows")
    assert set(destination.directories("event/")) == {f"run-{n}" for n in range(7)}
    assert set(destination.directories("")) == {"event", "events", "event-2"}
    assert set(destination.directories("event/run-3/")) == {"data"}
    assert list(destination.directories("event/run-3/data/")) == list(destination.directories("never/")) == []


def test_what_is_only_staged_is_not_listed(destination):
    if destination is None:
        return
    write(destination, "orders/data/part-1", b"rows")
    with staged(destination, "orders/data/part-2", content(LARGE)):
        assert [found.key for found in destination.list("orders/data/")] == ["orders/data/part-1"]
        assert destination.head("orders/data/part-2") is None


def test_a_move_takes_the_whole_object(harness, destination):
    if destination is None:
        return
    body = content(LARGE)
    write(destination, KEY, body)
    before = destination.head(KEY).modified_at
    moment = before
    while moment == before:
        # Some stores tell seconds only.
        time.sleep(0.05)
        write(destination, f"{KEY}.neighbour", b"stays")
        moment = destination.head(f"{KEY}.neighbour").modified_at
    destination.move(KEY, "orders/_quarantine/run/data/part-00001.bin")
    assert harness.raw() == {"orders/_quarantine/run/data/part-00001.bin": body, f"{KEY}.neighbour": b"stays"}
    assert destination.head("orders/_quarantine/run/data/part-00001.bin").modified_at >= moment > before
    assert harness.open_uploads() == []


def test_a_move_never_replaces(harness, destination):
    if destination is None:
        return
    write(destination, "a/source", b"source")
    write(destination, "b/target", b"target")
    with pytest.raises(PreconditionFailed):
        destination.move("a/source", "b/target")
    assert harness.raw() == {"a/source": b"source", "b/target": b"target"}


def test_a_move_of_nothing_is_an_error(harness, destination):
    if destination is None:
        return
    with pytest.raises(DestinationError, match="found none") as caught:
        destination.move("a/source", "b/target")
    assert not isinstance(caught.value, PreconditionFailed)
    assert harness.raw() == {}


def test_only_the_named_object_is_removed(harness, destination):
    """Not a neighbour whose name begins alike, not what is below; a second time is no error."""
    if destination is None:
        return
    others = ["events/part-1", "event/part-10", "event/part-1.csv", "event/deeper/part-1", "event.json"]
    for key in ["event/part-1", *others]:
        write(destination, key, key.encode())
    destination.remove("event/part-1")
    destination.remove("event/part-1")
    destination.remove("event/deeper")
    destination.remove("never/was/there")
    assert harness.raw() == {key: key.encode() for key in others}


def test_a_removed_key_is_free_again(harness, destination):
    if destination is None:
        return
    first = write(destination, KEY, b"one", ABSENT)
    destination.remove(KEY)
    second = write(destination, KEY, b"two", ABSENT)
    assert first.version != second.version
    assert harness.raw() == {KEY: b"two"}
