"""What the README says is true: its commands, tables, snippets, queries and names are held against the code."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
from datetime import datetime, timezone
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

import rivet_dagster as rd
from rivet_dagster import errors
from rivet_dagster.contract import DestinationCapabilities
from rivet_dagster.exports.plan import Level
from rivet_dagster.sources.casts import cast_type
from tests.sources.type_tables import BEGIN, END, tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
IO_MANAGERS = (rd.LocalIOManager, rd.S3IOManager, rd.GCSIOManager, rd.AzureIOManager, rd.StdoutIOManager)


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def _section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def _table(text: str, first: str) -> list[dict[str, str]]:
    """The rows of the table whose first heading is `first`."""
    lines = iter(text[text.index(f"| {first} |") :].splitlines())
    rows = [[c.strip() for c in line.strip("|").split(" | ")] for line in takewhile(lambda x: x.startswith("|"), lines)]
    headings, _rule, *body = rows
    return [dict(zip(headings, row, strict=True)) for row in body]


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo as the first command runs it: its working directory, and what it printed."""
    cwd = tmp_path_factory.mktemp("demo")
    env = {k: v for k, v in os.environ.items() if k not in ("RIVET_DEMO_DIR", "DAGSTER_HOME")}
    done = subprocess.run(
        [sys.executable, "-m", "rivet_dagster"],
        cwd=cwd,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return cwd, done.stdout


@pytest.fixture
def snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a Python block as a module of its own, with nothing set in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "AZURE_ACCOUNT_URL", "AZURE_STORAGE_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(holding: str) -> dict[str, Any]:
        (source,) = (b for b in _blocks("python") if holding in b)
        scope: dict[str, Any] = {"__name__": "snippet"}
        exec(compile(source, "README.md", "exec"), scope)
        return scope

    return run


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
def test_every_python_block_is_a_module_that_dagster_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder of definitions, where one module has at most one `Definitions`, whatever its name."""
    blocks = [b for b in _blocks("python") if "load_from_defs_folder" not in b]
    assert len(blocks) > 10
    for number, block in enumerate(blocks):
        project = tmp_path / f"block{number}"
        package = project / f"readme_block{number}"
        (package / "defs").mkdir(parents=True)
        tables = {"directory_type": '"project"', "project.root_module": f'"{package.name}"'}
        (project / "pyproject.toml").write_text("[tool.dg]\n" + "".join(f"{k} = {v}\n" for k, v in tables.items()))
        (package / "__init__.py").touch()
        (package / "defs" / "block.py").write_text(block)
        monkeypatch.syspath_prepend(project)
        dg.Definitions.validate_loadable(dg.load_from_defs_folder(path_within_project=package))


def test_the_first_two_commands_set_up_and_run_all() -> None:
    assert [b.strip() for b in _blocks("bash")][:2] == [
        "python -m pip install -e '.[ui]' && python -m rivet_dagster",
        "python -m pip install -e '.[test]' && python -m pytest",
    ]


def test_the_contents_are_the_chapters() -> None:
    (said,) = re.findall(r"^\*\*Contents\*\*: (.*?)\n\n", README, re.MULTILINE | re.DOTALL)
    chapters = re.findall(r"^## (.+)$", README, re.MULTILINE)
    anchors = {title: title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", README, re.MULTILINE)}
    assert re.findall(r"\[(.+?)\]\(#(.+?)\)", said) == [(c, anchors[c]) for c in chapters]
    assert set(re.findall(r"\]\(#(.+?)\)", README)) <= set(anchors.values())


def test_nothing_is_said_twice() -> None:
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    sentences = [" ".join(s.split()) for s in re.split(r"[.:](?:\s|$)", prose)]
    assert not [s for s in {*sentences} if len(s) > 60 and sentences.count(s) > 1]


def test_the_extras_are_those_that_can_be_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", text, re.MULTILINE)
    assert sorted(n for row in _table(README, "extra") for n in _names(row["extra"])) == sorted(extras)


def test_the_extras_of_the_commands_exist() -> None:
    said = (ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"\.\[(\w+)\]", "".join(_blocks("bash"))):
        assert re.search(rf"^{extra} = \[", said, re.MULTILINE)


def test_the_workspace_is_the_one_that_is_there() -> None:
    assert _blocks("yaml")[0] == (ROOT / "workspace.yaml").read_text()


def test_an_incremental_dataset_is_read_whole_and_begins_anew_when_it_is_told_to(snippet: Any, tmp_path: Path) -> None:
    said = snippet("cursor_column=")["events"]
    events = said.model_copy(update={"table": "events", "mode": said.mode.model_copy(update={"cursor_column": "id"})})
    parts = snippet("def parts")["parts"]
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table events (id integer primary key)")
    database.close()
    resources = {
        "io_manager": rd.LocalIOManager(path=str(tmp_path / "lake")),
        "source": rd.DatabaseResource(url=f"sqlite:///{tmp_path / 'shop.db'}"),
    }
    (told,) = (yaml.safe_load(b) for b in _blocks("yaml") if "full_refresh" in b)
    with dg.DagsterInstance.ephemeral() as instance:
        for key, config, rows, deliveries in ((1, None, [1], 1), (2, None, [1, 2], 2), (3, told, [1, 2, 3], 1)):
            with sqlite3.connect(tmp_path / "shop.db") as database:
                database.execute(f"insert into events values ({key})")
            database.close()
            asset = rd.build_export_asset(events)
            assert dg.materialize([asset], instance=instance, resources=resources, run_config=config).success
            found = [str(p) for p in parts(str(tmp_path / "lake" / "events"))]
            assert len(found) == deliveries
            assert [i for (i,) in duckdb.sql(f"select id from read_parquet({found}) order by id").fetchall()] == rows


def test_the_sample_is_what_the_demo_prints(demo: tuple[Path, str]) -> None:
    """But for what differs from run to run: directories, fingerprints, byte counts and seconds."""

    def masked(text: str) -> list[str]:
        text = re.sub(r"(file://)?/\S+/data", "DATA", text)
        text = re.sub(r"xxh3:[0-9a-f]{16}", "FINGERPRINT", text)
        text = re.sub(r"[\d.]+ s\)", "SECONDS)", text)
        # After the columns of rows and parts comes the one of bytes, which depends on the Parquet library.
        text = re.sub(r"^(\w+ +[\d,]+ +\d+) +[\d,]+", r"\1 BYTES", text, flags=re.MULTILINE)
        return [line for line in (re.sub(r" +", " ", x).strip() for x in text.splitlines()) if line]

    (sample,) = (b for b in _blocks("text") if b.startswith("Exporting"))
    assert masked(sample) == masked(demo[1])


def test_the_contract_table_is_what_the_destinations_declare() -> None:
    said = _table(_section("What a destination promises"), "destination")
    declared = [
        {
            "destination": io.kind,
            "commit_protocol": io.capabilities.commit_protocol.value,
            "idempotent_overwrite": str(io.capabilities.idempotent_overwrite).lower(),
            "retry_safe": str(io.capabilities.retry_safe).lower(),
            "partial_write_risk": str(io.capabilities.partial_write_risk).lower(),
        }
        for io in IO_MANAGERS
    ]
    assert said == declared


def test_the_example_for_your_own_tables_loads_without_any_client(snippet: Any) -> None:
    defs = snippet("open_invoices")["defs"]
    dg.Definitions.validate_loadable(defs)
    job = defs.resolve_job_def("lake")
    assert {k.to_user_string() for k in job.asset_layer.executable_asset_keys} == {"orders", "open_invoices"}
    assert {c.name for c in job.asset_layer.asset_graph.asset_check_keys} == {"manifest"}
    assert {"lake_source", "lake_destination"} <= set(defs.resources)
    assert [(s.name, s.cron_schedule) for s in defs.schedules] == [("lake_schedule", "0 2 * * *")]


def test_the_example_of_a_gentle_source_is_one(snippet: Any) -> None:
    database = snippet("max_rows_per_second=")["database"]
    database.check()
    said = re.findall(r"`(\w+)`", _section("Gentle to the database"))
    assert set(rd.DatabaseResource.model_fields) - {"url"} <= set(said)


def test_the_example_of_the_last_days_is_one(snippet: Any) -> None:
    assert snippet("TimeWindow(")["recent"].mode == rd.TimeWindow(time_column="created_at", days=7)


def test_the_example_of_partitions_asks_for_the_day_that_is_over(snippet: Any, tmp_path: Path) -> None:
    repository = snippet("partition_by=")["defs"].get_repository_def()
    (tmp_path / "home").mkdir()
    # A context that is not left holds the instance in Dagster's own state for the tests after this one.
    with (
        dg.instance_for_test(temp_dir=str(tmp_path / "home")) as instance,
        dg.build_schedule_context(
            instance=instance,
            repository_def=repository,
            scheduled_execution_time=datetime(2026, 2, 1, 2, tzinfo=timezone.utc),
        ) as context,
    ):
        tick = repository.get_schedule_def("daily_schedule").evaluate_tick(context)
    assert [request.partition_key for request in tick.run_requests or ()] == ["2026-01-31"]


def test_the_example_of_a_bundle_is_two_steps(snippet: Any) -> None:
    defs = snippet("bundle=True")["defs"]
    dg.Definitions.validate_loadable(defs)
    steps = {node.name for node in defs.resolve_job_def("reference").graph.nodes}
    assert steps == {"reference_bundle", "reference_bundle_manifest"}


def test_the_example_of_sensors_fires_for_a_delivery_and_that_of_retries_waits_longer(
    snippet: Any, tmp_path: Path
) -> None:
    defs = snippet("build_delivery_sensor")["defs"]
    repository = defs.get_repository_def()
    dg.Definitions.validate_loadable(defs)
    with dg.build_output_context(asset_key=dg.AssetKey(["shop", "items"])) as context:
        rd.LocalIOManager(path=str(tmp_path / "data" / "exports")).handle_output(context, pd.DataFrame({"id": [1]}))
    marker = (tmp_path / "data" / "exports" / "shop" / "items" / "_SUCCESS").read_text().strip()
    with (
        dg.DagsterInstance.local_temp() as instance,
        dg.build_sensor_context(
            instance=instance, definitions=defs, resources=repository.get_top_level_resources()
        ) as context,
    ):
        fired = repository.get_sensor_def("shop_delivered").evaluate_tick(context)
        assert [r.run_key.partition(" ")[0] for r in fired.run_requests] == [f"shop/items/{marker}"]
        assert repository.get_sensor_def("visits_delivered").evaluate_tick(context).skip_message
    policy = snippet("patient = ")["patient"]
    assert policy.calculate_delay(1) < policy.calculate_delay(3)


def test_the_commands_print_what_is_shown(demo: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what differs from run to run."""
    from rivet_dagster.cli import main

    def masked(text: str) -> list[str]:
        text = re.sub(r"(file://)?/\S+/data", "DATA", text)
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}-0{8}-[0-9a-f]{8}", "RUN", text)
        text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00, .*", "CLOCK", text)
        text = re.sub(r"14,000 +[\d,]+", "14,000 BYTES", text)
        return [re.sub(r" +", " ", line).strip() for line in text.strip().splitlines()]

    monkeypatch.chdir(demo[0])
    for name in ("DAGSTER_HOME", "RIVET_DEMO_DIR"):
        monkeypatch.delenv(name, raising=False)
    # Imported by other tests before, perhaps, for another directory.
    monkeypatch.delitem(sys.modules, "rivet_dagster.definitions", raising=False)
    shown = re.findall(r"^```bash\nrivet-dagster (.*?)\n```\n\n```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert [command.split()[0] for command, _ in shown] == ["doctor", "plan", "validate"]
    for command, printed in shown:
        done = CliRunner().invoke(main, command.split())
        assert done.exit_code == 0, done.output
        assert masked(done.stdout) == masked(printed)


def test_the_example_of_maintenance_removes_and_compacts(snippet: Any, tmp_path: Path) -> None:
    defs = snippet("build_maintenance_job")["defs"]
    dg.Definitions.validate_loadable(defs)
    (weekly,) = defs.schedules
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table events (id integer primary key, made_at timestamp, changed_at timestamp)")
    database.close()
    assert weekly.job_name == "maintenance"
    job = defs.resolve_job_def("maintenance")
    assert job.execute_in_process().success
    assert not (tmp_path / "data").exists()
    told = defs.resolve_schedule_def("weekly").evaluate_tick(dg.build_schedule_context()).run_requests[0].run_config
    assert job.execute_in_process(run_config=told).success


def test_the_stores_of_the_example_are_built_without_any_client(snippet: Any) -> None:
    scope = snippet("AzureIOManager")
    assert [type(scope[name]) for name in ("local", "gcs", "azure", "stdout")] == [
        rd.LocalIOManager,
        rd.GCSIOManager,
        rd.AzureIOManager,
        rd.StdoutIOManager,
    ]


def test_the_plain_assets_run_and_are_checked(snippet: Any, tmp_path: Path) -> None:
    defs = snippet("def prices()")["defs"]
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process()
    assert [c.passed for c in result.get_asset_check_evaluations()] == [True, True]
    exports = tmp_path / "data" / "exports"
    assert [p.suffix for p in (exports / "prices" / "data").iterdir()] == [".csv"]
    (part,) = (exports / "dearest" / "data").iterdir()
    assert duckdb.sql(f"select * from '{part}'").fetchall() == [("Lamp", 59.0)]


def _orders(cwd: Path) -> list[tuple[Any, ...]]:
    """The rows of the source, as a reader of the export should see them."""
    said = "select id, status, total, gift, note, placed_at, shipped_at from orders order by id"
    with sqlite3.connect(cwd / "data" / "shop.db") as database:
        return [
            (i, s, Decimal(str(t)).quantize(Decimal("0.01")), bool(g), *more)
            for i, s, t, g, *more in database.execute(said)
        ]


_AS_SOURCE = (
    "select id, status, total, gift, note, strftime(placed_at, '%Y-%m-%d %H:%M:%S'), "
    "strftime(shipped_at, '%Y-%m-%d %H:%M:%S') from ({}) order by id"
)


def test_the_duckdb_queries_list_the_parts_and_give_the_rows_of_the_source(
    demo: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo[0])
    lists, reads = _blocks("sql")
    manifest = json.loads(Path("data/exports/orders/manifest.json").read_bytes())
    with duckdb.connect() as connection:
        found = connection.sql(lists)
        assert {"part_id", "path", "rows", "size_bytes", "content_md5"} <= set(found.columns)
        assert found.project("path, rows").fetchall() == [(p["path"], p["rows"]) for p in manifest["parts"]]
        assert lists.count("\n") == 1
        setting, select = reads.strip().split(";\n")
        connection.sql(setting)
        assert connection.sql(_AS_SOURCE.format(select)).fetchall() == _orders(demo[0])


def test_the_python_reader_gives_the_rows_of_the_source_and_checks_the_marker(
    demo: tuple[Path, str], snippet: Any
) -> None:
    (source,) = (b for b in _blocks("python") if "def parts" in b)
    assert len(source.strip().splitlines()) <= 15
    parts = snippet("def parts")["parts"]
    dataset = demo[0] / "data" / "exports" / "orders"
    listed = [str(p) for p in parts(str(dataset))]
    with duckdb.connect() as connection:
        assert connection.sql(_AS_SOURCE.format(f"select * from read_parquet({listed})")).fetchall() == _orders(demo[0])
    assert sum(1 for _ in parts(str(dataset.parent / "order_items"))) > 1
    marker = (dataset / "_SUCCESS").read_bytes()
    try:
        (dataset / "_SUCCESS").write_bytes(b"xxh3:0000000000000000\n")
        with pytest.raises(RuntimeError, match="in flight"):
            parts(str(dataset))
    finally:
        (dataset / "_SUCCESS").write_bytes(marker)


def test_the_layout_is_what_is_there(demo: tuple[Path, str]) -> None:
    (said,) = (b for b in _blocks("text") if b.startswith("<prefix>"))
    dataset = demo[0] / "data" / "exports" / "orders"
    run_id = json.loads((dataset / "manifest.json").read_bytes())["run_id"]
    named = {line.split()[0].replace("<run_id>", run_id) for line in said.splitlines()[1:]}
    there = {p.relative_to(dataset).as_posix() for p in dataset.rglob("*") if p.is_file()}
    assert there - named == {".rivet.lock"}
    assert named <= there


def test_the_settings_and_their_defaults_are_those_of_the_io_managers() -> None:
    own = {"path", "s3", "gcs", "blob_storage", "bucket", "container", "prefix"}
    said = {_names(row["setting"])[0]: _names(row["default"])[0] for row in _table(_section("Settings"), "setting")}
    for io in IO_MANAGERS:
        fields = {n: f.default for n, f in io.model_fields.items() if n not in own}
        assert fields.keys() == said.keys(), io
        for name, default in fields.items():
            expected = '"csv"' if (io, name) == (rd.StdoutIOManager, "format") else said[name]
            assert (json.dumps(default) if isinstance(default, str) else repr(default)) == expected, (io, name)
    assert '(stdout: `"csv"`)' in README


def test_where_an_io_manager_writes_is_what_it_asks_for() -> None:
    general = {_names(row["setting"])[0] for row in _table(_section("Settings"), "setting")}
    said = {}
    for row in _table(_section("Settings"), "IO manager"):
        (name,) = _names(row["IO manager"])
        said[name] = [n for n in _names(row["settings"]) if not n.endswith("Resource")]
    declared = {f"rd.{io.__name__}": [n for n in io.model_fields if n not in general] for io in IO_MANAGERS}
    assert {k: sorted(v) for k, v in said.items()} == {k: sorted(v) for k, v in declared.items()}


def test_the_fields_of_an_export_are_all_named() -> None:
    (sentence,) = re.findall(r"Of an `rd\.Export`: (.*?)\.\s", README, re.DOTALL)
    assert set(_names(sentence)) == set(rd.Export.model_fields)


def test_the_tables_of_types_are_those_that_are_tried_on_the_databases() -> None:
    _, _, rest = README.partition(BEGIN)
    said, end, _ = rest.partition(END)
    assert end
    assert said.strip() == tables().strip()


def test_the_types_of_a_cast_are_those_that_are_known() -> None:
    (listed,) = re.findall(r"exactly or not at all: then to (.*?) \(SQLite", README, re.DOTALL)
    with pytest.raises(rd.ConfigError) as raised:
        cast_type("x", "no such type")
    known = str(raised.value).partition("expected ")[2].replace(" or ", ", ")
    assert ", ".join(_names(listed)) == known


def test_the_example_of_policies_is_one(snippet: Any) -> None:
    visits = snippet('errors="coerce"')["visits"]
    assert visits.source_query.coerce == {"valid_until", "price"}
    assert visits.source_query.casts == {"opening_hours": "text", "price": "numeric(12, 2)"}


def test_every_error_and_what_to_do_is_listed() -> None:
    said = {n for row in _table(_section("Errors and log lines"), "error") for n in _names(row["error"])}
    public = {n for n in rd.__all__ if inspect.isclass(c := getattr(rd, n)) and issubclass(c, errors.RivetError)}
    assert said == public - {"RivetError"}


def test_what_a_downstream_asset_may_ask_for_is_listed() -> None:
    (listed,) = re.findall(r"gets the type that it asks for \((.*?)\)", README, re.DOTALL)
    given = {p.removeprefix("rd.") for p in _names(listed)}
    source = (ROOT / "rivet_dagster" / "orchestration" / "inputs.py").read_text()
    (taken,) = re.findall(r"if said not in \((.*?)\):", source)
    homes = {"pd": "pandas", "pa": "pyarrow", "ds": "pyarrow.dataset"}
    assert given == {re.sub(r"^(pd|pa|ds)(?=\.)", lambda m: homes[m[1]], name) for name in taken.split(", ")}


def test_the_rules_of_planning_and_their_levels_are_those_of_the_code() -> None:
    said = {_names(row["rule"])[0]: row["level"] for row in _table(_section("Planning"), "rule")}
    source = "".join(p.read_text() for p in (ROOT / "rivet_dagster").rglob("*.py"))
    in_code = {rule: Level[level].value for level, rule in re.findall(r'level=Level\.(\w+),\s+rule="([\w-]+)"', source)}
    of_formats = {
        f"{kind}{rule}": Level[level].value
        for level, rule in re.findall(r'level=Level\.(\w+),\s+rule=f"\{format.kind\}([\w-]+)"', source)
        for kind in ("csv", "parquet")
    }
    assert of_formats
    assert said == in_code | of_formats


def test_what_a_definition_shows_is_named(snippet: Any) -> None:
    (text,) = re.findall(r"^The definition of an asset made by .*?\n\n", README, re.MULTILINE | re.DOTALL)
    exports = [rd.Export(name="orders", table="orders")]
    source = rd.DatabaseResource(url="sqlite:///shop.db")
    defs = rd.build_export_definitions(exports, source=source, destination=rd.StdoutIOManager())
    (asset,) = defs.assets
    shown = {k for k in asset.metadata_by_key[asset.key] if k.startswith(("rivet/", "dagster/uri"))}
    promises = {k for k in _said_of_metadata()[0] if k.removeprefix("rivet/") in DestinationCapabilities.__slots__}
    assert len(promises) == 4
    assert shown == promises | {n for n in _names(text) if "/" in n}


def _run(asset: Any, io_manager: Any, tmp_path: Path) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """Export one table; gives the materialization's metadata and what was logged by hand."""
    database = tmp_path / "shop.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table orders (id integer)")
        connection.execute("insert into orders values (1)")
    resources = {"io_manager": io_manager, "source": rd.DatabaseResource(url=f"sqlite:///{database}")}
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([asset], instance=instance, resources=resources)
        logged = [(e.level, e.user_message) for e in instance.all_logs(result.run_id) if e.dagster_event is None]
    (event,) = result.get_asset_materialization_events()
    return dict(event.materialization.metadata), logged


