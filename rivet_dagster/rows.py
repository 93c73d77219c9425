"""The contract between sources and exports: a query becomes a stream of Arrow record batches of one schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Query", "ResultColumn", "ResultStream", "Source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to read from a source: exactly one of `table` (one or two dotted names) and `sql`.

    Attributes:
        table: as the user wrote it, e.g. "public.orders".
        sql: one select statement.
        casts: column name → the type to read it as, e.g. {"x": "text"}.
    """

    table: str | None = None
    sql: str | None = None
    casts: Mapping[str, str]


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
