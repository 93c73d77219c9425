"""`ExportsComponent`: what its YAML becomes, that it is told in full to editors, and what a subclass may change."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from datetime import timedelta
from typing import Any, ClassVar, get_args

import dagster as dg
import duckdb
import jsonschema
import pytest
from pydantic import BaseModel

import rivet_dagster as rd
from rivet_dagster.orchestration.component_blocks import database_blocks, destination_blocks
from rivet_dagster.orchestration.component_fields import AssetFields, ExportEntry
from rivet_dagster.orchestration.io_managers import IO_MANAGERS
from tests.orchestration.kit import plain
from tests.orchestration.projects import Project, names, project

__all__ = ["project"]

# Dagster's own, where it gives metadata to what a component made.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `execution_type`")

ACCOUNT = "https://a.blob.core.windows.net"
AZURE = "type: azure\ncontainer: lake\nblob_storage: "
S3 = "type: s3\nbucket: lake\ns3: "
IO = (rd.LocalIOManager, rd.S3IOManager, rd.GCSIOManager, rd.AzureIOManager, rd.StdoutIOManager)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return rd.ExportsComponent.get_model_cls().model_json_schema()


def test_ten_lines_export_a_table(project: Project, shop_file, lake, instance):
    project.write(f"""
        source: {{url: "sqlite:///{shop_file}"}}
        destination: {{type: local, path: {lake}}}
        schedule: "0 2 * * *"
        exports:
          - {{name: orders, table: orders}}
          - {{name: dear, query: "select * from orders where price > 20", format: csv}}
    """)
    defs = project.load()
    assert names(defs) == {
        "assets": {"orders", "dear"},
        "checks": {"orders:manifest", "dear:manifest"},
        "jobs": {"lake"},
        "schedules": {"lake_schedule"},
        "resources": {"lake_source", "lake_destination"},
    }
    result = defs.resolve_job_def("lake").execute_in_process(instance=instance)
    assert all(c.passed for c in result.get_asset_check_evaluations())
    assert duckdb.sql(f"select count(*) from '{lake}/orders/data/*.parquet'").fetchall() == [(100,)]
    assert duckdb.sql(f"select min(price) from '{lake}/dear/data/*.csv'").fetchall() == [(20.25,)]


def test_every_field_reaches_its_asset(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAKE", "/srv/lake")
    project.write("""
        source: {url_env: DATABASE_URL, statement_timeout: 30 minutes, max_rows_per_second: 5000}
        destination: {type: local, path: "{{ env.LAKE }}/raw", verify: readback, max_file_size: 1GiB}
        key_prefix: [wh, raw]
        group_name: raw
        owners: ["team:data"]
        tags: {tier: gold, live: true}
        pool: shop_db
        retry_policy: {max_retries: 3, delay: 30s, backoff: exponential, jitter: full}
        freshness_policy: {fail_window: 25 hours, warn_window: 13 hours}
        exports:
          - name: orders
            table: public.orders
            mode: {kind: incremental, cursor_column: updated_at, lag: 5 minutes}
            columns: {tags: text, at: {type: text, errors: coerce}}
            kinds: [postgres]
            deps: [raw/customers]
            tags: {tier: silver}
            automation_condition: "{{ dg.AutomationCondition.on_cron('0 3 * * *') }}"
          - name: items
            table: public.items
            mode: chunked
            key_prefix: other
            pool: items_db
            automation_condition: eager
            retry_policy: {max_retries: 1}
            checks: [manifest, content]
    """)
    defs = project.load()
    assets = {a.key.to_user_string(): a for a in defs.assets or ()}
    orders, items = assets["wh/raw/orders"], assets["other/items"]
    (spec,), (other,) = orders.specs, items.specs
    assert (spec.group_name, list(spec.owners)) == ("raw", ["team:data"])
    assert {k: v for k, v in spec.tags.items() if not k.startswith(("rivet/", "dagster/"))} == {
        "tier": "silver",
        "live": "true",
    }
    assert spec.kinds == {"postgres", "local", "parquet"}
    assert [d.asset_key for d in spec.deps] == [dg.AssetKey(["raw", "customers"])]
    assert spec.automation_condition == dg.AutomationCondition.on_cron("0 3 * * *")
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=25), warn_window=timedelta(hours=13)
    )
    assert orders.op.retry_policy == dg.RetryPolicy(
        max_retries=3, delay=30, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.FULL
    )
    assert (orders.op.pool, items.op.pool) == ("shop_db", "items_db")
    assert items.op.retry_policy == dg.RetryPolicy(max_retries=1)
    assert other.automation_condition == dg.AutomationCondition.eager()
    assert plain(spec.metadata)["dagster/uri"] == "file:///srv/lake/raw/wh/raw/orders/"
    said = plain(spec.metadata)["rivet/export"]
    assert said["mode"]["cursor_column"] == "updated_at"
    assert said["columns"]["at"] == {"type": "text", "errors": "coerce"}
    assert names(defs)["checks"] == {"wh/raw/orders:manifest", "other/items:manifest", "other/items:content"}
    source, destination = defs.resources["lake_source"], defs.resources["lake_destination"]
    assert (source.url, source.statement_timeout, source.max_rows_per_second) == (
        dg.EnvVar("DATABASE_URL"),
        "30 minutes",
        5000,
    )
    assert (destination.path, destination.verify) == ("/srv/lake/raw", "readback")


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (
            "{type: daily, start_date: 2026-01-01, timezone: Europe/Berlin}",
            dg.DailyPartitionsDefinition("2026-01-01", timezone="Europe/Berlin"),
        ),
        ("{type: static, partition_keys: [de, fr]}", dg.StaticPartitionsDefinition(["de", "fr"])),
        ("{type: dynamic, name: countries}", dg.DynamicPartitionsDefinition(name="countries")),
        (
            "\"{{ dg.HourlyPartitionsDefinition('2026-01-01-00:00') }}\"",
            dg.HourlyPartitionsDefinition("2026-01-01-00:00"),
        ),
    ],
)
def test_partitions_are_those_of_dagster(project: Project, partitions, expected):
    project.write(f"""
        source: {{url_env: DATABASE_URL}}
        destination: {{type: local, path: x}}
        partitions_def: {partitions}
        backfill_policy: {{type: single_run}}
        exports: [{{name: orders, table: orders, partition_by: created_at}}]
    """)
    (asset,) = project.load().assets or ()
    assert asset.partitions_def == expected
    assert asset.backfill_policy == dg.BackfillPolicy.single_run()


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            f"{S3}{{aws_access_key_id_env: I, aws_secret_access_key_env: K, aws_session_token_env: T}}",
            {"aws_access_key_id": "I", "aws_secret_access_key": "K", "aws_session_token": "T"},
        ),
        ("type: s3\nbucket_env: B\ns3: {profile_name: work, endpoint_url: 'http://minio:9000'}", {"bucket": "B"}),
        ("type: gcs\nbucket: lake\nprefix: raw\ngcs: {project: analytics}", {}),
        (f"{AZURE}{{account_url: {ACCOUNT}, credential: {{credential_type: key, key_env: K}}}}", {"key": "K"}),
        (
            f"{AZURE}{{account_url_env: U, credential: {{credential_type: sas, token_env: T}}}}",
            {"account_url": "U", "token": "T"},
        ),
        (f"{AZURE}{{account_url: {ACCOUNT}, credential: {{credential_type: default_azure_credential}}}}", {}),
        (f"{AZURE}{{account_url: {ACCOUNT}, credential: {{credential_type: anonymous}}}}", {}),
        ("type: stdout\nformat: parquet", {}),
    ],
    ids=["s3-keys", "s3-profile", "gcs", "azure-key", "azure-sas", "azure-default", "azure-anonymous", "stdout"],
)
def test_every_way_to_sign_in_takes_secrets_from_the_environment(project: Project, block, expected):
    block = textwrap.indent(block, "  ")
    project.write(
        f"source: {{url_env: DATABASE_URL}}\ndestination:\n{block}\nexports: [{{name: orders, table: orders}}]"
    )
    found: dict[str, str] = {}

    def look(value: Any) -> None:
        for name in type(value).model_fields:
            inner = getattr(value, name)
            if isinstance(inner, dg.EnvVar):
                found[name] = str(inner.env_var_name)
            elif isinstance(inner, BaseModel):
                look(inner)

    look(project.load().resources["lake_destination"])
    assert found == expected


def test_a_local_component_loads_no_sdk():
    """Of its own accord: Dagster loads all packages with components, these SDKs' among them, to look for more."""
    script = (
        "import sys, rivet_dagster as rd; "
        "attributes = {'source': {'url_env': 'X'}, 'destination': {'type': 'local', 'path': 'x'}, "
        "'exports': [{'name': 'orders', 'table': 'orders'}]}; "
        "component = rd.ExportsComponent.from_attributes_dict(attributes=attributes); "
        "print(len(component.exports), *sorted({m.split('.')[0] for m in sys.modules} & set(sys.argv[1:])))"
    )
    heavy = ["boto3", "google", "azure", "dagster_aws", "dagster_gcp", "dagster_azure", "pyarrow", "pandas", "duckdb"]
    done = subprocess.run(
        [sys.executable, "-c", script, *heavy], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["1"]


def test_names_come_from_the_whole_path_and_never_clash(project: Project):
    places = ["lake", "a/exports", "b/exports", "a__exports", "my-lake", "my_lake", "orders"]
    for i, place in enumerate([*places, "lake"]):
        project.write(
            f"""
            source: {{url_env: DATABASE_URL}}
            destination: {{type: local, path: x}}
            schedule: "0 2 * * *"
            exports: [{{name: orders, table: orders, key_prefix: p{i}}}]
            """,
            at=place,
        )
    found = names(project.load())
    assert len(found["jobs"]) == len(found["schedules"]) == len(places) + 1
    assert len(found["resources"]) == 2 * (len(places) + 1)
    assert {"lake", "a__exports", "b__exports", "my_lake"} <= found["jobs"]


def test_a_bundle_is_one_step(project: Project):
    project.write("""
        source: {url_env: DATABASE_URL}
        destination: {type: local, path: x}
        name: reference
        bundle: true
        parallel: 2
        pool: shop_db
        exports: [{name: a, table: a}, {name: b, table: b}]
    """)
    defs = project.load()
    steps = {node.name for node in defs.resolve_job_def("reference").graph.nodes}
    assert steps == {"reference_bundle", "reference_bundle_manifest"}
    assert names(defs)["assets"] == {"a", "b"}


class Ours(rd.ExportsComponent):
    """Adds a field, and changes what an asset is and what its step exports."""

    team: str = "nobody"
    seen: ClassVar[list[str]] = []

    def get_asset_spec(self, export: ExportEntry) -> dg.AssetSpec:
        return super().get_asset_spec(export).replace_attributes(key=dg.AssetKey([self.team, export.name]), metadata={})

    def execute(self, context: dg.AssetExecutionContext, export: Any) -> Any:
        self.seen.append(context.asset_key.to_user_string() if not context.has_partition_key else "")
        query = export.export.model_copy(update={"table": None, "query": "select 7 as seven"})
        return super().execute(context, dataclasses.replace(export, export=query))


@pytest.mark.parametrize("bundle", ["false", "true"])
def test_a_subclass_may_change_the_asset_and_what_its_step_does(
    project: Project, shop_file, lake, instance, bundle, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Ours, "execute", Ours.execute if bundle == "false" else _without_key)
    project.write(
        f"""
        source: {{url: "sqlite:///{shop_file}"}}
        destination: {{type: local, path: {lake}}}
        team: sales
        bundle: {bundle}
        exports: [{{name: orders, table: orders}}]
        """,
        kind=f"{__name__}.Ours",
    )
    defs = project.load()
    (spec,) = (s for a in defs.assets or () for s in a.specs)
    assert plain(spec.metadata)["dagster/uri"] == f"{lake.as_uri()}/sales/orders/"
    defs.resolve_job_def("lake").execute_in_process(instance=instance)
    assert duckdb.sql(f"select * from '{lake}/sales/orders/data/*.parquet'").fetchall() == [(7,)]


def _without_key(_self: Any, _context: Any, export: Any) -> Any:
    query = export.export.model_copy(update={"table": None, "query": "select 7 as seven"})
    return dataclasses.replace(export, export=query)


def test_it_is_made_in_python_as_well():
    component = rd.ExportsComponent(
        source=rd.DatabaseResource(url=dg.EnvVar("DATABASE_URL")),
        destination={"type": "local", "path": "x"},
        exports=[{"name": "orders", "table": "orders"}, {"name": "items", "table": "items", "mode": rd.Chunked()}],
    )
    assert [e.export for e in component.exports] == [
        rd.Export(name="orders", table="orders"),
        rd.Export(name="items", table="items", mode=rd.Chunked()),
    ]
    assert {type(e.export) for e in component.exports} == {rd.Export}
    assert names(dg.component_defs(component=component))["jobs"] == {"exports"}


def _every_field(schema: Any, path: str = "") -> Any:
    if not isinstance(schema, dict):
        return
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from _every_field(field, f"{path}.{name}")
    for key in ("then", "else", "items", "additionalProperties"):
        yield from _every_field(schema.get(key), path)
    for key in ("anyOf", "allOf", "oneOf"):
        for arm in schema.get(key, ()):
            yield from _every_field(arm, path)


def test_the_schema_describes_every_field_and_is_a_schema(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    found = dict(_every_field(schema))
    assert len(found) > 120
    assert [path for path, field in found.items() if not field.get("description")] == []
    assert "$ref" not in str(schema)


def test_no_field_of_the_yaml_face_is_written_twice(schema):
    """It has the fields of `Export`, its modes and formats, of the IO managers and their resources, and no other."""
    found = set(dict(_every_field(schema)))
    exports = {f".exports.{name}" for name in {*rd.Export.model_fields, *AssetFields.model_fields}}
    assert {p for p in found if p.count(".") == 2 and p.startswith(".exports.")} == exports
    for mode in (rd.Full, rd.Chunked, rd.Incremental, rd.TimeWindow):
        assert {f".exports.mode.{name}" for name in mode.model_fields} <= found
    assert {io.kind for io in IO} == set(IO_MANAGERS)
    blocks = [(b.resource, b) for b in (*database_blocks(), *destination_blocks())]
    while blocks:
        resource, block = blocks.pop()
        assert {block.from_env.get(n, n) for n in block.model_fields} - {"type"} == set(resource.model_fields), resource
        for field in block.model_fields.values():
            arms = (field.annotation, *get_args(field.annotation))
            blocks += [(arm.resource, arm) for arm in arms if hasattr(arm, "from_env")]


def test_secrets_have_no_field_of_their_own(schema):
    secret = {
        ".destination.s3.aws_access_key_id",
        ".destination.s3.aws_secret_access_key",
        ".destination.s3.aws_session_token",
        ".destination.blob_storage.credential.key",
        ".destination.blob_storage.credential.token",
    }
    found = set(dict(_every_field(schema)))
    assert {f"{path}_env" for path in secret} <= found
    assert secret & found == set()


def test_the_schema_finds_what_is_wrong_where_it_is(schema):
    """As `dg check yaml` does, also within unions and names to choose from; a template may stand for any value."""
    right = {
        "source": {"url_env": "DATABASE_URL"},
        "destination": {"type": "s3", "bucket": "lake", "s3": {}},
        "exports": [{"name": "orders", "table": "orders", "retain": "{{ env('RETAIN', 3) }}"}],
    }
    judge = jsonschema.Draft202012Validator(schema)

    def wrong(**changes: Any) -> list[tuple[str, str]]:
        return [(e.json_path, e.message) for e in judge.iter_errors(right | changes)]

    def export(**more: Any) -> list[dict[str, Any]]:
        return [{"name": "orders", "table": "orders", **more}]

    assert wrong() == []
    assert wrong(exports=export(format="csv", mode="full", columns={"a": "text"}, key_prefix=["a"])) == []
    assert wrong(exports=export(format="cvs")) == [("$.exports[0].format", "'cvs' is not one of ['parquet', 'csv']")]
    assert wrong(exports=export(mode={"kind": "incremental", "cursor_colum": "id"})) == [
        ("$.exports[0].mode", "Additional properties are not allowed ('cursor_colum' was unexpected)")
    ]
    assert wrong(destination={"type": "s3", "path": "x", "s3": {}}) == [
        ("$.destination", "Additional properties are not allowed ('path' was unexpected)")
    ]
    assert wrong(exports=export(retain="three")) == [("$.exports[0].retain", "'three' is not of type 'integer'")]