# Only where there is something to say.
_SOMETIMES = {
    "rivet/cursor",
    "rivet/window",
    "rivet/settle",
    "rivet/nulls_excluded",
    "rivet/adopted",
    "rivet/notes",
    "rivet/attempts",
    "rivet/coerced",
    "rivet/consistency",
    "rivet/reused_parts",
    "rivet/schema_drift",
    "rivet/source_retries",
}


def _said_of_metadata() -> tuple[set[str], set[str]]:
    text = re.search(r"Every materialization carries.*?^To stdout.*?\n\n", README, re.MULTILINE | re.DOTALL)
    assert text
    always, _, stream = text[0].partition("To stdout")
    return {n for n in _names(always) if "/" in n}, {n for n in _names(stream) if "/" in n}


def test_the_metadata_keys_are_those_of_a_materialization(tmp_path: Path) -> None:
    said, _ = _said_of_metadata()
    found, _ = _run(
        rd.build_export_asset(rd.Export(name="orders", table="orders")), rd.LocalIOManager(path=str(tmp_path)), tmp_path
    )
    assert found.keys() | _SOMETIMES == said
    assert not _SOMETIMES & found.keys()


def test_what_a_stream_does_not_record_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said, missing = _said_of_metadata()
    found, _ = _run(rd.build_export_asset(rd.Export(name="orders", table="orders")), rd.StdoutIOManager(), tmp_path)
    assert (said - _SOMETIMES) - found.keys() == missing


