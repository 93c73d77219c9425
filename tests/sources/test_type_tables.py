"""The README's tables of types are what an export does: each type, each value at its edge, on the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

import rivet_dagster as rd
from rivet_dagster.rows import Query, SplittableSource
from rivet_dagster.sources.connect import connect
from tests.orchestration.kit import failure, materialization, plain, run
from tests.sources.databases import Database, MySQL
from tests.sources.type_catalogue import CATALOGUES, Line
from tests.sources.type_tables import parquet_types

LOOSE = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,ALLOW_INVALID_DATES"
CAST_TEXT, COERCE = rd.cast("text"), rd.cast(errors="coerce")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def database(database: Database) -> Database:
    """An empty database of each kind, with what the types of its catalogue need."""
    if database.kind == "postgresql":
        database.execute(*(f"DROP TYPE IF EXISTS {name} CASCADE" for name in ("mood", "pair", "counted", "tags")))
    database.execute(*CATALOGUES[database.kind].setup)
    return database


def write(database: Database, *statements: str) -> None:
    """Also what a strict server would not take."""
    if isinstance(database, MySQL):
        database.execute(*statements, sql_mode=LOOSE)
    else:
        database.execute(*statements)


def fill(database: Database, columns: dict[str, tuple[str, list[str]]]) -> int:
    """A table `t` with these columns, name → type and SQL of the values, one below the other; gives its rows."""
    rows = max(len(values) for _, values in columns.values())
    declared = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    padded = [[*values, *["NULL"] * (rows - len(values))] for _, values in columns.values()]
    inserts = [f"INSERT INTO t VALUES ({n}, {', '.join(values[n] for values in padded)})" for n in range(rows)]
    write(database, f"CREATE TABLE t (id {database.bigint} NOT NULL PRIMARY KEY, {declared})", *inserts)
    return rows


def exported(
    database: Database, lake: Path, instance: dg.DagsterInstance, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any], list[Path]]:
    """One run: its metadata, its manifest, its parts."""
    asset = rd.build_export_asset(rd.Export(name="t", table="t", **settings))
    source = {"source": rd.DatabaseResource(url=database.url)}
    result = run([asset], rd.LocalIOManager(path=str(lake)), instance, resources=source)
    assert result.success, failure(result, "t").user_failure_data
    manifest = json.loads((lake / "t/manifest.json").read_bytes())
    return plain(materialization(result, "t").metadata), manifest, [lake / "t" / p["path"] for p in manifest["parts"]]


def shown(value: Any) -> str:
    """What a value is, to the last digit: of a NaN, and of a time in any module's UTC, only its text says so."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def tried(kind: str) -> list[tuple[str, str, str, Line]]:
    """Each type of a database that has one: as declared, Arrow, Parquet, its line."""
    lines = [line for line in CATALOGUES[kind].lines if line.arrow]
    return [(declared, *became, line) for line in lines for declared, became in line.declared().items()]


