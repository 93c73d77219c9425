"""A run of several MySQL statements: all in one transaction of one connection, or each in its own."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.mysql_catalog import Rows, Table, table_of
from rivet_dagster.sources.mysql_keys import boundaries
from rivet_dagster.sources.mysql_session import MySQLSession
from rivet_dagster.sources.ranges import checked_key
from rivet_dagster.sources.stream import BatchStream

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MySQLSnapshot"]


class _Opens(Protocol):
    @property
    def database(self) -> str: ...

    def session(self, what: str) -> MySQLSession: ...

    def open_known(self, query: Query, table: Table | None) -> BatchStream: ...

    def open_on(self, session: MySQLSession, query: Query, table: Table | None, *, shared: bool) -> BatchStream: ...


class MySQLSnapshot:
    """What the statements of one run read.

    With "snapshot" all of them share one connection, because no two can be made to read the same snapshot: one stream
    may be open at a time. A stream that is closed before its end costs the connection, and the snapshot: what is opened
    after that is a transient `SourceError`. With "statement" each stream has a connection and a transaction of its own.
    """

    engine = "mysql"

    def __init__(self, source: _Opens, *, consistency: Consistency) -> None:
        self._source = source
        self._consistency: Consistency = consistency
        self._session: MySQLSession | None = None
        self._stream: BatchStream | None = None
        # By name; asked once, when the walk over the table begins, and not for each of its ranges.
        self._known: dict[str | None, Table] = {}
        self._ended = False

    @property
    def database(self) -> str:
        """The database's name; empty where the URL names none."""
        return self._source.database

    @property
    def consistency(self) -> Consistency:
        """What is promised."""
        return self._consistency

    @property
    def parallel(self) -> bool:
        """Whether several streams may be open at a time."""
        return self._consistency == "statement"

    def __enter__(self) -> Self:
        if self._consistency == "snapshot":
            self._session = self._source.session("the run's snapshot")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if self._stream is not None:
            self._stream.close()
        if self._session is not None:
            self._session.close()

    def open(self, query: Query) -> BatchStream:
        """As the source's `open`, in the run's transaction.

        Raises:
            ConfigError: the query's names, casts, range or result columns cannot be.
            SourceError: the server refused, another stream of the snapshot is open, or, transient, it was lost.
        """
        self._check_open()
        if self._session is None:
            return self._source.open_known(query, self._known.get(query.table))
        if self._stream is not None and not self._stream.closed:
            raise SourceError(
                f"{what_is_read(query)}: a snapshot of MySQL has one stream at a time; close the other, or read with "
                'consistency="statement"'
            )
        self._stream = self._source.open_on(self._session, query, self._known.get(query.table), shared=True)
        return self._stream

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        """The first key of the second range, of the third, and so on: `rows` rows are between two of them.

        Each is found when it is asked for; with "snapshot", ask while no stream is open.

        Raises:
            ConfigError: the catalog does not vouch for the key, or the table has no snapshots.
            SourceError: the server failed, or a boundary is no date.
        """
        self._check_open()
        if self._session is not None:
            yield from self._walk(query, key, rows=rows, run=self._session.rows)
            return
        session = self._source.session(what_is_read(query))
        try:
            session.end()
            yield from self._walk(query, key, rows=rows, run=lambda sql: self._alone(session, sql))
        finally:
            session.close()

    def _walk(self, query: Query, key: Key, *, rows: int, run: Rows) -> Iterator[tuple[Any, ...]]:
        table = table_of(query, run)
        checked_key(table.relation, key.columns, query)
        self._check_engine(query, table)
        self._known[query.table] = table
        yield from boundaries(query, table, key, rows=rows, run=run)

    def _check_engine(self, query: Query, table: Table) -> None:
        if self._consistency == "snapshot" and not table.transactional:
            raise ConfigError(
                f"{what_is_read(query)}: {table.engine or 'what stores it'} has no transactions, so its ranges cannot "
                'be read from one snapshot; read with consistency="statement", or export with Full()'
            )

    def _alone(self, session: MySQLSession, sql: str) -> list[tuple[Any, ...]]:
        self._check_open()
        session.begin()
        found = session.rows(sql)
        session.end()
        return found

    def _check_open(self) -> None:
        if self._ended:
            raise SourceError("the run's snapshot has ended; begin another")
