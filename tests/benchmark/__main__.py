"""`python -m tests.benchmark`: builds the tables, runs everybody in turn, compares what was written, prints tables."""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from tests.benchmark import ours, peers
from tests.benchmark.fidelity import Truth, differences, rows_in, truth_of
from tests.benchmark.fixtures import FIXTURES, Fixture
from tests.benchmark.measure import Meter
from tests.benchmark.report import tables
from tests.servers import PostgresServer, postgres
from tests.servers.process import scratch

_ROOT = Path(__file__).parents[2]
# A table that is made once and only read: nothing of the server's own disturbs the runs.
_SETTINGS = ("fsync = off", "autovacuum = off", "synchronous_commit = off", "max_wal_size = '8GB'")
_PEERS = ("rivet-cli", "dlt", "connectorx", "pandas", "pyarrow", "duckdb")


def main() -> None:
    asked = _arguments()
    if asked.show:
        results = json.loads(asked.show.read_text())
    else:
        results = _measured(asked)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results, markdown=asked.markdown))  # noqa: T201 (what it is for)


def _arguments() -> argparse.Namespace:
    said = argparse.ArgumentParser(prog="python -m tests.benchmark", description=__doc__)
    said.add_argument(
        "--rows", nargs="+", default=[*FIXTURES], metavar="FIXTURE[=ROWS]", help=f"which of {', '.join(FIXTURES)}"
    )
    said.add_argument("--pairs", type=int, default=5, help="rounds; each runs everybody once (default 5)")
    said.add_argument("--only", default="", metavar="REGEX", help="run those whose name it matches")
    said.add_argument("--range-rows", type=int, help="rows of a range, of ours and of rivet (default: by fixture)")
    said.add_argument(
        "--peers-python",
        type=Path,
        default=Path(sys.executable),
        help="of the environment with requirements.txt; default: this one, with the peers it happens to have",
    )
    said.add_argument("--timeout", type=float, default=900, help="seconds after which a run has failed (default 900)")
    said.add_argument("--json", type=Path, help="keep every run in this file")
    said.add_argument("--markdown", action="store_true", help="print the README's tables")
    said.add_argument("--show", type=Path, metavar="JSON", help="measure nothing, print the tables of such a file")
    return said.parse_args()


def _measured(asked: argparse.Namespace) -> dict[str, Any]:
    python = str(asked.peers_python.absolute())
    others = json.loads(subprocess.check_output([python, peers.__file__]))
    names = [name for name in (*ours.NAMES, *others) if re.search(asked.only, name)]
    wanted = {}
    for said in asked.rows:
        name, _, rows = said.partition("=")
        wanted[name] = int(rows) if rows else FIXTURES[name].rows
    results = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": _machine(),
        "pairs": asked.pairs,
        "rows": wanted,
        "runs": [],
    }
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        work = stack.enter_context(scratch())
        server.execute(*(f"alter system set {s}" for s in _SETTINGS), "select pg_reload_conf()")
        results |= {"versions": _versions(server, python), "settings": ", ".join(_SETTINGS)}
        meter = Meter(server)
        for name, rows in wanted.items():
            fixture = FIXTURES[name]
            _say(f"building {name}, {rows:,} rows")
            server.execute(*fixture.statements(rows))
            truth = truth_of(server, fixture)
            bench = _Bench(asked, python, server, meter, work, fixture, truth)
            for number in range(asked.pairs):
                # Nobody is always the first, or always after the same one.
                for contender in names[number % len(names) :] + names[: number % len(names)]:
                    results["runs"].append({"round": number, **bench.run(contender)})
    return results


class _Bench:
    """Runs contenders on one table."""

    def __init__(
        self,
        asked: argparse.Namespace,
        python: str,
        server: PostgresServer,
        meter: Meter,
        work: Path,
        fixture: Fixture,
        truth: Truth,
    ) -> None:
        self._timeout = asked.timeout
        self._python, self._url, self._meter, self._work = python, server.url, meter, work
        self._fixture, self._truth = fixture, truth
        self._range_rows = asked.range_rows or fixture.range_rows

    def run(self, name: str) -> dict[str, Any]:
        """One run, compared and cleared away."""
        with scratch() as directory:
            out = directory / "out"
            where = [name, self._url, self._fixture.name, str(out)]
            if name in ours.NAMES:
                command = [sys.executable, "-m", ours.__name__, *where, str(self._range_rows * self._fixture.row_bytes)]
            else:
                command = [self._python, peers.__file__, *where, str(-(-self._truth.rows // self._range_rows))]
            environment = {"PYTHONPATH": str(_ROOT), "DAGSTER_HOME": "", "TMPDIR": str(directory)}
            cost = self._meter.run(command, directory=directory, environment=environment, timeout_s=self._timeout)
            parts = sorted(p for p in out.rglob("*.parquet") if f"/{self._fixture.name}" in str(p) or p.parent == out)
            rows = rows_in(parts)
            failed = _failure(cost.exit_code, rows, self._truth.rows)
            if failed:
                _say((directory / "output.log").read_text(errors="replace")[-2000:])
            run = {
                "fixture": self._fixture.name,
                "name": name,
                **asdict(cost),
                "rows": rows,
                "bytes": sum(p.stat().st_size for p in parts),
                "parts": len(parts),
                "failed": failed,
                "differences": [] if failed else differences(parts, self._fixture, self._truth),
            }
        _say(
            f"{self._fixture.name:7} {name:24} {cost.wall_s:6.2f} s, CPU {cost.client_cpu_s:.2f} + "
            f"{cost.server_cpu_s:.2f} s, {cost.peak_mb:.0f} MB, foreign {cost.foreign:.0%}"
            + (f", FAILED: {failed}" if failed else "")
        )
        return run


def _failure(exit_code: int | None, rows: int, expected: int) -> str | None:
    if exit_code is None:
        return "took too long"
    if exit_code:
        return f"exit code {exit_code}"
    return None if rows == expected else f"{rows:,} rows instead of {expected:,}"


def _machine() -> dict[str, Any]:
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": names[0] if names else platform.machine(),
        "cpus": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
    }


def _versions(server: PostgresServer, python: str) -> dict[str, str]:
    with server.client() as connection, connection.cursor() as cursor:
        cursor.execute("select current_setting('server_version')")
        found = {"PostgreSQL": cursor.fetchone()[0].split()[0]}
    mine = ("pyarrow", "adbc-driver-postgresql", "dagster")
    found |= {"Python": platform.python_version(), **{name: version(name) for name in mine}}
    code = (
        "import json; from importlib import metadata as m; found = {d.name: d.version for d in m.distributions()}; "
        f"print(json.dumps({{name: found[name] for name in {_PEERS!r} if name in found}}))"
    )
    theirs = json.loads(subprocess.check_output([python, "-c", code]))
    return found | {f"{name} (peers)" if name in found else name: said for name, said in theirs.items()}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 (progress)


if __name__ == "__main__":
    main()
