"""A shop whose table grows, and what an incremental export of it has to hold, by a model of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[int, int | None, str]
"""Its key, its stamp, and a note that no two versions of rows share."""


@dataclass(eq=False, kw_only=True)
class Delivery:
    """What one attempt would deliver, or has delivered.

    Attributes:
        base: what it builds on.
        rows: of the whole dataset after it.
        added: by it alone.
        value: of the cursor after it.
        included: the rows with `value` itself are in the dataset.
        columns: of the table.
        token: of the attempt, once it has asked for something.
        run_id: Dagster's.
    """

    base: Delivery | None
    rows: list[Row]
    added: list[Row]
    value: int | None
    included: bool
    columns: list[str]
    run_id: str
    token: str | None = None

    def line(self) -> list[Delivery]:
        """Itself and what it descends from, the newest first."""
        found: Delivery | None = self
        out = []
        while found is not None:
            out.append(found)
            found = found.base
        return out


@dataclass(kw_only=True)
class Shop:
    """The table, and who writes to it.

    Attributes:
        path: of the SQLite file.
        kind: of cursor: "serial" has ties, "unique" has none, "clock" counts seconds.
        first_nulls: the first run exports rows without a stamp.
        clock: of the shop, in seconds.
        top: no row has a greater stamp, but for one from the future.
        reached: no window has ended later.
    """

    path: Path
    kind: str
    first_nulls: bool
    clock: int = 1_000
    top: int = 0
    reached: int = 0
    versions: int = 0
    owed: set[Row] = field(default_factory=set)
    writer: sqlite3.Connection | None = None
    pending: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self.connection.execute("pragma journal_mode = wal")
        self.connection.execute("pragma synchronous = off")
        self.connection.execute("create table events (id integer primary key, stamp integer, note text)")
        index = "unique index" if self.kind == "unique" else "index"
        self.connection.execute(f"create {index} of_stamp on events (stamp)")

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.connection.close()

    def stamp(self, how: str) -> int | None:
        """The next one: the same as before, a new one, one from the future, or none."""
        if how == "null":
            return None
        if self.kind == "clock":
            return self.clock + (30 if how == "future" else 0)
        if self.top == 0 or how != "same" or self.kind == "unique":
            self.top += 1
        return self.top

    def new_rows(self, hows: Sequence[str]) -> list[Row]:
        (last,) = self.connection.execute("select coalesce(max(id), 0) from events").fetchone()
        rows = [(last + n, self.stamp(how), self._note()) for n, how in enumerate(hows, 1)]
        # What was stamped by a clock that had been set back is promised to nobody.
        self.owed |= {r for r in rows if r[1] is not None and r[1] >= self.reached}
        return rows

    def insert(self, hows: Sequence[str]) -> None:
        self._write(self.connection, self.new_rows(hows))

    def update(self, which: int, how: str) -> None:
        """Another version of a row, stamped anew."""
        there = self.rows()
        if there:
            old = there[which % len(there)]
            new = (old[0], self.stamp(how), self._note())
            self.owed -= {old}
            self.owed |= {new} if new[1] is not None and new[1] >= self.reached else set()
            self.connection.execute("update events set stamp = ?, note = ? where id = ?", (new[1], new[2], new[0]))

    def begin_late(self, hows: Sequence[str]) -> None:
        """A transaction that draws its stamps now, and commits later."""
        self.writer = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self.writer.execute("begin immediate")
        self.pending = self.new_rows(hows)
        self._write(self.writer, self.pending)

    def end_late(self, *, commit: bool) -> None:
        assert self.writer is not None
        self.writer.execute("commit" if commit else "rollback")
        self.writer.close()
        self.writer = None
        if not commit:
            self.owed -= {*self.pending}

    def alter(self) -> None:
        """A column more; or it goes again."""
        change = "drop column more" if "more" in self.columns() else "add column more integer"
        self.connection.execute(f"alter table events {change}")

    def columns(self) -> list[str]:
        return [name for _, name, *_ in self.connection.execute("pragma table_info(events)")]

    def rows(self) -> list[Row]:
        return self.connection.execute("select id, stamp, note from events order by id").fetchall()

    def is_behind(self, base: Delivery) -> bool:
        """Whether the clock stands before the end of a delivery."""
        return self.kind == "clock" and base.value is not None and self.clock < base.value

    def delivery(self, base: Delivery | None, *, anew: bool, run_id: str) -> Delivery:
        """What a run has to deliver that begins now, on top of `base`."""
        there = self.rows()
        first = base is None or anew
        low, included = (None, False) if first or base is None else (base.value, base.included)
        stamps = [stamp for _, stamp, _ in there if stamp is not None]
        high, whole = (
            (self.clock, False) if self.kind == "clock" else (max(stamps, default=None), self.kind == "unique")
        )
        if low is not None and (high is None or high < low):
            high, whole = low, included

        def within(stamp: int | None) -> bool:
            if stamp is None:
                return first and self.first_nulls
            if high is None or stamp > high or (stamp == high and not whole):
                return False
            return low is None or stamp > low or (stamp == low and not included)

        added = [row for row in there if within(row[1])]
        if high is not None:
            self.reached = max(self.reached, high + (1 if whole else 0))
        return Delivery(
            base=base,
            rows=sorted(([] if first or base is None else base.rows) + added, key=repr),
            added=added,
            value=high,
            included=whole and high is not None,
            columns=self.columns(),
            run_id=run_id,
        )

    def _note(self) -> str:
        self.versions += 1
        return f"version {self.versions}"

    @staticmethod
    def _write(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        connection.executemany("insert into events (id, stamp, note) values (?, ?, ?)", rows)


def read_back(paths: Sequence[str]) -> list[Any]:
    """What DuckDB finds in these parts."""
    import duckdb

    if not paths:
        return []
    found = duckdb.sql(f"select id, stamp, note from read_parquet({[*paths]})").fetchall()
    return sorted(found, key=repr)
