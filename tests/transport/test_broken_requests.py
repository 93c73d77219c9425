"""Every request of a write, broken in every way: no bad byte is ever taken for good, and nothing is left open."""

from __future__ import annotations

import pytest

from rivet_dagster.contract import ANY
from rivet_dagster.errors import IntegrityError, NoAnswer, PreconditionFailed
from tests.servers.faultproxy import answer, cut_request, drop_reply, drop_request, flip_byte, park_reply
from tests.transport.backends import KEY
from tests.transport.conftest import BACKENDS

STEPS = [pytest.param(name, step, id=f"{name}-{step}") for name, (kind, _) in BACKENDS.items() for step in kind.steps]
# Two stores that speak one protocol break alike where nothing of the request gets through.
ONCE = [p for p in STEPS if p.values[0] != "localstack"]
# What the store was sent may have taken effect.
LOST = {
    "reply-reset": drop_reply(),
    "reply-closed": drop_reply(reset=False),
    "500-afterwards": answer(500, after_forwarding=True),
    "503-afterwards": answer(503, after_forwarding=True),
}
# It has not.
REFUSED = {
    "request-reset": drop_request(),
    "request-closed": drop_request(reset=False),
    "429": answer(429),
    "500": answer(500),
    "503": answer(503, b"<Error><Code>SlowDown</Code></Error>", headers={"content-type": "application/xml"}),
}


@pytest.fixture
def broken(backends, name, step):
    """The store, the request that is broken, and the body that is being written."""
    found = backends(name)
    return found, step, found.content(step.way)


DATA = [p for p in STEPS if p.values[1].offset is not None]
WRITES = [p for p in STEPS if not p.values[1].looks]
LOOKS = [p for p in ONCE if p.values[1].looks]


@pytest.mark.parametrize(("name", "step"), DATA)
def test_a_bit_that_flips_on_the_way_is_caught(broken):
    store, step, content = broken
    rule = store.break_(step, flip_byte(step.offset))
    with pytest.raises(IntegrityError, match=KEY) as caught:
        store.write(content, way=step.way)
    assert rule.hits == 1
    assert store.open_uploads() == []
    if store.verifies or not step.finishes:
        assert store.shown() == {}
    else:
        # Found out by this side, when it was there already: the caller's to remove, and never taken for good.
        assert store.shown()[KEY] != content
        assert "remove it" in str(caught.value)
    assert store.write(content, way=step.way, expect=ANY).size_bytes == len(content)
    assert store.shown() == {KEY: content}


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("after", [0, 100_000])
@pytest.mark.parametrize(("name", "step"), [p for p in DATA if p in ONCE])
def test_a_body_that_is_cut_leaves_nothing(broken, after, reset):
    store, step, content = broken
    rule = store.break_(step, cut_request(after, reset=reset))
    with pytest.raises(NoAnswer, match=KEY):
        store.write(content, way=step.way)
    assert rule.hits == 1
    assert store.shown() == {}
    assert store.open_uploads() == []
    store.write(content, way=step.way)
    assert store.shown() == {KEY: content}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize(("name", "step"), WRITES)
def test_a_lost_answer_is_unknown_and_a_repeat_settles_it(broken, fault):
    store, step, content = broken
    rule = store.break_(step, LOST[fault])
    with pytest.raises(NoAnswer, match=KEY):
        store.write(content, way=step.way)
    assert rule.hits == 1
    assert rule.answers[0].status < 400
    assert store.shown() == ({KEY: content} if step.finishes else {})
    assert store.open_uploads() == []
    if step.finishes:
        with pytest.raises(PreconditionFailed, match=KEY):
            store.write(content, way=step.way)
    else:
        store.write(content, way=step.way)
    assert store.shown() == {KEY: content}
    assert store.open_uploads() == []


@pytest.mark.parametrize("fault", REFUSED)
@pytest.mark.parametrize(("name", "step"), [p for p in WRITES if p in ONCE])
def test_a_request_that_never_got_through_leaves_nothing(broken, fault):
    store, step, content = broken
    rule = store.break_(step, REFUSED[fault])
    with pytest.raises(NoAnswer, match=KEY):
        store.write(content, way=step.way)
    assert rule.hits == 1
    assert store.shown() == {}
    assert store.open_uploads() == []
    store.write(content, way=step.way)
    assert store.shown() == {KEY: content}


@pytest.mark.parametrize(("name", "step"), [p for p in WRITES if p in ONCE])
def test_an_answer_that_comes_too_late_is_unknown(broken):
    store, step, content = broken
    rule = store.break_(step, park_reply())
    with pytest.raises(NoAnswer, match=KEY):
        store.write(content, way=step.way, destination=store.impatient())
    rule.release()
    rule.wait_until_done()
    assert store.shown() == ({KEY: content} if step.finishes else {})
    assert store.open_uploads() == []


@pytest.mark.parametrize("fault", LOST | REFUSED)
@pytest.mark.parametrize(("name", "step"), LOOKS)
def test_a_write_that_cannot_be_looked_at_afterwards_is_unknown_and_there(broken, fault):
    store, step, content = broken
    rule = store.break_(step, (LOST | REFUSED)[fault])
    with pytest.raises(NoAnswer, match=KEY):
        store.write(content, way=step.way)
    assert rule.hits == 1
    assert store.shown() == {KEY: content}
    assert store.open_uploads() == []


@pytest.mark.parametrize(("name", "step"), WRITES)
def test_a_store_that_stays_away_leaves_nothing_that_is_seen(broken):
    """Whatever is sent from some request on, clean-up too, is refused."""
    store, step, content = broken
    store.break_(step, answer(503), times=None)
    store.proxy.on("DELETE|GET|HEAD", "", answer(503), times=None)
    with pytest.raises(NoAnswer, match=KEY):
        store.write(content, way=step.way)
    assert store.shown() == {}
    store.proxy.clear()
    store.destination().discard_unfinished("data/")
    assert store.open_uploads() == []
