"""Windows over a cursor: which rows a run of an incremental export reads, and what fixes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

__all__ = ["Cursor", "CursorKind", "CursorTerm", "Noted", "Settling", "Window"]

CursorKind = Literal["instant", "naive", "date", "integer", "text", "uuid"]
"""What values of a cursor are: aware and naive datetimes, dates, whole numbers, texts, and UUIDs as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorTerm:
    """What a window is over: exactly one of a column of the query and an SQL expression over its columns.

    Attributes:
        column: its name, as the database has it.
        expression: SQL.
        is_time: the author says that its values are times; for a database whose types do not.
    """

    column: str | None = None
    expression: str | None = None
    is_time: bool = False

    @classmethod
    def of(cls, column: str | None, expression: str | None, *, is_time: bool) -> CursorTerm:
        """As an author writes it: of the two, one is missing or blank."""
        expression = (expression or "").strip() or None
        return cls(column=None if expression else column, expression=expression, is_time=is_time)

    @property
    def shown(self) -> str:
        """For people."""
        return f"column {self.column!r}" if self.expression is None else "the cursor expression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A term as the database describes it.

    Attributes:
        term: what is described.
        kind: what its values are.
        type_name: the database's name of its type, without precision.
        resolution: how far two different values of a time are apart, at least.
        unique: whether a unique index over it alone makes each value the only one; NULL aside.
        nullable: whether it may be NULL.
        finds_nulls: whether the rows with NULL are found without looking at all others, as by an index.
        form: how the source writes values; for the source alone.
    """

    term: CursorTerm
    kind: CursorKind
    type_name: str
    resolution: timedelta = timedelta(microseconds=1)
    unique: bool = False
    nullable: bool = True
    finds_nulls: bool = False
    form: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rows between two values of a cursor, compared by the database.

    `None` for `high` is no such row, unless the window is `endless`.

    Values are of the cursor's kind and travel typed, so no session's time zone can shift them.

    Attributes:
        cursor: what is compared.
        low: `None` is no bound.
        low_open: the rows with `low` itself are left out.
        high: where it ends.
        high_open: likewise.
        nulls: the rows whose cursor is NULL are in it, too.
        endless: there is no upper bound.
        server: the only one that may be read, as `Noted` has it; empty for any.
    """

    cursor: Cursor
    low: Any | None = None
    low_open: bool = False
    high: Any | None
    high_open: bool
    nulls: bool = False
    endless: bool = False
    server: str = ""

    @property
    def is_one_value(self) -> bool:
        """Whether its rows all have the same value."""
        return self.low is not None and self.low == self.high and not (self.low_open or self.high_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """What is asked of a source before a window is fixed.

    Attributes:
        top: the greatest value is asked for, too.
        writers: who was writing when the clock or the greatest value was noted must have ended before rows are read.
        timeout: how long to wait for that.
        nulls: the number of rows whose cursor is NULL is asked for, too.
        nulls_below: so many are not worth counting; `None` counts all there are.
        low: where the window will begin.
    """

    top: bool
    writers: bool
    timeout: timedelta
    nulls: bool
    nulls_below: int | None = None
    low: Any | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What a source noted.

    Attributes:
        clock: of the source, with a time zone; earlier, where transactions of then were still open.
        now: the clock itself, where `clock` may be earlier.
        top: the greatest value; `None` where there is none, or none was asked for.
        nulls: how many rows have a NULL cursor, where that was asked for; `None` for `nulls_below` or more.
        drawn: the last id that the source has drawn, by which the next is higher; where the source knows, and `top` is
            below where the window begins.
        said: how it came about, for metadata.
        server: which one it holds for, where a source may be served by several; for the source alone.
    """

    clock: datetime
    now: datetime | None = None
    top: Any | None = None
    nulls: int | None = None
    drawn: int | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    server: str = ""
