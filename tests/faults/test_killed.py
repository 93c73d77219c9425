"""A process that is killed or terminated at a step of the commit, for real, and the run after it."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.kit import Rows, export, litter, read_as_a_reader
from tests.harnesses import HARNESS_PARAMS

OLD = [b"old-1", b"old-2"]
NEW = [b"new-1", b"new-2"]
LAST = [b"last-1"]
ROOT = Path(__file__).parents[2]

STEPS = {
    "side record created": ("write", r"/manifest-.*\.json$", 1),
    "conditional writes proven": ("write", r"/manifest-.*\.json$", 3),
    "part written": ("write", r"/data/part-.*-00002\.csv$", 1),
    "side record final": ("write", r"/manifest-.*\.json$", 4),
    "head swapped": ("write", r"/manifest\.json$", 1),
    "marker swapped": ("write", r"/_SUCCESS$", 1),
    "superseded part removed": ("remove", r"/data/part-", 1),
    "superseded record removed": ("remove", r"/manifest-.*\.json$", 1),
}


@pytest.fixture(params=[p for p in HARNESS_PARAMS if p.id in ("local", "s3-1", "azure-1")])
def place(request, servers, tmp_path):
    """The stores that a killed process can leave something at."""
    found = request.param(servers, tmp_path)
    yield found
    found.close()


def run_victim(place, step, *, when, signal_name):
    operation, key, nth = STEPS[step]
    told = {
        "recipe": place.recipe(),
        "operation": operation,
        "key": key,
        "nth": nth,
        "when": when,
        "signal": signal_name,
        "bodies": NEW,
        "run_id": "run-1",
    }
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.victim"],
        cwd=ROOT,
        input=pickle.dumps(told),
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_minus_nine(place, step, when):
    store = place.fresh()
    export(store, Rows(OLD), run_id="run-0")
    ended = run_victim(place, step, when=when, signal_name="SIGKILL")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    read = read_as_a_reader(place.raw())
    committed = (step, when) == ("marker swapped", "after") or step.startswith("superseded")
    assert read == (NEW if committed else OLD)
    export(store, Rows(LAST), run_id="run-2", over=["run-1"])
    assert read_as_a_reader(place.raw()) == LAST
    assert litter(place.raw()) == []
    assert not place.open_uploads()


@pytest.mark.parametrize("step", ["part written", "side record final", "head swapped", "marker swapped"])
def test_terminate(place, step):
    store = place.fresh()
    export(store, Rows(OLD), run_id="run-0")
    ended = run_victim(place, step, when="after", signal_name="SIGTERM")
    assert ended.returncode == 143, ended.stderr
    raw = place.raw()
    assert read_as_a_reader(raw) == (NEW if step == "marker swapped" else OLD)
    if step == "part written":
        assert not [k for k, v in raw.items() if v in NEW], "an abort removes its parts"
    export(store, Rows(LAST), run_id="run-2", over=["run-1"])
    assert read_as_a_reader(place.raw()) == LAST
    assert litter(place.raw()) == []
