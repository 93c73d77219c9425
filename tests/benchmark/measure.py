"""One process, and what it cost: wall, CPU of both sides, memory, and how long it held the source."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.servers import PostgresServer

_POLL_S = 0.02
_ACTIVITY = """
select coalesce(extract(epoch from max(clock_timestamp() - query_start) filter (where state = 'active')), 0)::float8,
       coalesce(extract(epoch from max(clock_timestamp() - xact_start)), 0)::float8
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one process cost.

    Attributes:
        exit_code: `None` where it was ended for taking too long.
        client_cpu_s: of the process and all that it started.
        server_cpu_s: of PostgreSQL, its background processes too.
        peak_mb: VmHWM of the process and those it started, added up while they live.
        statement_s: the longest, sampled: short statements may be missed, and one that waits for its reader counts.
        transaction_s: likewise.
        foreign: CPU that others used meanwhile, as a share of all cores.
    """

    exit_code: int | None
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    peak_mb: float
    statement_s: float
    transaction_s: float
    foreign: float


class Meter:
    """Measures processes that use one server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        with server.client() as connection, connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            self._postmaster = psutil.Process(cursor.fetchone()[0]).parent()

    def run(self, command: Sequence[str], *, directory: Path, environment: Mapping[str, str], timeout_s: float) -> Cost:
        """Run to the end, output to `output.log` in the directory."""
        held = [0.0, 0.0]
        done, watching = threading.Event(), threading.Event()
        watcher = threading.Thread(target=self._watch_source, args=(held, watching, done))
        watcher.start()
        watching.wait()
        before = self._busy_s()
        with (directory / "output.log").open("wb") as output:
            started = time.monotonic()
            process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            peak_kb, usage, status = _watch(process.pid, deadline=started + timeout_s)
            wall = time.monotonic() - started
        process.returncode = 0 if status is None else os.waitstatus_to_exitcode(status)
        all_s, server_s, own_s = (after - b for after, b in zip(self._busy_s(), before, strict=True))
        done.set()
        watcher.join()
        client_s = usage.ru_utime + usage.ru_stime
        return Cost(
            exit_code=None if status is None else process.returncode,
            wall_s=wall,
            client_cpu_s=client_s,
            server_cpu_s=server_s,
            peak_mb=peak_kb / 1024,
            statement_s=held[0],
            transaction_s=held[1],
            foreign=max(0.0, all_s - server_s - own_s - client_s) / (wall * psutil.cpu_count()),
        )

    def _busy_s(self) -> tuple[float, float, float]:
        """CPU seconds so far: of the machine, of the server, of this process."""
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0) + getattr(machine, "guest", 0)
        server = sum(self._postmaster.cpu_times()[:4])
        for child in self._postmaster.children():
            with suppress(psutil.NoSuchProcess):
                server += sum(child.cpu_times()[:2])
        return sum(machine) - idle, server, time.process_time()

    def _watch_source(self, held: list[float], watching: threading.Event, done: threading.Event) -> None:
        with self._server.client() as connection, connection.cursor() as cursor:
            while not done.wait(_POLL_S):
                cursor.execute(_ACTIVITY)
                held[:] = map(max, held, cursor.fetchone())
                watching.set()


def _watch(pid: int, *, deadline: float):
    """Wait for a process; its tree's peak memory, its resource usage, and its status unless it took too long."""
    peak, late = 0, False
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return peak, usage, None if late else status
        if not late and time.monotonic() > deadline:
            late = True
            os.killpg(pid, signal.SIGKILL)
        with suppress(psutil.Error):
            tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
            peak = max(peak, sum(map(_highest_kb, tree)))
        time.sleep(_POLL_S)


def _highest_kb(pid: int) -> int:
    # Not `ru_maxrss`, which keeps the parent's from before exec.
    with suppress(OSError):
        if found := re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()):
            return int(found[1])
    return 0
