"""One run of the seam in a process of its own, ended by a signal at a chosen request: `python -m tests.faults.victim`.

Reads a pickled dict from standard input: `recipe` (makes the destination), `operation`, `key` (a pattern), `nth`,
`when` ("before" or "after"), `signal` (its name), `bodies`, `run_id`. A signal that is handled ends it like Dagster's
termination does: by an exception in the main thread. With `table` (arguments of `export_table`) instead of `bodies`, it
exports that in ranges, and is ended when its record lists `nth` parts.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys

from rivet_dagster.control import SideRecord
from tests.faults.kit import FaultyStore, Rows, export
from tests.faults.ranges import Dying, export_table


def terminated(_number: int, _frame: object) -> None:
    raise SystemExit(143)


def main() -> None:
    told = pickle.load(sys.stdin.buffer)
    signal.signal(signal.SIGTERM, terminated)
    if "table" in told:
        (SideRecord.__init__.__kwdefaults__ or {})["at_most_every"] = 0.0
        kill = signal.Signals[told["signal"]]
        dying = Dying(told["recipe"](), parts=told["nth"], then=lambda: os.kill(os.getpid(), kill))
        export_table(dying, run_id=told["run_id"], **told["table"])
        return
    seen = 0

    def strike(operation: str, key: str) -> None:
        nonlocal seen
        if operation == told["operation"] and re.search(told["key"], key):
            seen += 1
            if seen == told["nth"]:
                os.kill(os.getpid(), signal.Signals[told["signal"]])

    store = FaultyStore(told["recipe"](), **{told["when"]: strike})
    export(store, Rows(told["bodies"]), run_id=told["run_id"])


if __name__ == "__main__":
    main()
