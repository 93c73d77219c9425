"""MySQL and MariaDB: the server's description first, then rows of the binary protocol, many at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query, ResultColumn
from rivet_dagster.sources.counting import count_sql, counted
from rivet_dagster.sources.description import (
    check_columns,
    query_text,
    schema_of,
    what_is_read,
)
from rivet_dagster.sources.guards import Misfits
from rivet_dagster.sources.mysql_catalog import Table, from_clause, of_table, table_of
from rivet_dagster.sources.mysql_charsets import doubtful, refuse_lost_ascii, refuse_lost_characters
from rivet_dagster.sources.mysql_connection import check_url, database_name
from rivet_dagster.sources.mysql_cursor import cursor_of, note, window_text
from rivet_dagster.sources.mysql_keys import range_text
from rivet_dagster.sources.mysql_session import MySQLSession
from rivet_dagster.sources.mysql_snapshot import MySQLSnapshot
from rivet_dagster.sources.mysql_types import ColumnPlan, WireColumn, plan_column
from rivet_dagster.sources.mysql_values import column_array
from rivet_dagster.sources.mysql_wire import Block, WireError, decode
from rivet_dagster.sources.ranges import checked_key, sampled_row_bytes, usable_keys
from rivet_dagster.sources.session_settings import SessionSettings
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.url import DatabaseUrl
from rivet_dagster.windows import Cursor, CursorTerm, Noted, Settling

__all__ = ["MySQLSource"]

# More rows at a time are no faster to decode, and cost memory.
_ENOUGH_BYTES = 2**20

_CATALOG = """
SELECT c.COLUMN_NAME, c.COLUMN_TYPE, c.IS_NULLABLE = 'NO' AND t.TABLE_TYPE = 'BASE TABLE'
FROM information_schema.COLUMNS AS c
JOIN information_schema.TABLES AS t ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
WHERE {of_table}
"""


class MySQLSource:
    """A MySQL or MariaDB database, also in ranges and windows. Every `open` is a connection and a read-only snapshot.

    Tables of engines without transactions are as consistent as one statement of theirs. Sessions are in UTC: functions
    like NOW() and CURDATE() in a query are too. The server's sql_mode stays. Types are described in `mysql_types`.
    """

    engine = "mysql"
    knows_writers = False

    def __init__(
        self, url: DatabaseUrl, *, batch_rows: int, batch_bytes: int, settings: SessionSettings | None = None
    ) -> None:
        check_url(url)
        self._url = url
        self._settings = settings
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes

    @property
    def origin(self) -> str:
        """As the URL's."""
        return self._url.origin

    @property
    def database(self) -> str:
        """The database's name; empty where the URL names none."""
        return database_name(self._url)

    def open(self, query: Query) -> BatchStream:
        """Describe the result without running the query, then be ready to stream it.

        Text in a character set that UTF-8 does not wholly cover costs one more run of the query, here.

        Raises:
            ConfigError: the query's names, casts or result columns cannot be, or the driver is not installed.
            SourceError: the server refused or could not be reached; no connection is left.
        """
        return self.open_known(query, None)

    def open_known(self, query: Query, table: Table | None) -> BatchStream:
        """`open`, where it may be known already what the catalog says about the table."""
        session = self.session(what_is_read(query))
        try:
            return self.open_on(session, query, table, shared=False)
        except BaseException:
            session.close()
            raise

    def open_on(self, session: MySQLSession, query: Query, table: Table | None, *, shared: bool) -> BatchStream:
        """`open_known`, on a connection that stays where it is `shared`, unless the stream is closed before its end."""
        text = _restricted(session, query, table)
        described = session.describe(text)
        check_columns([column.name for column in described], query)
        plans = _planned(described, query)
        refuse_lost_characters(session, text, described)
        columns = _columns(session, query, described, plans)
        misfits = Misfits(query.coerce)
        return BatchStream(
            columns,
            self._batches(session, described, plans, schema_of(columns), query, text=text, misfits=misfits),
            cancel=session.cancel_stream if shared else session.cancel,
            release=session.forget if shared else session.close,
            misfits=misfits,
            batch_rows=self._batch_rows,
            batch_bytes=self._batch_bytes,
        )

    def count(self, query: Query) -> int:
        """How many rows a query has; see `CountingSource` for what it raises."""
        with contextlib.closing(self.session(what_is_read(query))) as session:
            text = count_sql(_restricted(session, query, None))
            return counted(lambda: session.rows(text)[0][0], cancel=session.cancel)

    def keys(self, query: Query) -> tuple[Key, ...]:
        """The keys that the catalog vouches for, the primary key first; empty for a query that is no table."""
        return () if query.table is None else usable_keys(self._table(query).relation)

    def check_key(self, query: Query, columns: Sequence[str]) -> Key:
        """The key of these columns.

        Raises:
            ConfigError: the catalog does not vouch for it; says why, and which keys there are.
        """
        return checked_key(self._table(query).relation, columns, query)

    def estimated_rows(self, query: Query) -> int | None:
        """How many rows the storage engine's statistics imply; `None` for a query, and where it has none."""
        return None if query.table is None else self._table(query).rows

    def row_bytes(self, query: Query) -> int:
        """About how many bytes a row has once it is read, from the first rows."""
        return sampled_row_bytes(self.open(query)) or 1

    def snapshot(self, consistency: Consistency) -> MySQLSnapshot:
        """Begin a run of several statements; with "snapshot", one stream at a time.

        Raises:
            SourceError: the server refused or could not be reached.
        """
        return MySQLSnapshot(self, consistency=consistency)

    def _table(self, query: Query) -> Table:
        with contextlib.closing(self.session(what_is_read(query))) as session:
            return table_of(query, session.rows)

    def describe_cursor(self, query: Query, term: CursorTerm) -> Cursor:
        """Describe what a window is over.

        Raises:
            ConfigError: it is no column of the query, or of a type that no window can be over.
            SourceError: the server refused or could not be reached.
        """
        with contextlib.closing(self.session(what_is_read(query))) as session:
            return cursor_of(query, term, _text(query), rows=session.rows, describe=session.describe)

    @contextlib.contextmanager
    def settling(self, query: Query, cursor: Cursor, asked: Settling) -> Iterator[Noted]:
        """Note where a window may end.

        Raises:
            ConfigError: `writers` is asked for.
            SourceError: the server refused or could not be reached.
        """
        with contextlib.closing(self.session(what_is_read(query))) as session:
            noted = note(query, cursor, _text(query), asked, session.rows)
        yield noted

    def session(self, what: str) -> MySQLSession:
        """A connection, in a transaction of its own."""
        return MySQLSession(self._url, what=what, settings=self._settings)

    def _batches(
        self,
        session: MySQLSession,
        described: tuple[WireColumn, ...],
        plans: tuple[ColumnPlan, ...],
        schema: pa.Schema,
        query: Query,
        *,
        text: str,
        misfits: Misfits,
    ) -> Generator[pa.RecordBatch, None, None]:
        names = [column.name for column in described]
        enough = min(self._batch_bytes, _ENOUGH_BYTES)
        lossy, odd = doubtful(described), set[int]()
        for came in session.stream(most_rows=self._batch_rows, enough_bytes=enough):
            if not isinstance(came, Block):
                if [column.name for column in came] != names or _planned(came, query) != plans:
                    raise SourceError(
                        f"{what_is_read(query)}: the server described the result in one way and sends another; run it "
                        "again, and if it stays give each column of the query a type with CAST"
                    )
                continue
            try:
                decoded = decode(came, [plan.shape for plan in plans])
            except WireError as error:
                raise SourceError(f"{what_is_read(query)}: the server's rows cannot be understood: {error}") from None
            odd.update(at for at in lossy if pc.any(pc.match_substring(decoded[at], "?")).as_py())
            arrays = [
                column_array(column.name, plan, values, decimals=column.scale, misfits=misfits)
                for column, plan, values in zip(described, plans, decoded, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        refuse_lost_ascii(session, text, [names[at] for at in sorted(odd)])


def _planned(columns: tuple[WireColumn, ...], query: Query) -> tuple[ColumnPlan, ...]:
    return tuple(plan_column(column, query.casts.get(column.name)) for column in columns)


def _text(query: Query) -> str:
    """The select statement of a query, in MySQL's quotes."""
    if query.table is None or query.sql is not None:
        return query_text(query, most=2, fold=False)
    return f"SELECT * FROM {from_clause(query)}"


def _restricted(session: MySQLSession, query: Query, table: Table | None) -> str:
    """The statement of a query, for the rows of its range and its window alone."""
    text = _text(query)
    if query.within is not None:
        text = range_text(query, table or table_of(query, session.rows))
    return text if query.window is None else window_text(query, query.window, text)


def _columns(
    session: MySQLSession, query: Query, described: tuple[WireColumn, ...], plans: tuple[ColumnPlan, ...]
) -> tuple[ResultColumn, ...]:
    declared: dict[str, tuple[str, bool]] = {}
    if query.table is not None:
        found = session.rows(_CATALOG.format(of_table=of_table(query, "t", "c")))
        declared = {name: (kind, bool(never_null)) for name, kind, never_null in found}
    return tuple(
        ResultColumn(
            name=column.name,
            source_type=declared.get(column.name, (plan.source_type, False))[0],
            nullable=not declared.get(column.name, ("", False))[1] or column.name in query.coerce,
            arrow_type=plan.exported_as,
        )
        for column, plan in zip(described, plans, strict=True)
    )
