"""What a killed writer leaves is invisible to readers, named, and can be discarded without touching a neighbour's."""

from __future__ import annotations

import pytest

from rivet_dagster.contract import ABSENT, ObjectDestination
from tests.contract.children import halt_while_staging, halt_while_writing, halted
from tests.contract.kit import LARGE, content, md5, objects, staged, write

MINE = "orders/data/part-run-1-00001.parquet"
ALIKE = "orders/data/part-run-10-00001.parquet"
PREFIX = "orders/data/part-run-1-"


def visible(harness):
    """What a reader that globs sees: hidden names are left out."""
    return {name: body for name, body in harness.raw().items() if not name.rpartition("/")[2].startswith(".")}


@pytest.mark.parametrize("halt", [halt_while_writing, halt_while_staging])
def test_a_killed_writer_leaves_nothing_that_readers_see(harness, halt):
    body = content(LARGE, "killed")
    destination = harness.fresh()
    with halted(halt, harness.recipe(), MINE, body):
        pass
    if not isinstance(destination, ObjectDestination):
        out = harness.shown(MINE)
        assert 0 < len(out) < LARGE
        assert body.startswith(out)
        return
    assert visible(harness) == {}
    assert destination.head(MINE) is None
    assert list(destination.list("orders/data/")) == []
    destination.discard_unfinished(PREFIX)
    assert list(destination.unfinished(PREFIX)) == []
    assert harness.raw() == {}
    assert harness.open_uploads() == []


@pytest.mark.parametrize("halt", [halt_while_writing, halt_while_staging])
def test_a_killed_writer_is_followed_by_another(harness, halt):
    """The next attempt writes the same key, and what was there before stays until then."""
    destination = objects(harness)
    if destination is None:
        return
    write(destination, MINE, b"old")
    with halted(halt, harness.recipe(), MINE, content(LARGE, "killed")):
        assert visible(harness) == {MINE: b"old"}
        assert destination.read(MINE).body == b"old"
    body = content(LARGE, "next")
    with staged(destination, MINE, body) as part:
        destination.write(MINE, part, md5=md5(body), expect=destination.head(MINE).version)
    assert visible(harness) == {MINE: body}


@pytest.mark.parametrize("halt", [halt_while_writing, halt_while_staging])
def test_what_is_unfinished_is_named_and_a_neighbours_is_not_discarded(harness, halt):
    destination = objects(harness)
    if destination is None:
        return
    write(destination, "orders/data/part-run-1-00000.parquet", b"finished")
    with halted(halt, harness.recipe(), ALIKE, content(LARGE)):
        theirs = list(destination.unfinished("orders/data/part-run-10-"))
        uploads = harness.open_uploads()
        with halted(halt, harness.recipe(), MINE, content(LARGE)):
            mine = list(destination.unfinished(PREFIX))
        assert list(destination.unfinished(PREFIX)) == mine
        # A store names them or it drops them by itself; one that names the one names the other.
        assert len(mine) == len(theirs) <= 1
        assert not set(mine) & set(theirs)
        assert set(destination.unfinished("orders/")) == {*mine, *theirs}
        assert set(destination.unfinished("")) == {*mine, *theirs}
        assert list(destination.unfinished("customers/")) == []
        destination.discard_unfinished("customers/")
        destination.discard_unfinished(PREFIX)
        destination.discard_unfinished(PREFIX)
        assert list(destination.unfinished("")) == theirs
        assert harness.open_uploads() == uploads
    destination.discard_unfinished("")
    assert list(destination.unfinished("")) == []
    assert harness.raw() == {"orders/data/part-run-1-00000.parquet": b"finished"}
    assert harness.open_uploads() == []


def test_what_is_finished_is_not_unfinished(harness):
    destination = objects(harness)
    if destination is None:
        return
    body = content(LARGE)
    with staged(destination, MINE, body) as part:
        destination.write(MINE, part, md5=md5(body), expect=ABSENT)
        assert list(destination.unfinished("")) == []
    destination.discard_unfinished("")
    assert harness.raw() == {MINE: body}
