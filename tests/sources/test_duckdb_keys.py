"""DuckDB: which columns are a key, and typed values as bounds."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.sources.duckdb_keys import literal
from rivet_dagster.sources.ranges import KeyColumn
from tests.sources.databases import DuckDB
from tests.sources.ranges import between, key_of, query_of, read_in_ranges, rows_in, run, splittable

UTC = timezone.utc


def test_constraints_are_keys_in_any_spelling_of_the_table(duck: DuckDB) -> None:
    duck.execute(
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (a int, b text NOT NULL, c int UNIQUE, d date UNIQUE NOT NULL, PRIMARY KEY (b, a))",
        "CREATE TABLE t (other int PRIMARY KEY)",
    )
    for table in ("s.t", "S.T", "shop.s.t", '"s"."t"'):
        assert splittable(duck).keys(query_of(table)) == (key_of("b", "a"), key_of("d"))
    assert splittable(duck).keys(query_of()) == (key_of("other"),)
    assert splittable(duck).keys(query_of("shop.t")) == (key_of("other"),)
    assert splittable(duck).estimated_rows(query_of()) == 0


REFUSED = {
    "id float PRIMARY KEY": "compared exactly",
    "id hugeint PRIMARY KEY": "compared exactly",
    "id timestamp_ns PRIMARY KEY": "compared exactly",
    "id blob PRIMARY KEY": "compared exactly",
    "id boolean PRIMARY KEY": "compared exactly",
    "id varchar COLLATE nocase PRIMARY KEY": "declares a collation",
    "id int UNIQUE": "may be NULL",
    "id int NOT NULL": "nothing makes these columns",
}


@pytest.mark.parametrize("columns", REFUSED)
def test_the_catalog_does_not_vouch_for_it(duck: DuckDB, columns: str) -> None:
    duck.execute(f"CREATE TABLE t ({columns})")
    assert splittable(duck).keys(query_of()) == ()
    with pytest.raises(ConfigError, match=REFUSED[columns]):
        splittable(duck).check_key(query_of(), ["id"])


def days(*numbers: int) -> list[datetime]:
    return [datetime(2024, 3, 1, 0, 0, 0, number) for number in numbers]


LATE = datetime(9999, 12, 31, 23, 59, 59, 999999)
ORDERED: dict[str, list[Any]] = {
    "tinyint": [-128, 0, 127],
    "utinyint": [0, 255],
    "ubigint": [0, 2**63, 2**64 - 1],
    "uuid": ["00000000-0000-0000-0000-000000000001", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "date": [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1), *days(0, 1, 999999), LATE],
    "timestamp_s": [datetime(1, 1, 1), *days(0), LATE.replace(microsecond=0)],
    "timestamp_ms": [datetime(1, 1, 1), *days(0, 1000, 999000)],
    "timestamptz": [day.replace(tzinfo=UTC) for day in (datetime(1, 1, 1), *days(0, 1), LATE)],
    "decimal(12,2)": [Decimal("-1.00"), Decimal("0.01"), Decimal("9999999999.99")],
    "decimal(38,10)": [Decimal("-1" + "0" * 27), Decimal(0), Decimal("0.0000000001")],
}


@pytest.mark.parametrize("kind", ORDERED)
def test_a_bound_is_exact(duck: DuckDB, kind: str) -> None:
    values = ORDERED[kind]
    texts = [v.isoformat() if isinstance(v, date) else f"{v:f}" if isinstance(v, Decimal) else str(v) for v in values]
    rows = ", ".join(f"('{text}')" for text in reversed(texts))
    duck.execute("SET TimeZone = 'UTC'", f"CREATE TABLE t (x {kind} PRIMARY KEY)", f"INSERT INTO t VALUES {rows}")
    with run(duck) as snapshot:
        bounds = list(snapshot.boundaries(query_of(), key_of("x"), rows=1))
        assert bounds == [(value,) for value in values[1:]]
        counts = [len(rows_in(snapshot, query_of(within=within))) for within in between(bounds, key_of("x"))]
        assert counts == [1] * len(values)


def test_text_may_hold_nul(duck: DuckDB) -> None:
    duck.execute(
        "CREATE TABLE t (s varchar PRIMARY KEY)",
        "INSERT INTO t VALUES ('a'), ('a' || chr(0)), (chr(0)), ('a' || chr(0) || '''b'), ('b'), ('')",
    )
    with run(duck) as snapshot:
        parts = read_in_ranges(snapshot, key_of("s"), rows=1)
    assert parts == [[(value,)] for value in ["", "\0", "a", "a\0", "a\0'b", "b"]]


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("odd", ["infinity", "20000-01-01"])
def test_an_instant_outside_the_calendar_bounds_no_range(duck: DuckDB, kind: str, odd: str) -> None:
    duck.execute(f"CREATE TABLE t (x {kind} PRIMARY KEY)", f"INSERT INTO t VALUES ('2024-01-01'), ('{odd}')")
    with run(duck) as snapshot, pytest.raises(SourceError, match="outside the years"):
        next(snapshot.boundaries(query_of(), key_of("x"), rows=1))


WRONG: list[tuple[str, Any]] = [
    *[("BIGINT", "1"), ("BIGINT", True), ("VARCHAR", 1), ("UUID", "x"), ("DATE", datetime(2024, 1, 1))],
    *[("TIMESTAMP", datetime(2024, 1, 1, tzinfo=UTC)), ("TIMESTAMP WITH TIME ZONE", datetime(2024, 1, 1))],
    *[("DECIMAL(5,2)", 1.5), ("DECIMAL(5,2)", Decimal("NaN"))],
]


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_a_value_of_another_kind_has_no_literal(kind: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        literal(KeyColumn(name="x", type_name=kind, nullable=False), value)


def test_a_walk_leaves_no_connection(duck: DuckDB) -> None:
    duck.execute("CREATE TABLE t (x int PRIMARY KEY)", "INSERT INTO t SELECT i FROM range(10) AS r(i)")
    with run(duck, "statement") as snapshot:
        assert next(snapshot.boundaries(query_of(), key_of("x"), rows=5)) == (5,)
        # One of ours that was left open would keep the file from being opened for writing.
        duck.execute("INSERT INTO t VALUES (10)")
