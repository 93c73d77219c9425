"""A run of several PostgreSQL statements: all in one exported snapshot, or each in its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.description import query_text, what_is_read
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.postgres_keys import WALK_SETTINGS, Rows, boundaries, relation_of
from rivet_dagster.sources.postgres_session import PostgresSession
from rivet_dagster.sources.postgres_storage import block_boundaries, blocks_of
from rivet_dagster.sources.ranges import checked_key
from rivet_dagster.sources.stream import BatchStream

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PostgresSnapshot", "SharedSnapshot"]

# The holder waits while others read: that is its work. Its transaction ends with the run.
_HOLDER_SETTINGS = {**WALK_SETTINGS, "idle_in_transaction_session_timeout": "0"}


class _Opens(Protocol):
    def open_at(self, query: Query, *, shared: SharedSnapshot | None) -> BatchStream: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSnapshot:
    """One that several sessions read.

    Attributes:
        name: by which they adopt it.
        locked: what the session that holds it has locked; by number, the names.
        text: the statement that it was made for.
    """

    name: str
    locked: Mapping[int, str]
    text: str


class PostgresSnapshot:
    """What the statements of one run read; streams may be open at a time, each on a connection of its own.

    With "snapshot", one session stays in its transaction from the first use to the end of the context; if it is lost,
    what is opened after that is a transient `SourceError`. It locks what the run reads, and takes the snapshot then, so
    there is one table to a run. With "statement", no transaction outlives a statement.
    """

    engine = "postgresql"
    parallel = True

    def __init__(self, source: _Opens, database: PostgresDatabase, *, consistency: Consistency) -> None:
        self._source = source
        self._database = database
        self._consistency: Consistency = consistency
        self._holder: PostgresSession | None = None
        self._shared: SharedSnapshot | None = None
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
        return self._source.open_at(query, shared=self._held(query))

    def storage_key(self, query: Query) -> Key | None:
        """The blocks of a table, as long as one snapshot is read; the run holds a lock that keeps them as they are.

        Raises:
            SourceError: the server failed.
        """
        return blocks_of(query, self._in_holder) if self._held(query) is not None else None

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        """The first key of the second range, of the third, and so on: `rows` rows are between two of them.

        Each is found when it is asked for. Several walks of one snapshot take turns.

        Raises:
            ConfigError: the catalog does not vouch for the key.
            SourceError: the server failed, or a boundary is infinite.
        """
        if self._held(query) is not None:
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

    def _held(self, query: Query) -> SharedSnapshot | None:
        """What all statements of the run read, from the first use on; `None` where each reads what it finds.

        Raises:
            SourceError: the server failed, or the run has ended.
        """
        text = query_text(query, most=2, fold=True)
        with self._walking:
            if self._ended:
                raise _ended()
            if self._consistency == "snapshot" and self._shared is None:
                self._holder, self._shared = self._hold(what_is_read(query), text)
        if self._shared is not None and self._shared.text != text:
            raise SourceError(f"{what_is_read(query)}: the run's snapshot was taken for something else; begin another")
        return self._shared

    def _hold(self, what: str, text: str) -> tuple[PostgresSession, SharedSnapshot]:
        # Only a session that reads no snapshot yet can lock before it takes one; what walks has to read that one.
        with contextlib.closing(self._session(what, _HOLDER_SETTINGS)) as first:
            locked = first.lock(text)
            holder = self._session(what, _HOLDER_SETTINGS, snapshot=first.export_snapshot())
            try:
                holder.lock(text)
                shared = SharedSnapshot(name=holder.export_snapshot(), locked=locked, text=text)
                first.end()
            except BaseException:
                holder.close()
                raise
        return holder, shared

    def _session(self, what: str, local: dict[str, str], *, snapshot: str | None = None) -> PostgresSession:
        return PostgresSession(self._database, what=what, local=local, snapshot=snapshot)


def _ended() -> SourceError:
    return SourceError("the run's snapshot has ended; begin another")
