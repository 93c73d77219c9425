"""Open a source by the scheme of its URL. Database drivers are imported here and below, when one is needed."""

from __future__ import annotations

from rivet_dagster.errors import ConfigError
from rivet_dagster.rows import Source
from rivet_dagster.sources.session_settings import SessionSettings, check_sessions
from rivet_dagster.sources.url import parse_url

__all__ = ["check_settings", "connect", "is_ours"]

# By scheme, the drivers of other people's URLs in whose place ours reads faster, and as exactly; "" is none.
_OURS = {
    "postgresql": ("", "psycopg", "psycopg2", "asyncpg"),
    "postgres": ("",),
    "mysql": ("", "pymysql"),
    "mariadb": ("", "pymysql"),
    "sqlite": ("",),
    "duckdb": ("",),
}


def connect(
    url: str,
    *,
    batch_rows: int = 65_536,
    batch_bytes: int = 8 * 2**20,
    statement_timeout: float | None = None,
    lock_timeout: float | None = None,
    application_name: str | None = None,
) -> Source:
    """A source for the database that `url` names; nothing is connected to before `open`.

    Args:
        url: `postgresql://user@host/database` (also `postgres://`, `postgresql+driver://`),
            `mysql://user@host/database` (also `mariadb://`, `mysql+pymysql://`), `sqlite:///file`,
            `sqlite:////absolute/file` or `duckdb:///file`. Files are opened read-only and never created. A URL with
            another driver (`postgresql+pg8000://`, `sqlite+pysqlite:///file`) or for another database is read through
            SQLAlchemy, which is slower.
        batch_rows: no batch has more rows.
        batch_bytes: about the size of a batch; one row larger than it is a batch of its own.
        statement_timeout: PostgreSQL, MySQL and MariaDB only: after how many seconds the server ends a statement.
        lock_timeout: as these: for how many seconds a statement waits for a lock; MySQL counts whole ones.
        application_name: as these: how the server's administrator sees the sessions; wins over the URL's.

    Raises:
        ConfigError: the scheme is not supported, or the URL or a setting cannot be used as it is written.
    """
    if batch_rows < 1 or batch_bytes < 1:
        raise ConfigError(
            f"a batch has at least one row and one byte: batch_rows={batch_rows}, batch_bytes={batch_bytes}"
        )
    parsed = parse_url(url)
    settings = SessionSettings(
        statement_timeout=statement_timeout, lock_timeout=lock_timeout, application_name=application_name
    )
    check_settings(url, settings)
    match parsed.scheme if is_ours(url) else None:
        case "postgresql" | "postgres":
            from rivet_dagster.sources.postgresql import PostgresSource

            return PostgresSource(parsed, batch_rows=batch_rows, batch_bytes=batch_bytes, settings=settings)
        case "sqlite":
            from rivet_dagster.sources.sqlite import SqliteSource

            return SqliteSource(parsed, batch_rows=batch_rows, batch_bytes=batch_bytes)
        case "duckdb":
            from rivet_dagster.sources.duckdb import DuckDBSource

            return DuckDBSource(parsed, batch_rows=batch_rows, batch_bytes=batch_bytes)
        case "mysql" | "mariadb":
            from rivet_dagster.sources.mysql import MySQLSource

            return MySQLSource(parsed, batch_rows=batch_rows, batch_bytes=batch_bytes, settings=settings)
        case _:
            from rivet_dagster.sources.any_url import AnyUrlSource

            return AnyUrlSource(parsed, url, batch_rows=batch_rows, batch_bytes=batch_bytes)


def check_settings(url: str, settings: SessionSettings) -> None:
    """Refuse what the database of a URL does not know; nothing is loaded or connected to.

    Raises:
        ConfigError: names each setting, and what to do.
    """
    check_sessions(parse_url(url).scheme, ours=is_ours(url), settings=settings)


def is_ours(url: str) -> bool:
    """Whether one of our drivers reads it, and not SQLAlchemy."""
    driver = url.strip().partition("://")[0].partition("+")[2].lower()
    return driver in _OURS.get(parse_url(url).scheme, ())
