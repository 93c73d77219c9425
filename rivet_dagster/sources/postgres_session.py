"""One PostgreSQL connection inside one read-only transaction, and its failures in our terms."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_dagster.errors import SourceError
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.session_settings import SessionSettings
from rivet_dagster.sources.sqlstate import hint_for, is_transient, sqlstate_of_refusal

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcConnection, AdbcStatement

__all__ = ["OURS", "PostgresSession"]

# An advisory lock, shared by every session of this package while its transaction lasts: who holds it writes nothing.
OURS = (0x72697665, 0x72656164)

# What PostgreSQL's own text forms depend on. Within the transaction alone: a pooler hands the connection on.
_SETTINGS = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
}
# What a session has locked to read it, with all that planning found. Relations newer than its snapshot are not in its
# catalog, and have no row that it sees.
_LOCKED = """
SELECT l.relation::int8 AS oid, l.relation::regclass::text AS name
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.mode = 'AccessShareLock' AND l.granted
      AND c.relkind IN ('r', 'p', 'm', 'f', 'v') AND l.relation >= 16384
ORDER BY 2
"""
# What the holder of a snapshot has locked, others that read it get at once, unless somebody waits for that one: behind
# whom they would wait for ever.
_ADOPTED_LOCK_TIMEOUT_S = 10.0
_BATCH_BYTES = "adbc.postgresql.batch_size_hint_bytes"
# Larger batches cost memory and are no faster.
_ENOUGH_BYTES = 2**20


class PostgresSession:
    """A connection that has begun a read-only transaction.

    Each statement sees what is committed when it begins, which is after the locks of those before it; with an exported
    snapshot, all of them see that one.

    Not safe for several threads, but for `cancel`.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        what: str,
        local: Mapping[str, str] | None = None,
        snapshot: str | None = None,
    ) -> None:
        """Connect and begin.

        Args:
            database: where to, and how gently.
            what: what is read, for messages.
            local: more settings for each transaction.
            snapshot: an exported snapshot to read, instead of one of its own.

        Raises:
            SourceError: transient where the server could not be reached or had no room.
        """
        import adbc_driver_manager

        self._of = database
        self._what = what
        self._driver = adbc_driver_manager
        self._statement: AdbcStatement | None = None
        self._reader: Any = None
        self._connection: AdbcConnection | None = None
        self._cancelled = False
        self._reading = False
        settings = database.settings
        if snapshot is not None:
            patience = min(settings.lock_timeout or _ADOPTED_LOCK_TIMEOUT_S, _ADOPTED_LOCK_TIMEOUT_S)
            settings = replace(settings, lock_timeout=patience)
        self._local = {**_SETTINGS, **_timeouts(settings), **(local or {})}
        with self._translated():
            self._connection = database.connect()
        try:
            self.begin(snapshot)
        except BaseException:
            self.close()
            raise

    def begin(self, snapshot: str | None = None) -> None:
        """Begin a transaction, after `end`.

        Raises:
            SourceError: transient where the exported snapshot is gone.
        """
        isolation = "READ COMMITTED" if snapshot is None else "REPEATABLE READ"
        self._run(f"BEGIN TRANSACTION ISOLATION LEVEL {isolation} READ ONLY")
        if snapshot is not None:
            self._adopt(snapshot)
        settings = ", ".join(f"set_config('{k}', '{v}', true)" for k, v in self._local.items())
        self.rows(f"SELECT pg_try_advisory_xact_lock_shared({OURS[0]}, {OURS[1]}), {settings}")

    def end(self) -> None:
        """End the transaction and all that was set in it."""
        self._run("COMMIT")

    def alone(self, sql: str) -> list[dict[str, Any]]:
        """All rows of a small statement, in a transaction of its own, after `end`."""
        self.begin()
        found = self.rows(sql)
        self.end()
        return found

    def export_snapshot(self) -> str:
        """What other sessions name to read this one's snapshot, as long as its transaction lasts."""
        return str(self.rows("SELECT pg_export_snapshot() AS name")[0]["name"])

    def _adopt(self, snapshot: str) -> None:
        try:
            self._run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        except SourceError as error:
            raise SourceError(
                f"{error}: the session that holds this run's snapshot was lost; run again", transient=True
            ) from None

    def describe(self, sql: str) -> pa.Schema:
        """The result of a statement as the server and the driver describe it, without running it; locks what it names.

        Raises:
            SourceError: the server refused.
        """
        with self._translated(), self._prepared(sql) as statement:
            return pa.schema(statement.execute_schema())

    def lock(self, sql: str) -> None:
        """Lock all that a statement reads, until the transaction ends, without running it.

        A snapshot from before a lock is granted sees nothing of what was committed by whoever held it: of a table that
        was truncated and loaded, or changed places with another, not the old rows and not the new ones.

        Raises:
            SourceError: the server refused.
        """
        # Planning locks what no name tells: partitions and other children.
        self.rows(f"SELECT 1 AS planned FROM (\n{sql}\n) AS q LIMIT 0")

    def locked(self) -> dict[int, str]:
        """What this transaction has locked to read it: by number, the names."""
        return {row["oid"]: row["name"] for row in self.rows(_LOCKED)}

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """All rows of a small statement."""
        with self._translated(), self._prepared(sql) as statement:
            handle, _ = statement.execute_query()
            return list(pa.RecordBatchReader.from_stream(handle).read_all().to_pylist())

    def check_locked(self, expected: Mapping[int, str]) -> None:
        """Refuse what was read where more was read than was expected: a partition or child that came meanwhile.

        Raises:
            SourceError: transient, names it.
        """
        if more := [name for oid, name in self.locked().items() if oid not in expected]:
            raise SourceError(
                f"postgresql database {self._of.name!r}, {self._what}: {', '.join(more)} became a part of it while it "
                "was read, and its rows are in some of the ranges only; run again",
                transient=True,
            )

    def stream(
        self, sql: str, *, batch_bytes: int, expected: Mapping[int, str] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Run a statement and yield its batches as the driver delivers them.

        Args:
            sql: the statement.
            batch_bytes: about how large a batch is.
            expected: what it may read, as the transaction goes on; `None` for whatever it does, and the transaction
                ends.

        Raises:
            SourceError: the server failed, or something else was read; transient where another run may succeed.
        """
        # Public readers drop the SQLSTATE of what fails between two batches; this one is what ADBC's own DB-API uses.
        from adbc_driver_manager._reader import AdbcRecordBatchReader

        self._reading = True
        with self._translated():
            self._statement = self._driver.AdbcStatement(self._connection)
            self._statement.set_options(**{_BATCH_BYTES: str(min(batch_bytes, _ENOUGH_BYTES))})
            self._statement.set_sql_query(sql)
            handle, _ = self._statement.execute_query()
            self._reader = AdbcRecordBatchReader._import_from_c(handle.address)  # noqa: SLF001
        while True:
            with self._translated():
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    break
            yield batch
        self._end_statement()
        if expected is not None:
            self.check_locked(expected)
        else:
            # So that a pooler may keep the server connection. Everything has been read: a failure changes nothing.
            with contextlib.suppress(SourceError):
                self._run("COMMIT")
        self._reading = False

    def cancel(self) -> None:
        """Ask the server to stop the running statement; from any thread, before `close`."""
        self._cancelled = True
        if self._connection is not None:
            self._connection.cancel()

    @property
    def rests(self) -> bool:
        """Whether it may read on: what it read, it read to the end, and nobody has asked to stop it."""
        return not self._reading and not self._cancelled

    def close(self) -> None:
        """Free the connection; an open transaction is rolled back by the server."""
        self._end_statement()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _end_statement(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._statement is not None:
            self._statement.close()
            self._statement = None

    def _run(self, sql: str) -> None:
        with self._translated(), self._prepared(sql) as statement:
            statement.execute_update()

    @contextlib.contextmanager
    def _prepared(self, sql: str) -> Iterator[AdbcStatement]:
        with self._driver.AdbcStatement(self._connection) as statement:
            statement.set_sql_query(sql)
            yield statement

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (self._driver.Error, pa.ArrowException, OSError) as error:
            # Without its cause: the driver's own text may repeat what must not be seen.
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> SourceError:
        details = dict(getattr(error, "details", None) or ())
        primary = details.get(b"PG_DIAG_MESSAGE_PRIMARY", b"").decode(errors="replace")
        # ADBC repeats the whole statement behind the server's message.
        message = primary or str(error).partition("\n\nQuery was:")[0]
        state = getattr(error, "sqlstate", None) or sqlstate_of_refusal(message)
        text = " ".join(self._of.url.redact(message).split())
        parts = [f"postgresql database {self._of.name!r}, {self._what}: {text}"]
        parts += [f"(SQLSTATE {state})"] if state else []
        hint = hint_for(state)
        return SourceError(" ".join(parts) + (f"; {hint}" if hint else ""), transient=is_transient(state))


def _timeouts(settings: SessionSettings) -> dict[str, str]:
    """What is set in each transaction, and ends with it."""
    given = {"statement_timeout": settings.statement_timeout, "lock_timeout": settings.lock_timeout}
    return {name: str(round(seconds * 1000)) for name, seconds in given.items() if seconds is not None}
