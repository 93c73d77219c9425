"""PostgreSQL: which columns are a key, typed values as bounds, and that a walk follows the index."""

from __future__ import annotations

from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import KeyRange
from rivet_dagster.sources.postgres_database import PostgresDatabase
from rivet_dagster.sources.postgres_keys import WALK_SETTINGS, boundaries, literal, relation_of, text_literal
from rivet_dagster.sources.postgres_session import PostgresSession
from rivet_dagster.sources.ranges import KeyColumn
from rivet_dagster.sources.url import parse_url
from tests.sources.databases import Postgres
from tests.sources.ranges import between, key_of, query_of, read_in_ranges, rows_in, run, splittable

UTC = timezone.utc


@pytest.fixture
def shop(pg: Postgres) -> Postgres:
    pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return pg


NOT_KEYS = {
    "CREATE UNIQUE INDEX i ON t (x) WHERE x > 0": "is partial",
    "CREATE UNIQUE INDEX i ON t (abs(x))": "nothing makes these columns",
    "ALTER TABLE t ADD UNIQUE (x) DEFERRABLE": "is deferrable",
    "ALTER TABLE t ADD UNIQUE (x) DEFERRABLE INITIALLY DEFERRED": "is deferrable",
    "CREATE INDEX i ON t (x)": "nothing makes these columns",
    "ALTER TABLE t ADD EXCLUDE (x WITH =)": "nothing makes these columns",
    "CREATE UNIQUE INDEX i ON t (x, y DESC)": "nothing makes these columns",
}


@pytest.mark.parametrize("made", NOT_KEYS)
def test_what_does_not_make_every_row_unique_is_no_key(shop: Postgres, made: str) -> None:
    shop.execute("CREATE TABLE t (x int NOT NULL, y int NOT NULL)", made)
    assert splittable(shop).keys(query_of()) == ()
    with pytest.raises(ConfigError, match=NOT_KEYS[made]):
        splittable(shop).check_key(query_of(), ["x"])


def test_an_index_that_cannot_be_walked_in_order_is_no_key(shop: Postgres) -> None:
    shop.execute(
        'CREATE TABLE t (s text NOT NULL, c text COLLATE "C" NOT NULL, x int NOT NULL, y int NOT NULL)',
        "CREATE UNIQUE INDEX one ON t (s text_pattern_ops)",
        'CREATE UNIQUE INDEX two ON t (c COLLATE "POSIX")',
        "CREATE UNIQUE INDEX three ON t (x, y DESC)",
    )
    source = splittable(shop)
    assert source.keys(query_of()) == ()
    for columns, reason in (
        (["s"], "operator class"),
        (["c"], "another collation"),
        (["x", "y"], "not in one direction"),
    ):
        with pytest.raises(ConfigError, match=reason):
            source.check_key(query_of(), columns)


def test_an_index_that_was_not_finished_is_no_key(shop: Postgres) -> None:
    shop.execute("CREATE TABLE t (x int NOT NULL)", "INSERT INTO t VALUES (1), (1)")
    with pytest.raises(Exception, match="could not create unique index"):
        shop.execute("CREATE UNIQUE INDEX CONCURRENTLY i ON t (x)")
    assert splittable(shop).keys(query_of()) == ()
    with pytest.raises(ConfigError, match="index 'i' is not valid"):
        splittable(shop).check_key(query_of(), ["x"])


def test_columns_that_an_index_only_carries_are_not_of_its_key(shop: Postgres) -> None:
    shop.execute("CREATE TABLE t (x int NOT NULL, y int NOT NULL)", "CREATE UNIQUE INDEX i ON t (x) INCLUDE (y)")
    assert splittable(shop).keys(query_of()) == (key_of("x"),)


