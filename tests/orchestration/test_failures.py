"""Which failure a retry policy repeats, what a person reads, and what is left where."""

import logging
import sqlite3

import dagster as dg
import pandas as pd
import pytest

import rivet_dagster as rd
from rivet_dagster.errors import (
    CommitConflict,
    CommitUnknown,
    ConfigError,
    ContractError,
    DestinationError,
    IntegrityError,
    NoAnswer,
    PlanRejected,
    PreconditionFailed,
    ReadError,
    SourceError,
)
from rivet_dagster.orchestration.failures import LeftOut, as_dagster_failure, left_behind, masked
from tests.faults.kit import Trouble, is_part, is_side
from tests.orchestration.kit import (
    chain,
    events,
    failure,
    faulty_local,
    lines,
    materializations,
    on_disk,
    plain,
    run,
    told,
)

RETRIES = dg.RetryPolicy(max_retries=2)
MAY_PASS = [
    SourceError("the server is starting", transient=True),
    DestinationError("the store failed"),
    PreconditionFailed("another version"),
    NoAnswer("silence"),
    IntegrityError("other bytes"),
    CommitConflict("another run was first"),
    CommitUnknown("nobody knows"),
]
WOULD_FAIL_AGAIN = [
    SourceError("there is no such column"),
    ConfigError("that cannot be"),
    PlanRejected("refused", ("finding",)),
    ContractError("not what was promised"),
    ReadError("not whole"),
]


class Broken(rd.DatabaseResource):
    """Fails with whatever `error` holds, and counts."""

    def source(self):
        Broken.asked += 1
        raise Broken.error

    @classmethod
    def with_error(cls, error):
        cls.error, cls.asked = error, 0
        return cls(url="sqlite:///nowhere.db")


@pytest.mark.parametrize("error", MAY_PASS, ids=lambda e: type(e).__name__)
def test_what_may_pass_is_left_to_the_user_s_policy(instance, lake, error):
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"), retry_policy=RETRIES)
    result = run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": Broken.with_error(error)})
    assert Broken.asked == 3
    assert events(instance, result.run_id).count("STEP_UP_FOR_RETRY") == 2
    left = left_behind(error, rd.LocalIOManager.capabilities)
    said = f"export 'orders': failed at {lake.as_uri()}/orders/: {left}"
    assert lines(instance, result.run_id, level=logging.ERROR) == [said] * 3
    assert type(error).__name__ in {e.cls_name for e in chain(failure(result, "orders").error)}
    assert str(error) in told(result, "orders")


@pytest.mark.parametrize("error", MAY_PASS, ids=lambda e: type(e).__name__)
def test_without_a_policy_nothing_is_repeated(instance, lake, error):
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"))
    run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": Broken.with_error(error)})
    assert Broken.asked == 1


@pytest.mark.parametrize("error", WOULD_FAIL_AGAIN, ids=lambda e: type(e).__name__)
def test_what_would_fail_again_is_not_repeated(instance, lake, error):
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"), retry_policy=RETRIES)
    result = run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": Broken.with_error(error)})
    assert Broken.asked == 1
    assert "STEP_UP_FOR_RETRY" not in events(instance, result.run_id)
    said = failure(result, "orders").user_failure_data
    assert said.description == str(error)
    assert plain(said.metadata)["rivet/error"] == type(error).__name__
    assert plain(said.metadata)["dagster/uri"] == f"{lake.as_uri()}/orders/"
    assert type(error).__name__ in {e.cls_name for e in chain(failure(result, "orders").error)}


@pytest.mark.parametrize("error", [*MAY_PASS, *WOULD_FAIL_AGAIN], ids=lambda e: f"{type(e).__name__}-{e}")
def test_no_destination_blocks_or_forces_a_retry(error):
    """`retry_safe=False` warns; it decides nothing."""
    for promised in (rd.LocalIOManager.capabilities, rd.StdoutIOManager.capabilities):
        raised = as_dagster_failure(error, capabilities=promised, uri="x")
        repeated = not isinstance(raised, dg.Failure)
        assert repeated is (error in MAY_PASS)
        assert repeated or raised.allow_retries is False
        assert not isinstance(raised, dg.RetryRequested | dg.DagsterError)


