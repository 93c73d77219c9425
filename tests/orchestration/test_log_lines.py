"""The two lines about a destination's promises: their exact text, and when each is said."""

import logging

import dagster as dg
import pandas as pd
import pytest

import rivet_dagster as rd
from rivet_dagster.contract import DestinationCapabilities, WriteCommitProtocol
from rivet_dagster.orchestration.announce import announce
from rivet_dagster.orchestration.run_facts import RunFacts
from tests.orchestration.kit import lines, run

LOCAL = "export 'orders': destination commit_protocol=Atomic idempotent=true retry_safe=true partial_risk=false"
STDOUT = "export 'orders': destination commit_protocol=Streaming idempotent=false retry_safe=false partial_risk=true"
WARNING = (
    "export 'orders': stdout destination is not retry-safe (max_retries=2); "
    "partial artifacts may exist at destination on failure — manual cleanup may be needed"
)


def _orders(retry_policy=None, key_prefix=None):
    return rd.build_export_asset(
        rd.Export(name="orders", table="orders"), retry_policy=retry_policy, key_prefix=key_prefix
    )


def _preview(**more):
    @dg.asset(name="orders", **more)
    def preview() -> pd.DataFrame:
        return pd.DataFrame({"a": [1]})

    return preview


def test_the_first_line_comes_before_the_first_query(instance, lake, shop_file):
    seen = []

    class Watched(rd.DatabaseResource):
        def source(self):
            (only,) = instance.get_runs()
            seen.extend(lines(instance, only.run_id))
            return super().source()

    result = run(
        [_orders()],
        rd.LocalIOManager(path=str(lake)),
        instance,
        resources={"source": Watched(url=f"sqlite:///{shop_file}")},
    )
    assert result.success
    assert seen == [LOCAL]


def test_a_retry_safe_destination_never_warns(instance, lake, shop):
    policy = dg.RetryPolicy(max_retries=2)
    result = run([_orders(policy)], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    assert lines(instance, result.run_id, level=logging.INFO)[0] == LOCAL
    assert lines(instance, result.run_id, level=logging.WARNING) == []


def test_the_name_is_the_whole_asset_key(instance, lake, shop):
    result = run(
        [_orders(key_prefix=["wh", "raw"])], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop}
    )
    assert lines(instance, result.run_id)[0].startswith("export 'wh/raw/orders': destination ")


@pytest.mark.parametrize(
    ("policy", "tags", "warned"),
    [
        (None, {}, False),
        (dg.RetryPolicy(max_retries=0), {}, False),
        (dg.RetryPolicy(max_retries=2), {}, True),
        (None, {"dagster/max_retries": "2"}, True),
        (dg.RetryPolicy(max_retries=2), {"dagster/max_retries": "5"}, True),
        (None, {"dagster/max_retries": "0"}, False),
        (None, {"dagster/max_retries": "many"}, False),
    ],
    ids=["none", "policy-0", "policy", "tag", "policy-wins", "tag-0", "tag-no-number"],
)
def test_the_warning_needs_automatic_retries(instance, capfd, policy, tags, warned):
    result = run([_preview(retry_policy=policy)], rd.StdoutIOManager(), instance, tags=tags)
    assert result.success
    assert STDOUT in lines(instance, result.run_id, level=logging.INFO)
    assert (WARNING in lines(instance, result.run_id, level=logging.WARNING)) is warned


def test_a_retry_policy_of_the_job_counts(instance, capfd):
    definitions = dg.Definitions(
        assets=[_preview()],
        resources={"io_manager": rd.StdoutIOManager()},
        jobs=[dg.define_asset_job("all", op_retry_policy=dg.RetryPolicy(max_retries=2))],
    )
    result = definitions.resolve_job_def("all").execute_in_process(instance=instance)
    assert WARNING in lines(instance, result.run_id, level=logging.WARNING)


def test_the_warning_comes_once_and_before_any_retry(instance, capfd):
    attempts = []

    def fail_once():
        attempts.append(1)
        if len(attempts) == 1:
            yield pd.DataFrame({"a": [0]})
            raise OSError("the first attempt breaks in the middle")
        yield pd.DataFrame({"a": [1]})

    @dg.asset(name="orders", retry_policy=dg.RetryPolicy(max_retries=2))
    def preview():
        return rd.Batches(fail_once())

    result = run([preview], rd.StdoutIOManager(), instance)
    assert result.success
    assert len(attempts) == 2
    assert lines(instance, result.run_id, level=logging.INFO).count(STDOUT) == 2
    warned = lines(instance, result.run_id, level=logging.WARNING)
    assert warned.count(WARNING) == 1
    assert len([w for w in warned if "stdout-no-receipt" in w]) == 1
    order = [
        e.dagster_event.event_type_value if e.dagster_event else e.user_message
        for e in instance.all_logs(result.run_id)
    ]
    assert order.index(WARNING) < order.index("STEP_UP_FOR_RETRY")


def test_the_line_reads_the_flags_and_nothing_else(caplog):
    """Every combination says what the flags are, so that no line can be a constant."""
    log = logging.getLogger("tests.announce")
    for protocol in WriteCommitProtocol:
        for flags in ((True, False, True), (False, True, False)):
            promised = DestinationCapabilities(
                commit_protocol=protocol,
                idempotent_overwrite=flags[0],
                retry_safe=flags[1],
                partial_write_risk=flags[2],
            )
            with caplog.at_level(logging.INFO):
                announce(
                    log, export_name="x", kind="tape", capabilities=promised, facts=RunFacts(max_retries=4, attempt=1)
                )
            words = ["true" if f else "false" for f in flags]
            first = f"idempotent={words[0]} retry_safe={words[1]} partial_risk={words[2]}"
            assert caplog.messages[0] == f"export 'x': destination commit_protocol={protocol.value} {first}"
            assert (len(caplog.messages) == 2) is not flags[1]
            if not flags[1]:
                assert "tape destination is not retry-safe (max_retries=4)" in caplog.messages[1]
            caplog.clear()


def test_stdout_records_nothing_warns_once_and_puts_the_data_out(instance, capfd, shop):
    result = run([_orders()], rd.StdoutIOManager(), instance, resources={"source": shop})
    out = capfd.readouterr().out
    assert out.startswith('"id","note","price"\r\n1,"note 1",0.25\r\n')
    assert out.count("\r\n") == 101
    warned = lines(instance, result.run_id, level=logging.WARNING)
    assert len(warned) == 1
    assert "no manifest, marker or cursor is recorded" in warned[0]
