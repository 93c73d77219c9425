"""The demo as a newcomer meets it: its commands, what they print, and what is on the disk afterwards."""

from __future__ import annotations

import importlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import dagster as dg
import pyarrow.parquet as pq
import pytest
import xxhash

from rivet_dagster import shop
from tests import rivet_cli

ROOT = Path(__file__).parents[2]
EXPORTS = ("customers", "order_items", "orders", "revenue_per_day")


def _python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    unset = ("DAGSTER_HOME", "RIVET_DEMO_DIR")
    env = {k: v for k, v in os.environ.items() if k not in unset} | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=240
    )


def _listed(dataset: Path) -> list[Path]:
    """The parts of a dataset whose marker fits its manifest; reads without the package."""
    body = (dataset / "manifest.json").read_bytes()
    assert (dataset / "_SUCCESS").read_text() == f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n"
    return [dataset / part["path"] for part in json.loads(body)["parts"]]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo's definitions, loaded afresh with everything below the test's own directory."""
    monkeypatch.setenv("RIVET_DEMO_DIR", str(tmp_path / "demo"))
    for name in ("rivet_dagster.definitions", "rivet_dagster.__main__"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("rivet_dagster.definitions")


@pytest.fixture
def main_module(demo: ModuleType) -> ModuleType:
    return importlib.import_module("rivet_dagster.__main__")


def test_the_command_exports_checks_prints_and_ends_and_does_so_again(tmp_path: Path) -> None:
    first = _python("-W", "error", "-m", "rivet_dagster", cwd=tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    lines = {words[0]: words for line in first.stdout.splitlines() if (words := line.split())}
    exports = tmp_path / "data" / "exports"
    with sqlite3.connect(tmp_path / "data" / "shop.db") as database:
        for table in ("customers", "orders", "order_items"):
            (rows,) = database.execute(f"select count(*) from {table}").fetchone()
            assert sum(pq.read_metadata(p).num_rows for p in _listed(exports / table)) == rows
    for name in EXPORTS:
        parts = _listed(exports / name)
        row = next(line.split() for line in first.stdout.splitlines() if line.startswith(f"{name} "))
        size = sum(p.stat().st_size for p in parts)
        marker = (exports / name / "_SUCCESS").read_text().strip()
        rows = sum(pq.read_metadata(p).num_rows for p in parts)
        assert row[1:6] == [f"{rows:,}", str(len(parts)), f"{size:,}", "size", marker]
        assert "passed: marker ok" in " ".join(row)
        assert f"{name}  " in first.stdout
        assert (exports / name / "manifest.json").as_uri() in lines[name]
    assert len(_listed(exports / "order_items")) > 1
    before = {name: set(_listed(exports / name)) for name in EXPORTS}

    second = _python("-m", "rivet_dagster", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    for name in EXPORTS:
        there = set((exports / name / "data").iterdir())
        assert there == set(_listed(exports / name))
        assert not there & before[name]


def test_a_destination_that_cannot_be_written_ends_in_1_and_says_why(
    main_module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "exports").write_bytes(b"in the way")
    assert main_module.main() == 1
    printed = capsys.readouterr()
    assert "NOT complete" in printed.out
    assert re.search(r"^orders failed: .*exports", printed.err, re.MULTILINE)


def test_a_damaged_delivery_ends_in_1_and_names_the_part(
    main_module: ModuleType, demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage between commit and check: the check's own step finds it."""
    from rivet_dagster.orchestration import checking

    judge = checking.judge

    def damaged_first(destination, prefix, **recorded):  # type: ignore[no-untyped-def]
        if prefix.root == "customers/":
            (part,) = (demo.DATA_DIR / "exports" / "customers" / "data").iterdir()
            part.write_bytes(part.read_bytes()[:-1])
        return judge(destination, prefix, **recorded)

    monkeypatch.setattr(checking, "judge", damaged_first)
    assert main_module.main() == 1
    printed = capsys.readouterr()
    assert "NOT complete" in printed.out
    assert re.search(
        r"^customers: the check `manifest` failed: data/part-\S+: size: expected", printed.err, re.MULTILINE
    )
    assert "orders" not in printed.err


def test_loading_the_definitions_makes_nothing(demo: ModuleType, tmp_path: Path) -> None:
    dg.Definitions.validate_loadable(demo.defs)
    assert list(tmp_path.iterdir()) == []


