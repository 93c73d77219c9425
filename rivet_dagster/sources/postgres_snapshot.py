"""A run of several PostgreSQL statements: all in one exported snapshot, or each in its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.postgres_keys import WALK_SETTINGS, Rows, boundaries, relation_of
from rivet_dagster.sources.postgres_session import PostgresSession
from rivet_dagster.sources.postgres_storage import block_boundaries, blocks_of
from rivet_dagster.sources.ranges import checked_key
from rivet_dagster.sources.stream import BatchStream

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PostgresSnapshot"]

# The holder waits while others read: that is its work. Its transaction ends with the run.
_HOLDER_SETTINGS = {**WALK_SETTINGS, "idle_in_transaction_session_timeout": "0"}


class _Opens(Protocol):
    def open_at(self, query: Query, *, snapshot: str | None) -> BatchStream: ...


class PostgresSnapshot:
    """What the statements of one run read; streams may be open at a time, each on a connection of its own.

    With "snapshot", one session stays in its transaction until the context ends; if it is lost, what is opened after
    that is a transient `SourceError`. With "statement", no transaction outlives a statement.
    """

    engine = "postgresql"
    parallel = True

    def __init__(self, source: _Opens, database: PostgresDatabase, *, consistency: Consistency) -> None:
        self._source = source
        self._database = database
        self._consistency: Consistency = consistency
        self._holder: PostgresSession | None = None
        self._exported: str | None = None
        self._walking = threading.Lock()
        self._ended = False

    @property
    def database(self) -> str:
        """The database's name; empty where the URL leaves it to the server."""
        return self._database.name

    @property
    def consistency(self) -> Consistency:
        """What is promised."""
        return self._consistency

    def __enter__(self) -> Self:
        if self._consistency == "snapshot":
            holder = self._session("the run's snapshot", _HOLDER_SETTINGS)
            try:
                self._exported = holder.export_snapshot()
            except BaseException:
                holder.close()
                raise
            self._holder = holder
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if self._holder is None:
            return
        # A walk in another thread ends first.
        with contextlib.suppress(Exception):
            self._holder.cancel()
        with self._walking:
            # A pooler keeps the connection of a transaction that has ended.
            with contextlib.suppress(SourceError):
                self._holder.end()
            self._holder.close()
            self._holder = None

    def open(self, query: Query) -> BatchStream:
        """As the source's `open`, in the run's snapshot.

        Raises:
            ConfigError: the query's names, casts, range or result columns cannot be.
            SourceError: the server refused or could not be reached; transient where the snapshot was lost.
        """
        self._check_open()
        return self._source.open_at(query, snapshot=self._exported)

    def storage_key(self, query: Query) -> Key | None:
        """The blocks of a table, as long as one snapshot is read; the run holds a lock that keeps them as they are.

        Raises:
            SourceError: the server failed.
        """
        self._check_open()
        return blocks_of(query, self._in_holder) if self._holder is not None else None

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        """The first key of the second range, of the third, and so on: `rows` rows are between two of them.

        Each is found when it is asked for. Several walks of one snapshot take turns.

        Raises:
            ConfigError: the catalog does not vouch for the key.
            SourceError: the server failed, or a boundary is infinite.
        """
        self._check_open()
        if self._holder is not None:
            yield from self._walk(query, key, rows=rows, run=self._in_holder)
            return
        session = self._session(what_is_read(query), WALK_SETTINGS)
        try:
            session.end()
            yield from self._walk(query, key, rows=rows, run=session.alone)
        finally:
            session.close()

    def _walk(self, query: Query, key: Key, *, rows: int, run: Rows) -> Iterator[tuple[Any, ...]]:
        if key.storage:
            yield from block_boundaries(query, key, rows=rows, run=run)
            return
        relation = relation_of(query, run)
        checked_key(relation, key.columns, query)
        yield from boundaries(query, relation, key, rows=rows, run=run)

    def _in_holder(self, sql: str) -> list[dict[str, Any]]:
        with self._walking:
            if self._holder is None:
                raise _ended()
            return self._holder.rows(sql)

    def _session(self, what: str, local: dict[str, str]) -> PostgresSession:
        return PostgresSession(self._database, what=what, local=local)

    def _check_open(self) -> None:
        if self._ended:
            raise _ended()


def _ended() -> SourceError:
    return SourceError("the run's snapshot has ended; begin another")
