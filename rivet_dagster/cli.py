"""`rivet-dagster`: look at exports before they run, and at what lies where they went. Parses and prints, no more.

Exit codes: 0 all is well, 1 something is not, 2 the command cannot be carried out as it was given.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any, NoReturn, TypeVar

import click
import dagster as dg

from rivet_dagster.errors import RivetError
from rivet_dagster.orchestration.console import Masking, print_json, print_line, print_table, quiet
from rivet_dagster.orchestration.datasets import Dataset
from rivet_dagster.orchestration.doctor import examine
from rivet_dagster.orchestration.failures import masked, text_of
from rivet_dagster.orchestration.loading import CodeLocation, load
from rivet_dagster.orchestration.places import opened_at
from rivet_dagster.orchestration.pointers import CannotLoad, Pointer, pointers
from rivet_dagster.orchestration.preview import Preview, preview
from rivet_dagster.orchestration.validation import Validated, validate

__all__ = ["main"]

_LOG = logging.getLogger("rivet_dagster.cli")
_FAILED, _USAGE = 1, 2
_EXIT_CODES = "Exit codes: 0 all is well, 1 something is not, 2 it cannot be carried out."
_SHOWN = 20
_F = TypeVar("_F", bound=Callable[..., Any])


@click.group(cls=Masking, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(package_name="rivet-dagster", message="rivet-dagster %(version)s")
def main() -> None:
    """Look at the exports of your Dagster definitions, and at what lies where they went."""
    click.get_current_context().with_resource(quiet())


def _definitions(command: _F) -> _F:
    """The options by which Dagster's own commands are told where definitions are."""
    options = (
        click.option("-m", "--module-name", help="Module that holds the definitions."),
        click.option("-f", "--python-file", help="File that holds them."),
        click.option("-w", "--workspace", help="workspace.yaml that names modules or files."),
        click.option("-a", "--attribute", help="Which of several definitions in the module or file."),
        click.option("-d", "--working-directory", help="Directory that modules are imported from."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@_definitions
@click.argument("exports", nargs=-1)
def doctor(exports: Sequence[str], *, as_json: bool, **where: str | None) -> None:
    """Try what EXPORTS need (all, unless named): databases, grants, clocks, destinations. Leaves nothing behind."""
    with _reporting("doctor", as_json=as_json):
        location = _load(where)
        chosen = _chosen(location, exports)
        found = list(examine(location, chosen, log=_LOG))
        ok = all(x.ok for x in found)
        if as_json:
            print_json({"command": "doctor", "ok": ok, "checks": [x.as_json() for x in found]})
        else:
            rows = [(x.subject, x.check, _VERDICTS[x.ok], x.found) for x in found]
            print_table(("what", "check", "result", "found"), rows)
            for x in found:
                if x.remedy:
                    print_line(f"\n{x.subject}, {x.check}: {x.remedy}")
            click.echo("\nNot tried: modes, keys and windows; rivet-dagster plan looks at them.")
    sys.exit(0 if ok else _FAILED)


@main.command()
@_definitions
@click.option("--partition", help="Of exports that have partitions; the newest unless given.")
@click.argument("exports", nargs=-1)
def plan(exports: Sequence[str], *, partition: str | None, as_json: bool, **where: str | None) -> None:
    """Say what a run of EXPORTS (all, unless named) would do now: from where, which rows. Nothing is moved."""
    with _reporting("plan", as_json=as_json):
        location = _load(where)
        chosen = _chosen(location, exports)
        with _instance() as instance:
            found = list(preview(location, chosen, instance=instance, partition=partition, log=_LOG))
        ok = all(x.ok for x in found)
        if as_json:
            said = {"command": "plan", "ok": ok, "event_log": instance is not None}
            print_json({**said, "exports": [x.as_json() for x in found]})
        else:
            if instance is None:
                click.echo("DAGSTER_HOME is not set: destinations are not held against an event log.\n", err=True)
            headings = ("export", "mode", "delivers", "on top of", "window", "rows in all")
            print_table(headings, [_planned(x) for x in found])
            for x in found:
                _print_findings(x)
    sys.exit(0 if ok else _FAILED)


@main.command(name="validate")
@_definitions
@click.option("--content", is_flag=True, help="Read every part again, instead of asking for sizes and checksums.")
@click.argument("prefix")
def validate_(prefix: str, *, content: bool, as_json: bool, **where: str | None) -> None:
    """Judge the dataset at PREFIX, and all those below it, by marker, manifest and parts.

    PREFIX is a path, s3://bucket/…, gs://bucket/…, abfss://container@account/…, https://account/container/…, or what an
    IO manager of the definitions calls it. Definitions are optional: with them, theirs is the client.
    """
    with _reporting("validate", as_json=as_json):
        location = _load(where) if any(where.values()) else None
        found = list(_judged(prefix, location, content=content))
        ok = all(x.ok for x in found)
        if as_json:
            said = {"command": "validate", "ok": ok, "content": content}
            print_json({**said, "datasets": [x.as_json() for x in found]})
        else:
            headings = ("dataset", "result", "delivery", "deliveries", "parts", "rows", "bytes", "verified by")
            print_table(headings, [_judgement(x) for x in found])
            for x in found:
                _print_faults(x)
    wrong = any(x.faults for x in found)
    sys.exit(0 if ok else _FAILED if wrong else _USAGE)


def _judged(prefix: str, location: CodeLocation | None, *, content: bool) -> Iterable[Validated]:
    with opened_at(prefix, location) as (destination, at):
        if not content:
            yield from validate(destination, at)
            return
        # pyarrow loads only where parts are read.
        from rivet_dagster.orchestration.content import read_again  # noqa: PLC0415

        yield from validate(destination, at, look_at=read_again)


def _load(where: Mapping[str, str | None]) -> CodeLocation:
    found: tuple[Pointer, ...] = pointers(
        module_name=where["module_name"],
        python_file=where["python_file"],
        workspace=where["workspace"],
        attribute=where["attribute"],
        working_directory=where["working_directory"],
    )
    # What the user's modules print must not end up in what is printed here.
    with redirect_stdout(sys.stderr):
        return load(found)


def _chosen(location: CodeLocation, names: Sequence[str]) -> Sequence[Dataset]:
    found = {d.key.to_user_string(): d for d in location.exports}
    if not found:
        raise CannotLoad("the definitions have no export of rivet_dagster; see build_export_definitions")
    unknown = [n for n in names if n not in found]
    if unknown:
        raise CannotLoad(f"expected keys of exports ({', '.join(found)}), found {', '.join(unknown)}")
    return [found[n] for n in names or found]


def _instance() -> AbstractContextManager[dg.DagsterInstance | None]:
    """Dagster's, where there is one: without its home there is no event log to ask."""
    return dg.DagsterInstance.get() if os.environ.get("DAGSTER_HOME") else nullcontext()


@contextmanager
def _reporting(command: str, *, as_json: bool) -> Any:
    """Errors as people and programs want them: what was expected and found, no traceback, no secret."""
    try:
        yield
    except CannotLoad as e:
        _stop(command, masked(str(e)), code=_USAGE, as_json=as_json)
    except Exception as e:  # noqa: BLE001 (of Dagster, or of the user's own code)
        # Definitions that are refused are a finding about them; that a place cannot be looked at is none about it.
        refused = isinstance(e, RivetError) and command != "validate"
        _stop(command, text_of(e), code=_FAILED if refused else _USAGE, as_json=as_json)


def _stop(command: str, message: str, *, code: int, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"command": command, "ok": False, "error": message})
    else:
        print_line(f"Error: {message}", err=True)
    sys.exit(code)


_VERDICTS = {True: "ok", False: "FAILED", None: "not tried"}


def _planned(x: Preview) -> tuple[str, ...]:
    continues = "nothing" if x.error is None else "?"
    if x.continues is not None:
        cursor = x.continues["cursor"]
        continues = f"{cursor['column']} = {cursor['value']}" if cursor else f"replaces {x.continues['run_id']}"
    name = x.export if x.partition is None else f"{x.export} [{x.partition}]"
    rows = "unknown" if x.rows_estimate is None else f"about {x.rows_estimate:,}"
    return name, x.mode, x.delivery or "NOTHING", continues, _window(x.window), rows


def _window(window: Mapping[str, Any] | None) -> str:
    if window is None:
        return "all rows"
    low = "…" if window["low"] is None else f"{'after' if window['low_open'] else 'from'} {window['low']}"
    if window["high"] is None:
        return low
    return f"{low} {'to before' if window['high_open'] else 'to'} {window['high']}"


def _print_findings(x: Preview) -> None:
    lines = [f"[{d['level']}] {d['rule']}: {d['message']}; {d['remedy']}" for d in x.diagnostics]
    for line in [*x.notes, *lines, *([f"ERROR: {x.error}"] if x.error else [])]:
        print_line(f"\n{x.export}: {line}")


def _judgement(x: Validated) -> tuple[str, ...]:
    faults = f"{len(x.faults)} FAULT{'' if len(x.faults) == 1 else 'S'}"
    result = "NOT JUDGED" if x.error else "ok" if x.ok else faults
    numbers = (f"{n:,}" for n in (x.deliveries, x.parts, x.rows, x.bytes))
    return x.place, result, x.run_id or "none", *numbers, x.verification or "-"


def _print_faults(x: Validated) -> None:
    if x.error:
        print_line(f"\n{x.place}: {x.error}")
    for fault in x.faults[:_SHOWN]:
        said = f"{fault['kind']}: expected {fault['expected']}, found {fault['found']}"
        print_line(f"\n{x.place}{fault['path']}: {said}")
    if len(x.faults) > _SHOWN:
        print_line(f"\n… and {len(x.faults) - _SHOWN} more")
    for path in x.unknown[:_SHOWN]:
        print_line(f"\n{x.place}{path}: no manifest names it")
    for note in x.notes:
        print_line(f"\n{x.place}: {note}")


if __name__ == "__main__":
    main()
