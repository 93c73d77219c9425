"""DuckDB: a read-only connection, the relation's description first, then Arrow batches as they are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.description import (
    check_columns,
    existing_file,
    query_text,
    quoted,
    what_is_read,
)
from rivet_dagster.sources.duckdb_types import exported_as
from rivet_dagster.sources.guards import check_temporal, holds_temporal
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.url import DatabaseUrl

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from duckdb.sqltypes import DuckDBPyType

__all__ = ["DuckDBSource"]

# DuckDB counts rows alone; few at a time keep wide ones within the bound of a batch.
_FETCH_ROWS = 16_384


class DuckDBSource:
    """A DuckDB file, read-only. Every `open` is a connection of its own, in one transaction.

    Types are described in `duckdb_types`.
    """

    engine = "duckdb"

    def __init__(self, url: DatabaseUrl, *, batch_rows: int, batch_bytes: int) -> None:
        self._url = url
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes

    @property
    def database(self) -> str:
        """The file's name, without its directory."""
        return self._url.rest.rpartition("/")[2]

    def open(self, query: Query) -> BatchStream:
        """Describe the result without running the query, then be ready to stream it.

        Raises:
            ConfigError: the query's names, casts or result columns cannot be.
            SourceError: the file is not there, no database, held by another process, or the query is refused; nothing
                stays open.
        """
        # Drivers load where they are needed: importing the package stays cheap.
        import duckdb

        text = query_text(query, most=3, fold=False)
        path = existing_file(self._url)
        with self._translated(query):
            connection = duckdb.connect(str(path), read_only=True)
        try:
            with self._translated(query):
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute("BEGIN TRANSACTION")
                columns, sql = _described(connection, text, query)
        except BaseException:
            connection.close()
            raise
        return BatchStream(
            columns,
            self._batches(connection, sql, query),
            cancel=connection.interrupt,
            release=connection.close,
            batch_rows=self._batch_rows,
            batch_bytes=self._batch_bytes,
        )

    def _batches(self, connection: DuckDBPyConnection, sql: str, query: Query) -> Iterator[pa.RecordBatch]:
        with self._translated(query):
            reader = connection.sql(sql).to_arrow_reader(min(self._batch_rows, _FETCH_ROWS))
        while True:
            with self._translated(query):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            for field, values in zip(batch.schema, batch.columns, strict=True):
                if holds_temporal(field.type):
                    check_temporal(field.name, values)
            yield batch

    @contextlib.contextmanager
    def _translated(self, query: Query) -> Iterator[None]:
        import duckdb

        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            # DuckDB names the whole path of a file.
            text = str(error).replace(str(existing_file(self._url).absolute()), self.database)
            transient = "Could not set lock on file" in text
            hint = "; another process has it open for writing, run it again" if transient else ""
            raise SourceError(
                f"duckdb database {self.database!r}, {what_is_read(query)}: {text}{hint}", transient=transient
            ) from None


def _described(connection: DuckDBPyConnection, text: str, query: Query) -> tuple[tuple[ResultColumn, ...], str]:
    names, kinds = _columns(connection, text)
    check_columns(names, query)
    if query.casts:
        chosen = [
            f"CAST({quoted(name)} AS {query.casts[name]}) AS {quoted(name)}" if name in query.casts else quoted(name)
            for name in names
        ]
        text = _selected(chosen, text, names)
        _, kinds = _columns(connection, text)
    expressions = []
    for name, kind in zip(names, kinds, strict=True):
        cast = exported_as(kind)
        expressions.append(f"CAST({quoted(name)} AS {cast}) AS {quoted(name)}" if cast else quoted(name))
    sql = _selected(expressions, text, names)
    arrow = connection.sql(f"{sql} LIMIT 0").to_arrow_table().schema
    columns = tuple(
        ResultColumn(name=name, source_type=str(kind), nullable=True, arrow_type=field.type)
        for name, kind, field in zip(names, kinds, arrow, strict=True)
    )
    return columns, sql


def _columns(connection: DuckDBPyConnection, text: str) -> tuple[list[str], list[DuckDBPyType]]:
    relation = connection.sql(text)
    return relation.columns, relation.types


def _selected(expressions: list[str], text: str, names: list[str]) -> str:
    return f"SELECT {', '.join(expressions)} FROM (\n{text}\n) AS q({', '.join(map(quoted, names))})"