def test_the_log_lines_are_the_ones_that_are_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = next(b for b in _blocks("text") if "destination commit_protocol" in b).splitlines()
    export = rd.Export(name="orders", table="orders")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, logged = _run(rd.build_export_asset(export), rd.LocalIOManager(path=str(tmp_path)), tmp_path / "a")
    assert (logging.INFO, first) in logged
    retried = rd.build_export_asset(export, retry_policy=dg.RetryPolicy(max_retries=2))
    _, logged = _run(retried, rd.StdoutIOManager(), tmp_path / "b")
    assert (logging.WARNING, second) in logged


def test_the_levels_of_verification_are_those_of_the_code() -> None:
    said = {n for row in _table(_section("Verification"), "store") for n in _names(row["recorded as"])}
    package = ROOT / "rivet_dagster"
    sources = "".join(p.read_text() for p in [*(package / "destinations").glob("*.py"), package / "parts.py"])
    in_code = set(re.findall(r'level(?:: str)? ?= ?"([\w-]+)"', sources))
    assert said == in_code


def test_the_kinds_of_fault_are_those_of_the_code() -> None:
    from rivet_dagster.readback import Fault

    (listed,) = re.findall(r"a table of every fault \((.*?)\)", README, re.DOTALL)
    assert set(_names(listed)) == set(inspect.get_annotations(Fault, eval_str=True)["kind"].__args__)


