"""A request that swaps a control object and reaches the store after its run gave up: real clients, real delays."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager

import pytest

from rivet_dagster.errors import CommitUnknown
from tests.faults.kit import Rows, export, is_part, litter, manifest_of, read_as_a_reader
from tests.faults.lakes import object_of
from tests.harnesses import HARNESS_PARAMS
from tests.servers.faultproxy import FaultProxy, hold

OLD, NEW, THIRD = [b"old-1", b"old-2"], [b"new-1", b"new-2"], [b"third"]

FINAL, FAILED = b'"status": "success"', b'"status": "failed"'
SIDE = r"/manifest-run-1-[^/]*\.json$"

# The key, what those hold that are held back, and the status of the run's record when it has given up.
SWAPS = {
    "side record": (SIDE, [FINAL], "failed"),
    "side record, and its failure": (SIDE, [FINAL, FAILED], "running"),
    "head": (r"/manifest\.json$", [b""], "success"),
    "marker": (r"/_SUCCESS$", [b""], "success"),
}


@pytest.fixture(params=[p for p in HARNESS_PARAMS if p.id in ("s3-1", "gcs-1", "azure-1")])
def place(request, servers, tmp_path):
    """The stores that are reached through a network."""
    found = request.param(servers, tmp_path)
    yield found
    found.close()


def through(proxy, place):
    """A destination whose requests go through the proxy."""
    direct, place.server = place.server, place.server.at(proxy.url)
    try:
        return place.recipe()()
    finally:
        place.server = direct


@pytest.mark.parametrize("swap", SWAPS)
def test_a_swap_that_lands_after_its_run_gave_up_is_settled_by_the_next(place, swap):
    with given_up(place, swap) as (store, rules):
        land(rules)
        answers = [answer.status // 100 for rule in rules for answer in rule.answers]
        # A run that could mark its record as failed has made sure that the other request comes to nothing.
        done = 0 if swap == "side record" else 1
        assert sorted(answers) == [2] * done + [4] * (len(answers) - done), "the repeats find it done"
        assert read_as_a_reader(place.raw()) == (NEW if swap == "marker" else OLD)
        receipt = export(store, Rows(THIRD), run_id="run-2", over=["run-1"])
        built_on = "run-1" if swap in ("head", "marker") else "run-0"
        assert manifest_of(receipt).ancestors[0].dagster_run_id == built_on
        assert read_as_a_reader(place.raw()) == THIRD
        assert litter(place.raw()) == []


@pytest.mark.parametrize("swap", SWAPS)
def test_a_swap_that_lands_after_the_next_run_does_nothing(place, swap):
    with given_up(place, swap) as (store, rules):
        receipt = export(store, Rows(THIRD), run_id="run-2", over=["run-1"])
        # A head that is whole is finished, whoever wrote it.
        built_on = "run-1" if swap == "marker" else "run-0"
        assert manifest_of(receipt).ancestors[0].dagster_run_id == built_on
        land(rules)
        assert {answer.status // 100 for rule in rules for answer in rule.answers} == {4}
        assert read_as_a_reader(place.raw()) == THIRD
        assert litter(place.raw()) == []


@contextmanager
def given_up(place, swap):
    """A run whose swap got no answer, however often it was sent, and is still on its way."""
    key, held, status = SWAPS[swap]
    store = place.fresh()
    export(store, Rows(OLD), run_id="run-0")

    def about(holding):
        return lambda request: re.search(key, object_of(request)) is not None and holding in request.body

    with FaultProxy(place.server.url) as proxy:
        rules = [proxy.on("PUT|POST", ".*", hold(), times=None, when=about(holding)) for holding in held]
        with pytest.raises(CommitUnknown):
            export(through(proxy, place), Rows(NEW), run_id="run-1")
        assert all(rule.hits > 1 for rule in rules), "it was sent again"
        raw = place.raw()
        there = sorted(body for name, body in raw.items() if is_part(name))
        assert there == (OLD if status == "failed" else NEW + OLD), "what could be committed yet is there"
        assert read_as_a_reader(raw) == OLD
        [record] = [json.loads(body) for name, body in raw.items() if "/manifest-run-1-" in name]
        assert record["status"] == status
        yield store, rules


def land(rules):
    """One after the other."""
    for rule in rules:
        rule.release()
        rule.wait_until_done(rule.hits)
