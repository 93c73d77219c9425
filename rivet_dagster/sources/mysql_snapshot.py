"""A run of several MySQL statements: all in one transaction of one connection, or each in its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from rivet_dagster.errors import ConfigError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.mysql_catalog import Rows, Table, table_of
from rivet_dagster.sources.mysql_keys import boundaries
from rivet_dagster.sources.mysql_session import MySQLSession
from rivet_dagster.sources.one_stream import OneStreamSnapshot
from rivet_dagster.sources.ranges import checked_key
from rivet_dagster.sources.stream import BatchStream

__all__ = ["MySQLSnapshot"]


class _Opens(Protocol):
    @property
    def database(self) -> str: ...

    def session(self, what: str) -> MySQLSession: ...

    def open_known(self, query: Query, table: Table | None) -> BatchStream: ...

    def open_on(self, session: MySQLSession, query: Query, table: Table | None, *, shared: bool) -> BatchStream: ...


class MySQLSnapshot(OneStreamSnapshot[_Opens, MySQLSession]):
    """What the statements of one run read.

    With "snapshot" all of them share one connection: one stream may be open at a time. A stream that is closed before
    its end costs the connection, and the snapshot: what is opened after that is a transient `SourceError`. With
    "statement" each stream has a connection and a transaction of its own.
    """

    engine = "mysql"
    product = "MySQL"

    def __init__(self, source: _Opens, *, consistency: Consistency) -> None:
        super().__init__(source, consistency=consistency)
        # By name; asked once, when the walk over the table begins, and not for each of its ranges.
        self._known: dict[str | None, Table] = {}

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        """The first key of the second range, of the third, and so on: `rows` rows are between two of them.

        Each is found when it is asked for; with "snapshot", ask while no stream is open.

        Raises:
            ConfigError: the catalog does not vouch for the key, or the table has no snapshots.
            SourceError: the server failed, or a boundary is no date.
        """
        self._check_open()
        if self._connection is not None:
            yield from self._walk(query, key, rows=rows, run=self._connection.rows)
            return
        session = self._source.session(what_is_read(query))
        try:
            session.end()
            yield from self._walk(query, key, rows=rows, run=lambda sql: self._alone(session, sql))
        finally:
            session.close()

    def _begin(self, what: str) -> MySQLSession:
        return self._source.session(what)

    def _open_alone(self, query: Query) -> BatchStream:
        return self._source.open_known(query, self._known.get(query.table))

    def _open_on(self, connection: MySQLSession, query: Query) -> BatchStream:
        return self._source.open_on(connection, query, self._known.get(query.table), shared=True)

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
