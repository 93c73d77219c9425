"""Real databases behind one small face, so that a test says once what holds for all sources."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect
from tests.harnesses import Servers
from tests.servers import MariaDBServer, PostgresServer, mariadb, postgres

KINDS = ("postgresql", "mysql", "sqlite", "duckdb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All rows of one query.

    Attributes:
        types: column name → Arrow type, as declared before the first row.
        rows: as Python values.
        batches: as they came.
    """

    types: dict[str, pa.DataType]
    rows: list[dict[str, Any]]
    batches: list[pa.RecordBatch]


class Database(ABC):
    """One database that tests write to with its own client.

    Attributes:
        kind: the engine.
        bigint, decimal, double, text, naive: how its types are spelled; `naive` is a timestamp without a zone.
        key_text: a text that may be a key, compared by its UTF-8.
        boolean: what its boolean is read as.
        schema: the first part of a qualified table name.
        endless: a query that delivers no row for hours.
        others_write: whether someone else can write while a source reads.
    """

    kind: str
    bigint = "bigint"
    decimal = "numeric"
    double = "double precision"
    text = "text"
    key_text = "text"
    naive = "timestamp"
    boolean: pa.DataType = pa.bool_()
    schema = "main"
    endless: str
    others_write: bool = True

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def execute(self, *statements: str) -> None: ...

    def quoted(self, name: str) -> str:
        """A name as a query of this database quotes it."""
        return '"' + name.replace('"', '""') + '"'

    def open(self, *, casts: Mapping[str, str] | None = None, **query: str) -> Any:
        """Open `table=` or `sql=`."""
        return connect(self.url).open(Query(**query, casts=casts or {}))

    def read(self, *, casts: Mapping[str, str] | None = None, **query: str) -> Rows:
        """Read everything."""
        stream = self.open(casts=casts, **query)
        types = {column.name: column.arrow_type for column in stream.columns}
        batches = list(stream)
        return Rows(types=types, rows=[row for batch in batches for row in batch.to_pylist()], batches=batches)

    def value(self, expression: str, *, cast: str | None = None) -> tuple[pa.DataType, Any]:
        """The type and value that one SQL expression is read as."""
        found = self.read(sql=f"SELECT {expression} AS x", casts={"x": cast} if cast else None)
        return found.types["x"], found.rows[0]["x"]


class Postgres(Database):
    kind = "postgresql"
    schema = "public"
    endless = "SELECT i FROM generate_series(1, 2000000000000) AS i WHERE i < 0"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    def execute(self, *statements: str) -> None:
        self.server.execute(*statements)

    def row(self, sql: str) -> tuple[Any, ...]:
        """The first row, by a client of its own."""
        with self.server.client() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchone() or ())


class MySQL(Database):
    kind = "mysql"
    text = "longtext"
    key_text = "varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
    naive = "datetime(6)"
    boolean = pa.int8()
    endless = "SELECT a.seq AS i FROM seq_1_to_100000000 AS a, seq_1_to_100000000 AS b WHERE a.seq * b.seq < 0"

    def __init__(self, server: MariaDBServer) -> None:
        self.server = server
        self.schema = server.database

    @property
    def url(self) -> str:
        return self.server.url

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def execute(self, *statements: str, sql_mode: str = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES") -> None:
        """Run statements in standard SQL, whatever the server's own mode is."""
        self.server.execute(*statements, sql_mode=sql_mode)

    def row(self, sql: str) -> tuple[Any, ...]:
        """The first row, by a client of its own."""
        with self.server.client() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchone() or ())


class Sqlite(Database):
    kind = "sqlite"
    decimal = "decimal"
    endless = "SELECT a.i FROM digits a, digits b, digits c, digits d, digits e WHERE a.i + b.i + c.i + d.i + e.i < 0"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.execute(
            "PRAGMA journal_mode = wal",
            "CREATE TABLE digits AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
            "SELECT CAST(i AS integer) AS i FROM n",
        )

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def execute(self, *statements: str) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            for statement in statements:
                connection.execute(statement).fetchall()
        finally:
            connection.close()


class DuckDB(Database):
    kind = "duckdb"
    decimal = "decimal"
    double = "double"
    endless = "SELECT a.i FROM range(100000000) a(i), range(100000000) b(j) WHERE a.i * b.j = -1"
    others_write = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.execute("SELECT 1")

    @property
    def url(self) -> str:
        return f"duckdb:///{self.path}"

    def execute(self, *statements: str) -> None:
        import duckdb

        with duckdb.connect(str(self.path)) as connection:
            for statement in statements:
                connection.execute(statement)


def new_database(kind: str, servers: Servers, directory: Path) -> Database:
    """An empty database of a kind; a file of its own below a directory, where it is one."""
    match kind:
        case "postgresql":
            return Postgres(servers(postgres).new_database())
        case "mysql":
            return MySQL(servers(mariadb).new_database())
        case "sqlite":
            return Sqlite(directory / "shop.sqlite")
        case _:
            return DuckDB(directory / "shop.duckdb")
