"""Gates as a step runs them: a red check, nothing published, no cursor moved, and the next good run goes on."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest
from dagster_aws.s3 import S3Resource

import rivet_dagster as rd
from rivet_dagster.orchestration.assets import ExportConfig
from tests.harnesses import s3
from tests.orchestration.kit import events, failure, lines, on_disk, plain, run
from tests.orchestration.projects import Project, project
from tests.servers import postgres
from tests.sources.databases import Postgres

__all__ = ["project"]

QUALITY = rd.Quality(unique="id", min={"price": 0}, null_ratio_max={"note": 0.02}, row_count_min=1)
ORDERS = rd.Export(name="orders", table="orders", quality=QUALITY)
CHECK = dg.AssetCheckKey(dg.AssetKey("orders"), "quality")
_numbers = count()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def evaluations(instance: dg.DagsterInstance, run_id: str) -> list[dg.AssetCheckEvaluation]:
    """What was recorded of checks in a run."""
    logs = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    return [e.dagster_event.asset_check_evaluation_data for e in logs if e.dagster_event]


def status(instance: dg.DagsterInstance, check: dg.AssetCheckKey = CHECK) -> list[str]:
    """What the checks tab shows, the newest first."""
    found = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
    return [record.status.value for record in found]


def head(prefix: Path) -> dict[str, Any]:
    return json.loads((prefix / "manifest.json").read_bytes())


def published(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """All but the records of runs that failed, which name nothing that is there."""
    records = {k: json.loads(body) for k, body in objects.items() if "/manifest-" in k}
    failed = {k for k, record in records.items() if record["status"] == "failed"}
    assert not [part["path"] for k in failed for part in records[k]["parts"] if f"orders/{part['path']}" in objects]
    return {k: body for k, body in objects.items() if k not in failed}


def ids(prefix: Path) -> list[int]:
    """By the manifests alone."""
    chain = [head(prefix)]
    while chain[-1]["dataset"] == "append":
        chain.append(json.loads((prefix / f"manifest-{chain[-1]['previous']['run_id']}.json").read_bytes()))
    parts = [str(prefix / p["path"]) for manifest in chain for p in manifest["parts"]]
    return [i for (i,) in duckdb.sql(f"select id from read_parquet({parts}) order by id").fetchall()]


def test_a_failed_gate_is_a_red_check_and_leaves_everything_as_it_was(instance, lake, shop, shop_file):
    orders = rd.build_export_asset(ORDERS, retry_policy=dg.RetryPolicy(max_retries=3))
    assert list(orders.check_keys) == [CHECK]
    good = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    assert good.success
    (green,) = evaluations(instance, good.run_id)
    assert (green.passed, green.description) == (True, "4 gates passed")
    assert green.target_materialization_data is not None
    assert green.target_materialization_data.run_id == good.run_id
    before = on_disk(lake)

    change(shop_file, "update orders set price = -price where id > 88", "update orders set note = null where id < 3")
    bad = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    assert not bad.success
    assert published(on_disk(lake)) == before
    failed = failure(bad, "orders")
    said = failed.user_failure_data.description
    assert "min of price: expected at least 0, found 12 of 100 rows beyond (id=89" in said
    assert plain(failed.user_failure_data.metadata)["rivet/error"] == "ContractError"
    assert not [e for e in bad.all_events if e.is_step_up_for_retry]
    (red,) = evaluations(instance, bad.run_id)
    said = plain(red.metadata)
    assert (red.asset_check_key, red.passed, red.severity) == (CHECK, False, dg.AssetCheckSeverity.ERROR)
    assert red.description.startswith("2 of 4 gates failed, nothing was committed: null_ratio_max of note: expected")
    assert (said["rivet/rows"], said["rivet/gates"], said["rivet/failed_gates"]) == (100, 4, 2)
    assert [(g["gate"], g["column"], g["passed"], g["rows"]) for g in said["rivet/gate_table"]] == [
        ("row_count_min", "", True, 0),
        ("null_ratio_max", "note", False, 3),
        ("min", "price", False, 12),
        ("unique", "id", True, 0),
    ]
    notes, prices = said["rivet/examples"]
    assert notes == {"gate": "null_ratio_max", "column": "note", "rows": [{"id": i, "note": None} for i in (1, 2, 7)]}
    assert [row["id"] for row in prices["rows"]] == list(range(89, 99))

    change(shop_file, "update orders set price = abs(price), note = 'n'")
    again = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    assert again.success
    assert status(instance) == ["SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_a_first_run_that_fails_leaves_nothing(instance, lake, shop):
    export = ORDERS.model_copy(update={"quality": rd.Quality(row_count_max=99), "skip_empty": True})
    orders = rd.build_export_asset(export)
    result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    assert not result.success
    assert published(on_disk(lake)) == {}
    assert status(instance) == ["FAILED"]
    assert "ASSET_MATERIALIZATION" not in events(instance, result.run_id)


def test_a_gate_of_a_type_is_refused_before_the_first_row(instance, lake, shop):
    orders = rd.build_export_asset(ORDERS.model_copy(update={"quality": rd.Quality(min={"id": 0.5})}))
    result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    said = failure(result, "orders").user_failure_data.description
    assert said.startswith("export 'orders': quality.min.id: expected a value of the column's type int64, found 0.5")
    assert evaluations(instance, result.run_id) == []


def test_the_cursor_does_not_move(instance, lake, shop, shop_file):
    """What a failed run has read is judged again by the next one, and exported once."""
    export = ORDERS.model_copy(update={"mode": rd.Incremental(cursor_column="id")})
    lake_of, orders = rd.LocalIOManager(path=str(lake)), [rd.build_export_asset(export)]
    assert run(orders, lake_of, instance, resources={"source": shop}).success
    change(shop_file, "insert into orders values (101, 'x', 1), (102, 'x', -1)")
    before = on_disk(lake)
    assert not run(orders, lake_of, instance, resources={"source": shop}).success
    assert published(on_disk(lake)) == before
    change(shop_file, "update orders set price = 1 where id = 102")
    good = run(orders, lake_of, instance, resources={"source": shop})
    assert good.success
    assert ids(lake / "orders") == list(range(1, 103))
    assert plain(evaluations(instance, good.run_id)[0].metadata)["rivet/rows"] == 2
    # Of a window without rows, the count is that of the run, too.
    assert not run(orders, lake_of, instance, resources={"source": shop}).success
    assert status(instance) == ["FAILED", "SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_a_committed_run_that_is_repeated_says_that_it_was_judged(instance, lake, shop, monkeypatch):
    """The step fails after the commit; its retry finds the delivery and reads no row."""
    orders = rd.build_export_asset(ORDERS, retry_policy=dg.RetryPolicy(max_retries=1))
    troubles = [True]

    class Lake(rd.LocalIOManager):
        def handle_output(self, context: Any, obj: Any) -> None:
            super().handle_output(context, obj)
            if troubles:
                troubles.pop()
                raise OSError("after the commit")

    result = run([orders], Lake(path=str(lake)), instance, resources={"source": shop})
    assert result.success
    (found,) = evaluations(instance, result.run_id)
    assert (found.passed, found.description) == (
        True,
        "an earlier attempt of this run had committed the rows, and judged them before",
    )


def test_each_export_of_a_bundle_is_judged_on_its_own(instance, lake, shop, shop_file):
    change(shop_file, "create table bills (id integer primary key, price real)", "insert into bills values (1, -1)")
    bills = rd.Export(name="bills", table="bills", quality=rd.Quality(min={"price": 0}))
    plain_one = rd.Export(name="all", query="select * from orders")
    definitions = rd.build_export_definitions(
        [ORDERS, bills, plain_one], source=shop, destination=rd.LocalIOManager(path=str(lake)), bundle=True
    )
    job = definitions.resolve_job_def("exports")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    assert (lake / "orders" / "_SUCCESS").exists()
    assert (lake / "all" / "_SUCCESS").exists()
    assert not (lake / "bills" / "_SUCCESS").exists()
    found = {e.asset_key.to_user_string(): e for e in evaluations(instance, result.run_id) if e.check_name == "quality"}
    assert {name: e.passed for name, e in found.items()} == {"orders": True, "bills": False}
    assert plain(found["bills"].metadata)["rivet/examples"][0]["rows"] == [{"id": 1, "price": -1.0}]
    assert found["orders"].target_materialization_data is not None

    resources = {"exports_source": shop, "exports_destination": rd.LocalIOManager(path=str(lake))}
    alone = dg.materialize(
        [*definitions.assets],
        selection=dg.AssetSelection.checks(CHECK),
        instance=instance,
        resources=resources,
        raise_on_error=False,
    )
    said = failure(alone, "exports_bundle").user_failure_data.description
    assert "found it alone: orders; materialize the asset" in said


def test_each_partition_is_judged_on_its_own(instance, lake, shop_file, shop):
    change(shop_file, "create table visits (id integer primary key, country text)")
    change(shop_file, "insert into visits values (1, 'de'), (2, 'fr'), (3, 'fr')")
    visits = rd.build_export_asset(
        rd.Export(name="visits", table="visits", partition_by="country", quality=rd.Quality(row_count_max=1)),
        partitions_def=dg.StaticPartitionsDefinition(["de", "fr"]),
    )
    found = {}
    for key in ("de", "fr"):
        result = run(
            [visits], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop}, partition_key=key
        )
        (found[key],) = evaluations(instance, result.run_id)
        assert result.success == (key == "de")
    assert {key: (e.passed, e.partition) for key, e in found.items()} == {"de": (True, "de"), "fr": (False, "fr")}
    assert (lake / "visits" / "partition=de" / "_SUCCESS").exists()
    assert not (lake / "visits" / "partition=fr" / "_SUCCESS").exists()


@pytest.mark.filterwarnings("ignore:.*BackfillPolicy.single_run")
def test_a_range_of_partitions_fails_for_the_one_that_is_bad(instance, lake, shop_file, shop):
    change(shop_file, "create table visits (id integer primary key, country text)")
    change(shop_file, "insert into visits values (1, 'de'), (2, 'fr'), (3, 'fr')")
    visits = rd.build_export_asset(
        rd.Export(name="visits", table="visits", partition_by="country", quality=rd.Quality(row_count_max=1)),
        partitions_def=dg.StaticPartitionsDefinition(["de", "fr"]),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    tags = {"dagster/asset_partition_range_start": "de", "dagster/asset_partition_range_end": "fr"}
    lake_of = rd.LocalIOManager(path=str(lake))
    result = run([visits], lake_of, instance, resources={"source": shop}, tags=tags)
    assert not result.success
    red_of, red = evaluations(instance, result.run_id)
    assert (red_of.partition, red_of.passed, red.partition) == ("fr", False, None)
    assert [row["partition"] for row in plain(red_of.metadata)["rivet/gate_table"]] == ["fr"]
    table = plain(red.metadata)["rivet/gate_table"]
    assert [(row["partition"], row["passed"]) for row in table] == [("de", True), ("fr", False)]
    assert "fr: row_count_max: expected at most 1 row, found 2" in red.description
    assert (lake / "visits" / "partition=de" / "_SUCCESS").exists()
    change(shop_file, "delete from visits where id = 3")
    good = run([visits], lake_of, instance, resources={"source": shop}, tags=tags)
    assert good.success
    *of_each, green = evaluations(instance, good.run_id)
    assert (green.passed, plain(green.metadata)["rivet/rows"]) == (True, 2)
    assert [(e.partition, e.passed, plain(e.metadata)["rivet/rows"]) for e in of_each] == [
        ("de", True, 1),
        ("fr", True, 1),
    ]
    # As unit tests call it: nothing is recorded, and nothing fails.
    resources, keys = {"source": shop, "io_manager": lake_of}, dg.PartitionKeyRange("de", "fr")
    with dg.build_asset_context(resources=resources, partition_key_range=keys) as context:
        assert [type(one) for one in visits(context, ExportConfig())] == [dg.Output, dg.AssetCheckResult]


class Changed(rd.ExportsComponent):
    """Its step exports something else, and leaves the gates out."""

    def execute(self, context: dg.AssetExecutionContext, export: Any) -> Any:
        return dataclasses.replace(export, export=rd.Export(name="orders", query="select 7 as seven"))


@pytest.mark.parametrize("bundle", [False, True])
def test_rows_that_no_gate_has_judged_do_not_pass(instance, lake, shop_file, bundle):
    changed = Changed(
        source=rd.DatabaseResource(url=f"sqlite:///{shop_file}"),
        destination={"type": "local", "path": str(lake)},
        exports=[{"name": "orders", "table": "orders", "quality": {"row_count_min": 1}}],
        bundle=bundle,
    )
    job = dg.component_defs(component=changed).resolve_job_def("exports")
    found = {e.check_name: e for e in job.execute_in_process(instance=instance).get_asset_check_evaluations()}
    assert (found["quality"].passed, found["manifest"].passed) == (False, True)
    assert "no gate has judged" in found["quality"].description


def test_a_stream_fails_though_its_rows_have_left(instance, shop, capfd):
    orders = rd.build_export_asset(ORDERS.model_copy(update={"quality": rd.Quality(row_count_max=1)}))
    result = run([orders], rd.StdoutIOManager(), instance, resources={"source": shop})
    assert not result.success
    assert '"note 100"' in capfd.readouterr().out
    assert status(instance) == ["FAILED"]
    red = evaluations(instance, result.run_id)[-1]
    for said in (failure(result, "orders").user_failure_data.description, red.description):
        assert "nothing was committed" in said
        assert "published" not in said


@pytest.mark.filterwarnings("ignore:Parameter `execution_type`")
def test_gates_can_be_written_in_yaml(project: Project, shop_file, lake, instance):
    change(shop_file, "alter table orders add column day date", "update orders set day = '2026-01-31'")
    text = f"""
        source: {{url: "sqlite:///{shop_file}"}}
        destination: {{type: local, path: {lake}}}
        exports:
          - name: orders
            table: orders
            on_schema_drift: fail
            quality:
              unique: [id, [note, price]]
              null_ratio_max: {{note: 0.01}}
              accepted_values: {{day: [2026-01-31, "2026-02-01"]}}
              min: {{price: 0, day: 2026-01-31}}
              unique_memory: null
    """
    project.write(text)
    result = project.load().resolve_job_def("lake").execute_in_process(instance=instance)
    (green,) = [e for e in result.get_asset_check_evaluations() if e.check_name == "quality"]
    assert (green.passed, green.description) == (True, "6 gates passed")
    project.write(text.replace("0.01}", "1.01}"))
    with pytest.raises(Exception, match=r"quality\.null_ratio_max\.note: expected a number from 0 to 1, found 1\.01"):
        project.load()


class TestPostgresToS3:
    """Ranges of a real server, read by two workers, into a bucket that is looked into with the raw client."""

    @pytest.fixture
    def pg(self, servers: Any) -> Postgres:
        return Postgres(servers(postgres).new_database())

    def test_nothing_is_published(self, instance, servers, pg):
        server, client = servers(s3), servers.client(s3)
        bucket = f"gates-{next(_numbers)}"
        client.create_bucket(Bucket=bucket)

        def objects() -> dict[str, bytes]:
            found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
            return {o["Key"]: client.get_object(Bucket=bucket, Key=o["Key"])["Body"].read() for o in found}

        resource = S3Resource(
            endpoint_url=server.url,
            region_name=server.region,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
        )
        io_manager = rd.S3IOManager(s3=resource, bucket=bucket)
        pg.execute(
            "create table orders (id bigint primary key, code text, at timestamptz not null)",
            "insert into orders select i, 'c' || i, timestamptz '2026-01-01' + i * interval '1 minute' "
            "from generate_series(1, 400) i",
        )
        export = rd.Export(
            name="orders",
            table="public.orders",
            mode=rd.Chunked(rows_per_part=50, parallel=2),
            quality=rd.Quality(unique="code", min={"at": "2026-01-01T00:01:00+00:00"}, row_count_min=400),
        )
        assets, resources = [rd.build_export_asset(export)], {"source": rd.DatabaseResource(url=pg.url)}
        assert run(assets, io_manager, instance, resources=resources).success
        before = objects()
        assert len([key for key in before if key.endswith(".parquet")]) == 8

        pg.execute("update orders set code = 'c399' where id = 3")
        bad = run(assets, io_manager, instance, resources=resources)
        assert not bad.success
        assert published(objects()) == before
        assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
        (red,) = evaluations(instance, bad.run_id)
        (example,) = plain(red.metadata)["rivet/examples"][0]["rows"]
        assert example in ({"id": 3, "code": "c399"}, {"id": 399, "code": "c399"})
        assert status(instance) == ["FAILED", "SUCCEEDED"]


def test_no_word_of_gates_where_there_are_none(instance, lake, shop, orders):
    result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    assert list(orders.check_keys) == []
    assert evaluations(instance, result.run_id) == []
    assert not [line for line in lines(instance, result.run_id) if "quality" in line]
