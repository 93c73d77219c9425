"""A run of several statements on one connection, where no two connections can be made to read the same snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.description import what_is_read
from rivet_dagster.sources.stream import BatchStream

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OneStreamSnapshot"]


class _Connection(Protocol):
    def close(self) -> None: ...


class _Named(Protocol):
    @property
    def database(self) -> str: ...


C = TypeVar("C", bound=_Connection)
S = TypeVar("S", bound=_Named)


class OneStreamSnapshot(ABC, Generic[S, C]):
    """What the statements of one run read.

    With "snapshot" all of them share one connection, and one stream may be open at a time. With "statement" each stream
    has a connection of its own.
    """

    engine: ClassVar[str]
    product: ClassVar[str]
    """The engine's name as people write it."""

    def __init__(self, source: S, *, consistency: Consistency) -> None:
        self._source = source
        self._consistency: Consistency = consistency
        self._connection: C | None = None
        self._stream: BatchStream | None = None
        self._ended = False

    @property
    def database(self) -> str:
        """As the source's."""
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
            self._connection = self._begin("the run's snapshot")
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
            SourceError: the database refused, another stream of the snapshot is open, or, transient, it was lost.
        """
        self._check_open()
        if self._connection is None:
            return self._open_alone(query)
        if self._stream is not None and not self._stream.closed:
            raise SourceError(
                f"{what_is_read(query)}: a snapshot of {self.product} has one stream at a time; close the other, or "
                'read with consistency="statement"'
            )
        self._stream = self._open_on(self._connection, query)
        return self._stream

    def storage_key(self, query: Query) -> Key | None:
        """Nothing that is known divides rows by where they lie."""
        del query
        return None

    @abstractmethod
    def _begin(self, what: str) -> C:
        """A connection whose transaction is the snapshot."""

    @abstractmethod
    def _open_alone(self, query: Query) -> BatchStream:
        """A stream on a connection of its own."""

    @abstractmethod
    def _open_on(self, connection: C, query: Query) -> BatchStream:
        """A stream on the snapshot's connection, which outlives it."""

    def _check_open(self) -> None:
        if self._ended:
            raise SourceError("the run's snapshot has ended; begin another")
