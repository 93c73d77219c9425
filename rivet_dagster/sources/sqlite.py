"""SQLite by the standard library: one read transaction, the schema before the first row, strict values."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Consistency, Key, Query, ResultColumn
from rivet_dagster.sources.description import (
    check_columns,
    existing_file,
    positions,
    query_text,
    schema_of,
    what_is_read,
)
from rivet_dagster.sources.guards import Misfits, refused
from rivet_dagster.sources.ranges import checked_key, no_catalog, sampled_row_bytes, usable_keys
from rivet_dagster.sources.sqlite_keys import Fetch, estimated_rows, range_condition, relation_of
from rivet_dagster.sources.sqlite_snapshot import Described, SqliteSnapshot
from rivet_dagster.sources.sqlite_types import arrow_type_of, column_array, type_of_values
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.url import DatabaseUrl

__all__ = ["SqliteSource"]

# How long to wait for another connection that holds the file.
_BUSY_SECONDS = 5.0
_FETCH_ROWS = 1024


class SqliteSource:
    """A SQLite file that can be split, read-only. Every `open` is a connection of its own, in one read transaction.

    Types are described in `sqlite_types`.
    """

    engine = "sqlite"

    def __init__(self, url: DatabaseUrl, *, batch_rows: int, batch_bytes: int) -> None:
        self._url = url
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes

    @property
    def origin(self) -> str:
        """As the URL's."""
        return self._url.origin

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
        connection = self.begin(what_is_read(query))
        try:
            return self.open_on(connection, query, release=connection.close, known={})
        except BaseException:
            connection.close()
            raise

    def keys(self, query: Query) -> tuple[Key, ...]:
        """The keys that the catalog vouches for, the primary key first; empty for a query that is no table."""
        if query.table is None:
            return ()
        with contextlib.closing(self.begin(what_is_read(query))) as connection:
            return usable_keys(relation_of(query, self.fetch_on(connection, what_is_read(query))))

    def check_key(self, query: Query, columns: Sequence[str]) -> Key:
        """The key of these columns.

        Raises:
            ConfigError: the catalog does not vouch for it; says why, and which keys there are.
        """
        if query.table is None:
            raise no_catalog(query)
        with contextlib.closing(self.begin(what_is_read(query))) as connection:
            return checked_key(relation_of(query, self.fetch_on(connection, what_is_read(query))), columns, query)

    def estimated_rows(self, query: Query) -> int | None:
        """How many rows the last ANALYZE counted; `None` for a query, and where there was none."""
        if query.table is None:
            return None
        with contextlib.closing(self.begin(what_is_read(query))) as connection:
            return estimated_rows(query, self.fetch_on(connection, what_is_read(query)))

    def row_bytes(self, query: Query) -> int:
        """About how many bytes a row has once it is read, from the first rows."""
        return sampled_row_bytes(self.open(query)) or 1

    def snapshot(self, consistency: Consistency) -> SqliteSnapshot:
        """Begin a run of several statements.

        Raises:
            SourceError: the file is not there, no database, or locked.
        """
        return SqliteSnapshot(self, consistency=consistency)

    def begin(self, what: str) -> sqlite3.Connection:
        """A connection in a read transaction whose snapshot is taken; `what` is read, for messages."""
        path = existing_file(self._url).absolute()
        with self._translated(what):
            connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=_BUSY_SECONDS,
            )
        try:
            with self._translated(what):
                connection.execute("BEGIN")
                # The first read, not BEGIN, takes the snapshot.
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def fetch_on(self, connection: sqlite3.Connection, what: str) -> Fetch:
        """What runs small statements on a connection, with failures in our terms."""

        def fetch(sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            with self._translated(what):
                return connection.execute(sql, parameters).fetchall()

        return fetch

    def open_on(
        self, connection: sqlite3.Connection, query: Query, *, release: Callable[[], None], known: Described
    ) -> BatchStream:
        """`open` on a connection.

        Args:
            connection: from `begin`; on an error it stays open.
            query: what to read.
            release: frees the connection when the stream is closed.
            known: what was described in this connection's snapshot, to be used and added to.
        """
        text = query_text(query, most=2, fold=False)
        # Of the whole table, so that all of its ranges have one schema.
        described = (text, *query.casts.items())
        with self._translated(what_is_read(query)):
            if described not in known:
                known[described] = _described(connection, text, query)
        columns = known[described]
        parameters: tuple[Any, ...] = ()
        if query.within is not None:
            relation = relation_of(query, self.fetch_on(connection, what_is_read(query)))
            checked_key(relation, query.within.key.columns, query)
            condition, parameters = range_condition(relation, query.within, alias="r")
            text = f"{text} AS r WHERE {condition}" if condition else text
        misfits = Misfits(query.coerce)
        return BatchStream(
            columns,
            self._batches(connection, text, parameters, columns, query, misfits=misfits),
            cancel=connection.interrupt,
            release=release,
            misfits=misfits,
            batch_rows=self._batch_rows,
            batch_bytes=self._batch_bytes,
        )

    def _batches(
        self,
        connection: sqlite3.Connection,
        text: str,
        parameters: tuple[Any, ...],
        columns: tuple[ResultColumn, ...],
        query: Query,
        *,
        misfits: Misfits,
    ) -> Generator[pa.RecordBatch, None, None]:
        with self._translated(what_is_read(query)):
            cursor = connection.execute(text, parameters)
        with contextlib.closing(cursor):
            if _names(cursor) != [column.name for column in columns]:
                raise SourceError(f"{what_is_read(query)}: SQLite named the columns in two ways; name each one with AS")
            row = 1
            step = min(_FETCH_ROWS, self._batch_rows)
            pending: list[pa.RecordBatch] = []
            while True:
                with self._translated(what_is_read(query)):
                    rows = cursor.fetchmany(step)
                if rows:
                    pending.append(_arrived(rows, columns, query, misfits, first_row=row))
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
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as error:
            if found := re.match(r"Could not decode to UTF-8 column '(.*)' with text", str(error), re.DOTALL):
                raise refused(
                    found[1],
                    "it holds text that is not valid UTF-8",
                    remedy="read its bytes with CAST(… AS BLOB) in a query, or correct the text",
                ) from None
            name = getattr(error, "sqlite_errorname", "")
            transient = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or "database is locked" in str(error)
            hint = "; another connection holds it, run it again" if transient else ""
            raise SourceError(
                f"sqlite database {self.database!r}, {what}: {error}{hint}", transient=transient
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
    rows: list[tuple[Any, ...]], columns: tuple[ResultColumn, ...], query: Query, misfits: Misfits, *, first_row: int
) -> pa.RecordBatch:
    arrays = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        as_text = column.name in query.casts and column.arrow_type == pa.string()
        read = partial(column_array, column.name, arrow=column.arrow_type, first_row=first_row, as_text=as_text)
        arrays.append(misfits.temporal(column.name, misfits.converted(column.name, values, read)))
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
