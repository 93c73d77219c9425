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
                self._told = adbc_driver_postgresql.connect(self._uri())
                weakref.finalize(self, _forget, self._told).atexit = False
            told = self._told
        return adbc_driver_manager.AdbcConnection(told)

    def _uri(self) -> str:
        # Arrow strings are UTF-8, whatever the database's or the environment's encoding is.
        wanted = {**_DEFAULTS, **self.url.parameters, "client_encoding": "UTF8"}
        if self.settings.application_name is not None:
            wanted["application_name"] = self.settings.application_name
        return f"postgresql://{self.url.rest.partition('?')[0]}?{urlencode(wanted, quote_via=quote, safe='')}"


def _forget(told: AdbcDatabase) -> None:
    # Refused while a connection is open, which nobody can use any more then.
    with contextlib.suppress(Exception):
        told.close()
