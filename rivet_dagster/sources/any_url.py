"""Every other database that SQLAlchemy has a dialect for: slower, a Python object per value, but as strict."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pyarrow as pa

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.any_values import column_array, described_type, reflected_type, selected_as
from rivet_dagster.sources.casts import cast_type
from rivet_dagster.sources.counting import count_sql, counted
from rivet_dagster.sources.description import (
    check_columns,
    query_text,
    schema_of,
    split_name,
    what_is_read,
)
from rivet_dagster.sources.guards import Misfits, refused
from rivet_dagster.sources.mysql_errors import hint_for as mysql_hint
from rivet_dagster.sources.mysql_errors import is_transient as mysql_transient
from rivet_dagster.sources.sqlstate import hint_for, is_transient, sqlstate_of_refusal
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.url import DatabaseUrl

__all__ = ["AnyUrlSource"]

_FIRST_ROWS = 256
_SECRET_NAMES = re.compile(r"(?i)pass|pwd|token|secret|key|odbc_connect")
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "oracle": "SET TRANSACTION READ ONLY",
}


class AnyUrlSource:
    """A database behind a SQLAlchemy URL. Every `open` is a connection of its own; nothing is ever committed.

    What the driver delivers is taken as it is: of a query's columns, drivers of MySQL give NULL for a date in no
    calendar and six digits of a float (its tables are selected so that they cannot). Whether a cut connection is an
    error, and whether a statement can be cancelled, is the driver's doing, too. Where the dialect has no read-only
    transaction, give the user no right to write.
    Types are described in `any_values`.
    """

    def __init__(self, url: DatabaseUrl, raw: str, *, batch_rows: int, batch_bytes: int) -> None:
        """Find the dialect.

        Args:
            url: for its secrets.
            raw: the same, as SQLAlchemy takes it.
            batch_rows: no batch has more rows.
            batch_bytes: about the size of a batch.

        Raises:
            ConfigError: SQLAlchemy is not installed, or has no such dialect.
        """
        try:
            from sqlalchemy.engine import make_url
            from sqlalchemy.exc import ArgumentError, NoSuchModuleError
        except ImportError:
            raise ConfigError(
                f"{url.scheme}:// is read through SQLAlchemy, which is not installed: "
                "pip install 'rivet-dagster[sqlalchemy]'"
            ) from None
        try:
            self._sqlalchemy_url = make_url(raw.strip())
            dialect = self._sqlalchemy_url.get_dialect()
        except (NoSuchModuleError, ArgumentError, ValueError):
            raise ConfigError(
                f"{url.scheme}:// is not supported; supported are postgresql://, mysql://, mariadb://, sqlite:/// and "
                "duckdb:///, and every URL for which a dialect of SQLAlchemy is installed"
            ) from None
        if dialect.is_async:
            raise ConfigError(f"{dialect.name}+{dialect.driver}:// is asynchronous; name a driver that is not")
        self.engine: str = dialect.name
        self._url = _with_secrets(url)
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes

    @property
    def database(self) -> str:
        """The database's name, without a directory."""
        return (self._sqlalchemy_url.database or "").rpartition("/")[2]

    def open(self, query: Query) -> BatchStream:
        """Describe the result, which for a query begins to run it, then be ready to stream it.

        Raises:
            ConfigError: the query's names, casts or result columns cannot be, or the driver is not installed.
            SourceError: the database refused or could not be reached, or a column has no type; no connection is left.
        """
        engine, connection, text = self._connect(query)
        try:
            with self._translated(query):
                declared, text = self._declared(connection, query, text)
                result = connection.exec_driver_sql(
                    text, execution_options={"stream_results": True, "no_parameters": True}
                )
            columns = _columns(result, query, declared)
            misfits = Misfits(query.coerce)
        except BaseException:
            _end(connection, engine)
            raise
        return BatchStream(
            columns,
            self._batches(result, columns, query, misfits),
            cancel=lambda: _cancel(connection),
            release=lambda: _end(connection, engine),
            misfits=misfits,
            batch_rows=self._batch_rows,
            batch_bytes=self._batch_bytes,
        )

    def count(self, query: Query) -> int:
        """How many rows a query has; see `CountingSource` for what it raises."""
        engine, connection, text = self._connect(query)
        try:
            with self._translated(query):
                _, text = self._declared(connection, query, text)
                sql, options = count_sql(text), {"no_parameters": True}
                return counted(
                    lambda: connection.exec_driver_sql(sql, execution_options=options).scalar(),
                    cancel=lambda: _cancel(connection),
                )
        finally:
            _end(connection, engine)

    def _connect(self, query: Query) -> tuple[Any, Any, str]:
        """An engine, its connection that only reads, and the statement of a query."""
        import sqlalchemy

        if query.within is not None or query.window is not None:
            raise ConfigError(f"{what_is_read(query)}: {self.engine}:// cannot be read in ranges or windows")
        # Checks the names and the casts, too.
        text = query_text(query, most=2, fold=False)
        self._check_file()
        try:
            engine = sqlalchemy.create_engine(
                self._sqlalchemy_url, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True
            )
        except ImportError as missing:
            raise ConfigError(
                f"{self._sqlalchemy_url.drivername}:// needs a driver that is not installed: pip install {missing.name}"
            ) from None
        connection: Any = None
        try:
            with self._translated(query):
                connection = engine.connect()
                if self.engine in _READ_ONLY:
                    connection.exec_driver_sql(_READ_ONLY[self.engine])
        except BaseException:
            _end(connection, engine)
            raise
        return engine, connection, text

    def _declared(self, connection: Any, query: Query, text: str) -> tuple[dict[str, Any] | None, str]:
        """The reflected types of a table's columns, and the statement that reads it in the database's own quotes."""
        if query.table is None:
            return None, text
        import sqlalchemy

        *schema, table = split_name(query.table, most=2, fold=False)
        inspector = sqlalchemy.inspect(connection)
        found = inspector.get_columns(table, schema=schema[0] if schema else None)
        quote_name = connection.dialect.identifier_preparer.quote_identifier
        names = ", ".join(selected_as(quote_name(column["name"]), column["type"], self.engine) for column in found)
        return (
            {column["name"]: column["type"] for column in found},
            f"SELECT {names} FROM {'.'.join(map(quote_name, [*schema, table]))}",
        )

    def _batches(
        self, result: Any, columns: tuple[ResultColumn, ...], query: Query, misfits: Misfits
    ) -> Generator[pa.RecordBatch, None, None]:
        schema = schema_of(columns)
        step = min(_FIRST_ROWS, self._batch_rows)
        while True:
            with self._translated(query):
                rows = result.fetchmany(step)
            if not rows:
                return
            arrays = [
                misfits.converted(column.name, values, partial(column_array, column.name, arrow=column.arrow_type))
                for column, values in zip(columns, zip(*rows, strict=True), strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield batch
            fitting = self._batch_bytes * len(rows) // max(1, batch.nbytes)
            step = max(1, min(step * 2, self._batch_rows, fitting))

    def _check_file(self) -> None:
        path = self._sqlalchemy_url.database
        if self.engine == "sqlite" and not (path and (path.startswith("file:") or Path(path).is_file())):
            raise SourceError(f"sqlite database {self.database!r}: there is no such file (it is never created)")

    @contextlib.contextmanager
    def _translated(self, query: Query) -> Iterator[None]:
        from sqlalchemy import exc

        try:
            yield
        except exc.NoSuchTableError:
            raise SourceError(f"{self._at(query)}: there is no such table; check schema and table") from None
        except (exc.SQLAlchemyError, OSError) as error:
            # Without its cause, and without what SQLAlchemy adds: both may repeat what must not be seen.
            raise self._failure(error, query) from None

    def _failure(self, error: Exception, query: Query) -> SourceError:
        orig = getattr(error, "orig", None) or error
        first = orig.args[0] if orig.args else None
        # A dictionary of the server's fields is pg8000's way.
        fields = first if isinstance(first, dict) else {}
        words = str(fields.get("M", orig)).partition("\nLINE ")[0].partition("\n[SQL:")[0]
        message = " ".join(self._url.redact(words).split())
        code = getattr(orig, "errno", None) or first
        if self.engine in {"mysql", "mariadb"} and isinstance(code, int):
            transient, hint, shown = mysql_transient(code), mysql_hint(code), f" (error {code})"
        else:
            state = fields.get("C") or getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
            state = state or sqlstate_of_refusal(message)
            transient, hint, shown = is_transient(state), hint_for(state), f" (SQLSTATE {state})" if state else ""
        transient = transient or bool(getattr(error, "connection_invalidated", False))
        return SourceError(
            f"{self._at(query)}: {message}{shown}" + (f"; {hint}" if hint else ""),
            transient=transient or "database is locked" in message,
        )

    def _at(self, query: Query) -> str:
        return f"{self.engine} database {self.database!r}, {what_is_read(query)}"


def _columns(result: Any, query: Query, declared: dict[str, Any] | None) -> tuple[ResultColumn, ...]:
    if not result.returns_rows:
        raise ConfigError(f"{what_is_read(query)}: one select statement was expected, this one has no result")
    description = result.cursor.description
    names = list(declared) if declared is not None else [str(line[0]) for line in description]
    check_columns(names, query)
    columns = []
    for name, line in zip(names, description, strict=True):
        kind = declared[name] if declared is not None else None
        arrow = reflected_type(kind) if declared is not None else described_type(line)
        if name in query.casts:
            arrow = cast_type(name, query.casts[name])
        if arrow is None:
            raise refused(name, f"its type {kind!r} has no rule")
        source_type = str(arrow) if kind is None else type(kind).__name__.lower()
        columns.append(ResultColumn(name=name, source_type=source_type, nullable=True, arrow_type=arrow))
    return tuple(columns)


def _cancel(connection: Any) -> None:
    """Stop a running statement, where the driver can."""
    driver = connection.connection.dbapi_connection
    for name in ("cancel", "interrupt"):
        if callable(getattr(driver, name, None)):
            getattr(driver, name)()
            return


def _end(connection: Any, engine: Any) -> None:
    if connection is not None:
        with contextlib.suppress(Exception):
            # Not `close`: some drivers would read an unfinished result to its end first.
            connection.invalidate()
        with contextlib.suppress(Exception):
            connection.close()
    engine.dispose()


def _with_secrets(url: DatabaseUrl) -> DatabaseUrl:
    found = set(url.secrets)
    for name, value in url.parameters.items():
        if _SECRET_NAMES.search(name):
            inner = re.findall(r"(?i)(?:pwd|password)\s*=\s*([^;]+)", value)
            for secret in [value, *inner]:
                found |= {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    return replace(url, secrets=tuple(sorted(found - {""}, key=len, reverse=True)))
