"""Read a table range by range, and say what was in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rivet_dagster.rows import Consistency, Key, KeyRange, Query, Snapshot, SplittableSource
from rivet_dagster.sources.connect import connect
from tests.sources.databases import Database

CONSISTENCIES: tuple[Consistency, ...] = ("snapshot", "statement")


def splittable(database: Database, **settings: Any) -> SplittableSource:
    source = connect(database.url, **settings)
    assert isinstance(source, SplittableSource)
    return source


def query_of(table: str = "t", *, within: KeyRange | None = None, **casts: str) -> Query:
    return Query(table=table, casts=casts, within=within)


def key_of(*columns: str) -> Key:
    return Key(columns=columns)


def rows_in(opened: SplittableSource | Snapshot, query: Query) -> list[tuple[Any, ...]]:
    """All rows of a query as tuples."""
    return [tuple(row.values()) for batch in opened.open(query) for row in batch.to_pylist()]


def between(bounds: Sequence[tuple[Any, ...]], key: Key) -> Iterator[KeyRange]:
    """The ranges that boundaries make."""
    for low, high in zip([None, *bounds], [*bounds, None], strict=True):
        yield KeyRange(key=key, low=low, high=high)


@contextmanager
def run(database: Database, consistency: Consistency = "snapshot") -> Iterator[Snapshot]:
    with splittable(database).snapshot(consistency) as snapshot:
        yield snapshot


def read_in_ranges(snapshot: Snapshot, key: Key, *, rows: int, table: str = "t") -> list[list[tuple[Any, ...]]]:
    """The rows of each range, in the order of the ranges."""
    bounds = list(snapshot.boundaries(query_of(table), key, rows=rows))
    return [rows_in(snapshot, query_of(table, within=within)) for within in between(bounds, key)]


def assert_cut(parts: list[list[tuple[Any, ...]]], *, rows: int, expected: Sequence[tuple[Any, ...]]) -> None:
    """Every expected row is in one range, and all but the last are of `rows` rows."""
    assert sorted(row for part in parts for row in part) == sorted(expected)
    assert [len(part) for part in parts[:-1]] == [rows] * (len(parts) - 1)
    assert len(parts[-1]) <= rows
    assert len(parts) == max(1, -(-len(expected) // rows))
