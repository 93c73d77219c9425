"""SQLite by the standard library: one read transaction, the schema before the first row, strict values."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query, ResultColumn
from rivet_dagster.sources.counting import count_sql, counted
from rivet_dagster.sources.description import (
    existing_file,
    query_text,
    what_is_read,
)
from rivet_dagster.sources.guards import Misfits, refused
from rivet_dagster.sources.ranges import checked_key, no_catalog, sampled_row_bytes, usable_keys
from rivet_dagster.sources.sqlite_cursor import cursor_of, note, only_writer, value_literal
from rivet_dagster.sources.sqlite_description import described, names_of
from rivet_dagster.sources.sqlite_keys import Fetch, estimated_rows, range_condition, relation_of
from rivet_dagster.sources.sqlite_snapshot import Described, SqliteSnapshot
from rivet_dagster.sources.sqlite_types import batch_of
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.terms import term_sql, windowed
from rivet_dagster.sources.url import DatabaseUrl
from rivet_dagster.windows import Cursor, CursorTerm, Noted, Settling

__all__ = ["SqliteSource"]

# How long to wait for another connection that holds the file.
_BUSY_SECONDS = 5.0
_FETCH_ROWS = 1024


class SqliteSource:
    """A SQLite file that can be split, read-only. Every `open` is a connection of its own, in one read transaction.

    Types are described in `sqlite_types`.
    """

    engine = "sqlite"
    knows_writers = True

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

    def count(self, query: Query) -> int:
        """How many rows a query has; see `CountingSource` for what it raises."""
        with contextlib.closing(self.begin(what_is_read(query))) as connection:
            fetch = self.fetch_on(connection, what_is_read(query))
            text, parameters = _restricted(query, fetch)
            return counted(lambda: fetch(count_sql(text), parameters)[0][0], cancel=connection.interrupt)

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
        connection = self._connect(what, "ro", _BUSY_SECONDS)
        try:
            with self._translated(what):
                connection.execute("BEGIN")
                # The first read, not BEGIN, takes the snapshot.
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, what: str, mode: str, busy_seconds: float) -> sqlite3.Connection:
        path = existing_file(self._url).absolute()
        with self._translated(what):
            return sqlite3.connect(
                f"file:{quote(str(path))}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=busy_seconds,
            )

    def describe_cursor(self, query: Query, term: CursorTerm) -> Cursor:
        """Describe what a window is over.

        Raises:
            ConfigError: it is no column of the query, or of a type that no window can be over.
            SourceError: the file is not there, no database, locked, or the query is refused.
        """
        what = what_is_read(query)
        with contextlib.closing(self.begin(what)) as connection, self._translated(what):

            def describe(of: Query) -> tuple[str, pa.DataType]:
                (column,) = described(connection, query_text(of, most=2, fold=False), of)
                return column.source_type, column.arrow_type

            return cursor_of(query, term, self.fetch_on(connection, what), describe)

    @contextlib.contextmanager
    def settling(self, query: Query, cursor: Cursor, asked: Settling) -> Iterator[Noted]:
        """Note where a window may end; with `writers`, as the only one who may write until the context ends.

        Raises:
            ConfigError: `writers`, and the file cannot be written to.
            ContractError: the cursor's values are not of one form.
            SourceError: transient, another connection did not stop writing in time.
        """
        what = what_is_read(query)
        if not asked.writers:
            with contextlib.closing(self.begin(what)) as connection:
                noted = note(query, cursor, asked, self.fetch_on(connection, what))
            yield noted
            return
        began = time.monotonic()
        with (
            self._translated(what),
            contextlib.closing(self._connect(what, "rw", asked.timeout.total_seconds())) as connection,
            contextlib.closing(self._connect(what, "rw", 0)) as other,
            only_writer(connection, other, f"sqlite database {self.database!r}, {what}"),
        ):
            waited = round(time.monotonic() - began, 3)
            noted = note(query, cursor, asked, self.fetch_on(connection, what))
            yield replace(noted, said={**noted.said, "waited_seconds": waited})

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
        whole = (text, *query.casts.items())
        with self._translated(what_is_read(query)):
            if whole not in known:
                known[whole] = described(connection, text, query)
        columns = known[whole]
        text, parameters = _restricted(query, self.fetch_on(connection, what_is_read(query)))
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
            if names_of(cursor) != [column.name for column in columns]:
                raise SourceError(f"{what_is_read(query)}: SQLite named the columns in two ways; name each one with AS")
            row = 1
            step = min(_FETCH_ROWS, self._batch_rows)
            pending: list[pa.RecordBatch] = []
            while True:
                with self._translated(what_is_read(query)):
                    rows = cursor.fetchmany(step)
                if rows:
                    pending.append(batch_of(rows, columns, query, misfits, first_row=row))
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


def _restricted(query: Query, fetch: Fetch) -> tuple[str, tuple[Any, ...]]:
    """The statement of a query, for the rows of its range and its window alone, and its parameters."""
    text, parameters = query_text(query, most=2, fold=False), ()
    if query.within is not None:
        relation = relation_of(query, fetch)
        checked_key(relation, query.within.key.columns, query)
        condition, parameters = range_condition(relation, query.within, alias="r")
        text = f"{text} AS r WHERE {condition}" if condition else text
    if (window := query.window) is not None:
        term, literal = term_sql(window.cursor.term), value_literal(window.cursor)
        text = windowed(query, text, term, literal, exact="CAST({0} AS BLOB)")
    return text, parameters
