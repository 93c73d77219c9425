"""One MySQL or MariaDB connection inside one read-only snapshot, and its failures in our terms."""

from __future__ import annotations

import contextlib
import math
import ssl
import struct
from collections.abc import Generator, Iterator
from typing import Any

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.sources.mysql_connection import MySQLConnection, database_name, driver
from rivet_dagster.sources.mysql_errors import (
    CONNECTION_FAILED,
    CONNECTION_LOST,
    ENCRYPTION_FAILED,
    hint_for,
    is_transient,
)
from rivet_dagster.sources.mysql_types import WireColumn
from rivet_dagster.sources.mysql_wire import Block, WireError, rows_of
from rivet_dagster.sources.session_settings import SessionSettings
from rivet_dagster.sources.url import DatabaseUrl

__all__ = ["MySQLSession"]

# The snapshot is that of the first row that is read, by a statement that has locked all its tables: one from before
# would see nothing of what the holder of a lock has committed, as a table that was loaded and has got this one's name.
_BEGIN = "START TRANSACTION READ ONLY"
_APPLICATION_NAME = "rivet_dagster"
_CONNECT_SECONDS = 15.0
_CANCEL_SECONDS = 5.0
# How long the server waits for a reader that is busy writing parts, before it cuts the connection: in the middle of a
# result, and between two.
_NET_WRITE_SECONDS = 600
# The server's own limit would cut a result, and say nothing.
_ALL_ROWS = 2**64 - 1


