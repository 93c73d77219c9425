"""DuckDB: a read-only connection, the relation's description first, then Arrow batches as they are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.counting import count_sql, counted
from rivet_dagster.sources.description import existing_file, query_text, schema_of, what_is_read
from rivet_dagster.sources.duckdb_cursor import cursor_of, note, value_literal
from rivet_dagster.sources.duckdb_description import described
from rivet_dagster.sources.duckdb_keys import Rows, estimated_rows, range_condition, relation_of
from rivet_dagster.sources.duckdb_snapshot import DuckDBSnapshot
from rivet_dagster.sources.guards import Misfits, refused
from rivet_dagster.sources.ranges import checked_key, no_catalog, sampled_row_bytes, usable_keys
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.terms import term_sql, windowed
from rivet_dagster.sources.url import DatabaseUrl
from rivet_dagster.windows import Cursor, CursorTerm, Noted, Settling

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["DuckDBSource"]

# DuckDB counts rows alone; few at a time keep wide ones within the bound of a batch.
_FETCH_ROWS = 16_384
# What DuckDB may keep of the file, and sort without spilling; its own default is most of the machine.
_MEMORY_LIMIT = "512MB"


class DuckDBSource:
    """A DuckDB file that can be split, read-only. Every `open` is a connection of its own, in one transaction.

    Types are described in `duckdb_types`. DuckDB's own memory is limited; a larger sort spills into `<file>.tmp`.
    """

    engine = "duckdb"
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
        """Describe the result without running the query, then be ready to stream it.

        Raises:
            ConfigError: the query's names, casts or result columns cannot be.
            SourceError: the file is not there, no database, held by another process, or the query is refused; nothing
                stays open.
        """
        return self.open_on(self.connect(what_is_read(query)), query)

    def count(self, query: Query) -> int:
        """How many rows a query has; see `CountingSource` for what it raises."""
        with contextlib.closing(self.connect(what_is_read(query))) as connection:
            rows = self.rows_on(connection, what_is_read(query))
            text = count_sql(_restricted(query, rows))
            return counted(lambda: rows(text)[0]["n"], cancel=connection.interrupt)

    def keys(self, query: Query) -> tuple[Key, ...]:
        """The keys that the catalog vouches for, the primary key first; empty for a query that is no table."""
        if query.table is None:
            return ()
        with self._run(query) as rows:
            return usable_keys(relation_of(query, rows))

    def check_key(self, query: Query, columns: Sequence[str]) -> Key:
        """The key of these columns.

        Raises:
            ConfigError: the catalog does not vouch for it; says why, and which keys there are.
        """
        if query.table is None:
            raise no_catalog(query)
        with self._run(query) as rows:
            return checked_key(relation_of(query, rows), columns, query)

    def estimated_rows(self, query: Query) -> int | None:
        """How many rows the catalog counts; `None` for a query."""
        if query.table is None:
            return None
        with self._run(query) as rows:
            return estimated_rows(query, rows)

    def row_bytes(self, query: Query) -> int:
        """About how many bytes a row has once it is read, from the first rows."""
        return sampled_row_bytes(self.open(query)) or 1

    def snapshot(self, consistency: Consistency) -> DuckDBSnapshot:
        """Begin a run of several statements.

        Raises:
            SourceError: the file is not there, no database, or held by another process.
        """
        return DuckDBSnapshot(self, consistency=consistency)

    def describe_cursor(self, query: Query, term: CursorTerm) -> Cursor:
        """Describe what a window is over.

        Raises:
            ConfigError: it is no column of the query, or of a type that no window can be over.
            SourceError: the file is not there, no database, held by another process, or the query is refused.
        """
        what = what_is_read(query)
        with contextlib.closing(self.connect(what)) as connection:

            def types(text: str) -> dict[str, str]:
                with self._translated(what):
                    relation = connection.sql(text)
                    return dict(zip(relation.columns, map(str, relation.types), strict=True))

            return cursor_of(query, term, self.rows_on(connection, what), types)

    @contextlib.contextmanager
    def settling(self, query: Query, cursor: Cursor, asked: Settling) -> Iterator[Noted]:
        """Note where a window may end. Until the context ends no other process can write to the file.

        Raises:
            SourceError: the file is not there, no database, or held by another process.
        """
        with self._run(query) as rows:
            yield note(query, cursor, asked, rows)

    def connect(self, what: str) -> DuckDBPyConnection:
        """A connection in a transaction; `what` is read, for messages."""
        # Drivers load where they are needed: importing the package stays cheap.
        import duckdb

        path = existing_file(self._url)
        with self._translated(what):
            return self._begun(duckdb.connect(str(path), read_only=True))

    def cursor(self, connection: DuckDBPyConnection, what: str) -> DuckDBPyConnection:
        """A second connection to what the first one has open, in a transaction of its own."""
        with self._translated(what):
            return self._begun(connection.cursor())

    def rows_on(self, connection: DuckDBPyConnection, what: str) -> Rows:
        """What runs small statements on a connection, with failures in our terms."""

        def rows(sql: str) -> list[dict[str, Any]]:
            with self._translated(what):
                found: list[dict[str, Any]] = connection.sql(sql).to_arrow_table().to_pylist()
                return found

        return rows

    @contextlib.contextmanager
    def _run(self, query: Query) -> Iterator[Rows]:
        with contextlib.closing(self.connect(what_is_read(query))) as connection:
            yield self.rows_on(connection, what_is_read(query))

    @staticmethod
    def _begun(connection: DuckDBPyConnection) -> DuckDBPyConnection:
        try:
            connection.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'")
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("BEGIN TRANSACTION")
        except BaseException:
            connection.close()
            raise
        return connection

    def open_on(self, connection: DuckDBPyConnection, query: Query) -> BatchStream:
        """`open` on a connection, which is closed with the stream, or on an error."""
        try:
            text = _restricted(query, self.rows_on(connection, what_is_read(query)))
            with self._translated(what_is_read(query)):
                columns, sql, guarded = described(connection, text, query)
            misfits = Misfits(query.coerce)
        except BaseException:
            connection.close()
            raise
        return BatchStream(
            columns,
            self._batches(connection, sql, query, partial(_arrived, schema_of(columns), guarded, misfits)),
            cancel=connection.interrupt,
            release=connection.close,
            misfits=misfits,
            batch_rows=self._batch_rows,
            batch_bytes=self._batch_bytes,
        )

    def _batches(
        self,
        connection: DuckDBPyConnection,
        sql: str,
        query: Query,
        arrived: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> Generator[pa.RecordBatch, None, None]:
        with self._translated(what_is_read(query)):
            reader = connection.sql(sql).to_arrow_reader(min(self._batch_rows, _FETCH_ROWS))
        with contextlib.closing(reader):
            while True:
                with self._translated(what_is_read(query)):
                    try:
                        batch = reader.read_next_batch()
                    except StopIteration:
                        return
                yield arrived(batch)

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        import duckdb

        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            # Without the lines of the query that DuckDB quotes, and the directories of the file.
            text = " ".join(str(error).partition("\n\nLINE ")[0].split())
            text = text.replace(f"{Path(self._url.rest[1:]).absolute().parent}/", "")
            transient = "Could not set lock on file" in text or "with a different configuration" in text
            hint = "; someone has it open for writing: run it again when it is closed" if transient else ""
            raise SourceError(f"duckdb database {self.database!r}, {what}: {text}{hint}", transient=transient) from None


def _restricted(query: Query, rows: Rows) -> str:
    """The statement of a query, for the rows of its range and its window alone."""
    text = query_text(query, most=3, fold=False)
    if query.within is not None:
        relation = relation_of(query, rows)
        checked_key(relation, query.within.key.columns, query)
        condition = range_condition(relation, query.within, alias="r")
        text = f"{text} AS r WHERE {condition}" if condition else text
    if (window := query.window) is not None:
        term, literal = term_sql(window.cursor.term), value_literal(window.cursor)
        text = windowed(query, text, term, literal, exact="encode({0})")
    return text


def _arrived(schema: pa.Schema, guarded: Sequence[str], misfits: Misfits, batch: pa.RecordBatch) -> pa.RecordBatch:
    for name, flags in zip(guarded, batch.columns[len(schema) :], strict=True):
        lost = pc.sum(flags).as_py() or 0
        if name in misfits:
            misfits.count(name, lost)
        elif lost:
            raise refused(name, f"an integer of 39 digits cannot be exported as {schema.field(name).type}")
    arrays = []
    for field, values in zip(schema, batch.columns, strict=False):
        array = values.cast(field.type) if pa.types.is_nested(field.type) else values
        arrays.append(misfits.temporal(field.name, array))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
