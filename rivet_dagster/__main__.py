"""`python -m rivet_dagster`: run the demo's main job once, in this process, and print what landed where."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.definitions import DATA_DIR, MAIN_JOB, defs

__all__ = ["main"]

_HEADINGS = ("export", "rows", "parts", "bytes", "verified by", "manifest fingerprint", "manifest check")
_NUMBERS = range(1, 4)


def main() -> int:
    """Export the demo shop, check every delivery, print both.

    Returns:
        0 when all is there and every check passed, else 1.
    """
    print(f"Exporting the demo shop, {DATA_DIR / 'shop.db'}, to {DATA_DIR / 'exports'}\n", flush=True)
    started = time.monotonic()
    # Whatever the log would say is printed below, once and without its stack traces.
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def(MAIN_JOB)
        result = job.execute_in_process(instance=instance, raise_on_error=False, run_config=quiet)
    stored = [event.materialization for event in result.get_asset_materialization_events()]
    landed: dict[str, Mapping[str, Any]] = {_name(m): m.metadata for m in stored}
    checks = {_name(c): c for c in result.get_asset_check_evaluations()}
    if landed:
        lines = [_line(name, said, checks.get(name)) for name, said in landed.items()]
        print(_aligned([_HEADINGS, *lines], numbers=_NUMBERS), end="\n\n")
        print(_aligned([(name, str(said["rivet/manifest"].value)) for name, said in landed.items()]), end="\n\n")
    for name, said in landed.items():
        for note in said["rivet/notes"].value if "rivet/notes" in said else ():
            print(f"{name}: {note}")
    problems = [
        *(f"{e.step_key} failed: {_why(e)}" for e in result.all_events if e.is_step_failure),
        *(f"{n}: the check `{c.check_name}` failed: {c.description}" for n, c in checks.items() if not c.passed),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    whole = result.success and not problems and checks.keys() == landed.keys()
    verdict = "All there and checked; a second run replaces it" if whole else "NOT complete; once mended, run it again"
    print(f"{verdict} ({time.monotonic() - started:.1f} s).", flush=True)
    return 0 if whole else 1


def _name(of: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> str:
    return of.asset_key.to_user_string()


def _line(name: str, said: Mapping[str, Any], check: dg.AssetCheckEvaluation | None) -> tuple[str, ...]:
    parts = len(said["rivet/parts"].records)
    if check is None:
        judged = "not run"
    else:
        judged = f"passed: marker ok, {parts} of {parts} parts ok" if check.passed else "FAILED"
    return (
        name,
        f"{said['dagster/row_count'].value:,}",
        str(parts),
        f"{said['rivet/bytes'].value:,}",
        str(said["rivet/verification"].value),
        str(said["rivet/checksum"].value),
        judged,
    )


def _aligned(lines: Sequence[Sequence[str]], *, numbers: range = range(0)) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def cell(column: int, text: str) -> str:
        return text.rjust(widths[column]) if column in numbers else text.ljust(widths[column])

    return "\n".join("  ".join(cell(i, text) for i, text in enumerate(line)).rstrip() for line in lines)


def _why(event: dg.DagsterEvent) -> str:
    error = event.step_failure_data.error
    # Dagster wraps what a step raised; below that are causes for those who debug it.
    shown = error.cause if error is not None and error.cause is not None else error
    return shown.message.strip() if shown is not None else str(event.message)


if __name__ == "__main__":
    sys.exit(main())
