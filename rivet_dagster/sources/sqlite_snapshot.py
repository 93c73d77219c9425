"""A run of several SQLite statements: all in one read transaction, or each in its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from rivet_dagster.rows import Consistency, Key, Query, ResultColumn
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.one_stream import OneStreamSnapshot
from rivet_dagster.sources.ranges import checked_key
from rivet_dagster.sources.sqlite_keys import Fetch, boundaries, relation_of
from rivet_dagster.sources.stream import BatchStream

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Described", "SqliteSnapshot"]

Described = dict[tuple[Any, ...], tuple[ResultColumn, ...]]
"""Results that were described in one snapshot."""


class _Opens(Protocol):
    @property
    def database(self) -> str: ...

    def begin(self, what: str) -> sqlite3.Connection: ...

    def open(self, query: Query) -> BatchStream: ...

    def open_on(
        self, connection: sqlite3.Connection, query: Query, *, release: Callable[[], None], known: Described
    ) -> BatchStream: ...

    def fetch_on(self, connection: sqlite3.Connection, what: str) -> Fetch: ...


class SqliteSnapshot(OneStreamSnapshot[_Opens, "sqlite3.Connection"]):
    """What the statements of one run read.

    With "snapshot" all of them share one connection: one stream may be open at a time. Outside WAL mode its transaction
    keeps writers out until the context ends. With "statement" each stream has a connection of its own.
    """

    engine = "sqlite"
    product = "SQLite"

    def __init__(self, source: _Opens, *, consistency: Consistency) -> None:
        super().__init__(source, consistency=consistency)
        self._known: Described = {}

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        """The first key of the second range, of the third, and so on: `rows` rows are between two of them.

        Each is found when it is asked for; with "snapshot", ask from the thread that opens the streams.

        Raises:
            ConfigError: the catalog does not vouch for the key.
            SourceError: SQLite failed, or a boundary is of another storage class than its column.
        """
        self._check_open()
        if self._connection is not None:
            yield from self._walk(self._source.fetch_on(self._connection, what_is_read(query)), query, key, rows=rows)
            return
        yield from self._walk(self._alone(query), query, key, rows=rows)

    def _begin(self, what: str) -> sqlite3.Connection:
        return self._source.begin(what)

    def _open_alone(self, query: Query) -> BatchStream:
        return self._source.open(query)

    def _open_on(self, connection: sqlite3.Connection, query: Query) -> BatchStream:
        return self._source.open_on(connection, query, release=_nothing, known=self._known)

    def _walk(self, fetch: Fetch, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        relation = relation_of(query, fetch)
        checked_key(relation, key.columns, query)
        yield from boundaries(query, relation, key, rows=rows, fetch=fetch)

    def _alone(self, query: Query) -> Fetch:
        def fetch(sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            self._check_open()
            connection = self._source.begin(what_is_read(query))
            try:
                return self._source.fetch_on(connection, what_is_read(query))(sql, parameters)
            finally:
                connection.close()

        return fetch


def _nothing() -> None:
    """The connection outlives the stream."""
