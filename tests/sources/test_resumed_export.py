"""A run in ranges of a real table that died is resumed: keys of every kind come back from its record as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rivet_dagster.control import SideRecord
from rivet_dagster.destinations.local import LocalDestination
from tests import rivet_cli
from tests.faults.ranges import die, export_table, reused
from tests.sources.databases import Database, Postgres

# In the order of most collations the letters stand beside each other; in that of their codes the capitals come first.
WORDS = ["Zebra", "apple", "Äpfel", "banana", "Banana", "zebra", "it's", "", "o\\k", "日本"]
INSTANTS = [f"2024-0{n}-1{n} 0{n}:00:00.00{n}" for n in range(1, 10)]

# Columns, key, and rows as SQL.
KEYS: dict[str, tuple[str, str, list[str]]] = {
    "whole numbers": ("id bigint NOT NULL", "id", [f"{(i * 7_919 % 101 - 50) * 10**15}" for i in range(40)]),
    "text, instant and number": (
        "s varchar(20) NOT NULL, moment timestamp NOT NULL, i bigint NOT NULL",
        "s, moment, i",
        [f"'{w.replace(chr(39), chr(39) * 2)}', '{t}', {n}" for w in WORDS for n, t in enumerate(INSTANTS[:4])],
    ),
    "date": ("day date NOT NULL", "day", [f"'2024-02-{n:02d}'" for n in range(1, 29)]),
}
OF_POSTGRES: dict[str, tuple[str, str, list[str]]] = {
    "text of a language": (
        's text COLLATE "en-US-x-icu" NOT NULL, i bigint NOT NULL',
        "s, i",
        [
            f"E'{w.replace(chr(92), chr(92) * 2).replace(chr(39), chr(92) + chr(39))}', {n}"
            for w in WORDS
            for n in (1, 2)
        ],
    ),
    "decimal": (
        "d numeric(30, 10) NOT NULL",
        "d",
        [f"{n}.{n:010d}" for n in range(-10, 11) if n >= 0] + ["-1e19", "-0.5"],
    ),
    "uuid, day and instant": (
        "u uuid NOT NULL, day date NOT NULL, moment timestamptz NOT NULL",
        "u, day, moment",
        [f"md5('{n}')::uuid, '2024-02-{n % 9 + 1}', '2024-02-29 12:00:00.123456+0{n % 9}'" for n in range(25)],
    ),
}


@pytest.fixture(autouse=True)
def _recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SideRecord.__init__.__kwdefaults__, "at_most_every", 0.0)


def resume(database: Database, tmp_path: Path, columns: str, key: str, rows: list[str]) -> None:
    """Let a run die, change what it has not read, resume it, and compare."""
    database.execute(f"CREATE TABLE t ({columns}, note varchar(9), PRIMARY KEY ({key}))")
    database.execute(f"INSERT INTO t VALUES {', '.join(f'({row}, NULL)' for row in reversed(rows))}")
    lake, names = LocalDestination(tmp_path / "lake"), key.split(", ")
    more = {"table": "t", "key": names, "rows_per_part": -(-len(rows) // 7), "format": "parquet"}
    recorded = die(lake, database.url, parts=3, **more)
    at = {p["path"]: (tmp_path / "lake" / "orders" / p["path"]).stat().st_mtime_ns for p in recorded}
    receipt = export_table(lake, database.url, run_id="run-1", over=["dead"], parallel=2, **more)
    said = reused(receipt)
    assert (said["parts"], said["quarantined"]) == (len(recorded), 0), receipt.notes
    assert {path: (tmp_path / "lake" / "orders" / path).stat().st_mtime_ns for path in at} == at
    manifest = json.loads((tmp_path / "lake" / "orders" / "manifest.json").read_bytes())
    assert set(at) <= {p["path"] for p in manifest["parts"]}
    paths = [str(tmp_path / "lake" / "orders" / p["path"]) for p in manifest["parts"]]
    quoted = [f'"{name}"' for name in names]
    found = duckdb.sql(f"SELECT {', '.join(quoted)} FROM read_parquet({paths})").fetchall()
    expected: list[tuple[Any, ...]] = [tuple(row[name] for name in names) for row in database.read(table="t").rows]
    assert sorted(map(repr, map(_plain, found))) == sorted(map(repr, map(_plain, expected)))
    assert len(set(found)) == len(found) == len(rows)
    lows = [p["key_range"]["low"] for p in manifest["parts"]]
    assert lows[0] is None
    assert manifest["parts"][-1]["key_range"]["high"] is None
    said_by_rivet = rivet_cli.validate(rivet_cli.local(tmp_path / "lake" / "orders"), workdir=tmp_path)
    assert (said_by_rivet.passed, said_by_rivet.marker, said_by_rivet.untracked) == (True, True, (".rivet.lock",))


def _plain(row: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(str(value.astimezone() if getattr(value, "tzinfo", None) else value) for value in row)


@pytest.mark.parametrize("database", ["sqlite", "duckdb"], indirect=True)
@pytest.mark.parametrize("kind", KEYS)
def test_a_dead_run_is_resumed(database: Database, tmp_path: Path, kind: str) -> None:
    resume(database, tmp_path, *KEYS[kind])


@pytest.mark.parametrize("kind", OF_POSTGRES)
def test_a_dead_run_is_resumed_by_keys_of_postgresql(pg: Postgres, tmp_path: Path, kind: str) -> None:
    pg.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    resume(pg, tmp_path, *OF_POSTGRES[kind])