def test_definitions_validate_works_without_any_setting(tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_bytes((ROOT / "workspace.yaml").read_bytes())
    done = _python("-m", "dagster", "definitions", "validate", "-w", "workspace.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rivet_dagster" in done.stdout + done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["workspace.yaml"]


def test_the_schedule_runs_what_the_command_runs_and_not_the_preview(demo: ModuleType) -> None:
    (schedule,) = demo.defs.schedules
    assert schedule.job_name == demo.MAIN_JOB
    job = demo.defs.resolve_job_def(demo.MAIN_JOB)
    keys = {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
    assert keys == set(EXPORTS)
    assert {c.asset_key.to_user_string() for c in job.asset_layer.asset_graph.asset_check_keys} == set(EXPORTS)


def test_the_preview_prints_the_latest_orders_as_csv(
    demo: ModuleType, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert demo.defs.resolve_job_def("preview").execute_in_process(instance=instance).success
    printed = capfdbinary.readouterr().out
    rows = printed.split(b"\r\n")
    assert rows[0].replace(b'"', b"") == b"id,total,placed_at"
    assert [int(r.split(b",")[0]) for r in rows[1:6]] == [shop.ORDERS - n for n in range(5)]
    assert rows[6:] == [b""]


def test_the_revenue_is_what_the_database_says(demo: ModuleType) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert demo.defs.resolve_job_def(demo.MAIN_JOB).execute_in_process(instance=instance).success
    (part,) = _listed(demo.DATA_DIR / "exports" / "revenue_per_day")
    found = {row["day"].isoformat(): (row["revenue"], row["orders"]) for row in pq.read_table(part).to_pylist()}
    cents = "sum(cast(round(total * 100) as integer))"
    said = f"select date(placed_at), {cents}, count(*) from orders where status <> 'cancelled' group by 1"
    with sqlite3.connect(demo.DATA_DIR / "shop.db") as database:
        expected = {day: (Decimal(sold) / 100, n) for day, sold, n in database.execute(said)}
    assert found == expected


def test_rivet_passes_the_output_and_fails_it_after_a_byte_is_appended(demo: ModuleType, tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert demo.defs.resolve_job_def(demo.MAIN_JOB).execute_in_process(instance=instance).success
    for name in EXPORTS:
        dataset = demo.DATA_DIR / "exports" / name
        said = rivet_cli.validate(rivet_cli.local(dataset), workdir=tmp_path)
        assert (said.passed, said.marker, said.parts, said.codes) == (True, True, len(_listed(dataset)), ())
        assert said.untracked == (".rivet.lock",)
    dataset = demo.DATA_DIR / "exports" / "order_items"
    with _listed(dataset)[1].open("ab") as part:
        part.write(b"x")
    said = rivet_cli.validate(rivet_cli.local(dataset), workdir=tmp_path)
    assert (said.passed, said.codes) == (False, ("RIVET_VERIFY_PART_SIZE_MISMATCH",))


class TestShop:
    """The shop's database itself."""

    def test_it_has_what_exports_stumble_over(self, tmp_path: Path) -> None:
        with sqlite3.connect(shop.ensure_shop(tmp_path / "new" / "shop.db")) as database:
            one = lambda said: database.execute(said).fetchone()[0]  # noqa: E731
            sizes = [one(f"select count(*) from {t}") for t in ("customers", "orders", "order_items")]
            assert sizes[:2] == [shop.CUSTOMERS, shop.ORDERS]
            assert 45_000 < sum(sizes) < 60_000
            for column in ("note", "shipped_at"):
                assert 0 < one(f"select count(*) from orders where {column} is null") < shop.ORDERS
            assert one("select count(*) from orders where note = ''") > 0
            assert one("select count(*) from orders where note like '%' || char(10) || '%'") > 0
            assert one("select count(*) from customers where name glob '*[^ -~]*'") > 0
            assert one("select count(*) from orders where total <> round(total, 2)") == 0
            assert set(database.execute("select distinct gift from orders")) == {(0,), (1,)}
            assert one("select count(distinct date(placed_at)) from orders") > 300

    def test_it_is_the_same_everywhere(self, tmp_path: Path) -> None:
        with sqlite3.connect(shop.ensure_shop(tmp_path / "shop.db")) as database:
            tables = ("customers", "orders", "order_items")
            rows = [row for t in tables for row in database.execute(f"select * from {t} order by id")]
        assert xxhash.xxh3_64_hexdigest(repr(rows).encode()) == "b12f99cd08e25f62"

    def test_one_that_is_there_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "shop.db"
        path.write_bytes(b"mine")
        shop.ensure_shop(path)
        assert path.read_bytes() == b"mine"

    def test_several_that_make_it_at_once_all_find_it_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "shop.db"

        def make_and_count(_: int) -> int:
            with sqlite3.connect(shop.ensure_shop(path)) as database:
                return int(database.execute("select count(*) from order_items").fetchone()[0])

        with ThreadPoolExecutor(4) as pool:
            counts = set(pool.map(make_and_count, range(4)))
        assert len(counts) == 1
        assert [p.name for p in tmp_path.iterdir()] == ["shop.db"]

    def test_one_that_fails_half_way_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def breaks(_rng: object) -> object:
            msg = "half way"
            raise RuntimeError(msg)

        monkeypatch.setattr(shop, "_orders", breaks)
        with pytest.raises(RuntimeError, match="half way"):
            shop.ensure_shop(tmp_path / "shop.db")
        assert list(tmp_path.iterdir()) == []
