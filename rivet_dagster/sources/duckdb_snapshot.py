"""A run of several DuckDB statements: with the file held against writers, or opened anew by each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.duckdb_keys import Rows, boundaries, relation_of
from rivet_dagster.sources.ranges import checked_key
from rivet_dagster.sources.stream import BatchStream

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from typing_extensions import Self

__all__ = ["DuckDBSnapshot"]


class _Opens(Protocol):
    @property
    def database(self) -> str: ...

    def connect(self, what: str) -> DuckDBPyConnection: ...

    def cursor(self, connection: DuckDBPyConnection, what: str) -> DuckDBPyConnection: ...

    def open(self, query: Query) -> BatchStream: ...

    def open_on(self, connection: DuckDBPyConnection, query: Query) -> BatchStream: ...

    def rows_on(self, connection: DuckDBPyConnection, what: str) -> Rows: ...


class DuckDBSnapshot:
    """What the statements of one run read; streams may be open at a time, each a cursor of its own.

    With "snapshot" the file stays open for reading until the context ends: DuckDB lets no one open it for writing
    meanwhile, so all statements see the same rows. With "statement" it may change between two of them.
    """

    engine = "duckdb"
    parallel = True

    def __init__(self, source: _Opens, *, consistency: Consistency) -> None:
        self._source = source
        self._consistency: Consistency = consistency
        self._connection: DuckDBPyConnection | None = None
        # Making a cursor uses the connection, which is not for several threads.
        self._making = threading.Lock()
        self._ended = False

    @property
    def database(self) -> str:
        """The file's name, without its directory."""
        return self._source.database

    @property
    def consistency(self) -> Consistency:
        """What is promised."""
        return self._consistency

    def __enter__(self) -> Self:
        if self._consistency == "snapshot":
            self._connection = self._source.connect("the run's snapshot")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._making:
            self._ended = True
            if self._connection is not None:
                self._connection.close()

    def open(self, query: Query) -> BatchStream:
        """As the source's `open`, in the run's snapshot.

        Raises:
            ConfigError: the query's names, casts, range or result columns cannot be.
            SourceError: DuckDB refused.
        """
        if self._connection is None:
            self._check_open()
            return self._source.open(query)
        return self._source.open_on(self._cursor(query), query)

    def storage_key(self, query: Query) -> Key | None:
        """Nothing that is used divides rows by where they lie."""
        del query
        return None

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        """The first key of the second range, of the third, and so on: `rows` rows are between two of them.

        All are found when the first is asked for.

        Raises:
            ConfigError: the catalog does not vouch for the key.
            SourceError: DuckDB failed, or a boundary is infinite.
        """
        with contextlib.closing(self._cursor(query)) as connection:
            run = self._source.rows_on(connection, what_is_read(query))
            relation = relation_of(query, run)
            checked_key(relation, key.columns, query)
            found = list(boundaries(query, relation, key, rows=rows, run=run))
        yield from found

    def _cursor(self, query: Query) -> DuckDBPyConnection:
        with self._making:
            self._check_open()
            if self._connection is None:
                return self._source.connect(what_is_read(query))
            return self._source.cursor(self._connection, what_is_read(query))

    def _check_open(self) -> None:
        if self._ended:
            raise SourceError("the run's snapshot has ended; begin another")
