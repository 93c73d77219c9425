"""Whether what was written is what the table holds: each column as canonical texts, hashed, added up and compared.

PostgreSQL and DuckDB do that, each for itself; no code of ours, and none of a peer, takes part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import duckdb

from tests.benchmark.fixtures import Column, Fixture
from tests.servers import PostgresServer

_POSTGRES = {
    "numeric": "trim_scale({c})::text",
    "exact": "trim_scale({c})::text",
    "instant": "(extract(epoch from {c}) * 1000000)::int8::text",
    "list": "array_to_string({c}, ',')",
    "json": "replace({c}::text, ' ', '')",
}
_DUCKDB = {
    "numeric": r"regexp_replace({c}::varchar, '\.?0*$', '')",
    "exact": r"regexp_replace({c}::varchar, '\.?0*$', '')",
    "instant": "epoch_us({c}::timestamptz)::varchar",
    "list": "array_to_string({c}::varchar[], ',')",
    "json": "replace({c}::varchar, ' ', '')",
}
# Types that hold the values only as long as nobody computes with them, or not at all.
_TYPES = {"numeric": "DECIMAL", "instant": "TIMESTAMP WITH TIME ZONE|TIMESTAMPTZ_NS", "list": r"\[\]"}


@dataclass(frozen=True, slots=True)
class Truth:
    """A table's rows, and per column how many values it has and the sum of their hashes."""

    rows: int
    sums: tuple[tuple[int, int], ...]


def truth_of(server: PostgresServer, fixture: Fixture) -> Truth:
    """Ask PostgreSQL."""
    asked = ["count(*)"]
    for column in fixture.columns:
        text = _POSTGRES.get(column.kind, "{c}::text").format(c=column.name)
        hashed = f"sum(('x' || substr(md5({text}), 1, 12))::bit(48)::int8)"
        asked += [f"count({column.name})", f"coalesce({hashed}, 0)::text"]
    with server.client() as connection, connection.cursor() as cursor:
        cursor.execute(f"select {', '.join(asked)} from {fixture.name}")
        rows, *sums = cursor.fetchone()
    return Truth(rows, tuple((int(n), int(s)) for n, s in zip(sums[::2], sums[1::2], strict=True)))


def rows_in(parts: list[Path]) -> int:
    """How many rows the parts say they have."""
    if not parts:
        return 0
    with duckdb.connect() as database:
        return database.execute(f"select count(*) from read_parquet({_listed(parts)})").fetchone()[0]


def differences(parts: list[Path], fixture: Fixture, truth: Truth) -> list[str]:
    """What is not as in the table: columns with other values, or of a type that does not say what they are."""
    with duckdb.connect() as database:
        source = f"read_parquet({_listed(parts)})"
        types = dict(row[:2] for row in database.execute(f"describe from {source}").fetchall())
        found = []
        for column, expected in zip(fixture.columns, truth.sums, strict=True):
            kind = types.get(column.name, "missing")
            if kind == "missing":
                found.append(f"{column.name} missing")
            elif _sums(database, source, column) != expected:
                found.append(f"{column.name} changed ({_short(kind)})")
            elif not re.search(_TYPES.get(column.kind, ""), kind):
                found.append(f"{column.name} as {_short(kind)}")
        return found


def _sums(database: duckdb.DuckDBPyConnection, source: str, column: Column) -> tuple[int, int] | None:
    text = _DUCKDB.get(column.kind, "{c}::varchar").format(c=f'"{column.name}"')
    # Integers have no point behind which zeros could be dropped.
    if column.kind in ("numeric", "exact"):
        text = f'case when contains("{column.name}"::varchar, \'.\') then {text} else "{column.name}"::varchar end'
    hashed = f"sum(('0x' || substr(md5({text}), 1, 12))::int8::hugeint)"
    try:
        row = database.execute(f'select count("{column.name}"), coalesce({hashed}, 0) from {source}').fetchone()
    except duckdb.Error:
        return None
    return row[0], row[1]


def _short(kind: str) -> str:
    return kind if len(kind) <= 40 else kind.partition("(")[0] or kind[:40]


def _listed(parts: list[Path]) -> str:
    return "[" + ", ".join(f"'{part}'" for part in parts) + "]"
