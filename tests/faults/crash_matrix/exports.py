"""What is exported in the matrix: tables of SQLite, whole, by a cursor, and as one partition of several."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt, Head
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import ObjectDestination
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.modes import Chunked, Incremental
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import Prefix, asset_prefix
from rivet_dagster.sources.connect import connect
from tests.faults.kit import LOG, followed

ROWS_PER_PART = 4
SETTINGS = CommitSettings(verify="readback", symlink_manifest=True)
_RANGES = Chunked(rows_per_part=ROWS_PER_PART, consistency="statement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to export.

    Attributes:
        wanted: the export.
        partition_key: of the partition that is exported.
        appends: a run adds to the dataset.
    """

    wanted: Export
    partition_key: str | None = None
    appends: bool = False

    @property
    def prefix(self) -> Prefix:
        return asset_prefix(["orders"], self.partition_key)


KINDS = {
    "full": Kind(wanted=Export(name="orders", table="orders", mode=_RANGES)),
    "incremental": Kind(
        wanted=Export(
            name="orders", table="orders", mode=Incremental(cursor_column="id"), format="csv", max_file_size="200"
        ),
        appends=True,
    ),
    # Each partition of this shop is a table.
    "partitioned": Kind(wanted=Export(name="orders", table="orders", mode=_RANGES), partition_key="north"),
}


def run(
    kind: str,
    store: ObjectDestination,
    database: Path,
    *,
    run_id: str,
    over: Sequence[str] = (),
    repeats: Sequence[str] = (),
    anew: bool = False,
    partition_key: str | None = None,
) -> ExportReceipt:
    """One run of the seam as orchestration would start it; it is `repeats` executed again, or begins `anew`."""
    wanted, partition_key = KINDS[kind].wanted, partition_key or KINDS[kind].partition_key

    def plan(head: Head | None) -> Any:
        return plan_export(
            wanted,
            export_name="orders",
            source=connect(f"sqlite:///{database}"),
            output=resolve_output(export=wanted),
            head=None if anew or head is None else head.manifest,
            log=LOG,
        )

    return commit_export(
        store,
        prefix=asset_prefix(["orders"], partition_key),
        attempt=Attempt(
            export_name="orders",
            dagster_run_id=run_id,
            lineage=frozenset({run_id, *repeats}),
            partition_key=partition_key,
            is_over=lambda other: other in over,
        ),
        plan=plan,
        settings=SETTINGS,
        log=LOG,
    )


def create(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table orders (id integer primary key, note text)")
    grow(database)


def grow(database: Path, *, rows: int = 12) -> None:
    """More rows, some without a note, and none that differs from another by its number alone."""
    with closing(sqlite3.connect(database)) as connection, connection:
        (last,) = connection.execute("select coalesce(max(id), 0) from orders").fetchone()
        more = [(last + 3 * n, None if n % 5 == 0 else f"note {last} of {n} " + "x" * 40) for n in range(1, rows + 1)]
        connection.executemany("insert into orders values (?, ?)", more)


def change(database: Path) -> None:
    """Other rows than before: what is exported whole."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update orders set note = 'changed' where id % 2 = 0")
        connection.execute("delete from orders where id = 3")


def rows_of(database: Path) -> list[tuple[int, str | None]]:
    """By a client of its own."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("select id, note from orders order by id").fetchall()


def dataset(raw: dict[str, bytes], root: str, directory: Path) -> list[tuple[int, str | None]]:
    """What DuckDB reads of the parts that the manifests name, and of nothing else; no row is left out as a double."""
    chain = followed(raw, root)
    paths = []
    for manifest in chain or ():
        for part in manifest["parts"]:
            path = directory / Path(part["path"]).name
            path.write_bytes(raw[f"{root}{part['path']}"])
            paths.append(str(path))
    if not paths:
        return []
    read = "read_csv" if paths[0].endswith(".csv") else "read_parquet"
    return duckdb.sql(f"select id, note from {read}({paths}) order by id").fetchall()
