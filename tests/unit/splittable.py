"""A table in memory that can be read in ranges of its key, and goes wrong where a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.exports.extraction import Extraction, plan_export
from rivet_dagster.exports.modes import Chunked
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Export
from rivet_dagster.rows import Key, KeyRange, Query, ResultColumn

COLUMNS = (
    ResultColumn(name="id", source_type="bigint", nullable=False, arrow_type=pa.int64()),
    ResultColumn(name="text", source_type="text", nullable=True, arrow_type=pa.string()),
)
SCHEMA = pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in COLUMNS])
KEY = Key(columns=("id",))


class Table:
    """Rows with these ids, which is both the source and its snapshot.

    `before_batch` is called with the range's low id (`None` for the first range) and the number of the batch, by the
    thread that reads. `most_open` is how many streams were open at a time; `still_open` how many are now.
    """

    engine = "postgresql"
    database = "shop"
    origin = "xxh3:0123456789abcdef"

    def __init__(
        self,
        ids: Sequence[int],
        *,
        batch_rows: int = 10,
        parallel: bool = True,
        keys: Sequence[Key] = (KEY,),
        before_batch: Callable[[int | None, int], None] = lambda _low, _n: None,
        before_boundary: Callable[[int], None] = lambda _n: None,
    ) -> None:
        self.ids, self.batch_rows, self.parallel = sorted(ids), batch_rows, parallel
        self.known_keys, self.before_batch, self.before_boundary = tuple(keys), before_batch, before_boundary
        self.consistency: Any = None
        self.opened: list[Query] = []
        self.most_open = self.still_open = self.began = self.ended = self.boundaries_asked = 0
        self.lock = threading.Lock()

    def keys(self, query: Query) -> tuple[Key, ...]:
        return self.known_keys

    def check_key(self, query: Query, columns: Sequence[str]) -> Key:
        if tuple(columns) != KEY.columns:
            raise ConfigError(f"{columns}: no key")
        return KEY

    def estimated_rows(self, query: Query) -> int | None:
        return len(self.ids)

    def row_bytes(self, query: Query) -> int:
        return 100

    @contextmanager
    def snapshot(self, consistency: Any) -> Iterator[Table]:
        self.consistency = consistency
        self.began += 1
        try:
            yield self
        finally:
            assert self.still_open == 0, "the snapshot ends after its streams"
            self.ended += 1

    def storage_key(self, query: Query) -> Key | None:
        return None

    def boundaries(self, query: Query, key: Key, *, rows: int) -> Iterator[tuple[Any, ...]]:
        ids = inside(self.ids, query.within)
        for n, at in enumerate(range(rows, len(ids), rows)):
            self.boundaries_asked += 1
            self.before_boundary(n)
            yield (ids[at],)

    def open(self, query: Query) -> Stream:
        with self.lock:
            assert not self.ended, "nothing is opened after the snapshot"
            self.opened.append(query)
            self.still_open += 1
            self.most_open = max(self.most_open, self.still_open)
        return Stream(self, query)


class Stream:
    """The rows of one range, or of all; of a column that may be coerced, all of its values were."""

    columns = COLUMNS

    def __init__(self, table: Table, query: Query) -> None:
        self.table, self.within = table, query.within
        self.closed = threading.Event()
        self.coerced = dict.fromkeys(query.coerce, 0)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        low = self.within.low[0] if self.within and self.within.low else None
        ids = inside(self.table.ids, self.within)
        for n, at in enumerate(range(0, len(ids), self.table.batch_rows)):
            self.table.before_batch(low, n)
            if self.closed.is_set():
                raise SourceError("cancelled by request of the user", transient=True)
            some = ids[at : at + self.table.batch_rows]
            self.coerced = {column: count + len(some) for column, count in self.coerced.items()}
            yield pa.RecordBatch.from_pydict({"id": some, "text": [f"row {i}" for i in some]}, schema=SCHEMA)

    def close(self) -> None:
        with self.table.lock:
            if not self.closed.is_set():
                self.closed.set()
                self.table.still_open -= 1


def inside(ids: Sequence[int], within: KeyRange | None) -> list[int]:
    """Those of a range."""
    low, high = (within.low, within.high) if within else (None, None)
    return [i for i in ids if (low is None or low[0] <= i) and (high is None or i < high[0])]


def plan(
    source: Any, *, clock: Any = None, log: Any = None, max_file_size: Any = None, columns: Any = None, **mode: Any
) -> Extraction:
    """An export of the table in ranges."""
    export = Export(
        name="orders", table="orders", mode=Chunked(**mode), max_file_size=max_file_size, columns=columns or {}
    )
    more = {name: given for name, given in (("clock", clock), ("log", log)) if given is not None}
    output = resolve_output(export=export, format="csv")
    return plan_export(export, export_name="orders", source=source, output=output, head=None, **more)
