"""What a code location gets: assets that say what they are, names that do not clash, and findings before a run."""

import logging
import logging.handlers
import multiprocessing
import os
import queue
import subprocess
import sys
from datetime import timedelta

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource
from pydantic import ConfigDict, Field

import rivet_dagster as rd
from rivet_dagster.orchestration.assets import Defined, defined
from tests.orchestration.kit import materialization, plain, run

CLOUD_SDKS = {"boto3", "botocore", "google.cloud", "azure.storage", "dagster_aws", "dagster_gcp", "dagster_azure"}


def _orders(**more):
    return rd.Export(**{"name": "orders", "table": "shop.orders", **more})


def _definitions(exports, destination, **more):
    source = more.pop("source", rd.DatabaseResource(url=dg.EnvVar("TEST_DATABASE_URL")))
    return rd.build_export_definitions(exports, source=source, destination=destination, **more)


def _loaded(definitions):
    dg.Definitions.validate_loadable(definitions)
    return definitions.get_repository_def()


def test_an_asset_says_what_it_exports():
    asset = rd.build_export_asset(
        _orders(format="csv"),
        key_prefix=["wh", "raw"],
        retry_policy=dg.RetryPolicy(max_retries=3),
        pool="shop_db",
        deps=["upstream"],
        group_name="raw",
        owners=["team:data"],
        tags={"tier": "gold"},
        kinds=["postgres"],
        automation_condition=dg.AutomationCondition.eager(),
        freshness_policy=(fresh := dg.FreshnessPolicy.time_window(fail_window=timedelta(days=1))),
    )
    (spec,) = asset.specs
    assert spec.key == dg.AssetKey(["wh", "raw", "orders"])
    assert "`shop.orders`" in spec.description
    assert spec.group_name == "raw"
    assert list(spec.owners) == ["team:data"]
    assert spec.kinds == {"csv", "postgres"}
    assert spec.tags["tier"] == "gold"
    assert (spec.automation_condition, spec.freshness_policy) == (dg.AutomationCondition.eager(), fresh)
    assert [d.asset_key for d in spec.deps] == [dg.AssetKey("upstream")]
    assert asset.op.retry_policy == dg.RetryPolicy(max_retries=3)
    assert asset.op.pool == "shop_db"
    assert asset.get_io_manager_key_for_asset_key(spec.key) == "io_manager"


def test_a_query_is_shown_as_it_is_written():
    query = "select id\nfrom orders"
    (spec,) = rd.build_export_asset(rd.Export(name="ids", query=query)).specs
    assert f"```sql\n{query}\n```" in spec.description


def test_the_code_version_is_a_function_of_the_export_alone():
    def version(**more):
        (spec,) = rd.build_export_asset(_orders(**more)).specs
        return spec.code_version

    assert version() == version()
    changed = {version(), version(table="other"), version(format="csv"), version(columns={"a": rd.cast("text")})}
    assert len(changed) == 4


def test_the_code_version_is_one_in_all_processes_where_sets_have_no_order():
    # Equal sets that are walked in another order, as those of texts are in another process.
    some, same = {0, 8}, {8, 0}
    assert list(some) != list(same)
    versions = {
        rd.build_export_asset(_orders(quality=rd.Quality(accepted_values={"n": values}))).code_versions_by_key.popitem()
        for values in (some, same)
    }
    assert len(versions) == 1


def test_no_export_and_one_that_is_named_like_the_job_are_refused():
    with pytest.raises(rd.ConfigError, match="at least one export"):
        _definitions([], rd.LocalIOManager(path="x"))
    with pytest.raises(rd.ConfigError, match="name='orders' is also the step of an export"):
        _definitions([_orders()], rd.LocalIOManager(path="x"), name="orders")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"exports": rd.Export(name="a", table="a")}, "exports: expected Export, found tuple"),
        ({"exports": ["orders"]}, "exports: expected Export, found str"),
        ({"source": "sqlite:///x"}, "source: expected DatabaseResource, found str"),
        ({"destination": dg.FilesystemIOManager()}, "destination: expected ExportIOManager, found FilesystemIOManager"),
    ],
)
def test_an_argument_of_another_kind_is_named(wrong, expected):
    right = {
        "exports": [_orders()],
        "source": rd.DatabaseResource(url="sqlite:///x"),
        "destination": rd.LocalIOManager(path="x"),
    }
    with pytest.raises(rd.ConfigError, match=expected):
        rd.build_export_definitions(**(right | wrong))


