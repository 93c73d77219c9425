"""A table in a database, exported in ranges to a store that may die on the way; and what is there afterwards."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import ObjectDestination
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.modes import Chunked
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Export
from rivet_dagster.sources.connect import connect
from tests.faults.kit import LOG, PREFIX, FaultyStore, Killed, is_part, is_side, read_as_a_reader

ROWS = 100


def shop(path: Path) -> str:
    """A SQLite database of 100 orders; its URL."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table orders (id integer primary key, note text)")
        connection.executemany("insert into orders values (?, ?)", [(7 * i, f"note {i}") for i in range(ROWS)])
    return f"sqlite:///{path}"


def change(url: str, *statements: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def rows_of(url: str) -> list[list[str]]:
    """The table as its parts hold it, by a client of its own."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return [[str(value) for value in row] for row in connection.execute("select * from orders order by id")]


def export_table(
    store: ObjectDestination,
    url: str,
    *,
    run_id: str = "run-1",
    over: Sequence[str] = (),
    repeats: Sequence[str] | None = None,
    settings: CommitSettings | None = None,
    table: str = "orders",
    format: str = "csv",  # noqa: A002
    max_file_size: str | None = None,
    columns: Mapping[str, str] | None = None,
    gates: Sequence[Callable[[], None]] = (),
    **mode: Any,
) -> ExportReceipt:
    """One run of the seam over a table in ranges: a re-execution of those that are dead, or of what `repeats` names."""
    chunked = Chunked(**{"rows_per_part": 10, "consistency": "statement", **mode})
    wanted = Export(
        name="orders", table=table, mode=chunked, format=format, max_file_size=max_file_size, columns=columns or {}
    )

    def plan(head: Any) -> Any:
        output = resolve_output(export=wanted)
        planned = plan_export(
            wanted, export_name="orders", source=connect(url), output=output, head=head and head.manifest, log=LOG
        )
        planned.gates = gates
        return planned

    return commit_export(
        store,
        prefix=PREFIX,
        attempt=Attempt(
            export_name="orders",
            dagster_run_id=run_id,
            lineage=frozenset({run_id, *(("dead", "a", *over) if repeats is None else repeats)}),
            is_over=lambda other: other in over,
        ),
        plan=plan,
        settings=settings or CommitSettings(),
        log=LOG,
    )


class Dying(FaultyStore):
    """A store that does as `then` says once the run's record lists so many parts: by itself, the process is gone."""

    def __init__(self, inner: ObjectDestination, *, parts: int, then: Callable[[], None] | None = None) -> None:
        super().__init__(inner)
        self.parts, self.then, self.done = parts, then, False

    def _call(self, operation: str, key: str, act: Callable[[], Any]) -> Any:
        found = super()._call(operation, key, act)
        if operation == "write" and is_side(key) and not self.done:
            stored = self.inner.read(key)
            record = json.loads(stored.body) if stored else {"parts": []}
            if record["status"] == "running" and len(record["parts"]) >= self.parts:
                self.done = True
                if self.then is None:
                    self.dead = Killed
                    raise Killed(f"with {self.parts} parts recorded")
                self.then()
        return found


def die(store: ObjectDestination, url: str, *, parts: int, run_id: str = "dead", **more: Any) -> list[dict[str, Any]]:
    """A run that is killed once its record lists so many parts; those that it lists then, which may be one more."""
    try:
        export_table(Dying(store, parts=parts), url, run_id=run_id, **more)
    except Killed:
        (key,) = (m.key for m in store.list(PREFIX.root) if f"/manifest-{run_id}-" in m.key)
        stored = store.read(key)
        assert stored is not None
        found: list[dict[str, Any]] = json.loads(stored.body)["parts"]
        return found
    raise AssertionError("it was to be killed")


def record_of(raw: Mapping[str, bytes], run_id: str) -> dict[str, Any]:
    """The side record of a run."""
    (body,) = (body for key, body in raw.items() if is_side(key) and f"/manifest-{run_id}-" in key)
    found: dict[str, Any] = json.loads(body)
    return found


def parts_of(raw: Mapping[str, bytes], run_id: str) -> dict[str, bytes]:
    """The parts that carry a run's name."""
    return {key: body for key, body in raw.items() if is_part(key) and f"/part-{run_id}-" in key}


def dataset(raw: Mapping[str, bytes]) -> list[list[str]] | None:
    """The rows of the dataset, in the order of its parts."""
    bodies = read_as_a_reader(raw)
    if bodies is None:
        return None
    return [row for body in bodies for row in list(csv.reader(io.StringIO(body.decode())))[1:]]


def reused(receipt: ExportReceipt) -> dict[str, Any]:
    """What the metadata says of re-used parts."""
    return dict(receipt.counters.get("rivet/reused_parts", {}))
