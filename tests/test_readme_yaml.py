"""The README's way from an empty folder to a verified export: every file and command of it, by the real `dg`."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## YAML\n")[2].partition("\n## ")[0]
FILES = dict(re.findall(r"^(?:and )?`([\w./]+)`[^\n]*\n\n```\w+\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```bash\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As after the README's first command: the package is found, and is known to have components."""
    site = tmp_path_factory.mktemp("site")
    info = site / "rivet_dagster-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rivet-dagster\nVersion: 0.1.0\n")
    project = (ROOT / "pyproject.toml").read_text()
    (entry,) = re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n(\w+) = "(\w+)"$', project, re.MULTILINE)
    (info / "entry_points.txt").write_text(f"[{entry[0]}]\n{entry[1]} = {entry[2]}\n")
    shop = site / "shop.db"
    with sqlite3.connect(shop) as database:
        database.execute("create table orders (id integer primary key, shipped_at datetime)")
        database.executemany(
            "insert into orders values (?, ?)", [(i, "2026-01-01" if i % 3 else None) for i in range(30)]
        )
    database.close()
    return {
        **{k: v for k, v in os.environ.items() if k != "DAGSTER_HOME"},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{site}",
        "HOME": str(site),
        "DATABASE_URL": f"sqlite:///{shop}",
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }


def _run(commands: str, cwd: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def project(folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    assert FILES.keys() == {"pyproject.toml", "shop/definitions.py", "shop/defs/lake/defs.yaml"}
    _run(COMMANDS[0], folder, environment)
    made = folder / "shop"
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


def test_ten_lines_become_a_verified_export(project: Path, environment: dict[str, str]) -> None:
    assert len(FILES["shop/defs/lake/defs.yaml"].splitlines()) <= 10
    told = _run(COMMANDS[1], project, environment)
    assert "All definitions loaded successfully" in told
    assert len(re.findall(r"Asset check '(?:manifest|content)' on 'open_orders' passed", told)) == 2
    dataset = project / "data" / "exports" / "open_orders"
    assert duckdb.sql(f"select count(*) from '{dataset}/data/*.parquet'").fetchall() == [(10,)]
    assert (dataset / "_SUCCESS").exists()


def test_the_command_that_tells_mistakes_in_full_is_named(
    project: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (command,) = re.findall(r"`(dg check defs --[^`]+)`", SECTION)
    shutil.copytree(project, tmp_path / "shop", ignore=shutil.ignore_patterns("data", "__pycache__", ".venv"))
    said = tmp_path / "shop" / "shop" / "defs" / "lake" / "defs.yaml"
    said.write_text(said.read_text().replace("query:", "qeury:"))
    told = _run(f"! {command}", tmp_path / "shop", environment)
    assert "exports[0].qeury: there is no such field; did you mean query?" in told


def test_the_exports_of_all_tables_are_proposed(project: Path, environment: dict[str, str]) -> None:
    _run(COMMANDS[2], project, environment)
    written = (project / "shop" / "defs" / "all_tables" / "defs.yaml").read_text()
    said = yaml.safe_load(written)["attributes"]
    assert (said["destination"]["type"], said["exports"]) == ("s3", [{"name": "orders", "table": "main.orders"}])
    assert "no statistics say how many rows: every run exports all of them" in written
    assert len(COMMANDS) == 3


def test_the_component_is_found(project: Path, environment: dict[str, str]) -> None:
    listed = _run("dg list components --package rivet_dagster --json", project, environment)
    assert '"key": "rivet_dagster.ExportsComponent"' in listed
