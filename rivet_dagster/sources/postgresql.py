"""PostgreSQL: the catalog first, then binary COPY through ADBC's low-level interface."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import SourceError
from rivet_dagster.rows import Consistency, Key, Query
from rivet_dagster.sources.counting import count_sql, counted
from rivet_dagster.sources.description import (
    query_text,
    schema_of,
    selected,
    what_is_read,
)
from rivet_dagster.sources.guards import Misfits, refused
from rivet_dagster.sources.postgres_cursor import cursor_of, note, value_literal
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.postgres_keys import Rows, range_condition, relation_of
from rivet_dagster.sources.postgres_result import cast, result_of
from rivet_dagster.sources.postgres_session import PostgresSession
from rivet_dagster.sources.postgres_snapshot import PostgresSnapshot, SharedSnapshot
from rivet_dagster.sources.postgres_statistics import estimated_rows, sample_clause
from rivet_dagster.sources.postgres_storage import block_condition
from rivet_dagster.sources.postgres_types import ColumnPlan
from rivet_dagster.sources.postgres_writers import check_server
from rivet_dagster.sources.ranges import checked_key, no_catalog, sampled_row_bytes, usable_keys
from rivet_dagster.sources.session_settings import SessionSettings
from rivet_dagster.sources.stream import BatchStream
from rivet_dagster.sources.terms import term_sql, windowed
from rivet_dagster.sources.url import DatabaseUrl
from rivet_dagster.windows import Cursor, CursorTerm, Noted, Settling

__all__ = ["PostgresSource"]


class PostgresSource:
    """A PostgreSQL database, in ranges and windows too. Every `open` is a connection of its own, in one snapshot.

    Session settings are made within the transaction, so a pooler in transaction mode works. Types are described in
    `postgres_types`. Names without double quotes are folded to lower case, as in SQL.
    """

    engine = "postgresql"
    knows_writers = True

    def __init__(
        self, url: DatabaseUrl, *, batch_rows: int, batch_bytes: int, settings: SessionSettings | None = None
    ) -> None:
        self._database = PostgresDatabase(url, settings)
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes

    @property
    def origin(self) -> str:
        """As the URL's."""
        return self._database.url.origin

    @property
    def database(self) -> str:
        """The database's name; empty where the URL leaves it to the server."""
        return self._database.name

    def open(self, query: Query) -> BatchStream:
        """Describe the result without running the query, then be ready to stream it.

        Raises:
            ConfigError: the query's names, casts, range or result columns cannot be.
            SourceError: the server refused or could not be reached; no connection is left.
        """
        return self.open_at(query, shared=None)

    def open_at(self, query: Query, *, shared: SharedSnapshot | None) -> BatchStream:
        """`open`, in a snapshot that others read, too, where there is one."""
        return self._open(query, lambda session, text: _within(session, query, text), shared=shared)

    def count(self, query: Query) -> int:
        """How many rows a query has; see `CountingSource` for what it raises."""
        with contextlib.closing(self._session(query)) as session:
            text = count_sql(_within(session, query, query_text(query, most=2, fold=True)))
            session.lock(text)
            found = counted(lambda: session.rows(text)[0]["n"], cancel=session.cancel)
            session.end()
            return found

    def keys(self, query: Query) -> tuple[Key, ...]:
        """The keys that the catalog vouches for, the primary key first; empty for a query that is no table."""
        if query.table is None:
            return ()
        with self._asking(query) as rows:
            return usable_keys(relation_of(query, rows))

    def check_key(self, query: Query, columns: Sequence[str]) -> Key:
        """The key of these columns.

        Raises:
            ConfigError: the catalog does not vouch for it; says why, and which keys there are.
        """
        if query.table is None:
            raise no_catalog(query)
        with self._asking(query) as rows:
            return checked_key(relation_of(query, rows), columns, query)

    def estimated_rows(self, query: Query) -> int | None:
        """How many rows the last ANALYZE or VACUUM implies; `None` for a query, and before the first of them."""
        if query.table is None:
            return None
        with self._asking(query) as rows:
            return estimated_rows(query, rows)

    def row_bytes(self, query: Query) -> int:
        """About how many bytes a row has once it is read, from pages all over the table, or the first rows."""
        if query.table is not None:
            spread = self._open(query, lambda session, text: text + sample_clause(query, session.rows), shared=None)
            if (found := sampled_row_bytes(spread)) is not None:
                return found
        return sampled_row_bytes(self.open(query)) or 1

    def snapshot(self, consistency: Consistency) -> PostgresSnapshot:
        """Begin a run of several statements; with "snapshot", one session holds a snapshot that all others read.

        Raises:
            SourceError: the server refused or could not be reached.
        """
        return PostgresSnapshot(self, self._database, consistency=consistency)

    def describe_cursor(self, query: Query, term: CursorTerm) -> Cursor:
        """Describe what a window is over.

        Raises:
            ConfigError: it is no column of the query, or of a type that no window can be over.
            SourceError: the server refused or could not be reached.
        """
        with contextlib.closing(self._session(query)) as session:
            found = cursor_of(query, term, session.rows, session.describe)
            session.end()
            return found

    @contextlib.contextmanager
    def settling(self, query: Query, cursor: Cursor, asked: Settling) -> Iterator[Noted]:
        """Note where a window may end; see `postgres_cursor.note` for what it raises."""
        with contextlib.closing(self._session(query)) as session:
            session.end()
            noted = note(query, cursor, asked, session.alone)
        yield noted

    @contextlib.contextmanager
    def _asking(self, query: Query) -> Iterator[Rows]:
        with contextlib.closing(self._session(query)) as session:
            yield session.rows
            # A pooler keeps the connection of a transaction that has ended.
            session.end()

    def _session(self, query: Query) -> PostgresSession:
        return PostgresSession(self._database, what=what_is_read(query))

    def _open(
        self, query: Query, restricted: Callable[[PostgresSession, str], str], *, shared: SharedSnapshot | None
    ) -> BatchStream:
        text = query_text(query, most=2, fold=True)
        session = shared.session() if shared else self._session(query)
        try:
            text = restricted(session, text)
            result = shared.result(query, session, text) if shared else result_of(session, query, text)
            text = cast(text, query, result.names)
            if shared is None:
                session.lock(text)
            misfits = Misfits(query.coerce)
            guards = _guards(result.names, result.plans, misfits)
            sql = selected([*(plan.expression for plan in result.plans), *guards], text, len(result.plans))
        except BaseException:
            session.close()
            raise
        schema = schema_of(result.columns)
        sent = session.stream(sql, batch_bytes=self._batch_bytes, expected=shared.locked if shared else None)
        batches = (_arrived(batch, result.plans, schema, misfits) for batch in sent)
        return BatchStream(
            result.columns,
            batches,
            cancel=session.cancel,
            release=partial(shared.give_back, session) if shared else session.close,
            misfits=misfits,
            batch_rows=self._batch_rows,
            batch_bytes=self._batch_bytes,
        )


