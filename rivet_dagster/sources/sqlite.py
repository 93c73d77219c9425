"""SQLite by the standard library: one read transaction, the schema before the first row, strict values."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.description import (
    check_columns,
    existing_file,
    positions,
    query_text,
    schema_of,
    what_is_read,
)
from rivet_dagster.sources.guards import check_temporal, holds_temporal
from rivet_dagster.sources.sqlite_types import arrow_type_of, column_array, type_of_values
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.url import DatabaseUrl

__all__ = ["SqliteSource"]

# How long to wait for another connection that holds the file.
_BUSY_SECONDS = 5.0
_FETCH_ROWS = 1024


class SqliteSource:
    """A SQLite file, read-only. Every `open` is a connection of its own, in one read transaction.

    Types are described in `sqlite_types`.
    """

    engine = "sqlite"

    def __init__(self, url: DatabaseUrl, *, batch_rows: int, batch_bytes: int) -> None:
        self._url = url
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes

    @property
    def database(self) -> str:
        """The file's name, without its directory."""
        return self._url.rest.rpartition("/")[2]

    def open(self, query: Query) -> BatchStream:
        """Describe the result, then be ready to stream it.

        Columns that only their values can describe cost one more run of the query, here.

        Raises:
            ConfigError: the query's names, casts or result columns cannot be.
            SourceError: the file is not there, no database, locked, or the query is refused; nothing stays open.
        """
        text = query_text(query, most=2, fold=False)
        path = existing_file(self._url).absolute()
        with self._translated(query):
            connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=_BUSY_SECONDS,
            )
        try:
            with self._translated(query):
                connection.execute("BEGIN")
                columns = _described(connection, text, query)
        except BaseException:
            connection.close()
            raise
        return BatchStream(
            columns,
            self._batches(connection, text, columns, query),
            cancel=connection.interrupt,
            release=connection.close,
            batch_rows=self._batch_rows,
            batch_bytes=self._batch_bytes,
        )

    def _batches(
        self, connection: sqlite3.Connection, text: str, columns: tuple[ResultColumn, ...], query: Query
    ) -> Generator[pa.RecordBatch, None, None]:
        with self._translated(query):
            cursor = connection.execute(text)
        with contextlib.closing(cursor):
            if _names(cursor) != [column.name for column in columns]:
                raise SourceError(f"{what_is_read(query)}: SQLite named the columns in two ways; name each one with AS")
            row = 1
            step = min(_FETCH_ROWS, self._batch_rows)
            pending: list[pa.RecordBatch] = []
            while True:
                with self._translated(query):
                    rows = cursor.fetchmany(step)
                if rows:
                    pending.append(_arrived(rows, columns, query, first_row=row))
                    row += len(rows)
                    # Rows grow: fetch fewer of them at a time, so that a batch's bound holds before it is built.
                    step = max(1, min(step, self._batch_bytes * len(rows) // max(1, pending[-1].nbytes)))
                held = sum(batch.num_rows for batch in pending)
                size = sum(batch.nbytes for batch in pending)
                if pending and (not rows or held + step > self._batch_rows or size >= self._batch_bytes):
                    yield pa.concat_batches(pending)
                    pending = []
                if not rows:
                    return

    @contextlib.contextmanager
    def _translated(self, query: Query) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as error:
            name = getattr(error, "sqlite_errorname", "")
            transient = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or "database is locked" in str(error)
            hint = "; another connection holds it, run it again" if transient else ""
            raise SourceError(
                f"sqlite database {self.database!r}, {what_is_read(query)}: {error}{hint}", transient=transient
            ) from error


def _described(connection: sqlite3.Connection, text: str, query: Query) -> tuple[ResultColumn, ...]:
    # A view takes a select statement alone, and its columns carry the declared types of what they come from.
    connection.execute(f"CREATE TEMP VIEW rivet_described AS {text}")
    declared = [row[2] for row in connection.execute("PRAGMA temp.table_xinfo(rivet_described)")]
    names = _names(connection.execute("SELECT * FROM temp.rivet_described LIMIT 0"))
    connection.execute("DROP VIEW temp.rivet_described")
    if any(re.search(r":\d+$", name) for name in names):
        # Perhaps SQLite's mark on a twin, which it keeps apart in a view: only the first row of the query itself tells.
        names = _names(connection.execute(text))
    check_columns(names, query)
    for name, cast in query.casts.items():
        if arrow_type_of(cast) is None:
            raise ConfigError(
                f"column {name!r}: cast to {cast!r}: expected text, integer, real, decimal(p, s), boolean, date, "
                "timestamp or blob"
            )
    declared = [query.casts.get(name, kind) for name, kind in zip(names, declared, strict=True)]
    # A newer SQLite calls an expression of a query that has no type of its own BLOB.
    arrows = [
        None if query.sql is not None and kind == "BLOB" and name not in query.casts else arrow_type_of(kind)
        for name, kind in zip(names, declared, strict=True)
    ]
    unknown = [position for position, arrow in enumerate(arrows) if arrow is None]
    if unknown:
        classes = _classes(connection, text, len(names), unknown)
        for position in unknown:
            arrows[position] = type_of_values(names[position], classes[position], declared[position])
    return tuple(
        ResultColumn(name=name, source_type=kind or str(arrow), nullable=True, arrow_type=arrow)
        for name, kind, arrow in zip(names, declared, arrows, strict=True)
    )


def _arrived(
    rows: list[tuple[Any, ...]], columns: tuple[ResultColumn, ...], query: Query, *, first_row: int
) -> pa.RecordBatch:
    arrays = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        kind = column.arrow_type
        as_text = column.name in query.casts and kind == pa.string()
        array = column_array(column.name, values, kind, first_row=first_row, as_text=as_text)
        if holds_temporal(kind):
            check_temporal(column.name, array)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _names(cursor: sqlite3.Cursor) -> list[str]:
    return [described[0] for described in cursor.description]


def _classes(connection: sqlite3.Connection, text: str, width: int, wanted: list[int]) -> dict[int, set[str]]:
    """The storage classes of all values of the wanted columns, in one run of the query."""
    kinds = ("integer", "real", "text", "blob")
    names = positions(width)
    seen = [f"max(typeof({names[position]}) = '{kind}')" for position in wanted for kind in kinds]
    found = connection.execute(f"WITH q({', '.join(names)}) AS (\n{text}\n) SELECT {', '.join(seen)} FROM q").fetchone()
    return {
        position: {kind for offset, kind in enumerate(kinds) if found[len(kinds) * place + offset]}
        for place, position in enumerate(wanted)
    }