def test_definitions_name_everything_by_their_own_name(tmp_path):
    lake = rd.LocalIOManager(path=str(tmp_path / "lake"))
    shop = _definitions([_orders(), _orders(name="items")], lake, name="shop", schedule="0 2 * * *", key_prefix="shop")
    crm = _definitions([_orders()], rd.LocalIOManager(path=str(tmp_path / "crm")), name="crm", key_prefix="crm")
    repository = _loaded(dg.Definitions.merge(shop, crm))
    assert {j.name for j in repository.get_all_jobs()} >= {"shop", "crm"}
    assert [s.name for s in repository.schedule_defs] == ["shop_schedule"]
    assert repository.schedule_defs[0].cron_schedule == "0 2 * * *"
    resources = set(repository.get_top_level_resources())
    assert {"shop_source", "shop_destination", "crm_source", "crm_destination"} <= resources
    keys = {k.to_user_string() for k in repository.asset_graph.materializable_asset_keys}
    assert keys == {"shop/orders", "shop/items", "crm/orders"}
    checks = {(k.asset_key.to_user_string(), k.name) for k in repository.asset_graph.asset_check_keys}
    assert checks == {(key, "manifest") for key in keys}


def test_a_job_runs_its_own_exports_with_their_checks(instance, lake, shop, shop_file):
    exports = [rd.Export(name="orders", table="orders"), rd.Export(name="ids", query="select id from orders")]
    definitions = _definitions(exports, rd.LocalIOManager(path=str(lake)), source=shop)
    result = definitions.resolve_job_def("exports").execute_in_process(instance=instance)
    assert {e.asset_key.to_user_string() for e in result.get_asset_materialization_events()} == {"orders", "ids"}
    checks = result.get_asset_check_evaluations()
    assert [(c.check_name, c.passed) for c in checks] == [("manifest", True)] * 2


def test_a_definition_says_what_its_destination_promises_and_where_it_is(lake):
    definitions = _definitions([_orders()], rd.LocalIOManager(path=str(lake), format="csv"), key_prefix="wh")
    spec = definitions.resolve_asset_graph().get(dg.AssetKey(["wh", "orders"]))
    said = plain(spec.metadata)
    assert said["rivet/commit_protocol"] == "Atomic"
    assert (said["rivet/idempotent_overwrite"], said["rivet/retry_safe"], said["rivet/partial_write_risk"]) == (
        True,
        True,
        False,
    )
    assert said["dagster/uri"] == f"{lake.as_uri()}/wh/orders/"
    assert "rivet/diagnostics" not in said
    assert spec.kinds == {"csv", "local"}


def test_the_uri_of_the_definition_is_that_of_the_materialization(instance, lake, shop):
    definitions = _definitions(
        [rd.Export(name="orders", table="orders")], rd.LocalIOManager(path=str(lake)), source=shop
    )
    said = definitions.resolve_asset_graph().get(dg.AssetKey("orders")).metadata["dagster/uri"]
    result = definitions.resolve_job_def("exports").execute_in_process(instance=instance)
    assert plain(materialization(result, "orders").metadata)["dagster/uri"] == said


def test_a_path_from_the_environment_is_no_uri_before_it_is_known():
    definitions = _definitions([_orders()], rd.LocalIOManager(path=dg.EnvVar("TEST_LAKE")))
    assert "dagster/uri" not in definitions.resolve_asset_graph().get(dg.AssetKey("orders")).metadata


def test_what_is_rejected_keeps_the_code_location_from_loading_with_every_reason():
    with pytest.raises(rd.PlanRejected) as caught:
        _definitions(
            [_orders(max_file_size="1MB", verify="readback"), _orders(name="two", max_file_size="1MB")],
            rd.StdoutIOManager(),
        )
    said = str(caught.value)
    assert said.count("stdout-no-split") == 2
    assert said.count("verify-unattainable") == 1
    assert {d.rule for d in caught.value.diagnostics} >= {"stdout-no-split", "verify-unattainable", "stdout-no-receipt"}


def test_warnings_and_what_is_missing_are_logged_and_shown_on_their_own_assets(caplog):
    with caplog.at_level(logging.WARNING, logger="rivet_dagster"):
        definitions = _definitions(
            [_orders(), _orders(name="items")], rd.StdoutIOManager(), retry_policy=dg.RetryPolicy(max_retries=2)
        )
    graph = definitions.resolve_asset_graph()
    for name in ("orders", "items"):
        found = plain(graph.get(dg.AssetKey(name)).metadata)["rivet/diagnostics"]
        assert [(d["level"], d["rule"]) for d in found] == [
            ("Warning", "retries-not-safe"),
            ("Degraded", "stdout-no-receipt"),
            ("Warning", "stdout-single-export"),
        ]
        assert all(d["message"] and d["remedy"] for d in found)
    assert sum("retries-not-safe" in m for m in caplog.messages) == 2
    assert graph.asset_check_keys == set()