def test_each_type_becomes_what_is_said_and_its_values_are_exact(
    database: Database, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    types = tried(database.kind)
    values = [line.exact.get(declared, {}) for declared, _, _, line in types]
    columns = {f"c{n}": (types[n][0], list(values[n])) for n in range(len(types))}
    rows = fill(database, columns)
    _, manifest, (part,) = exported(database, tmp_path, instance)
    told = {column["name"]: column["type"] for column in manifest["columns"]}
    written = parquet_types(part, list(columns))
    assert {types[n][0]: (told[f"c{n}"], written[f"c{n}"]) for n in range(len(types))} == {
        declared: (arrow, parquet) for declared, arrow, parquet, _ in types
    }
    found = pq.read_table(part).sort_by("id").to_pydict()
    for n, (declared, _, _, _) in enumerate(types):
        expected = [sql.strip("'").replace("''", "'") if value is ... else value for sql, value in values[n].items()]
        assert shown(found[f"c{n}"]) == shown([*expected, *[None] * (rows - len(expected))]), declared


def test_each_edge_that_has_no_place_is_refused_and_may_be_text_or_null(database: Database) -> None:
    """Each alone, so that none hides behind another one."""
    source = connect(database.url)
    refused = [item for line in CATALOGUES[database.kind].lines for item in line.refused.items()]
    columns = {f"c{n}": (declared, list(values)) for n, (declared, values) in enumerate(refused)}
    fill(database, columns)
    for name, (declared, values) in columns.items():
        for n, sql in enumerate(values):
            with pytest.raises(rd.SourceError, match=r"'x'.*rd\.cast\(\"text\"\).*coerce") as raised:
                list(source.open(Query(sql=f"SELECT {name} AS x FROM t WHERE id = {n}", casts={})))
            assert not raised.value.transient, (declared, sql)
    (texts,) = source.open(Query(table="t", casts=dict.fromkeys(columns, "text")))
    stream = source.open(Query(table="t", casts={}, coerce=frozenset(columns)))
    (nulls,) = stream
    for name, (declared, values) in columns.items():
        assert [text is not None for text in texts[name].to_pylist()[: len(values)]] == [True] * len(values), declared
        assert set(nulls[name].to_pylist()) == {None}, declared
    assert stream.coerced == {name: len(values) for name, (_, values) in columns.items()}


def test_a_type_without_a_place_is_refused_before_the_first_row(database: Database) -> None:
    for line in CATALOGUES[database.kind].lines:
        for declared in line.types if not line.arrow else ():
            write(database, f"CREATE TABLE t (x {declared})")
            with pytest.raises(rd.SourceError, match="'x'") as raised:
                connect(database.url).open(Query(table="t", casts={}))
            assert not raised.value.transient
            write(database, "DROP TABLE t")


@pytest.mark.parametrize(
    "mode",
    [
        rd.Full(),
        rd.Chunked(rows_per_part=7, parallel=2),
        rd.Incremental(cursor_column="id", settle="none"),
    ],
    ids=lambda mode: mode.kind,
)
def test_coerced_values_are_null_in_every_part_and_counted(
    database: Database, tmp_path: Path, instance: dg.DagsterInstance, mode: Any
) -> None:
    if isinstance(mode, rd.Chunked) and not isinstance(connect(database.url), SplittableSource):
        pytest.skip(f"{database.kind} is not read in ranges")
    lines = [(kind, line) for line in CATALOGUES[database.kind].lines for kind in line.refused]
    columns, expected, counted = {}, {}, {"clean": 0}
    for n, (declared, line) in enumerate(lines):
        good, bad = next(iter(line.exact.get(declared, {"NULL": None}).items())), line.refused[declared]
        values = [bad[i // 3 % len(bad)] if i % 3 == 0 else good[0] for i in range(20)]
        columns[f"c{n}"] = (declared, values)
        expected[f"c{n}"] = [None if i % 3 == 0 else good[1] for i in range(20)]
        counted[f"c{n}"] = 7
    columns["clean"] = (database.bigint, ["1"] * 20)
    fill(database, columns)
    said, _, parts = exported(database, tmp_path, instance, mode=mode, columns=dict.fromkeys(columns, COERCE))
    assert said["rivet/coerced"] == counted
    tables = [pq.read_table(part) for part in parts]
    assert len(tables) == (3 if isinstance(mode, rd.Chunked) else 1)
    found = {name: [v for table in tables for v in table[name].to_pylist()] for name in expected}
    assert found == expected


def test_what_is_not_coerced_is_not_counted(database: Database, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    fill(database, {"x": (database.bigint, ["1", "NULL"])})
    said, _, _ = exported(database, tmp_path, instance, columns={"x": CAST_TEXT})
    assert "rivet/coerced" not in said
    said, _, _ = exported(database, tmp_path, instance, columns={"x": COERCE})
    assert said["rivet/coerced"] == {"x": 0}


def test_a_column_that_is_never_null_may_be_when_it_is_coerced(
    database: Database, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    odd = {"postgresql": "'infinity'", "duckdb": "'infinity'", "mysql": "'0000-00-00'", "sqlite": "'soon'"}
    write(
        database,
        f"CREATE TABLE t (id {database.bigint} NOT NULL PRIMARY KEY, day date NOT NULL)",
        f"INSERT INTO t VALUES (1, {odd[database.kind]})",
    )
    said, manifest, (part,) = exported(database, tmp_path, instance, columns={"day": COERCE})
    assert said["rivet/coerced"] == {"day": 1}
    assert pq.read_table(part)["day"].to_pylist() == [None]
    assert [c["nullable"] for c in manifest["columns"] if c["name"] == "day"] == [True]


def test_a_column_that_is_not_there_cannot_be_coerced(database: Database) -> None:
    with pytest.raises(rd.ConfigError, match=r"'amuont'.*'amount'"):
        connect(database.url).open(Query(sql="SELECT 1 AS amount", casts={}, coerce=frozenset({"amuont"})))
