"""One run over a table in ranges, in a process of its own that a signal ends: `python -m tests.faults.victim`.

Reads a pickled dict from standard input: `recipe` (makes the destination), `table` (arguments of `export_table`),
`run_id`, `nth` (the process is ended when its record lists so many parts) and `signal` (its name).
"""

from __future__ import annotations

import os
import pickle
import signal
import sys

from rivet_dagster.control import SideRecord
from tests.faults.ranges import Dying, export_table


def main() -> None:
    told = pickle.load(sys.stdin.buffer)
    (SideRecord.__init__.__kwdefaults__ or {})["at_most_every"] = 0.0
    kill = signal.Signals[told["signal"]]
    dying = Dying(told["recipe"](), parts=told["nth"], then=lambda: os.kill(os.getpid(), kill))
    export_table(dying, run_id=told["run_id"], **told["table"])


if __name__ == "__main__":
    main()
