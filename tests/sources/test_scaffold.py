"""The YAML that is written of a database: what it proposes and why, and that it loads and exports as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest
import yaml
from dagster.components.component_scaffolding import scaffold_object

import rivet_dagster as rd
from rivet_dagster.orchestration import component_proposals
from tests.orchestration.projects import Project, project
from tests.sources.databases import Database, MySQL, Sqlite

__all__ = ["project"]

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `execution_type`")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def _scaffolded(project: Project, params: str, *, at: str = "lake") -> str:
    scaffold_object(
        path=project.defs / at,
        typename="rivet_dagster.ExportsComponent",
        json_params=params,
        scaffold_format="yaml",
        project_root=project.root,
    )
    return (project.defs / at / "defs.yaml").read_text()


INSTANT = {"postgresql": "timestamptz", "mysql": "timestamp(6)", "sqlite": "datetime", "duckdb": "timestamptz"}
NOW = {"mysql": "current_timestamp(6)"}


def test_what_is_written_says_why_loads_and_exports(
    project: Project, database: Database, lake, instance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(component_proposals, "BIG_ROWS", 500)
    shop = database
    stamp, now = INSTANT[shop.kind], NOW.get(shop.kind, "current_timestamp")
    shop.execute(
        f"create table orders (id {shop.bigint} not null primary key, updated_at {stamp} not null default {now})",
        "create index orders_updated on orders (updated_at)",
        "insert into orders (id) values (1), (2)",
        f"create table late (id integer not null primary key, modified {stamp})",
        f"create table {shop.quoted('order items')} (id integer not null primary key, n integer)",
        f"insert into {shop.quoted('order items')} with recursive s(i) as (select 1 union all select i + 1 from s "
        "where i < 600) select i, i from s"
        if shop.kind != "postgresql"
        else 'insert into "order items" select i, i from generate_series(1, 600) i',
        *(
            {"postgresql": ["analyze"], "sqlite": ["analyze"], "mysql": ["analyze table `order items`"]}.get(
                shop.kind, ()
            )
        ),
    )
    monkeypatch.setenv("SHOP_URL", shop.url)
    written = _scaffolded(project, '{"source_env": "SHOP_URL"}')
    said = yaml.safe_load(written)["attributes"]
    assert said["source"] == {"url_env": "SHOP_URL"}
    exports = {e["name"]: e for e in said["exports"]}
    assert exports.keys() >= {"orders", "late", "order_items"}
    assert exports["order_items"]["mode"] == {"kind": "chunked"}
    by = "the blocks that hold its rows, which needs no key" if shop.kind == "postgresql" else "id, which is unique"
    assert f"about 600 rows: read in ranges of {by}, by short statements" in written
    expected: dict[str, Any] = {
        "postgresql": {"kind": "incremental", "cursor_column": "updated_at"},
        "duckdb": {"kind": "incremental", "cursor_column": "updated_at"},
        "mysql": {"kind": "incremental", "cursor_column": "updated_at", "lag": "5 minutes"},
    }
    assert exports["orders"].get("mode") == expected.get(shop.kind)
    if shop.kind == "sqlite":
        assert "it has no time zone, so set time_zone" in written
    if shop.kind in {"postgresql", "mysql"}:
        assert "modified could tell which rows are new (mode: incremental); an index on it would keep" in written
    path = project.defs / "lake" / "defs.yaml"
    path.write_text(written.replace("data/exports", str(lake)))
    result = project.load().resolve_job_def("lake").execute_in_process(instance=instance, raise_on_error=False)
    assert result.success
    assert duckdb.sql(f"select count(*), sum(n) from '{lake}/order_items/data/*.parquet'").fetchall() == [(600, 180300)]


def test_a_column_whose_values_have_no_common_type_is_cast(project: Project, tmp_path, lake, instance, monkeypatch):
    shop = Sqlite(tmp_path / "shop.sqlite")
    shop.execute(
        "create table odd (id integer primary key, mixed, fine text)",
        "insert into odd values (1, 'a', 'x'), (2, 2.5, 'y')",
    )
    monkeypatch.setenv("SHOP_URL", shop.url)
    written = _scaffolded(project, '{"source_env": "SHOP_URL", "schema": "main"}')
    (export,) = (e for e in yaml.safe_load(written)["attributes"]["exports"] if e["name"] == "odd")
    assert export["columns"] == {"mixed": "text"}
    assert [line.strip() for line in written.splitlines() if "values" in line]
    (project.defs / "lake" / "defs.yaml").write_text(written.replace("data/exports", str(lake)))
    assert project.load().resolve_job_def("lake").execute_in_process(instance=instance).success
    assert duckdb.sql(f"select mixed from '{lake}/odd/data/*.parquet' order by id").fetchall() == [("a",), ("2.5",)]


def test_a_table_that_no_cast_makes_readable_is_left_out_with_the_reason(project: Project, maria: MySQL, monkeypatch):
    maria.execute("create table places (id int primary key, at geometry)", "create table fine (id int primary key)")
    monkeypatch.setenv("SHOP_URL", maria.url)
    written = _scaffolded(project, '{"source_env": "SHOP_URL"}')
    assert [e["name"] for e in yaml.safe_load(written)["attributes"]["exports"]] == ["fine"]
    assert "# cannot be exported as it is: " in written
    assert "    # - name: places\n" in written


@pytest.mark.parametrize("destination", ["local", "s3", "gcs", "azure", "stdout"])
def test_without_a_database_an_example_is_written_that_loads(project: Project, destination):
    _scaffolded(project, f'{{"destination": "{destination}"}}')
    (asset,) = project.load().assets or ()
    assert asset.key == dg.AssetKey("orders")


def test_to_a_stream_all_rows_are_proposed_which_planning_takes(project: Project, tmp_path, monkeypatch):
    monkeypatch.setattr(component_proposals, "BIG_ROWS", 1)
    shop = Sqlite(tmp_path / "shop.sqlite")
    shop.execute("create table big (id integer primary key)", "insert into big values (1), (2)", "analyze")
    monkeypatch.setenv("SHOP_URL", shop.url)
    for destination, mode in (("local", {"kind": "chunked"}), ("stdout", None)):
        params = f'{{"source_env": "SHOP_URL", "destination": "{destination}"}}'
        exports = yaml.safe_load(_scaffolded(project, params, at=destination))["attributes"]["exports"]
        assert {e["name"]: e.get("mode") for e in exports}["big"] == mode
    shutil.rmtree(project.defs / "local")
    assert dg.AssetKey("big") in {a.key for a in project.load().assets or ()}


def test_what_fails_leaves_no_folder_in_the_way_of_the_next(project: Project, tmp_path, monkeypatch):
    with pytest.raises(rd.ConfigError, match="--source-env SHOP_URL"):
        _scaffolded(project, '{"source_env": "SHOP_URL"}', at="shop")
    assert not (project.defs / "shop").exists()
    Sqlite(tmp_path / "shop.sqlite").execute("create table orders (id integer primary key)")
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path / 'shop.sqlite'}")
    assert "name: orders" in _scaffolded(project, '{"source_env": "SHOP_URL"}', at="shop")
    # What was there before is another matter.
    (project.defs / "mine").mkdir()
    (project.defs / "mine" / "notes.txt").touch()
    monkeypatch.delenv("SHOP_URL")
    with pytest.raises(rd.ConfigError):
        _scaffolded(project, '{"source_env": "SHOP_URL"}', at="mine")
    assert (project.defs / "mine" / "notes.txt").exists()


def test_a_second_one_is_appended_as_another_document(project: Project):
    _scaffolded(project, "{}")
    scaffold_object(
        path=project.defs / "lake" / "defs.yaml",
        typename="rivet_dagster.ExportsComponent",
        json_params='{"destination": "stdout"}',
        scaffold_format="yaml",
        project_root=project.root,
        append=True,
    )
    first, second = yaml.safe_load_all((project.defs / "lake" / "defs.yaml").read_text())
    assert (first["attributes"]["destination"]["type"], second["attributes"]["destination"]["type"]) == (
        "local",
        "stdout",
    )


def test_a_variable_that_is_not_set_and_a_destination_that_is_none_are_told(project: Project):
    with pytest.raises(
        rd.ConfigError, match="--source-env NOPE: expected an environment variable with the database's URL"
    ):
        _scaffolded(project, '{"source_env": "NOPE"}')
    with pytest.raises(
        rd.ConfigError, match=r"expected local, s3, gcs, azure or stdout, found 'gcp'; did you mean gcs\?"
    ):
        _scaffolded(project, '{"destination": "gcp"}')