def load_and_tell(heard):
    """What is logged while somebody loads a code location."""
    handler = logging.handlers.QueueHandler(heard)
    logging.getLogger("rivet_dagster").addHandler(handler)
    try:
        _definitions([_orders()], rd.StdoutIOManager())
    finally:
        logging.getLogger("rivet_dagster").removeHandler(handler)
    heard.put(None)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_planning_found_is_not_logged_in_each_process_of_a_run(method):
    """Dagster's executors start one for each step with one of these methods, and it loads the definitions again."""
    here = queue.SimpleQueue()
    load_and_tell(here)
    assert "stdout-no-receipt" in here.get().getMessage()
    context = multiprocessing.get_context(method)
    there = context.Queue()
    step = context.Process(target=load_and_tell, args=(there,))
    step.start()
    said = there.get(timeout=60)
    step.join()
    assert said is None


def test_one_prefix_for_two_exports_is_rejected():
    with pytest.raises(rd.PlanRejected, match="shared-prefix"):
        _definitions([_orders(), _orders(table="other")], rd.LocalIOManager(path="x"))


def test_a_password_written_in_the_code_is_found(caplog):
    source = rd.DatabaseResource(url="postgresql://me:hunter2@db/shop")
    with caplog.at_level(logging.WARNING, logger="rivet_dagster"):
        definitions = _definitions([_orders()], rd.LocalIOManager(path="x"), source=source)
    found = plain(definitions.resolve_asset_graph().get(dg.AssetKey("orders")).metadata)["rivet/diagnostics"]
    assert [d["rule"] for d in found] == ["password-in-clear"]
    assert "EnvVar" in found[0]["remedy"]
    assert "hunter2" not in caplog.text + str(found)


def test_a_resource_may_be_swapped_and_the_step_judges_the_one_it_got(instance, shop, capfd):
    """Planned for a local destination, run with stdout: the step refuses what only files can do."""
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders", max_file_size="1KB"))
    result = run([asset], rd.StdoutIOManager(), instance, resources={"source": shop})
    assert not result.success
    assert "stdout-no-split" in str([e.event_specific_data for e in result.all_events if e.is_step_failure])
    assert capfd.readouterr().out == ""


def test_capabilities_are_the_destination_s_own_and_need_no_client():
    from rivet_dagster.destinations.azure import AzureDestination
    from rivet_dagster.destinations.gcs import GCSDestination
    from rivet_dagster.destinations.local import LocalDestination
    from rivet_dagster.destinations.s3 import S3Destination
    from rivet_dagster.destinations.stdout import StdoutDestination

    pairs = {
        rd.LocalIOManager: LocalDestination,
        rd.S3IOManager: S3Destination,
        rd.GCSIOManager: GCSDestination,
        rd.AzureIOManager: AzureDestination,
        rd.StdoutIOManager: StdoutDestination,
    }
    for io_manager, destination in pairs.items():
        assert io_manager.capabilities is destination.capabilities
        assert io_manager.kind == destination.kind
        assert "capabilities" not in io_manager.model_fields
        assert all(f.description for f in io_manager.model_fields.values()), io_manager


def test_every_public_name_is_there_sorted_and_typed():
    assert rd.__all__ == sorted(rd.__all__, key=lambda n: (not n[0].isupper(), n))
    for name in rd.__all__:
        assert getattr(rd, name) is not None
        assert name in dir(rd)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        rd.nothing_like_this  # noqa: B018


def test_importing_the_package_loads_nothing_heavy():
    """Each name loads what it needs: only a cloud's IO manager loads that cloud's SDK."""
    heavy = CLOUD_SDKS | {"pyarrow", "pandas", "duckdb", "adbc_driver_manager"}
    assert _loaded_after("import rivet_dagster") & (heavy | {"dagster", "pydantic"}) == set()
    assert (
        _loaded_after("import rivet_dagster as rd; rd.LocalIOManager; rd.Export; rd.build_export_asset") & heavy
        == set()
    )
    assert (
        _loaded_after("import rivet_dagster as rd; rd.build_export_definitions, rd.DatabaseResource") & heavy == set()
    )
    assert "dagster_gcp" not in _loaded_after("import rivet_dagster as rd; rd.S3IOManager")
    assert "dagster_aws" in _loaded_after("import rivet_dagster as rd; rd.S3IOManager")


def _loaded_after(code: str) -> set[str]:
    names = sorted({*CLOUD_SDKS, "pyarrow", "pandas", "duckdb", "adbc_driver_manager", "dagster", "pydantic"})
    script = f"{code}\nimport sys\nprint(*[n for n in {names!r} if n in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    return set(done.stdout.split())