def _within(session: PostgresSession, query: Query, text: str) -> str:
    if query.window is not None:
        check_server(query, session.rows)
        cursor = query.window.cursor
        return windowed(query, text, term_sql(cursor.term), value_literal(cursor), exact='{0} COLLATE pg_catalog."C"')
    if query.within is None:
        return text
    if query.within.key.storage:
        condition = block_condition(query.within, alias="r")
    else:
        relation = relation_of(query, session.rows)
        checked_key(relation, query.within.key.columns, query)
        condition = range_condition(relation, query.within, alias="r")
    return f"{text} AS r WHERE {condition}" if condition else text


def _guards(names: Sequence[str], plans: Sequence[ColumnPlan], misfits: Misfits) -> list[str]:
    """What is selected besides: for each coerced column whether its value is refused, then which other one is."""
    guarded = [(name, position, plan.refuse_if) for position, (name, plan) in enumerate(zip(names, plans, strict=True))]
    coerced = [f"({odd})" for name, _, odd in guarded if odd and name in misfits]
    cases = [f"WHEN {odd} THEN {position}" for name, position, odd in guarded if odd and name not in misfits]
    return [*coerced, *([f"CASE {' '.join(cases)} END::int4"] if cases else [])]


def _arrived(
    batch: pa.RecordBatch, plans: tuple[ColumnPlan, ...], schema: pa.Schema, misfits: Misfits
) -> pa.RecordBatch:
    guards = iter(batch.columns[len(plans) :])
    for name, plan in zip(schema.names, plans, strict=True):
        if plan.refuse_if and name in misfits:
            misfits.count(name, pc.sum(next(guards)).as_py() or 0)
    odd = pc.min(which).as_py() if (which := next(guards, None)) is not None else None
    if odd is not None:
        raise refused(schema.names[odd], "an array of several dimensions, or not counted from 1, cannot be a list")
    arrays = []
    for position, (plan, field) in enumerate(zip(plans, schema, strict=True)):
        values = batch.column(position)
        if values.type != plan.travels_as:
            raise SourceError(f"column {field.name!r}: the driver sent {values.type}, {plan.travels_as} was described")
        if pa.types.is_decimal(plan.arrives_as):
            values = _decimals(field.name, values, plan.arrives_as, misfits)
        elif pa.types.is_nested(values.type):
            # The driver's notes on the element are not part of the declared type.
            values = values.cast(plan.arrives_as)
        arrays.append(misfits.temporal(field.name, values))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decimals(column: str, values: pa.Array, decimal: pa.DataType, misfits: Misfits) -> pa.Array:
    try:
        return values.cast(decimal)
    except pa.ArrowInvalid:
        special = pc.is_in(values, value_set=pa.array(["NaN", "Infinity", "-Infinity"]))
    numbers = misfits.without(
        column,
        values,
        special,
        lambda: refused(column, f"{values.filter(special)[0].as_py()} is no number that {decimal} can hold"),
    )
    try:
        return numbers.cast(decimal)
    except pa.ArrowInvalid:
        raise refused(column, f"a value does not fit {decimal}") from None
