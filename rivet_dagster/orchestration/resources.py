"""Databases as Dagster resources."""

from __future__ import annotations

import threading
from typing import Any

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr, ValidatorFunctionWrapHandler, field_validator
from typing_extensions import Self

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.fields import refuse_unknown
from rivet_dagster.exports.sizes import parse_duration
from rivet_dagster.rows import Source
from rivet_dagster.sources.session_settings import SessionSettings

__all__ = ["DatabaseResource"]

_BATCH_ROWS = 65_536
# A number that has no value yet is 0 to whoever compares it.
_INT_OF_THE_ENVIRONMENT = type(dg.EnvVar.int(""))
# Not of each resource: Dagster copies them.
_ASKING = threading.Lock()


class DatabaseResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A database that exports read from.

    The URL comes from an environment variable, by its name: Dagster shows the configuration of resources in its UI,
    and of a `dg.EnvVar` only the name.

    Example:
        .. code-block:: python

            import dagster as dg
            import rivet_dagster as rd

            database = rd.DatabaseResource(url=dg.EnvVar("DATABASE_URL"))
    """

    # A setting that is misspelt must not pass for one that is set.
    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        description=(
            "Where the database is: postgresql://user@host/database, mysql://user@host/database, sqlite:///file,"
            " duckdb:///file, or any other URL for which a dialect of SQLAlchemy is installed (slower). Give it as"
            ' dg.EnvVar("DATABASE_URL"): one written here would show its password in the UI.'
        ),
    )

    statement_timeout: str | None = Field(
        default=None,
        description=(
            'PostgreSQL, MySQL and MariaDB: the server ends a statement that lasts longer, such as "30 minutes". A'
            " statement lasts as long as its rows take to be encoded and uploaded; with rd.Chunked each is short."
        ),
    )
    lock_timeout: str | None = Field(
        default=None,
        description=(
            'PostgreSQL, MySQL and MariaDB: how long a statement waits for a lock, such as "5s"; a retry may pass.'
        ),
    )
    application_name: str | None = Field(
        default=None,
        description=(
            "PostgreSQL, MySQL and MariaDB: the name that the server's administrator sees; else rivet_dagster."
        ),
    )
    max_rows_per_second: int | None = Field(
        default=None,
        ge=1,
        description="How many rows each export reads in a second at most, however many connections it reads with.",
    )

    # Exports of one step share what a driver has learned of the database: it may take longer than a small table.
    _source: Source | None = PrivateAttr(default=None)

    def __new__(cls, *_args: Any, **given: Any) -> Self:
        """Look at the names before pydantic does, which does not say what may be meant."""
        refuse_unknown(cls, given)
        return super().__new__(cls)

    @field_validator("max_rows_per_second", mode="wrap")
    @classmethod
    def _known_later(cls, value: Any, judged: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, _INT_OF_THE_ENVIRONMENT) else judged(value)

    def source(self) -> Source:
        """The database to read from, the same for all who ask; nothing is connected before the first query.

        Raises:
            ConfigError: the URL is empty, or of no database that is known, or a setting cannot be used with it.
            SourceError: the driver cannot be loaded.
        """
        with _ASKING:
            if self._source is None:
                self._source = self._connected()
            return self._source

    def _connected(self) -> Source:
        from rivet_dagster.sources.connect import connect  # noqa: PLC0415 - drivers load only where they are used

        if not self.url:
            msg = "DatabaseResource(url=…) is empty: expected a URL like postgresql://…; set its environment variable"
            raise ConfigError(msg)
        # A batch is what may come at once.
        most = {} if self.max_rows_per_second is None else {"batch_rows": min(self.max_rows_per_second, _BATCH_ROWS)}
        return connect(
            self.url,
            **most,
            statement_timeout=_seconds(self.statement_timeout, "statement_timeout"),
            lock_timeout=_seconds(self.lock_timeout, "lock_timeout"),
            application_name=self.application_name,
        )

    def check(self) -> None:
        """Refuse what cannot be, where the resource is defined; what comes from the environment is known only later.

        Raises:
            ConfigError: a setting is none, or none of this database's.
        """
        from rivet_dagster.sources.connect import check_settings  # noqa: PLC0415 - as above

        told = {
            name: None if isinstance(value, dg.EnvVar) else value
            for name in ("statement_timeout", "lock_timeout", "application_name")
            if (value := getattr(self, name)) is not None
        }
        settings = SessionSettings(
            statement_timeout=_seconds(told.get("statement_timeout"), "statement_timeout"),
            lock_timeout=_seconds(told.get("lock_timeout"), "lock_timeout"),
            application_name=told.get("application_name"),
        )
        if self.url and not isinstance(self.url, dg.EnvVar):
            check_settings(self.url, settings)


def _seconds(value: str | None, name: str) -> float | None:
    return None if value is None else parse_duration(value, field=f"DatabaseResource({name}=…)").total_seconds()
