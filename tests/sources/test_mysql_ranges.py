"""What is MySQL's own about reading in ranges: collations, its indexes, its engines and its one connection."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import KeyRange, SplittableSource
from rivet_dagster.sources.connect import connect
from tests.sources.databases import MySQL
from tests.sources.ranges import (
    CONSISTENCIES,
    assert_cut,
    between,
    key_of,
    query_of,
    read_in_ranges,
    rows_in,
    run,
    splittable,
)


@pytest.mark.parametrize(
    ("collation", "texts"),
    [
        (
            "utf8mb4_general_ci",
            ["a", "\u00e9", "STRASSE", "Z ", "zz", "o", "\u65e5", "10", "9", "_", "%", "B", "b\u0301x"],
        ),
        (
            "utf8mb4_unicode_ci",
            ["a", "\u00e9", "stra\u00dfe", "Z ", "zz", "o", "\u65e5", "10", "9", "_", "%", "B", "c"],
        ),
        ("utf8mb4_unicode_nopad_ci", ["a", "a ", "a  ", "\u00e9", "b", "B ", "zz", "", " "]),
        ("utf8mb3_swedish_ci", ["a", "\u00e5", "\u00e4", "\u00f6", "z", "Y", "ue", "V", "x"]),
        ("latin1_german2_ci", ["a", "AE", "\u00f6", "z", "Y", "\u00dfx", "V", "x", "\u20ac"]),
        ("utf8mb4_bin", ["a", "A", "b", "\u00e9", "e\u0301", "\U0001f600", "\uffff", "\\", "'", "a''b"]),
    ],
)
def test_text_is_divided_in_the_order_that_the_server_gives_it(maria: MySQL, collation: str, texts: list[str]) -> None:
    """Behind a number that repeats, so that texts which are equal to the collation are there many times, too."""
    charset = collation.partition("_")[0]
    maria.execute(
        f"CREATE TABLE t (s varchar(20) CHARACTER SET {charset} COLLATE {collation} NOT NULL, n int NOT NULL, "
        "PRIMARY KEY (s, n))"
    )
    rows = [(text.swapcase() if n % 2 and collation.endswith("_ci") else text, n) for text in texts for n in range(3)]
    values = ", ".join("('" + s.replace("'", "''") + f"', {n})" for s, n in reversed(rows))
    maria.execute(f"INSERT INTO t VALUES {values}")
    key = key_of("s", "n")
    assert splittable(maria).keys(query_of()) == (key,)
    for size in (1, 4):
        with run(maria) as snapshot:
            assert_cut(read_in_ranges(snapshot, key, rows=size), rows=size, expected=rows)


KINDS: dict[str, tuple[str, list[Any]]] = {
    "unsigned": ("bigint unsigned", [0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    "tiny": ("tinyint", [-128, -1, 0, 127]),
    "decimal": ("decimal(40,10)", [*map(Decimal, ("-1E+20", "-0.0000000001", "0", "1.5", "9E+29"))]),
    "bytes": ("varbinary(20)", [b"", b"\0", b"'", b"\\", b"a", b"a\0", b"\xff" * 20]),
    "fixed bytes": ("binary(16)", [bytes([n] * 16) for n in (0, 1, 127, 128, 255)]),
    "date": ("date", [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    "datetime": ("datetime(6)", [dt.datetime(y, 1, 1, 0, 0, 0, 1) for y in (1000, 2024, 9999)]),
    "uuid": ("uuid", ["00000000-0000-0000-0000-000000000001", "123e4567-e89b-12d3-a456-426655440000",
                      "8a4af6b0-5d0e-4b4c-9a59-2a3f7f0a6f5a", "ffffffff-ffff-1fff-8fff-ffffffffffff"]),
}  # fmt: skip


def literal(value: Any) -> str:
    return (
        f"X'{value.hex()}'" if isinstance(value, bytes) else f"'{value}'" if not isinstance(value, int) else str(value)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_key_is_divided_exactly(maria: MySQL, kind: str) -> None:
    declared, values = KINDS[kind]
    maria.execute(f"CREATE TABLE t (k {declared} NOT NULL PRIMARY KEY)")
    maria.execute(f"INSERT INTO t VALUES {', '.join(f'({literal(value)})' for value in reversed(values))}")
    with run(maria) as snapshot:
        bounds = list(snapshot.boundaries(query_of(), key_of("k"), rows=1))
        found = [rows_in(snapshot, query_of(within=within)) for within in between(bounds, key_of("k"))]
    assert [len(rows) for rows in found] == [1] * len(values)
    assert {value for ((value,),) in found} == set(values)


def test_text_that_is_no_ascii_bounds_no_range(maria: MySQL) -> None:
    """It is sent as a question mark, from which the walk would begin again, and again."""
    maria.execute("CREATE TABLE t (s varchar(20) CHARACTER SET ascii NOT NULL PRIMARY KEY)")
    maria.execute("INSERT INTO t VALUES ('a'), ('B'), ('?'), (''), ('z')")
    with run(maria) as snapshot:
        bounds = snapshot.boundaries(query_of(), key_of("s"), rows=1)
        assert list(bounds) == [("?",), ("a",), ("B",), ("z",)]
    maria.execute("INSERT INTO t VALUES (_ascii 0xE9), (_ascii 0x61E9)", sql_mode="")
    with (
        run(maria) as snapshot,
        pytest.raises(SourceError, match=r"'s': a value between two ranges .* ASCII and holds other bytes") as raised,
    ):
        list(zip(range(9), snapshot.boundaries(query_of(), key_of("s"), rows=1), strict=False))
    assert not raised.value.transient


def test_an_instant_is_the_same_whatever_zone_the_server_is_in(maria: MySQL) -> None:
    maria.execute("CREATE TABLE t (k timestamp(6) NOT NULL PRIMARY KEY)")
    moments = [dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.timezone.utc) for hour in range(5)]
    maria.execute("SET time_zone = '+00:00'", *(f"INSERT INTO t VALUES ('{m:%Y-%m-%d %H:%M:%S}')" for m in moments))
    with run(maria) as snapshot:
        bounds = list(snapshot.boundaries(query_of(), key_of("k"), rows=2))
        assert bounds == [(moments[2],), (moments[4],)]
        found = [rows_in(snapshot, query_of(within=within)) for within in between(bounds, key_of("k"))]
    assert found == [[(m,) for m in moments[:2]], [(m,) for m in moments[2:4]], [(moments[4],)]]


REFUSED = {
    "UNIQUE (s(5))": ("s", "is over the beginnings of values only"),
    "UNIQUE (e)": ("e", "column 'e' is enum.*compared exactly"),
    "UNIQUE (j)": ("j", "character set sjis does not become UTF-8 and back"),
    "UNIQUE (c)": ("c", "column 'c' is char: .* char in utf8mb4_nopad_bin in another order"),
    "UNIQUE (i) IGNORED": ("i", "is ignored by the server"),
    "UNIQUE (g) USING HASH": ("g", "column 'g' may be NULL"),
}


@pytest.mark.parametrize("index", REFUSED)
def test_what_the_catalog_does_not_vouch_for_is_no_key(maria: MySQL, index: str) -> None:
    maria.execute(
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY, s varchar(20) NOT NULL, e enum('a', 'b') NOT NULL, "
        f"i int NOT NULL, j varchar(20) CHARACTER SET sjis NOT NULL, g int, "
        f"c char(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL, {index})"
    )
    column, said = REFUSED[index]
    assert splittable(maria).keys(query_of()) == (key_of("id"),)
    with pytest.raises(ConfigError, match=said):
        splittable(maria).check_key(query_of(), [column])


def test_an_engine_without_transactions_has_no_snapshot(maria: MySQL) -> None:
    maria.execute("CREATE TABLE t (id int NOT NULL PRIMARY KEY) ENGINE = MyISAM", "INSERT INTO t VALUES (1), (2), (3)")
    with (
        run(maria) as snapshot,
        pytest.raises(ConfigError, match=r'MyISAM has no transactions.*consistency="statement"'),
    ):
        next(snapshot.boundaries(query_of(), key_of("id"), rows=1))
    with run(maria, "statement") as snapshot:
        assert read_in_ranges(snapshot, key_of("id"), rows=2) == [[(1,), (2,)], [(3,)]]


@pytest.mark.parametrize("key", [("id",), ("a", "b")], ids=["primary", "composite"])
def test_ranges_and_walks_read_what_they_give_and_no_more(maria: MySQL, key: tuple[str, ...]) -> None:
    """Counted by the server: along the key's index, from where the range begins, also in the middle of many ties."""
    maria.execute(
        "CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, a int NOT NULL, b int NOT NULL, UNIQUE (a, b))",
        # Three values of `a`, and ids that are far apart.
        "INSERT INTO t SELECT seq * 1000000007, seq % 3, seq FROM seq_1_to_3000",
    )
    counted = (
        "SELECT SUM(VARIABLE_VALUE) FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME LIKE 'HANDLER_READ%'"
    )
    with run(maria) as snapshot:
        # Of the one connection that reads all.
        session = snapshot._connection  # type: ignore[attr-defined]

        def read() -> int:
            return int(session.rows(counted)[0][0])

        bounds, walk = [], snapshot.boundaries(query_of(), key_of(*key), rows=500)
        bounds.append(next(walk))
        before = read()
        cost = read() - before
        bounds += walk
        walked = read() - before - cost
        assert len(bounds) == 5
        assert walked < 5 * 500 + 5 * 60, "each step begins where the last has ended"
        for within in between(bounds, key_of(*key)):
            before = read()
            assert len(rows_in(snapshot, query_of(within=within))) == 500
            # A secondary index finds each row once more; the catalog is asked a little. All rows would be 3,000.
            assert read() - before - cost < 500 * len(key) + 600


