"""A run of several SQLite statements: all in one read transaction, or each in its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query, ResultColumn
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.ranges import checked_key
from rivet_dagster.sources.sqlite_keys import Fetch, boundaries, relation_of
from rivet_dagster.sources.stream import BatchStream

if TYPE_CHECKING:
    import sqlite3

    from typing_extensions import Self

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


class SqliteSnapshot:
    """What the statements of one run read.

    With "snapshot" all of them share one connection, because no two connections of SQLite can be made to read the same
    snapshot: one stream may be open at a time. Outside WAL mode its transaction keeps writers out until the context
    ends. With "statement" each stream has a connection of its own.
    """

    engine = "sqlite"

    def __init__(self, source: _Opens, *, consistency: Consistency) -> None:
        self._source = source
        self._consistency: Consistency = consistency
        self._connection: sqlite3.Connection | None = None
        self._stream: BatchStream | None = None
        self._known: Described = {}
        self._ended = False

    @property
    def database(self) -> str:
        """The file's name, without its directory."""
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
            self._connection = self._source.begin("the run's snapshot")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if self._stream is not None:
            self._stream.close()
        if self._connection is not None:
            self._connection.close()

    def open(self, query: Query) -> BatchStream:
        """As the source's `open`, in the run's transaction.

        Raises:
            ConfigError: the query's names, casts, range or result columns cannot be.
            SourceError: SQLite refused, or another stream of the snapshot is still open.
        """
        self._check_open()
        if self._connection is None:
            return self._source.open(query)
        if self._stream is not None and not self._stream.closed:
            raise SourceError(
                f"{what_is_read(query)}: a snapshot of SQLite has one stream at a time; close the other, or read with "
                'consistency="statement"'
            )
        self._stream = self._source.open_on(self._connection, query, release=_nothing, known=self._known)
        return self._stream

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

    def _check_open(self) -> None:
        if self._ended:
            raise SourceError("the run's snapshot has ended; begin another")


def _nothing() -> None:
    """The connection outlives the stream."""
