"""Which MySQL and MariaDB failures may pass when the same statement is sent again, and what to do about the others."""

from __future__ import annotations

__all__ = ["CONNECTION_FAILED", "CONNECTION_LOST", "ENCRYPTION_FAILED", "hint_for", "is_transient"]

# The client's own numbers; all others here are the server's.
CONNECTION_FAILED = 2003
CONNECTION_LOST = 2013
ENCRYPTION_FAILED = 2026

_CUT = (
    "run it again; nothing of this read was used. If it stays, check the server, the network, net_write_timeout and "
    "idle_transaction_timeout"
)
_BUSY = "wait until the server has connections, memory and disk to spare"
_AGAIN = "run it again"

_TRANSIENT = {
    1021: _BUSY,  # disk full
    1037: _BUSY,  # out of memory
    1040: _BUSY,  # too many connections
    1041: _BUSY,
    1053: "run it again when the server accepts connections",  # shutting down
    1079: "run it again when the server accepts connections",
    1152: _CUT,  # aborted connection
    1158: _CUT,  # reading from, and writing to, the client
    1159: _CUT,
    1160: _CUT,
    1161: _CUT,
    1184: _CUT,
    1203: _BUSY,  # the user's share of connections
    1205: "another session holds the lock; run it again",
    1213: _AGAIN,  # deadlock
    1226: _BUSY,  # the user's resources
    1412: _AGAIN,  # a table was altered after the snapshot
    1461: _BUSY,  # too many prepared statements
    1615: _AGAIN,  # a table was altered after the description
    1637: _BUSY,
    1927: _CUT,  # MariaDB: the connection was killed
    2002: "check that the server runs at this socket, and run it again",
    2003: "check host and port, and that the server runs; then run it again",
    2005: "check the host's name",
    2006: _CUT,
    2013: _CUT,
    2055: _CUT,
    3169: _CUT,  # MySQL: the session was killed
    4031: _CUT,
}

_TOO_LONG = (
    "the statement ran into its time limit: raise max_statement_time (MariaDB) or max_execution_time (MySQL) for this "
    "user, or statement_timeout if it is set here, or read less at a time; a retry alone would run into it again"
)
_GRANT = "grant the user SELECT on what the query reads"
_LOGIN = "check user, password, and from where the user may connect"
_HINTS = {
    1044: "grant the user access to this database, or check its name",
    1045: _LOGIN,
    1046: "name the database in the URL, or in the table name",
    1049: "check the database name in the URL",
    1054: "check the column names of the query",
    1060: "give each column its own name with AS",
    1064: "correct the query; it must be one select statement",
    1129: "the server blocks this host after failed connections: FLUSH HOSTS on the server",
    1130: _LOGIN,
    1142: _GRANT,
    1143: _GRANT,
    1146: "check database and table; names may be case-sensitive",
    1227: _GRANT,
    1290: "the server's settings refuse it",
    1317: "the statement was cancelled on the server; run it again when nobody cancels it",
    1370: "grant the user EXECUTE on the functions of the query",
    1698: _LOGIN,
    1792: "sources are read in a read-only transaction; the query must not write",
    1820: "the user must set a new password first",
    1836: "the server is read-only; the query must not write",
    1862: "the user must set a new password first",
    1969: _TOO_LONG,
    2026: "check ssl-mode, ssl-ca and the server's certificate",
    2059: "this way of logging in is not supported by the driver",
    2061: "this way of logging in is not supported by the driver",
    3024: _TOO_LONG,
}


def is_transient(code: int | None) -> bool:
    """Whether the same statement may succeed when it is sent again. An unknown code is not transient."""
    return code in _TRANSIENT


def hint_for(code: int | None) -> str:
    """What to do about a failure, empty where nothing general can be said."""
    return _HINTS.get(code or 0) or _TRANSIENT.get(code or 0, "")