def test_an_index_from_high_to_low_is_walked_backwards(shop: Postgres) -> None:
    shop.execute(
        "CREATE TABLE t (x int NOT NULL, y int NOT NULL)",
        "CREATE UNIQUE INDEX i ON t (x DESC, y DESC)",
        "INSERT INTO t SELECT i % 3, i FROM generate_series(1, 9) AS i",
    )
    assert splittable(shop).keys(query_of()) == (key_of("x", "y"),)
    with run(shop) as snapshot:
        assert list(snapshot.boundaries(query_of(), key_of("x", "y"), rows=3)) == [(1, 1), (2, 2)]


def test_an_index_of_a_parent_does_not_vouch_for_its_children(shop: Postgres) -> None:
    shop.execute(
        "CREATE TABLE t (x int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (x)) INHERITS (t)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO child VALUES (1)",
    )
    source = splittable(shop)
    assert source.keys(query_of("child")) == (key_of("x"),)
    assert source.keys(query_of()) == ()
    with pytest.raises(ConfigError, match="inherit from it"):
        source.check_key(query_of(), ["x"])


def test_a_partitioned_table_has_the_keys_of_all_its_partitions(shop: Postgres) -> None:
    shop.execute(
        "CREATE TABLE t (x int, y int, PRIMARY KEY (x, y)) PARTITION BY LIST (y)",
        "CREATE TABLE one PARTITION OF t FOR VALUES IN (1)",
        "CREATE TABLE two PARTITION OF t FOR VALUES IN (2)",
        "INSERT INTO t SELECT i, 1 + i % 2 FROM generate_series(1, 20) AS i",
        "CREATE UNIQUE INDEX i ON ONLY t (y, x)",
    )
    assert splittable(shop).keys(query_of()) == (key_of("x", "y"),)
    with run(shop) as snapshot:
        parts = read_in_ranges(snapshot, key_of("x", "y"), rows=7)
    assert [sorted(part) for part in parts] == [
        [(i, 1 + i % 2) for i in r] for r in (range(1, 8), range(8, 15), range(15, 21))
    ]


def test_a_materialized_view_promises_no_value(shop: Postgres) -> None:
    shop.execute("CREATE MATERIALIZED VIEW t AS SELECT 1 AS x", "CREATE UNIQUE INDEX i ON t (x)")
    with pytest.raises(ConfigError, match="column 'x' may be NULL"):
        splittable(shop).check_key(query_of(), ["x"])


REFUSED_TYPES = [
    "real",
    "double precision",
    "bytea",
    "jsonb",
    "inet",
    "time",
    "timetz",
    "interval",
    "int4range",
    "boolean",
    "money",
]


@pytest.mark.parametrize("kind", REFUSED_TYPES)
def test_a_column_that_is_not_compared_exactly_as_a_literal_is_no_key(shop: Postgres, kind: str) -> None:
    shop.execute(f"CREATE TABLE t (x {kind} PRIMARY KEY)")
    assert splittable(shop).keys(query_of()) == ()
    with pytest.raises(ConfigError, match="compared exactly"):
        splittable(shop).check_key(query_of(), ["x"])


def test_a_type_that_only_has_the_name_of_a_built_in_one_is_no_key(shop: Postgres) -> None:
    shop.execute("CREATE TYPE uuid AS ENUM ('b', 'a')", "CREATE TABLE t (x public.uuid PRIMARY KEY)")
    with pytest.raises(ConfigError, match="compared exactly"):
        splittable(shop).check_key(query_of(), ["x"])


def test_a_collation_that_calls_texts_equal_is_refused(shop: Postgres) -> None:
    if not shop.row("SELECT count(*) FROM pg_collation WHERE collprovider = 'i'")[0]:
        pytest.skip("this server has no ICU")
    shop.execute(
        "CREATE COLLATION blurred (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE t (x text COLLATE blurred PRIMARY KEY)",
    )
    with pytest.raises(ConfigError, match="calls different texts equal"):
        splittable(shop).check_key(query_of(), ["x"])


def days(*numbers: int) -> list[datetime]:
    return [datetime(2024, 3, 1, 0, 0, 0, number) for number in numbers]