class MySQLSession:
    """A connection that has begun a read-only transaction, which has one snapshot for all it reads, in UTC and UTF-8.

    Not safe for several threads, but for `cancel`.
    """

    def __init__(self, url: DatabaseUrl, *, what: str, settings: SessionSettings | None = None) -> None:
        """Connect and begin.

        Args:
            url: where to.
            what: what is read, for messages.
            settings: how gentle it is.

        Raises:
            ConfigError: the driver is not installed, or the URL's parameters cannot be.
            SourceError: transient where the server could not be reached or had no room.
        """
        self._driver = driver()
        self._url = url
        self._what = what
        self._statement = 0
        self._streaming = False
        settings = settings or SessionSettings()
        name = settings.application_name or _APPLICATION_NAME
        with self._translated():
            self._connection = MySQLConnection(url, timeout_s=_CONNECT_SECONDS, application_name=name)
        try:
            for setting in (
                "SET time_zone = '+00:00'",
                f"SET net_write_timeout = {_NET_WRITE_SECONDS}",
                f"SET wait_timeout = GREATEST(@@wait_timeout, {_NET_WRITE_SECONDS})",
                f"SET sql_select_limit = {_ALL_ROWS}",
                *self._timeouts(settings),
                "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                _BEGIN,
            ):
                self.rows(setting)
            # The number in the server's greeting is cut to 32 bits, and a proxy's own.
            self._number = int(self.rows("SELECT CONNECTION_ID()")[0][0])
        except BaseException:
            self.close()
            raise

    def _timeouts(self, settings: SessionSettings) -> Iterator[str]:
        if settings.statement_timeout is not None:
            if "MARIADB" in str(self.rows("SELECT VERSION()")[0][0]).upper():
                yield f"SET max_statement_time = {settings.statement_timeout:.6f}"
            else:
                yield f"SET max_execution_time = {round(settings.statement_timeout * 1000)}"
        if settings.lock_timeout is not None:
            # Of tables, and of rows where a query asks for locks; both count whole seconds.
            seconds = math.ceil(settings.lock_timeout)
            yield f"SET lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"

    def begin(self) -> None:
        """Begin another transaction, for a snapshot of its own, after `end`."""
        self.rows(_BEGIN)

    def end(self) -> None:
        """End the transaction."""
        self.rows("COMMIT")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a small statement."""
        with self._translated():
            return self._connection.rows(sql)

    def describe(self, sql: str) -> tuple[WireColumn, ...]:
        """The columns of a statement as the server describes them, without running it.

        The character sets are those of the columns; rows come as UTF-8.

        Raises:
            ConfigError: it is no statement with a result, or has placeholders.
            SourceError: the server refused it.
        """
        # The server describes what it would send.
        self.rows("SET character_set_results = NULL")
        with self._translated():
            self._statement, placeholders, columns = self._connection.prepare(sql)
        if placeholders:
            raise ConfigError(f"{self._what}: a ? stands for a value that is not given; write the value")
        if not columns:
            raise ConfigError(f"{self._what}: one select statement was expected, this one has no result")
        self.rows("SET character_set_results = utf8mb4")
        return columns

    def stream(self, *, most_rows: int, enough_bytes: int) -> Generator[tuple[WireColumn, ...] | Block, None, None]:
        """Run what was described: yield its columns as they are now, then blocks of rows."""
        self._streaming = True
        with self._translated():
            columns = self._connection.execute(self._statement)
        yield columns
        blocks = rows_of(
            self._connection.read,
            sequence=self._connection.next_sequence(),
            most_rows=most_rows,
            enough_bytes=enough_bytes,
        )
        while True:
            with self._translated():
                block = next(blocks, None)
            if block is None:
                self._streaming = False
                return
            yield block

    def forget(self) -> None:
        """Let go of what was described, and keep the connection for more; one that still sends rows is lost."""
        if self._streaming:
            self.close()
        elif self._statement:
            with contextlib.suppress(SourceError), self._translated():
                self._connection.close_statement(self._statement)
            self._statement = 0

    def cancel_stream(self) -> None:
        """As `cancel`, but only if rows are on their way."""
        if self._streaming:
            self.cancel()

    def cancel(self) -> None:
        """End the connection here and on the server, whatever it is doing; from any thread, before `close`."""
        self._connection.interrupt()
        # A server that computes does not look at its connection.
        other = MySQLConnection(self._url, timeout_s=_CANCEL_SECONDS, application_name=_APPLICATION_NAME)
        try:
            other.kill(self._number)
        finally:
            other.close()

    def close(self) -> None:
        """Free the connection; an open transaction is rolled back by the server."""
        self._connection.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (self._driver.Error, WireError, OSError, EOFError, RuntimeError, struct.error) as error:
            # Without its cause: the driver's own text may repeat what must not be seen.
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> SourceError:
        code, message = self._read(error)
        text = " ".join(self._url.redact(message).split())
        parts = [f"mysql database {database_name(self._url)!r}, {self._what}: {text}"]
        parts += [f"(error {code})"] if code else []
        hint = hint_for(code)
        return SourceError(" ".join(parts) + (f"; {hint}" if hint else ""), transient=is_transient(code))

    def _read(self, error: Exception) -> tuple[int | None, str]:
        """The code and the words of a failure."""
        if isinstance(error, WireError) and error.packet:
            try:
                self._driver.err.raise_mysql_exception(error.packet)
            except self._driver.Error as sent:
                return self._read(sent)
        if isinstance(error, (OSError, EOFError)):
            return CONNECTION_LOST, "Lost connection to MySQL server during query"
        if isinstance(error, (WireError, struct.error)):
            return None, f"the server's answer cannot be understood: {error}"
        if not isinstance(error, self._driver.Error) or not error.args or not isinstance(error.args[0], int):
            return None, str(error)
        code = error.args[0] or CONNECTION_LOST
        cause = getattr(error, "original_exception", None)
        message = str(error.args[-1]) or "the connection is closed"
        if isinstance(cause, ssl.SSLCertVerificationError):
            code, message = ENCRYPTION_FAILED, f"the server's certificate is not accepted: {cause.verify_message}"
        elif code == CONNECTION_FAILED and cause is not None:
            message = f"Can't connect to MySQL server ({type(cause).__name__})"
        return code, message
