"""One PostgreSQL database, and what all connections to it have in common."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlencode

from rivet_dagster.sources.session_settings import SessionSettings
from rivet_dagster.sources.url import DatabaseUrl

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcConnection, AdbcDatabase

__all__ = ["PostgresDatabase"]

_DEFAULTS = {
    "application_name": "rivet_dagster",
    "connect_timeout": "15",
    # A dead network is noticed within two minutes instead of two hours.
    "keepalives_idle": "60",
    "keepalives_interval": "15",
    "keepalives_count": "4",
}
# With it a role has all names of the catalog in quotes, by which the driver finds no type, and calls every column text.
_PLAIN_NAMES = "-c quote_all_identifiers=off"


class PostgresDatabase:
    """Where to connect to, and how. May be used by several threads.

    The driver reads the catalog's types when it is told of a database, on a connection that it closes again, and that
    takes ten times as long as to connect. So it is told once, by the first of all connections. A type that is made
    after that it does not know: it travels as text, as all do that are not built in.
    """

    def __init__(self, url: DatabaseUrl, settings: SessionSettings | None = None) -> None:
        """Connect to nothing yet."""
        self.url = url
        self.settings = settings or SessionSettings()
        self._lock = threading.Lock()
        self._told: AdbcDatabase | None = None

    @property
    def name(self) -> str:
        """The database's name; empty where the URL leaves it to the server."""
        return self.url.parameters.get("dbname") or unquote(self.url.rest.partition("?")[0].partition("/")[2])

    def connect(self) -> AdbcConnection:
        """A connection of its own, for one thread; whoever has it keeps this database, too.

        Raises:
            adbc_driver_manager.Error: the server refused or could not be reached; the next one tries again.
        """
        # Drivers load where they are needed: importing the package stays cheap.
        import adbc_driver_manager
        import adbc_driver_postgresql

        with self._lock:
            if self._told is None:
                told = adbc_driver_postgresql.connect(self._uri())
                if (connection := _first(told)) is not None:
                    self._kept(told)
                    return connection
                _forget(told)
                given = self.url.parameters.get("options", "")
                told = self._kept(adbc_driver_postgresql.connect(self._uri(options=f"{given} {_PLAIN_NAMES}")))
            else:
                told = self._told
        return adbc_driver_manager.AdbcConnection(told)

    def _kept(self, told: AdbcDatabase) -> AdbcDatabase:
        weakref.finalize(self, _forget, told).atexit = False
        self._told = told
        return told

    def _uri(self, **more: str) -> str:
        # Arrow strings are UTF-8, whatever the database's or the environment's encoding is.
        wanted = {**_DEFAULTS, **self.url.parameters, **more, "client_encoding": "UTF8"}
        if self.settings.application_name is not None:
            wanted["application_name"] = self.settings.application_name
        return f"postgresql://{self.url.rest.partition('?')[0]}?{urlencode(wanted, quote_via=quote, safe='')}"


def _first(told: AdbcDatabase) -> AdbcConnection | None:
    """The first connection to a database that the driver was told of; `None` where it has learnt no types there."""
    import adbc_driver_manager
    import pyarrow as pa

    connection = adbc_driver_manager.AdbcConnection(told)
    try:
        with adbc_driver_manager.AdbcStatement(connection) as statement:
            # In a transaction: between its two messages a pooler would change the server connection.
            statement.set_sql_query("BEGIN")
            statement.execute_update()
            statement.set_sql_query("SELECT true")
            knows = pa.schema(statement.execute_schema()).field(0).type == pa.bool_()
            statement.set_sql_query("COMMIT")
            statement.execute_update()
    except BaseException:
        connection.close()
        raise
    if knows:
        return connection
    connection.close()
    return None


def _forget(told: AdbcDatabase) -> None:
    # Refused while a connection is open, which nobody can use any more then.
    with contextlib.suppress(Exception):
        told.close()
