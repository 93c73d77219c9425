"""The contract between sources and exports: a query becomes a stream of Arrow record batches of one schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from rivet_dagster.windows import Cursor, CursorTerm, Noted, Settling, Window

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Consistency",
    "CountingSource",
    "IncrementalSource",
    "Key",
    "KeyRange",
    "Query",
    "ResultColumn",
    "ResultStream",
    "Source",
    "SplittableSource",
]

Consistency = Literal["snapshot", "statement"]
"""Whether the statements of one run see one snapshot of the database, or each its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Columns that name each row once: unique together, and never NULL. Names as the database has them.

    Attributes:
        columns: in order.
        storage: they say where rows lie, which is true for one snapshot of the database and no longer.
    """

    columns: tuple[str, ...]
    storage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The rows with `low <= key < high`, compared by the database, column by column; `None` is no bound.

    Values are bound as typed parameters; each is what the driver gave for that column.
    """

    key: Key
    low: tuple[Any, ...] | None
    high: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to read from a source: exactly one of `table` (one or two dotted names) and `sql`.

    Attributes:
        table: as the user wrote it, e.g. "public.orders".
        sql: one select statement.
        casts: column name → the type to read it as, e.g. {"x": "text"}.
        coerce: columns in which a value that would be refused becomes NULL, and is counted.
        within: only the rows of this range; only for a `SplittableSource`.
        window: only the rows of this window; only for an `IncrementalSource`.
    """

    table: str | None = None
    sql: str | None = None
    casts: Mapping[str, str]
    coerce: frozenset[str] = frozenset()
    within: KeyRange | None = None
    window: Window | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultColumn:
    """One column of a result, from the database's own description of it."""

    name: str
    source_type: str
    nullable: bool
    arrow_type: pa.DataType


class ResultStream(Protocol):
    """Rows of one query: a schema that is known before the first batch, then bounded batches of exactly it."""

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        """In order; names are unique."""
        ...

    @property
    def coerced(self) -> Mapping[str, int]:
        """How many values became NULL so far, for each column of the query's `coerce`."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches, none of them empty. A cut connection raises; it never looks like the end."""
        ...

    def close(self) -> None:
        """Stop reading and free the connection; may be called at any time and again."""
        ...


class Source(Protocol):
    """A database to read from. Errors are `SourceError`, without secrets."""

    @property
    def engine(self) -> str:
        """What kind of database it is, e.g. "postgresql"."""
        ...

    @property
    def database(self) -> str:
        """The database's name, without host, user, port or directory."""
        ...

    def open(self, query: Query) -> ResultStream:
        """Describe the result, then be ready to stream it."""
        ...


@runtime_checkable
class CountingSource(Source, Protocol):
    """A source that can say how many rows a query has, without reading them."""

    def count(self, query: Query) -> int:
        """Let the database count, in one read-only statement; casts change nothing.

        Raises:
            ConfigError: the query's names or window cannot be.
            SourceError: the database refused, or could not be reached.
        """
        ...


@runtime_checkable
class SplittableSource(Source, Protocol):
    """A source that can read a query in ranges of a key."""

    @property
    def origin(self) -> str:
        """Which database it is, server and user included, as a fingerprint: equal only where the rows are the same."""
        ...

    def keys(self, query: Query) -> tuple[Key, ...]:
        """The keys that the catalog vouches for, the primary key first; empty for a query that is no table.

        A key rests on a full, valid, immediate unique index over columns that are never NULL.
        """
        ...

    def check_key(self, query: Query, columns: Sequence[str]) -> Key:
        """The key of these columns.

        Raises:
            ConfigError: the catalog does not vouch for it: says which column may be NULL, or that nothing makes them
                unique, and which keys there are.
        """
        ...

    def estimated_rows(self, query: Query) -> int | None:
        """How many rows the catalog believes there are, at no cost; `None` where it does not say."""
        ...

    def row_bytes(self, query: Query) -> int:
        """About how many bytes a row has once it is read, from statistics or a small sample; at least one."""
        ...

    def snapshot(self, consistency: Consistency) -> AbstractContextManager[Snapshot]:
        """Begin a run of several statements.

        Raises:
            ConfigError: "snapshot" is not possible here; says why and what is.
            SourceError: the database refused.
        """
        ...


class Snapshot(Source, Protocol):
    """What several statements of one run read: begins with the first of them at the latest, ends with its context."""

    @property
    def consistency(self) -> Consistency:
        """What is promised."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether several streams may be open at a time, each on a connection of its own, from several threads."""
        ...

    def storage_key(self, query: Query) -> Key | None:
        """What divides the rows by where they lie, without an index; `None` where nothing does, as for a query.

        It holds for as long as the snapshot does. The ranges follow the storage: none of them is read twice, and about
        as many rows as are asked for are in each.
        """
        ...

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        """The first key of the second range, of the third, and so on: `rows` rows are between two of them.

        Of a query `within` a range of this key, they divide that range.

        Each is found by a short statement over the key's index; sparse keys cost nothing.
        """
        ...


@runtime_checkable
class IncrementalSource(Source, Protocol):
    """A source that can read the rows of a window, and say where one may end."""

    @property
    def knows_writers(self) -> bool:
        """Whether it can tell who is writing, so that `Settling.writers` can be asked for."""
        ...

    def describe_cursor(self, query: Query, term: CursorTerm) -> Cursor:
        """Describe a term.

        Raises:
            ConfigError: it is no column of the query, or of a type that no window can be over; names the remedy.
            SourceError: the database refused.
        """
        ...

    def settling(self, query: Query, cursor: Cursor, asked: Settling) -> AbstractContextManager[Noted]:
        """Note clock, greatest value and NULLs; what is opened within the context reads what was settled by then.

        Raises:
            ConfigError: `writers` cannot be kept here; names the alternative.
            ContractError: the cursor's values are not of one kind.
            SourceError: transient where a writer did not end in time; names it.
        """
        ...
