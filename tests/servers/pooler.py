"""PgBouncer in front of a PostgreSQL server, pooling by transaction."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.servers.databases import PostgresServer
from tests.servers.process import Unavailable, running, scratch


@contextmanager
def pgbouncer(behind: PostgresServer, *, connections: int = 3) -> Iterator[PostgresServer]:
    """The same database through PgBouncer, which gives its few server connections to one transaction after another.

    Args:
        behind: a server that listens on TCP.
        connections: how many it keeps to the server.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        raise Unavailable("no PgBouncer was found", "apt-get install -y pgbouncer")
    if behind.port is None:
        raise Unavailable("this PostgreSQL server has a socket alone", "apt-get install -y postgresql")
    # It refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    with scratch(user=user) as directory:
        users = directory / "users"
        users.write_text(f'"{behind.user}" "{behind.password}"\n')
        users.chmod(0o644)

        def command(port: int) -> list[str]:
            return [program, str(_settings(directory, behind, port=port, users=users, connections=connections))]

        with running(command, directory=directory, ready=_accepts, user=user) as port:
            yield replace(behind, port=port)


def _settings(directory: Path, behind: PostgresServer, *, port: int, users: Path, connections: int) -> Path:
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "auth_file": users,
        "pool_mode": "transaction",
        "default_pool_size": connections,
        # What a session leaves behind is what the next one finds.
        "server_reset_query": "",
        "server_round_robin": 1,
    }
    lines = [
        "[databases]",
        f"* = host={behind.host} port={behind.port}",
        "[pgbouncer]",
        *(f"{name} = {value}" for name, value in settings.items()),
    ]
    path = directory / f"settings-{port}.ini"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)
    return path


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False