def test_every_name_of_the_architecture_exists() -> None:
    rows = _table(_section("Architecture in one page"), "#")
    assert len(rows) > 10
    for row in rows:
        home = ""
        for name in _names(row["function"]):
            home = name if name.startswith("rivet_dagster.") else f"{home.rpartition('.')[0]}.{name}"
            _resolve(home)


def _resolve(dotted: str) -> Any:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(dotted)


def test_the_images_are_there_and_small() -> None:
    images = re.findall(r"!\[.+?\]\((.+?)\)", README)
    assert images
    assert all(0 < (ROOT / image).stat().st_size < 200_000 for image in images)


def test_every_path_and_public_name_in_the_text_exists() -> None:
    text = _section("Architecture in one page") + _section("Settings") + _section("Verification")
    for name in set(re.findall(r"`(\w+\.py|\w+/)`", text)):
        assert list(ROOT.glob(f"rivet_dagster/{name}")) or list(ROOT.glob(f"tests/{name}")), name
    for name in set(re.findall(r"\brd\.(\w+)", README)):
        assert name in rd.__all__, name


def test_the_layers_are_those_that_are_enforced() -> None:
    (said,) = (b for b in _blocks("text") if b.startswith("__main__"))
    config = (ROOT / "pyproject.toml").read_text()
    (enforced,) = re.findall(r"^layers = \[\n(.*?)^\]", config, re.MULTILINE | re.DOTALL)
    assert " ".join(said.split()) == " → ".join(re.findall(r'"(.+)"', enforced))