def test_what_is_left_depends_on_the_error_and_the_promises():
    local, stdout = rd.LocalIOManager.capabilities, rd.StdoutIOManager.capabilities
    said = {
        left_behind(e, c)
        for e, c in [
            (CommitUnknown(""), local),
            (CommitConflict(""), local),
            (DestinationError(""), local),
            (SourceError(""), local),
            (DestinationError(""), stdout),
        ]
    }
    assert len(said) == 5
    assert left_behind(SourceError(""), local) == left_behind(ContractError(""), local)
    assert "may have been seen" in left_behind(SourceError(""), stdout)


def test_the_text_of_a_driver_stays_out_but_its_traceback_is_kept():
    def deep():
        raise OSError("connecting with hunter2 failed")

    def wrapped():
        try:
            deep()
        except OSError as e:
            raise KeyError("hunter2 again") from e

    def ours():
        try:
            wrapped()
        except KeyError as e:
            raise SourceError("the database cannot be reached", transient=True) from e

    with pytest.raises(SourceError) as caught:
        ours()
    raised = as_dagster_failure(caught.value, capabilities=None, uri="x")
    first = raised.__cause__
    second = first.__cause__
    assert isinstance(first, LeftOut)
    assert isinstance(second, LeftOut)
    assert second.__cause__ is None
    assert "KeyError" in str(first)
    assert "OSError" in str(second)
    assert "hunter2" not in f"{first}{second}"
    import traceback

    assert "in wrapped" in "".join(traceback.format_tb(first.__traceback__))
    assert "in deep" in "".join(traceback.format_tb(second.__traceback__))


def test_an_error_that_only_happened_while_another_was_handled_is_left_out_too():
    def driver():
        raise OSError("hunter2")

    def ours():
        try:
            driver()
        except OSError:
            raise DestinationError("the store failed")  # noqa: B904 - the implicit context is the point

    with pytest.raises(DestinationError) as caught:
        ours()
    raised = as_dagster_failure(caught.value, capabilities=None, uri="x")
    assert isinstance(raised.__cause__, LeftOut)
    assert raised.__suppress_context__


def test_a_missing_table_is_one_clear_error(instance, lake, shop):
    attempts = _attempts(instance, lake, shop, rd.Export(name="orders", table="ordres"))
    assert attempts == (1, "SourceError")


def test_a_broken_query_is_one_clear_error(instance, lake, shop):
    attempts = _attempts(instance, lake, shop, rd.Export(name="orders", query="selec * from orders"))
    assert attempts == (1, "SourceError")


def test_a_database_that_is_not_there_is_named_and_not_made(instance, lake, tmp_path):
    gone = tmp_path / "gone.db"
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"))
    source = rd.DatabaseResource(url=f"sqlite:///{gone}")
    result = run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": source})
    assert "gone.db" in told(result, "orders")
    assert not gone.exists()


def test_an_unknown_kind_of_database_names_the_known_ones(instance, lake):
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"), retry_policy=RETRIES)
    source = rd.DatabaseResource(url="pigeon://host/db")
    result = run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": source})
    said = failure(result, "orders").user_failure_data.description
    assert "pigeon" in said
    assert "postgresql://" in said


def test_a_missing_environment_variable_is_named_by_dagster(instance, lake, monkeypatch):
    monkeypatch.delenv("NO_SUCH_DATABASE", raising=False)
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"))
    source = rd.DatabaseResource(url=dg.EnvVar("NO_SUCH_DATABASE"))
    with pytest.raises(dg.DagsterInvalidConfigError, match="NO_SUCH_DATABASE"):
        run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": source})