@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_a_stream_that_is_closed_half_way_costs_its_connection_and_no_other(maria: MySQL, consistency: Any) -> None:
    maria.execute("CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, s text)")
    maria.execute("INSERT INTO t SELECT seq, REPEAT('x', 1000) FROM seq_1_to_20000")
    source: SplittableSource = connect(maria.url, batch_rows=10)  # type: ignore[assignment]
    with source.snapshot(consistency) as snapshot:
        snapshot.open(query_of()).close()
        first = KeyRange(key=key_of("id"), low=None, high=(3,))
        assert [i for i, _ in rows_in(snapshot, query_of(within=first))] == [1, 2]
        stream = snapshot.open(query_of())
        next(iter(stream))
        stream.close()
        if consistency == "statement":
            assert len(rows_in(snapshot, query_of(within=first))) == 2
        else:
            with pytest.raises(SourceError, match="connection") as raised:
                snapshot.open(query_of(within=first))
            assert raised.value.transient, "another run may have its snapshot"


def test_one_stream_of_a_snapshot_is_open_at_a_time(maria: MySQL) -> None:
    maria.execute("CREATE TABLE t (id bigint NOT NULL PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with run(maria) as snapshot:
        opened = snapshot.open(query_of())
        with pytest.raises(SourceError, match="one stream at a time"):
            snapshot.open(query_of())
        assert len(list(opened)) == 1
        for _ in range(3):
            assert rows_in(snapshot, query_of()) == [(1,)]
    assert maria.row("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE db = DATABASE()") == (1,)


def test_a_table_is_found_in_the_case_in_which_it_is_written(maria: MySQL) -> None:
    maria.execute("CREATE TABLE t (id int NOT NULL PRIMARY KEY)", "CREATE TABLE T (other int NOT NULL PRIMARY KEY)")
    assert splittable(maria).keys(query_of("t")) == (key_of("id"),)
    assert splittable(maria).keys(query_of("T")) == (key_of("other"),)
    assert splittable(maria).keys(query_of(f"`{maria.schema}`.`t`")) == (key_of("id"),)
    with pytest.raises(SourceError, match="no such table"):
        splittable(maria).keys(query_of("gone"))
    twin = maria.schema.upper()
    maria.execute(f"CREATE DATABASE {twin}")
    try:
        # As the database's own is not: rows without an id would be in no range.
        maria.execute(f"CREATE TABLE {twin}.t (id int UNIQUE)")
        assert splittable(maria).keys(query_of(f"{twin}.t")) == ()
        assert splittable(maria).keys(query_of(f"{maria.schema}.t")) == (key_of("id"),)
        assert [column.nullable for column in splittable(maria).open(query_of(f"{twin}.t")).columns] == [True]
    finally:
        maria.execute(f"DROP DATABASE {twin}")
