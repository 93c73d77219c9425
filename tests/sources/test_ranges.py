"""What holds for every source that reads in ranges of a key: each row in exactly one, and only keys that are keys."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Consistency, Key, KeyRange, Query
from tests.sources.databases import Database
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

# Where every stream and every question costs a connection.
SERVERS = ("postgresql", "mysql")

HOSTILE = [
    "", " ", "  ", "a", "a ", "A", "ab", "it's", "''", "'; DROP TABLE t; --", "\\", "\\'", "\\\\'", "E'\\x41'", '"',
    "`", "$$", "%s", "{0}", ":x", "?", "\u00e4", "\u00df", "ss", "\ufb00", "\u65e5\u672c", "\U0001f600", "\U0010ffff",
    "\u00e9", "e\u0301", "\n", "\r\n", "\t", "\x01", "NULL", "null", "1", "01", "1e3", "-1", "\u202e", "zz",
]  # fmt: skip
EXTREMES = [-(2**63), -(2**63) + 1, -(2**53) - 1, -1, 0, 1, 2, 10**6, 2**53, 2**53 + 1, 2**62, 2**63 - 1]

SHAPES: dict[str, tuple[str, tuple[str, ...], list[tuple[Any, ...]]]] = {
    "dense": ("id bigint NOT NULL", ("id",), [(i,) for i in range(1, 24)]),
    "sparse": ("id bigint NOT NULL", ("id",), [(value,) for value in EXTREMES]),
    "composite": ("a bigint NOT NULL, b bigint NOT NULL", ("a", "b"), [(i % 3, i) for i in range(-10, 13)]),
    "three": (
        "a bigint NOT NULL, b text NOT NULL, c bigint NOT NULL",
        ("a", "b", "c"),
        [(i % 2, "xy"[i % 2 - i % 3], i // 2 * (-1) ** i) for i in range(20)],
    ),
    "text": ("s text NOT NULL", ("s",), [(value,) for value in HOSTILE]),
    "text beside a number": (
        "s text NOT NULL, i bigint NOT NULL",
        ("s", "i"),
        [(s, i) for s in HOSTILE[::2] for i in (0, -1)],
    ),
    "number before text": (
        "i bigint NOT NULL, s text NOT NULL",
        ("i", "s"),
        [(i, s) for i in (1, -7) for s in HOSTILE[1::2]],
    ),
    "hostile names": (
        '"k1" bigint NOT NULL, "k0" bigint NOT NULL, "a""b" bigint NOT NULL, "r" text',
        ("k1", "k0", 'a"b'),
        [(i % 2, 9 - i, i % 5, "x") for i in range(9)],
    ),
}


def sql(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def fill(database: Database, columns: str, key: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Key:
    columns = columns.replace(" text", f" {database.key_text}")
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in key)
    database.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({names}))")
    # From the end, so that the order of storage is not the order of the key.
    values = ", ".join(f"({', '.join(map(sql, row))})" for row in reversed(rows))
    database.execute(f"INSERT INTO t VALUES {values}")
    return Key(columns=tuple(key))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_every_row_is_in_exactly_one_range(database: Database, shape: str, consistency: Consistency) -> None:
    columns, names, rows = SHAPES[shape]
    key = fill(database, columns, names, rows)
    assert splittable(database).keys(query_of()) == (key,)
    with run(database, consistency) as snapshot:
        # In steps of one, each key becomes a bound. All three compare text by its UTF-8 here, as Python does.
        bounds = list(snapshot.boundaries(query_of(), key, rows=1))
    assert bounds == sorted(row[: len(names)] for row in rows)[1:]
    few, many = [len(rows) // 3, len(rows)], [5, len(rows) // 2, len(rows) - 1, len(rows), len(rows) + 1]
    for size in few if database.kind in SERVERS else many:
        with run(database, consistency) as snapshot:
            assert_cut(read_in_ranges(snapshot, key, rows=size), rows=size, expected=rows)


def test_a_range_may_hold_one_row(database: Database) -> None:
    columns, names, rows = SHAPES["sparse"]
    key = fill(database, columns, names, rows)
    with run(database) as snapshot:
        assert read_in_ranges(snapshot, key, rows=1) == [[(value,)] for value in EXTREMES]


def test_an_empty_table_is_one_range(database: Database) -> None:
    database.execute("CREATE TABLE t (id bigint NOT NULL PRIMARY KEY)")
    with run(database) as snapshot:
        assert read_in_ranges(snapshot, key_of("id"), rows=3) == [[]]


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "text": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200),
}


@pytest.mark.parametrize("kind", SCALARS)
def test_boundaries_are_every_nth_key(database: Database, kind: str) -> None:
    database.execute(f"CREATE TABLE t (k {database.key_text if kind == 'text' else kind} NOT NULL PRIMARY KEY)")
    many = 6 if database.kind in SERVERS else 20

    @settings(max_examples=many, suppress_health_check=[HealthCheck.too_slow])
    @given(values=st.sets(SCALARS[kind], min_size=1, max_size=12), rows=st.integers(1, 4))
    def holds(values: set[Any], rows: int) -> None:
        database.execute("DELETE FROM t", f"INSERT INTO t VALUES {', '.join(f'({sql(value)})' for value in values)}")
        with run(database) as snapshot:
            bounds = list(snapshot.boundaries(query_of(), key_of("k"), rows=rows))
            assert bounds == [(value,) for value in sorted(values)[rows::rows]]
            if database.kind not in SERVERS:
                found = [rows_in(snapshot, query_of(within=within)) for within in between(bounds, key_of("k"))]
                assert_cut(found, rows=rows, expected=[(value,) for value in values])

    holds()


def test_a_range_is_closed_below_and_open_above(database: Database) -> None:
    key = fill(database, *SHAPES["composite"])
    within = KeyRange(key=key, low=(1, -5), high=(2, -1))
    expected = [row for row in SHAPES["composite"][2] if (1, -5) <= row < (2, -1)]
    assert (1, -5) in expected
    assert (2, -1) in SHAPES["composite"][2]
    assert sorted(rows_in(splittable(database), query_of(within=within))) == sorted(expected)


@pytest.mark.parametrize("shape", ["composite", "text"])
def test_the_boundaries_of_a_range_divide_that_range(database: Database, shape: str) -> None:
    columns, names, rows = SHAPES[shape]
    key = fill(database, columns, names, rows)
    keys = sorted(row[: len(names)] for row in rows)
    low, high = keys[4], keys[-3]
    with run(database, "statement") as snapshot:
        for within, own in (
            (KeyRange(key=key, low=low, high=high), keys[4:-3]),
            (KeyRange(key=key, low=None, high=low), keys[:4]),
            (KeyRange(key=key, low=high, high=None), keys[-3:]),
            (KeyRange(key=key, low=high, high=high), []),
        ):
            assert list(snapshot.boundaries(query_of(within=within), key, rows=2)) == own[2::2]


def test_the_boundaries_of_a_range_of_another_key_are_refused(database: Database) -> None:
    key = fill(database, *SHAPES["composite"])
    within = KeyRange(key=key_of("b"), low=(1,), high=None)
    with run(database) as snapshot, pytest.raises(ConfigError, match=r"\(a, b\) inside of a range of \(b\)"):
        list(snapshot.boundaries(query_of(within=within), key, rows=2))


def test_a_range_of_a_cast_column_is_of_the_column(database: Database) -> None:
    key = fill(database, "id bigint NOT NULL", ("id",), [(i,) for i in range(1, 15)])
    within = KeyRange(key=key, low=(9,), high=(12,))
    assert sorted(rows_in(splittable(database), query_of(within=within, id="text"))) == [("10",), ("11",), ("9",)]


def test_keys_are_named_primary_first_and_nothing_nullable_is_one(database: Database) -> None:
    database.execute(
        f"CREATE TABLE t (id bigint NOT NULL, code {database.key_text} NOT NULL UNIQUE, maybe bigint UNIQUE, "
        "a bigint NOT NULL, b bigint, c bigint NOT NULL, UNIQUE (a, b), UNIQUE (c, a), PRIMARY KEY (id))"
    )
    keys = splittable(database).keys(query_of())
    assert keys[0] == key_of("id")
    assert set(keys) == {key_of("id"), key_of("code"), key_of("c", "a")}


REFUSED = {
    ("maybe",): "column 'maybe' may be NULL",
    ("a", "b"): "column 'b' may be NULL",
    ("plain",): "nothing makes these columns",
    ("id", "a"): "nothing makes these columns",
    ("a", "c"): "has these columns in another order",
    ("gone",): "there is no column 'gone'; the columns are",
    (): "one or more columns",
    ("id", "id"): "each once",
    ("real",): "compared exactly",
}


@pytest.mark.parametrize("columns", REFUSED, ids=str)
def test_columns_that_are_no_key_are_refused_with_the_reason(database: Database, columns: tuple[str, ...]) -> None:
    database.execute(
        f"CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, maybe bigint UNIQUE, a bigint NOT NULL, b bigint, c bigint "
        f'NOT NULL, plain bigint NOT NULL, "real" {database.double} NOT NULL UNIQUE, UNIQUE (a, b), UNIQUE (c, a))'
    )
    source = splittable(database)
    with pytest.raises(ConfigError, match=REFUSED[columns]) as raised:
        source.check_key(query_of(), columns)
    assert "its keys are (id), (c, a)" in str(raised.value)
    assert source.check_key(query_of(), ["c", "a"]) == key_of("c", "a")
    within = KeyRange(key=Key(columns=columns), low=None, high=None)
    with run(database) as snapshot:
        for use in (
            lambda: snapshot.open(query_of(within=within)),
            lambda: next(snapshot.boundaries(query_of(), within.key, rows=1), None),
        ):
            with pytest.raises(ConfigError, match=REFUSED[columns]):
                use()


def test_a_query_has_no_key_and_cannot_be_cut(database: Database) -> None:
    key = fill(database, *SHAPES["dense"])
    source = splittable(database)
    query = Query(sql="SELECT * FROM t", casts={})
    assert source.keys(query) == ()
    assert source.estimated_rows(query) is None
    with pytest.raises(ConfigError, match="only a table's catalog can vouch for a key"):
        source.check_key(query, ["id"])
    whole = Query(sql="SELECT * FROM t", casts={}, within=KeyRange(key=key, low=None, high=None))
    with pytest.raises(ConfigError, match="only a table's catalog can vouch for a key"):
        source.open(whole)


def test_a_view_has_no_key(database: Database) -> None:
    fill(database, *SHAPES["dense"])
    database.execute("CREATE VIEW v AS SELECT * FROM t")
    assert splittable(database).keys(query_of("v")) == ()
    with pytest.raises(ConfigError, match=r"it is a view.*it has no key"):
        splittable(database).check_key(query_of("v"), ["id"])


@pytest.mark.parametrize("bound", [("1",), (1.0,), (True,), (None,), (1, 2), ()], ids=str)
def test_a_value_of_another_kind_than_its_column_is_refused(database: Database, bound: tuple[Any, ...]) -> None:
    key = fill(database, *SHAPES["dense"])
    with pytest.raises(ConfigError, match="expected"):
        splittable(database).open(query_of(within=KeyRange(key=key, low=bound, high=None)))


@pytest.mark.parametrize("bound", [(1,), (b"x",), (None,)], ids=str)
def test_a_value_that_is_no_text_is_refused_for_text(database: Database, bound: tuple[Any, ...]) -> None:
    key = fill(database, *SHAPES["text"])
    with pytest.raises(ConfigError, match="expected"):
        splittable(database).open(query_of(within=KeyRange(key=key, low=bound, high=None)))


def test_a_range_has_a_row(database: Database) -> None:
    key = fill(database, *SHAPES["dense"])
    with run(database) as snapshot, pytest.raises(ConfigError, match="at least one row"):
        next(snapshot.boundaries(query_of(), key, rows=0))


def test_several_streams_are_open_at_a_time_where_it_is_promised(database: Database) -> None:
    key = fill(database, *SHAPES["dense"])
    for consistency in CONSISTENCIES:
        with run(database, consistency) as snapshot:
            assert (snapshot.engine, snapshot.consistency) == (database.kind, consistency)
            assert snapshot.parallel or (database.kind in ("sqlite", "mysql") and consistency == "snapshot")
            if not snapshot.parallel:
                continue
            found: list[list[tuple[Any, ...]]] = []
            meet = threading.Barrier(4)

            def read(
                within: KeyRange, snapshot=snapshot, meet: threading.Barrier = meet, found: list[Any] = found
            ) -> None:
                stream = snapshot.open(query_of(within=within))
                meet.wait(60)
                found.append([tuple(row.values()) for batch in stream for row in batch.to_pylist()])

            ranges = list(between(list(snapshot.boundaries(query_of(), key, rows=6)), key))
            threads = [threading.Thread(target=read, args=(within,)) for within in ranges]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert sorted(row for part in found for row in part) == SHAPES["dense"][2]


@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_a_run_that_has_ended_reads_nothing(database: Database, consistency: Consistency) -> None:
    key = fill(database, *SHAPES["dense"])
    with run(database, consistency) as snapshot:
        pass
    with pytest.raises(SourceError, match="has ended"):
        snapshot.open(query_of())
    with pytest.raises(SourceError, match="has ended"):
        next(snapshot.boundaries(query_of(), key, rows=1))


def test_the_size_of_a_row_is_about_what_is_read(database: Database) -> None:
    database.execute("CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, s text)", "CREATE TABLE e (id bigint)")
    rows = ", ".join(f"({i}, '{'x' * 200}')" for i in range(3000))
    database.execute(f"INSERT INTO t VALUES {rows}")
    source = splittable(database)
    assert 200 <= source.row_bytes(query_of()) <= 300
    assert 200 <= source.row_bytes(Query(sql="SELECT * FROM t", casts={})) <= 300
    assert source.row_bytes(query_of("e")) == 1


def test_a_table_that_is_not_there_is_no_table(database: Database) -> None:
    for ask in (
        lambda source: source.keys(query_of("gone")),
        lambda source: source.check_key(query_of("gone"), ["id"]),
    ):
        with pytest.raises(SourceError, match="no such table") as raised:
            ask(splittable(database))
        assert not raised.value.transient
