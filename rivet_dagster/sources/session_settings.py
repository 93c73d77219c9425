"""How gentle sessions are with a server, whichever it is, and which databases have none."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rivet_dagster.errors import ConfigError

__all__ = ["SessionSettings", "check_sessions"]

_MOST_MILLISECONDS = 2**31 - 1
_SERVERS = frozenset({"postgresql", "postgres", "mysql", "mariadb"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How gentle a session is; `None` leaves it to the server.

    Attributes:
        statement_timeout: after how many seconds the server ends a statement; that of an export lasts as long as its
            rows take to be read.
        lock_timeout: after how many seconds of waiting for a lock it gives up.
        application_name: how the server's administrator sees the session; wins over the URL's.

    Raises:
        ConfigError: a timeout is none that every server knows: 1 ms to 24 days.
    """

    statement_timeout: float | None = None
    lock_timeout: float | None = None
    application_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("statement_timeout", "lock_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not 1 <= seconds * 1000 <= _MOST_MILLISECONDS:
                raise ConfigError(f"{name}: expected 0.001 to 2147483 seconds, found {seconds}")


def check_sessions(scheme: str, *, ours: bool, settings: SessionSettings) -> None:
    """Refuse settings of sessions where a database has none, or where another driver makes them.

    Args:
        scheme: of the URL.
        ours: whether this package reads it with a driver of its own.
        settings: what is asked for.

    Raises:
        ConfigError: names each of them, and what to do.
    """
    given = [f.name for f in fields(settings) if getattr(settings, f.name) is not None]
    if given and not (ours and scheme in _SERVERS):
        found = f"{scheme}://" if scheme not in _SERVERS else f"{scheme}:// with a driver of SQLAlchemy"
        raise ConfigError(
            f"{', '.join(given)}: for postgresql://, mysql:// and mariadb:// only, found {found}; remove it"
        )