LATE = datetime(9999, 12, 31, 23, 59, 59, 999999)
ORDERED: dict[str, list[Any]] = {
    "smallint": [-32768, 0, 32767],
    "integer": [-(2**31), 2**31 - 1],
    "uuid": ["00000000-0000-0000-0000-000000000001", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "date": [date(1, 1, 1), date(999, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1), *days(0, 1, 999999), LATE],
    "timestamptz": [day.replace(tzinfo=UTC) for day in (datetime(1, 1, 1), *days(0, 1, 2), LATE)],
    "numeric": [Decimal(text) for text in ("-1e40", "-0.5", "0", "0.00000000000000000000000001", "12.30", "1e40")],
    "numeric(12,2)": [Decimal("-1.00"), Decimal("0.01"), Decimal("9999999999.99")],
    "varchar(20)": ["a'", "b\\", "c"],
    "character(5)": ["a    ", "b    ", "c'   "],
    "counted": [1, 5, 7],
}


@pytest.mark.parametrize("kind", ORDERED)
def test_a_bound_is_exact_whatever_the_sessions_zone_and_style(shop: Postgres, kind: str) -> None:
    values = ORDERED[kind]
    name = shop.row("SELECT current_database()")[0]
    texts = ", ".join(
        f"('{v.isoformat() if isinstance(v, date) else str(v).replace(chr(39), chr(39) * 2)}')" for v in values
    )
    shop.execute(
        "SET DateStyle = 'ISO, YMD'",
        "CREATE DOMAIN counted AS int CHECK (VALUE > 0)",
        f"CREATE TABLE t (x {kind} PRIMARY KEY)",
        f"INSERT INTO t VALUES {texts}",
        f"ALTER DATABASE {name} SET TimeZone = 'Asia/Kathmandu'",
        f"ALTER DATABASE {name} SET DateStyle = 'SQL, DMY'",
        f"ALTER DATABASE {name} SET standard_conforming_strings = off",
    )
    try:
        with run(shop) as snapshot:
            key = splittable(shop).keys(query_of())[0]
            bounds = list(snapshot.boundaries(query_of(), key, rows=1))
            assert bounds == [(value,) for value in values[1:]]
            assert [type(bound[0]) for bound in bounds] == [type(value) for value in values[1:]]
            counts = [len(rows_in(snapshot, query_of(within=within))) for within in between(bounds, key)]
            assert counts == [1] * len(values)
    finally:
        shop.execute(f"ALTER DATABASE {name} RESET ALL")


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("odd", ["infinity", "-infinity", "0044-03-15 BC", "20000-01-01"])
def test_an_instant_outside_the_calendar_bounds_no_range(shop: Postgres, kind: str, odd: str) -> None:
    shop.execute(f"CREATE TABLE t (x {kind} PRIMARY KEY)", f"INSERT INTO t VALUES ('2024-01-01'), ('{odd}')")
    with run(shop) as snapshot:
        bounds = snapshot.boundaries(query_of(), key_of("x"), rows=1)
        if odd in {"infinity", "20000-01-01"}:
            with pytest.raises(SourceError, match="outside the years"):
                next(bounds)
        else:
            # It is in the first range, which has no lower bound.
            assert len(list(bounds)) == 1


def test_not_a_number_bounds_no_range(shop: Postgres) -> None:
    shop.execute("CREATE TABLE t (x numeric PRIMARY KEY)", "INSERT INTO t VALUES (1), ('NaN')")
    with run(shop) as snapshot, pytest.raises(SourceError, match="no number"):
        next(snapshot.boundaries(query_of(), key_of("x"), rows=1))


WRONG: list[tuple[str, Any]] = [
    *[("int8", "1"), ("int8", True), ("int8", 1.0), ("text", 1), ("text", "a\0b"), ("uuid", "x"), ("uuid", 1)],
    *[("date", "2024-01-01"), ("date", datetime(2024, 1, 1)), ("timestamp", datetime(2024, 1, 1, tzinfo=UTC))],
    *[("timestamptz", datetime(2024, 1, 1)), ("timestamptz", date(2024, 1, 1)), ("timestamp", date(2024, 1, 1))],
    *[("numeric", 1.5), ("numeric", Decimal("NaN")), ("numeric", Decimal("Infinity"))],
]


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_a_value_of_another_kind_has_no_literal(kind: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        literal(KeyColumn(name="x", type_name=kind, nullable=False), value)


@pytest.mark.parametrize("collation", ["C", "en-x-icu", "de-x-icu"])
def test_text_is_cut_in_the_order_of_its_own_collation(shop: Postgres, collation: str) -> None:
    if not shop.row(f"SELECT count(*) FROM pg_collation WHERE collname = '{collation}'")[0]:
        pytest.skip("this server has no ICU")
    words = ["Zebra", "apple", "Äpfel", "it''s", "z\\", "éa", "Eb", "_x", " a", "a", "A", "ß", "ss"]
    shop.execute(
        f'CREATE TABLE t (w text COLLATE "{collation}" PRIMARY KEY)',
        f"INSERT INTO t VALUES {', '.join(f'({chr(39)}{word}{chr(39)})' for word in words)}",
    )
    with run(shop) as snapshot:
        parts = read_in_ranges(snapshot, key_of("w"), rows=4)
    ordered = shop.row("SELECT array_agg(w ORDER BY w) FROM t")[0]
    assert [sorted(row[0] for row in part) for part in parts] == [sorted(ordered[i : i + 4]) for i in (0, 4, 8, 12)]


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("id bigint PRIMARY KEY", ("id",)),
        ('s text COLLATE "C", i int, PRIMARY KEY (s, i)', ("s", "i")),
        ("u uuid PRIMARY KEY", ("u",)),
        ("v varchar(40) PRIMARY KEY", ("v",)),
    ],
)  # fmt: skip
def test_each_step_of_a_walk_is_a_search_in_the_index(shop: Postgres, columns: str, key: tuple[str, ...]) -> None:
    made = {"id": "i", "s": "'x' || i % 5", "i": "i", "u": "md5(i::text)::uuid", "v": "'v' || i"}
    shop.execute(
        f"CREATE TABLE t ({columns})",
        f"INSERT INTO t SELECT {', '.join(made[name] for name in key)} FROM generate_series(1, 2000) AS i",
        "CREATE FUNCTION plan(q text) RETURNS SETOF text LANGUAGE plpgsql AS "
        "$f$ BEGIN RETURN QUERY EXECUTE 'EXPLAIN ' || q; END $f$",
    )
    plans: list[str] = []
    with closing(PostgresSession(PostgresDatabase(parse_url(shop.url)), what="test", local=WALK_SETTINGS)) as session:

        def explained(sql: str) -> list[dict[str, Any]]:
            found = session.rows(f"SELECT plan FROM plan({text_literal(sql)})")
            plans.append("\n".join(row["plan"] for row in found))
            return session.rows(sql)

        relation = relation_of(query_of(), explained)
        catalog = plans[:]
        plans.clear()
        assert len(list(boundaries(query_of(), relation, key_of(*key), rows=500, run=explained))) == 3
    assert catalog
    assert not [plan for plan in [*catalog, *plans] if "JIT" in plan], "compiling takes longer than any of them"
    assert len(plans) == 4
    assert all("Index Cond" in plan and "Filter" not in plan and "Sort" not in plan for plan in plans[1:]), plans


def test_a_value_is_never_read_as_sql(shop: Postgres) -> None:
    shop.execute("CREATE TABLE t (s text PRIMARY KEY)", "INSERT INTO t VALUES ('a'), ('b')")
    for bad in ("'; DROP TABLE t; --", "\\'; DROP TABLE t; --", "' OR true OR s = '"):
        found = rows_in(splittable(shop), query_of(within=KeyRange(key=key_of("s"), low=(bad,), high=None)))
        assert found == [row for row in [("a",), ("b",)] if row[0] >= bad]
