from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import MariaDBServer, PostgresServer, mariadb, postgres, require
from tests.sources.databases import KINDS, Database, DuckDB, MySQL, Postgres, Sqlite


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with require(postgres) as server:
        yield server


@pytest.fixture(scope="module")
def pg(postgres_server: PostgresServer) -> Postgres:
    """An empty PostgreSQL database for one module."""
    return Postgres(postgres_server.new_database())


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    with require(mariadb) as server:
        yield server


@pytest.fixture
def maria(mariadb_server: MariaDBServer) -> MySQL:
    return MySQL(mariadb_server.new_database())


@pytest.fixture
def lite(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path / "shop.sqlite")


@pytest.fixture
def duck(tmp_path: Path) -> DuckDB:
    return DuckDB(tmp_path / "shop.duckdb")


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind."""
    match request.param:
        case "postgresql":
            emptied = request.getfixturevalue("pg")
            emptied.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
            return emptied
        case "mysql":
            return MySQL(request.getfixturevalue("mariadb_server").new_database())
        case "sqlite":
            return Sqlite(tmp_path / "shop.sqlite")
        case _:
            return DuckDB(tmp_path / "shop.duckdb")