def test_a_directory_that_cannot_be_written_is_named(instance, tmp_path, shop, orders):
    (tmp_path / "a_file").write_text("not a directory")
    io_manager = rd.LocalIOManager(path=str(tmp_path / "a_file" / "lake"))
    result = run([orders], io_manager, instance, resources={"source": shop})
    assert "a_file/lake" in told(result, "orders")
    assert "DestinationError" in {e.cls_name for e in chain(failure(result, "orders").error)}
    assert (tmp_path / "a_file").read_text() == "not a directory"


def test_another_export_at_the_prefix_is_refused_and_untouched(instance, lake, shop, orders):
    assert run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop}).success
    (lake / "orders").rename(lake / "invoices")
    before = on_disk(lake)
    other = rd.build_export_asset(rd.Export(name="invoices", table="orders"), retry_policy=RETRIES)
    result = run([other], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    said = failure(result, "invoices").user_failure_data
    assert plain(said.metadata)["rivet/error"] == "ContractError"
    assert "'orders'" in said.description
    assert "'invoices'" in said.description
    assert on_disk(lake) == before


def test_a_source_that_breaks_half_way_publishes_nothing(instance, lake, shop_file):
    with sqlite3.connect(shop_file) as connection:
        connection.execute(
            "create view broken as "
            "select id, case when id < 90 then id else abs(-9223372036854775808) end x from orders"
        )
    connection.close()
    asset = rd.build_export_asset(rd.Export(name="broken", table="broken", columns={"x": rd.cast("int64")}))
    source = rd.DatabaseResource(url=f"sqlite:///{shop_file}")
    result = run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": source})
    assert not result.success
    assert "SourceError" in {e.cls_name for e in chain(failure(result, "broken").error)}
    assert [k for k in on_disk(lake) if "/data/" in k or k.endswith(("/manifest.json", "_SUCCESS"))] == []


def test_the_store_s_own_retries_do_not_reach_dagster(instance, lake, shop, orders):
    """Silence on a control object is settled inside the seam: one attempt of the step is enough."""
    quiet = Trouble("after", operation="write", key=is_side, error=NoAnswer)
    result = run([orders], faulty_local(lake, quiet), instance, resources={"source": shop})
    assert result.success
    assert quiet.seen


def test_an_error_of_the_asset_itself_is_not_ours(instance, lake):
    @dg.asset
    def orders():
        raise LookupError("mine")

    result = run([orders], rd.LocalIOManager(path=str(lake)), instance)
    assert "LookupError: mine" in told(result, "orders")
    assert on_disk(lake) == {}


def test_a_failing_input_says_nothing_of_what_would_be_left(instance, lake):
    @dg.asset(deps=[])
    def orders():
        return pd.DataFrame({"a": [1]})

    @dg.asset(io_manager_key="mem", retry_policy=RETRIES)
    def down(orders: pd.DataFrame):
        raise AssertionError

    io_manager = rd.LocalIOManager(path=str(lake))
    named = {"mem": dg.mem_io_manager}
    result = run([orders, down], io_manager, instance, resources=named, selection=[down])
    said = failure(result, "down").user_failure_data
    assert plain(said.metadata)["rivet/error"] == "ReadError"
    assert "rivet/left_behind" not in said.metadata
    assert "STEP_UP_FOR_RETRY" not in events(instance, result.run_id)


def test_a_part_that_cannot_be_written_leaves_nothing_of_the_run(instance, lake, shop, orders):
    broken = faulty_local(lake, Trouble("after", operation="write", key=is_part, error=DestinationError))
    result = run([orders], broken, instance, resources={"source": shop})
    assert materializations(result, "orders") == []
    assert [k for k in on_disk(lake) if "/data/" in k] == []


def _attempts(instance, lake, shop, export):
    """How often the step ran, and the error that ended it, whose text names what the export asked for."""
    asset = rd.build_export_asset(export, retry_policy=RETRIES)
    result = run([asset], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    said = failure(result, export.name).user_failure_data
    asked = export.table or export.query.split()[0]
    assert asked in said.description
    assert on_disk(lake) == {} or not any("/data/" in k for k in on_disk(lake))
    return events(instance, result.run_id).count("STEP_UP_FOR_RETRY") + 1, plain(said.metadata)["rivet/error"]


@pytest.mark.parametrize("other", [dg.FilesystemIOManager, dg.InMemoryIOManager], ids=lambda k: k.__name__)
def test_another_io_manager_does_not_pass_for_an_export(instance, tmp_path, shop, orders, other, monkeypatch):
    """Dagster's own would pickle the handle and report a materialization of nothing."""
    monkeypatch.chdir(tmp_path)
    result = run([orders], other(), instance, resources={"source": shop})
    assert "expected the resource 'io_manager' to be a ExportIOManager" in told(result, "orders")
    assert materializations(result, "orders") == []


def test_a_source_that_is_none_is_named(instance, lake, orders):
    result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": "sqlite:///shop.db"})
    assert "expected the resource 'source' to be a DatabaseResource, found str" in told(result, "orders")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Invalid URL: https://a.blob/c?sv=1&sig=abc%2F", "Invalid URL: https://a.blob/c?***"),
        ("cannot reach https://me:pw@host/x", "cannot reach https://***@host/x"),
        ("cannot reach https://me:p@w@host.x/y", "cannot reach https://***@host.x/y"),
        ("cannot reach s3://me:p/w@host/x", "cannot reach s3://***@host/x"),
        ("abfss://lake@host/x, abfss://lake:pw@host/x", "abfss://lake@host/x, abfss://***@host/x"),
        ("http://127.0.0.1:9000/lake/a@b", "http://127.0.0.1:9000/lake/a@b"),
        ("{'aws_secret_access_key': 'a+b/c', 'x': 1}", "{'aws_secret_access_key': '***', 'x': 1}"),
        ("client_secret='abc' pwd=x sig%3Dy", "client_secret='***' pwd=*** sig%3D***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("AccountKey=abc==;EndpointSuffix=x", "AccountKey=***;EndpointSuffix=x"),
        ("Your default credentials were not found.", "Your default credentials were not found."),
        ("Invalid endpoint: bXkgb3duIGtleQ==", "Invalid endpoint: ***"),
        ("Invalid endpoint: http://bXkgb3duIGtleQ/", "Invalid endpoint: ***"),
        ("Invalid URL: https://", "Invalid URL: https://"),
        ("Is it there? Yes.", "Is it there? Yes."),
    ],
)
def test_what_an_sdk_says_of_its_settings_is_shown_without_secrets(text, shown):
    assert masked(text) == shown


def test_a_client_that_cannot_be_built_is_a_clear_error(instance, shop, orders):
    from dagster_aws.s3 import S3Resource

    io_manager = rd.S3IOManager(s3=S3Resource(profile_name="no_such_profile"), bucket="lake")
    result = run([orders], io_manager, instance, resources={"source": shop})
    assert "s3: expected a client" in told(result, "orders")
    assert "no_such_profile" in told(result, "orders")
    assert "DestinationError" in {e.cls_name for e in chain(failure(result, "orders").error)}


def test_a_destination_that_refuses_its_settings_says_so_itself(tmp_path):
    class Refusing(rd.LocalIOManager):
        def open_destination(self, clients):
            raise ConfigError("part_bytes is 1")

    with pytest.raises(ConfigError, match=r"^part_bytes is 1$"):
        _ = Refusing(path=str(tmp_path)).destination


def test_a_client_that_is_refused_its_address_does_not_repeat_it(instance, shop, orders):
    from dagster_azure.blob import AzureBlobStorageResource, AzureBlobStorageSASTokenCredential

    sas = AzureBlobStorageSASTokenCredential(token="sv=1&sig=hunter2")
    account = AzureBlobStorageResource(account_url="https://?sv=1&sig=hunter2", credential=sas)
    result = run(
        [orders], rd.AzureIOManager(blob_storage=account, container="lake"), instance, resources={"source": shop}
    )
    assert "azure: expected a client" in told(result, "orders")
    assert "hunter2" not in str(failure(result, "orders"))