@pytest.mark.parametrize("bundle", [False, True])
def test_the_definition_alone_says_what_is_exported_from_where(bundle):
    """Whoever has the definitions, a check or another process, needs no second list of exports."""
    exports = [
        rd.Export(name="all", table="public.orders"),
        rd.Export(
            name="new",
            query="select 1 as x",
            mode=rd.Incremental(cursor_column="x", lag="5 minutes"),
            format=rd.Csv(compression="gzip"),
            columns={"x": rd.cast("text")},
            retain=2,
        ),
        rd.Export(name="ranges", table="t", mode=rd.Chunked(key=("a", "b"), rows_per_part=5)),
    ]
    defs = _definitions(exports, rd.LocalIOManager(path="lake"), name="lake", bundle=bundle)
    said = {key.path[-1]: m for asset in defs.assets for key, m in asset.metadata_by_key.items()}
    expected = {e.name: Defined(export=e, source="lake_source") for e in exports}
    assert {name: defined(metadata) for name, metadata in said.items()} == expected
    assert said["all"]["rivet/export"].value == {"name": "all", "table": "public.orders"}
    assert defined({"rivet/format": "csv"}) is None


@pytest.mark.parametrize("bundle", [False, True])
def test_checks_are_chosen_by_name_for_all_exports(bundle):
    exports = [_orders(), _orders(name="items")]
    destination = rd.LocalIOManager(path="lake")
    defs = _definitions(exports, destination, name="lake", bundle=bundle, checks=["content", "row_count"], pool="shop")
    found = {(key.asset_key.path[0], key.name) for built in defs.asset_checks for key in built.check_keys}
    assert found == {(name, check) for name in ("orders", "items") for check in ("content", "row_count")}
    # What counts in the database waits for its turn like an export.
    assert {built.op.pool for built in defs.asset_checks} == {"shop"}
    assert len(defs.asset_checks) == (1 if bundle else 2)
    assert _definitions(exports, destination, checks=()).asset_checks == []
    with pytest.raises(rd.ConfigError, match="expected some of manifest, content, row_count, schema, found 'rows'"):
        _definitions(exports, destination, checks=["rows"])


def test_a_stream_has_no_checks_and_refuses_those_that_are_asked_for():
    assert _definitions([_orders()], rd.StdoutIOManager()).asset_checks == []
    with pytest.raises(
        rd.ConfigError, match="expected a destination that keeps objects, found this destination, a stream"
    ):
        _definitions([_orders()], rd.StdoutIOManager(), checks=["content"])


def test_what_a_count_of_a_window_says_is_shown_on_the_asset():
    export = _orders(mode=rd.Incremental(cursor_column="id"))
    defs = _definitions([export], rd.LocalIOManager(path="lake"), checks=["row_count"])
    (asset,) = defs.assets
    (finding,) = asset.metadata_by_key[asset.key]["rivet/diagnostics"].value
    assert (finding["rule"], finding["level"]) == ("incremental-reconcile-mismatch", "Warning")


@pytest.mark.parametrize("bundle", [False, True])
def test_the_description_ends_in_what_the_destination_promises(bundle):
    defs = _definitions([_orders()], rd.LocalIOManager(path="lake"), bundle=bundle)
    (spec,) = next(iter(defs.assets)).specs
    head, _, row = spec.description.rpartition("\n")
    assert head.startswith("Exports the table `shop.orders`.\n\n| destination | commit_protocol |")
    assert row == "| local | `Atomic` | `true` | `true` | `false` |"


@pytest.mark.parametrize("path", ["", "  "])
def test_a_directory_without_a_name_is_refused_where_it_is_written(path):
    with pytest.raises(rd.ConfigError, match="expected a directory"):
        rd.LocalIOManager(path=path)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            rd.LocalIOManager,
            {"path": "x", "max_filesize": "1MB"},
            r"did you mean max_file_size\?",
        ),
        (rd.S3IOManager, {"s3": S3Resource(), "buckett": "x"}, r"did you mean bucket\?"),
        (rd.DatabaseResource, {"ulr": "sqlite:///x"}, r"DatabaseResource\(ulr=…\): .*; did you mean url\?"),
    ],
)
def test_a_misspelt_setting_of_a_resource_is_told_what_may_be_meant(kind, given, message):
    with pytest.raises(rd.ConfigError, match=message):
        kind(**given)


def test_a_resource_of_ones_own_may_take_other_settings():
    class Open(rd.LocalIOManager):
        model_config = ConfigDict(extra="allow")

    class Aliased(rd.LocalIOManager):
        where: str = Field(alias="wo", default="here")

    assert Open(path="x", anything=1).path == "x"
    assert Aliased(path="x", wo="there").where == "there"
