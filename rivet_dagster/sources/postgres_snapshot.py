"""A run of several PostgreSQL statements: all in one exported snapshot, or each in its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.description import query_text, what_is_read
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.postgres_keys import WALK_SETTINGS, Rows, boundaries, relation_of
from rivet_dagster.sources.postgres_result import Result, result_of
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


# Between two ranges a session waits for what it read to be encoded.
_READER_SETTINGS = {"idle_in_transaction_session_timeout": "0"}


class SharedSnapshot:
    """One that several sessions read, each range after range. May be used by several threads.

    Attributes:
        locked: what the session that holds it has locked; by number, the names.
        text: the statement that it was made for.
    """

    def __init__(self, open_session: Callable[[], PostgresSession], *, locked: Mapping[int, str], text: str) -> None:
        """Open nothing yet; `open_session` adopts the snapshot."""
        self.locked = locked
        self.text = text
        self._results: dict[Hashable, Result] = {}
        self._open = open_session
        self._resting: list[PostgresSession] = []
        self._lock = threading.Lock()
        self._ended = False

    def session(self) -> PostgresSession:
        """One that nobody uses; give it back."""
        with self._lock:
            if self._resting:
                return self._resting.pop()
        return self._open()

    def result(self, query: Query, session: PostgresSession, text: str) -> Result:
        """As `result_of`, asked once: ranges differ in their rows alone, and what is locked nobody changes."""
        asked = tuple(sorted(query.casts.items())), tuple(sorted(query.coerce))
        if asked not in self._results:
            self._results[asked] = result_of(session, query, text)
        return self._results[asked]

    def give_back(self, session: PostgresSession) -> None:
        """Keep a session for the next range, if it can read on."""
        with self._lock:
            if session.rests and not self._ended:
                self._resting.append(session)
                return
        session.close()

    def end(self) -> None:
        """Free the sessions that nobody uses, and those that are given back later."""
        with self._lock:
            self._ended = True
            left, self._resting = self._resting, []
        for session in left:
            _end(session)


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
        if self._shared is not None:
            self._shared.end()
        with self._walking:
            _end(self._holder)
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
            first.lock(text)
            locked = first.locked()
            holder = self._session(what, _HOLDER_SETTINGS, snapshot=first.export_snapshot())
            try:
                holder.lock(text)
                adopt = partial(self._session, what, _READER_SETTINGS, snapshot=holder.export_snapshot())
                first.end()
            except BaseException:
                holder.close()
                raise
        return holder, SharedSnapshot(adopt, locked=locked, text=text)

    def _session(self, what: str, local: dict[str, str], *, snapshot: str | None = None) -> PostgresSession:
        return PostgresSession(self._database, what=what, local=local, snapshot=snapshot)


def _end(session: PostgresSession) -> None:
    # A pooler keeps the connection of a transaction that has ended.
    with contextlib.suppress(SourceError):
        session.end()
    session.close()


def _ended() -> SourceError:
    return SourceError("the run's snapshot has ended; begin another")
