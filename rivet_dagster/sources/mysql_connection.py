"""What is used of PyMySQL: connecting and logging in, small statements, and packets.

It has no public way to prepare a statement or to take rows undecoded, which is what makes reading fast and exact.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rivet_dagster.errors import ConfigError
from rivet_dagster.sources.mysql_types import WireColumn
from rivet_dagster.sources.url import DatabaseUrl

__all__ = ["MySQLConnection", "check_url", "database_name", "driver"]

_DEFAULT_PORT = 3306
# A dead network is noticed within two minutes instead of two hours.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
_PARAMETERS = frozenset({"ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "unix-socket", "connect-timeout", "charset"})
_SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19


class MySQLConnection:
    """One logged-in connection, in UTF-8. It raises what PyMySQL raises, and `OSError`."""

    def __init__(self, url: DatabaseUrl, *, timeout_s: float, application_name: str) -> None:
        """Connect.

        Args:
            url: where to.
            timeout_s: for connecting and logging in; what follows may take any time.
            application_name: how the server's administrator sees it, as the attribute `program_name`.

        Raises:
            ConfigError: the driver is not installed, or the URL's parameters cannot be.
        """
        parts, given = urlsplit(f"//{url.rest}"), _parameters(url)
        timeout_s = min(timeout_s, float(given.get("connect-timeout", timeout_s)))
        self._driver = driver().connect(
            host=parts.hostname or "localhost",
            port=parts.port or _DEFAULT_PORT,
            user=unquote(parts.username or ""),
            # Text would be taken for Latin-1.
            password=unquote(parts.password or "").encode(),
            database=database_name(url) or None,
            unix_socket=given.get("unix-socket"),
            charset="utf8mb4",
            autocommit=None,
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            write_timeout=timeout_s,
            program_name=application_name,
            **_encryption(given),
        )
        opened = self._driver._sock
        self._driver._read_timeout = self._driver._write_timeout = self._driver._current_timeout = None
        opened.settimeout(None)
        if opened.family != socket.AF_UNIX:
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a small statement; none for one without a result."""
        with self._driver.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def prepare(self, sql: str) -> tuple[int, int, tuple[WireColumn, ...]]:
        """Prepare a statement without running it: its number, how many placeholders it has, and its columns."""
        self._driver._execute_command(_PREPARE, sql)
        packet = self._driver._read_packet()
        number, width, parameters = struct.unpack_from("<IHH", packet.get_all_data(), 1)
        return number, parameters, () if parameters else self._columns(width)

    def execute(self, statement: int) -> tuple[WireColumn, ...]:
        """Run a prepared statement: its columns, and then its rows wait to be read."""
        # Once, and without a cursor that the server would have to keep.
        self._driver._execute_command(_EXECUTE, struct.pack("<IBI", statement, 0, 1))
        packet = self._driver._read_packet()
        return () if packet.is_ok_packet() else self._columns(packet.read_length_encoded_integer())

    def close_statement(self, statement: int) -> None:
        """Have the server forget a prepared statement; it does not answer."""
        self._driver._execute_command(_CLOSE, struct.pack("<I", statement))

    def next_sequence(self) -> int:
        """The number of the next packet."""
        return int(self._driver._next_seq_id)

    def read(self, size: int) -> bytes:
        """Wait for at least one and at most so many bytes; none when the connection has ended."""
        reader = self._driver._rfile
        return b"" if reader is None else bytes(reader.read1(size))

    def kill(self, number: int) -> None:
        """End another connection of the same user, on the server."""
        self._driver.kill(number)

    def interrupt(self) -> None:
        """End the connection here; from any thread. Whoever waits for bytes gets none."""
        opened = self._driver._sock
        if opened is not None:
            with contextlib.suppress(OSError):
                # Not TLS's own, which takes its state away from a reader in another thread.
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def close(self) -> None:
        """Say goodbye and free the connection; may be called again."""
        with contextlib.suppress(driver().Error):
            self._driver.close()

    def _columns(self, width: int) -> tuple[WireColumn, ...]:
        if not width:
            return ()
        from pymysql.protocol import FieldDescriptorPacket

        fields = [self._driver._read_packet(FieldDescriptorPacket) for _ in range(width)]
        # Behind them the protocol has an empty packet of its own.
        self._driver._read_packet()
        return tuple(
            WireColumn(
                name=field.name,
                code=field.type_code,
                charset=field.charsetnr,
                flags=field.flags,
                length=field.length,
                scale=field.scale,
            )
            for field in fields
        )


def driver() -> Any:
    """The package.

    Raises:
        ConfigError: it is not installed; says how it is.
    """
    try:
        # Drivers load where they are needed: importing this package stays cheap.
        import pymysql
    except ImportError:
        raise ConfigError(
            "reading MySQL and MariaDB needs the package pymysql: pip install 'rivet-dagster[mysql]'"
        ) from None
    return pymysql


def database_name(url: DatabaseUrl) -> str:
    """The database that a URL names; empty where it names none."""
    return unquote(url.rest.partition("?")[0].partition("/")[2])


def check_url(url: DatabaseUrl) -> None:
    """Refuse what a URL cannot say.

    Raises:
        ConfigError: a parameter is not known, or has no such value.
    """
    _encryption(_parameters(url))


def _parameters(url: DatabaseUrl) -> dict[str, str]:
    given = {name.lower().replace("_", "-"): value for name, value in parse_qsl(url.rest.partition("?")[2])}
    unknown = sorted(given.keys() - _PARAMETERS)
    if unknown:
        known = ", ".join(sorted(_PARAMETERS))
        raise ConfigError(f"{url.scheme} URL: no parameter {', '.join(map(repr, unknown))}; there are {known}")
    if given.get("charset", "utf8mb4").lower() != "utf8mb4":
        raise ConfigError(f"{url.scheme} URL: text is always read as utf8mb4; leave charset out")
    seconds = given.get("connect-timeout", "1")
    if not seconds.isdecimal() or int(seconds) < 1:
        raise ConfigError(f"{url.scheme} URL: connect-timeout is a whole number of seconds, found {seconds!r}")
    return given


def _encryption(given: dict[str, str]) -> dict[str, Any]:
    ca, cert, key = given.get("ssl-ca"), given.get("ssl-cert"), given.get("ssl-key")
    asked = "VERIFY_CA" if ca else "REQUIRED" if cert else "PREFERRED"
    mode = given.get("ssl-mode", asked).upper().replace("-", "_")
    if mode not in _SSL_MODES:
        raise ConfigError(f"ssl-mode={mode!r}: one of {', '.join(_SSL_MODES)} was expected")
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    if mode == "PREFERRED":
        return {}
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, keyfile=key)
    except OSError as error:
        raise ConfigError(f"ssl-ca, ssl-cert, ssl-key: {error.strerror or type(error).__name__}") from None
    # The certificates that MySQL makes for itself are not strict.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    context.verify_mode = ssl.CERT_NONE if mode == "REQUIRED" else ssl.CERT_REQUIRED
    return {"ssl": context}
