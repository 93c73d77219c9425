"""A write happens only if the key holds what was expected; among many at once no update is lost."""

from __future__ import annotations

import threading

import pytest

from rivet_dagster.contract import ABSENT, ANY, ObjectDestination
from rivet_dagster.errors import PreconditionFailed
from rivet_dagster.testing import ScriptedBody
from tests.contract.children import at_once, count_up, create, halt_while_holding, halted
from tests.contract.kit import KEY, LARGE, SMALL, content, md5, objects, staged, write


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def body(request):
    return content(request.param)


def test_a_key_is_created_once(harness, body):
    """The second one meets the first and changes nothing; on a stream nothing is ever there to meet."""
    destination = harness.fresh()
    write(destination, KEY, body, ABSENT)
    other = content(len(body), "other")
    if not isinstance(destination, ObjectDestination):
        write(destination, KEY, other, ABSENT)
        assert harness.shown(KEY) == body + other
        return
    with pytest.raises(PreconditionFailed):
        write(destination, KEY, other, ABSENT)
    with pytest.raises(PreconditionFailed):
        destination.write(KEY, ScriptedBody(other), md5=md5(other), expect=ABSENT)
    with staged(destination, KEY, other) as part, pytest.raises(PreconditionFailed):
        destination.write(KEY, part, md5=md5(other), expect=ABSENT)
    assert harness.raw() == {KEY: body}
    assert harness.open_uploads() == []


def test_a_part_that_meets_another_may_be_written_once_that_is_gone(harness, body):
    """A refused write leaves the staged part as it was."""
    destination = objects(harness)
    if destination is None:
        return
    write(destination, KEY, b"in the way")
    with staged(destination, KEY, body) as part:
        with pytest.raises(PreconditionFailed):
            destination.write(KEY, part, md5=md5(body), expect=ABSENT)
        destination.remove(KEY)
        destination.write(KEY, part, md5=md5(body), expect=ABSENT)
    assert harness.raw() == {KEY: body}


def test_an_expected_version_is_replaced(harness, body):
    """Whoever names it: the write's outcome, head, read or a listing."""
    destination = objects(harness)
    if destination is None:
        return
    version = write(destination, KEY, b"0", ABSENT).version
    version = write(destination, KEY, b"1", version).version
    write(destination, KEY, b"2", destination.head(KEY).version)
    write(destination, KEY, b"3", destination.read(KEY).meta.version)
    (listed,) = destination.list("orders/data/")
    write(destination, KEY, body, listed.version)
    with staged(destination, KEY, b"4") as part:
        destination.write(KEY, part, md5=md5(b"4"), expect=destination.head(KEY).version)
    assert harness.raw() == {KEY: b"4"}
    assert version != destination.head(KEY).version


def test_a_stale_version_changes_nothing(harness, body):
    destination = objects(harness)
    if destination is None:
        return
    stale = write(destination, KEY, b"first").version
    write(destination, KEY, body)
    other = content(len(body), "other")
    with pytest.raises(PreconditionFailed):
        write(destination, KEY, other, stale)
    if len(body) < LARGE or harness.compares_uploads_in_parts:
        with pytest.raises(PreconditionFailed):
            destination.write(KEY, ScriptedBody(other), md5=md5(other), expect=stale)
        with staged(destination, KEY, other) as part, pytest.raises(PreconditionFailed):
            destination.write(KEY, part, md5=md5(other), expect=stale)
    assert harness.raw() == {KEY: body}
    assert harness.open_uploads() == []


def test_an_expected_version_that_is_gone_changes_nothing(harness, body):
    destination = objects(harness)
    if destination is None:
        return
    gone = write(destination, KEY, body).version
    destination.remove(KEY)
    with pytest.raises(PreconditionFailed):
        write(destination, KEY, content(len(body), "other"), gone)
    assert harness.raw() == {}


def test_a_foreign_write_is_noticed(harness):
    destination = objects(harness)
    if destination is None:
        return
    ours = write(destination, KEY, b"ours").version
    harness.put(KEY, b"theirs")
    with pytest.raises(PreconditionFailed):
        write(destination, KEY, b"again", ours)
    assert harness.raw() == {KEY: b"theirs"}


@pytest.mark.parametrize("as_bytes", [True, False])
def test_no_update_is_lost_among_processes(harness, as_bytes):
    """Three processes raise one counter by compare-and-swap."""
    destination = objects(harness)
    if destination is None:
        return
    write(destination, "orders/manifest.json", b"0")
    assert at_once(count_up, harness.recipe(), 3, "orders/manifest.json", 8, as_bytes) == [8, 8, 8]
    assert harness.raw() == {"orders/manifest.json": b"24"}


def test_no_update_is_lost_among_threads(harness):
    """Threads that share one destination."""
    destination = objects(harness)
    if destination is None:
        return
    write(destination, KEY, b"0")

    def count() -> None:
        done = 0
        while done < 8:
            found = destination.read(KEY)
            try:
                write(destination, KEY, b"%d" % (int(found.body) + 1), found.meta.version)
                done += 1
            except PreconditionFailed:
                continue

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert harness.raw() == {KEY: b"24"}


@pytest.mark.parametrize("size_bytes", [SMALL, LARGE])
def test_of_several_creators_one_wins(harness, size_bytes):
    destination = objects(harness)
    if destination is None:
        return
    (winner,) = [pid for pid in at_once(create, harness.recipe(), 3, KEY, size_bytes) if pid is not None]
    assert harness.raw() == {KEY: content(size_bytes, str(winner))}
    assert harness.open_uploads() == []


def test_a_held_directory_takes_the_holders_writes(harness):
    destination = objects(harness)
    if destination is None:
        return
    with destination.hold("orders/"), destination.hold("orders/"):
        version = write(destination, "orders/manifest.json", b"head", ABSENT).version
        write(destination, "orders/_SUCCESS", b"marker", ABSENT)
        write(destination, "orders/manifest.json", b"head 2", version)
    write(destination, "orders/_SUCCESS", b"marker 2", ANY)
    assert harness.raw() == {"orders/manifest.json": b"head 2", "orders/_SUCCESS": b"marker 2"}


def test_a_killed_holder_holds_nothing(harness):
    destination = objects(harness)
    if destination is None:
        return
    with halted(halt_while_holding, harness.recipe(), "orders/"):
        pass
    with destination.hold("orders/"):
        write(destination, "orders/manifest.json", b"head", ABSENT)
    assert harness.raw() == {"orders/manifest.json": b"head"}
