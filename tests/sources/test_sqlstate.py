"""Which PostgreSQL failures are worth a retry."""

from __future__ import annotations

import pytest

from rivet_dagster.sources.sqlstate import hint_for, is_transient, sqlstate_of_refusal


@pytest.mark.parametrize(
    "state",
    [
        "08000",
        "08001",
        "08006",
        "57P01",
        "57P02",
        "57P03",
        "53000",
        "53100",
        "53200",
        "53300",
        "40001",
        "40P01",
        "55P03",
    ],
)
def test_what_may_pass_is_transient(state: str) -> None:
    assert is_transient(state)


@pytest.mark.parametrize(
    "state",
    [
        *("57014", "28000", "28P01", "42P01", "42501", "42601", "3D000", "22012", "22003", "22021", "25006"),
        *("40002", "55000", "57000", "57P04", "XX000", "0A000", "", None),
    ],
)
def test_everything_else_is_permanent(state: str | None) -> None:
    assert not is_transient(state)


def test_an_exact_state_wins_over_its_class() -> None:
    assert hint_for("57014") != hint_for("57P01")
    assert "statement_timeout" in hint_for("57014")
    assert hint_for("08003") == hint_for("08006")
    assert hint_for("22012") == hint_for(None) == ""


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ('connection to server at "h", port 1 failed: Connection refused\n\tIs the server running?', "08001"),
        ('could not translate host name "h" to address: Name or service not known', "08001"),
        ('connection to server on socket "/s" failed: No such file or directory', "08001"),
        ('connection to server at "h" failed: timeout expired', "08001"),
        ("server closed the connection unexpectedly", "08006"),
        ("SSL SYSCALL error: EOF detected", "08006"),
        ("connection failed: FATAL:  the database system is starting up", "57P03"),
        ("connection failed: FATAL:  the database system is shutting down", "57P03"),
        ("connection failed: FATAL:  the database system is not yet accepting connections", "57P03"),
        ("connection failed: FATAL:  sorry, too many clients already", "53300"),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", "53300"),
        ('FATAL:  password authentication failed for user "me"', "28P01"),
        ("fe_sendauth: no password supplied", "28P01"),
        ('FATAL:  no pg_hba.conf entry for host "h", user "me", database "d", no encryption', "28000"),
        ('FATAL:  role "me" does not exist', "28000"),
        ('FATAL:  database "d" does not exist', "3D000"),
        ('FATAL:  permission denied for database "d"', "42501"),
        ("server does not support SSL, but SSL was required", None),
        ("ReadRecord failed at row 0: something unknown", None),
    ],
)
def test_a_refused_connection_has_the_state_that_its_text_means(message: str, state: str | None) -> None:
    assert sqlstate_of_refusal(message) == state
