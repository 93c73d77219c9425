"""Runs as tables: for a terminal, and for the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

# At the most this share of all cores was used by others in a run that counts as undisturbed.
CLEAN = 0.10
BASELINE = "ours-chunked-2"
_HEAD = (
    "", "wall s (min to max)", "times ours", "CPU s client + server", "peak MB", "out MB", "parts",
    "longest statement s", "longest transaction s", "foreign CPU", "fidelity",
)  # fmt: skip


def tables(results: dict[str, Any], *, markdown: bool) -> str:
    """One table for each fixture, with what it was measured on.

    Medians of the runs that succeeded; "times ours" is the median over the rounds of its wall by that of `BASELINE`.
    """
    lines = [_setting(results)]
    for fixture, rows in results["rows"].items():
        runs = [run for run in results["runs"] if run["fixture"] == fixture]
        body = [_line(name, runs) for name in dict.fromkeys(run["name"] for run in runs)]
        lines += ["", f"{'### ' if markdown else ''}{fixture}, {rows:,} rows", ""]
        lines += _markdown([_HEAD, *body]) if markdown else _plain([_HEAD, *body])
    return "\n".join(lines)


def _setting(results: dict[str, Any]) -> str:
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return (
        f"{results['date']}, {machine['cpus']} cores of {machine['cpu']}, {machine['memory_gb']} GB, local disk, "
        f"server and client on the same machine; {results['pairs']} interleaved rounds; {versions}; "
        f"{results['settings']}"
    )


def _line(name: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
    mine = [run for run in runs if run["name"] == name]
    good = [run for run in mine if not run["failed"]]
    if not good:
        return (name, *[""] * (len(_HEAD) - 2), f"failed: {mine[0]['failed']}")
    base = {run["round"]: run["wall_s"] for run in runs if run["name"] == BASELINE and not run["failed"]}
    ratios = [run["wall_s"] / base[run["round"]] for run in good if run["round"] in base]
    walls = [run["wall_s"] for run in good]

    def mid(key: str) -> float:
        return median(run[key] for run in good)

    disturbed = sum(run["foreign"] > CLEAN for run in good)
    note = f", {disturbed} of {len(good)} disturbed" if disturbed else ""
    said = Counter("; ".join(run["differences"]) or "all exact" for run in good).most_common(1)[0][0]
    lost = f"; {len(mine) - len(good)} of {len(mine)} failed" if len(good) < len(mine) else ""
    return (
        name,
        f"{median(walls):.1f} ({min(walls):.1f} to {max(walls):.1f})",
        f"{median(ratios):.2f}" if ratios else "",
        f"{mid('client_cpu_s'):.1f} + {mid('server_cpu_s'):.1f}",
        f"{mid('peak_mb'):.0f}",
        f"{mid('bytes') / 1e6:.1f}",
        f"{mid('parts'):.0f}",
        f"{mid('statement_s'):.2f}",
        f"{mid('transaction_s'):.1f}",
        f"{mid('foreign'):.0%}{note}",
        said + lost,
    )


def _markdown(rows: list[tuple[str, ...]]) -> Iterator[str]:
    for n, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if n == 0:
            yield "|" + "---|" * len(row)


def _plain(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
