"""Which PostgreSQL failures may pass when the same statement is sent again, and what to do about the others."""

from __future__ import annotations

import re

__all__ = ["hint_for", "is_transient", "sqlstate_of_refusal"]

# Five characters name a state, fewer a class of them; the longest match counts.
_TRANSIENT = {
    "08": True,  # connection exceptions
    "57P01": True,  # the server, or someone with the right to, ended the session
    "57P02": True,
    "57P03": True,  # starting up or shutting down
    "53": True,  # out of connections, memory or disk
    "40001": True,
    "40P01": True,
    "55P03": True,  # a lock was not available in time
}

_HINTS = {
    "08": "run it again; if it stays, check the server and the network",
    "22P02": "a value cannot be read as the type it is cast to; read the column as text",
    "22021": "the database holds text that is not valid in its encoding; repair it, or export the column as bytea",
    "22P05": "the database holds characters that UTF-8 has no form for",
    "25006": "sources are read in a read-only transaction; the query must not write",
    "28": "check user, password and pg_hba.conf",
    "3D000": "check the database name in the URL",
    "3F000": "check the schema name",
    "40": "run it again",
    "42501": "grant the user SELECT on what the query reads, and USAGE on its schema",
    "42601": "correct the query; it must be one select statement",
    "42703": "check the column names of the query",
    "42704": "check the type names of the query and of `columns`",
    "42P01": "check schema and table; names without double quotes are read in lower case",
    "53": "wait until the server has connections, memory and disk to spare",
    "55P03": "another session holds the lock; run it again",
    "57014": "the statement was cancelled or ran into statement_timeout: raise statement_timeout for this user, "
    "or read less at a time; a retry alone would run into it again",
    "57P01": "run it again; nothing of this read was used",
    "57P03": "run it again when the server accepts connections",
}

# What libpq says when there was no server answer with a state in it, and the state that fits.
_REFUSALS = (
    (r"password authentication failed|no password supplied|authentication failed", "28P01"),
    (r"no pg_hba\.conf entry|role .* does not exist|is not permitted to log in", "28000"),
    (r"database .* does not exist", "3D000"),
    (r"permission denied for database", "42501"),
    (r"too many (clients|connections)|remaining connection slots", "53300"),
    (r"starting up|shutting down|not (yet )?accepting connections|recovery", "57P03"),
    (r"terminating connection", "57P01"),
    (r"connection refused|could not translate host name|name resolution|no such file or directory", "08001"),
    (r"timeout expired|timed out|no route to host|unreachable", "08001"),
    (r"server closed the connection|connection reset|broken pipe|EOF detected", "08006"),
    (r"no connection to the server|connection not open|could not (send|receive)", "08006"),
)


def is_transient(state: str | None) -> bool:
    """Whether the same statement may succeed when it is sent again. An unknown state is not transient."""
    return bool(state) and any(_TRANSIENT.get(key, False) for key in _keys(state or ""))


def hint_for(state: str | None) -> str:
    """What to do about a failure, empty where nothing general can be said."""
    return next((_HINTS[key] for key in _keys(state or "") if key in _HINTS), "")


def sqlstate_of_refusal(message: str) -> str | None:
    """The state behind a failure that came without one: a refused or lost connection."""
    return next((state for pattern, state in _REFUSALS if re.search(pattern, message, re.IGNORECASE)), None)


def _keys(state: str) -> tuple[str, str]:
    return state, state[:2]
