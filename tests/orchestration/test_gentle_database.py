"""What `DatabaseResource` sets on its sessions, and how much at once may be asked of a database."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import rivet_dagster as rd
from rivet_dagster.errors import ConfigError
from rivet_dagster.sources.postgresql import PostgresSource
from rivet_dagster.sources.session_settings import SessionSettings

URL = "postgresql://user@host/shop"


def settings(**given: str) -> SessionSettings | None:
    source = rd.DatabaseResource(url=URL, **given).source()
    assert isinstance(source, PostgresSource)
    return source._database.settings


def test_nothing_is_set_unless_it_is_asked_for() -> None:
    assert settings() == SessionSettings(statement_timeout=None, lock_timeout=None, application_name=None)


def test_timeouts_are_written_with_their_unit() -> None:
    found = settings(statement_timeout="1.5 minutes", lock_timeout="250ms", application_name="nightly")
    assert found == SessionSettings(statement_timeout=90.0, lock_timeout=0.25, application_name="nightly")


def test_a_misspelt_setting_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"max_rows_per_sec.*did you mean max_rows_per_second"):
        rd.DatabaseResource(url=URL, max_rows_per_sec=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", ["5", "", "soon", "0s", "100 days"])
def test_what_is_no_timeout_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match="lock_timeout"):
        settings(lock_timeout=value)


def test_a_file_has_no_sessions_to_be_gentle_with() -> None:
    with pytest.raises(ConfigError, match=r"lock_timeout: for postgresql://, .* only, found sqlite://"):
        rd.DatabaseResource(url="sqlite:///shop.db", lock_timeout="5s").source()


@pytest.mark.parametrize(
    "url", ["sqlite:///shop.db", "duckdb:///shop.db", "oracle://host/shop", "mysql+asyncmy://host/d"]
)
def test_a_setting_of_another_database_is_refused_where_it_is_defined(url: str) -> None:
    source = rd.DatabaseResource(url=url, statement_timeout="5s", application_name="x")
    with pytest.raises(ConfigError, match=r"statement_timeout, application_name: for postgresql://.*remove it"):
        definitions(source)


def test_what_is_no_timeout_is_refused_where_it_is_defined() -> None:
    with pytest.raises(ConfigError, match="lock_timeout"):
        definitions(rd.DatabaseResource(url=URL, lock_timeout="soon"))


def test_what_comes_from_the_environment_is_judged_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    definitions(rd.DatabaseResource(url=dg.EnvVar("SHOP_URL"), lock_timeout="5s"))
    defs = definitions(rd.DatabaseResource(url=URL, lock_timeout=dg.EnvVar("SHOP_TIMEOUT")))
    monkeypatch.setenv("SHOP_TIMEOUT", "soon")
    done = defs.resolve_job_def("exports").execute_in_process(raise_on_error=False)
    (failed, *_) = (e.step_failure_data for e in done.all_events if e.is_step_failure)
    assert re.search(r"lock_timeout=….*found 'soon'", failed.user_failure_data.description)


def test_a_number_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = rd.DatabaseResource(url=URL, max_rows_per_second=dg.EnvVar.int("SHOP_PACE"))
    definitions(shop)
    monkeypatch.setenv("SHOP_PACE", "7")
    with dg.build_resources({"shop": shop}) as found:
        assert found.shop.max_rows_per_second == 7
    monkeypatch.setenv("SHOP_PACE", "0")
    with pytest.raises(dg.DagsterError) as refused, dg.build_resources({"shop": shop}):
        pass
    assert "max_rows_per_second" in str(refused.value.__cause__)


def definitions(source: rd.DatabaseResource, export: str = "orders", **more: Any) -> dg.Definitions:
    return rd.build_export_definitions(
        [rd.Export(name=export, table="orders")], source=source, destination=rd.LocalIOManager(path="lake"), **more
    )


def test_a_pool_is_named_like_the_source_unless_it_is_given() -> None:
    source = rd.DatabaseResource(url=URL)
    for bundle in (False, True):
        assert {a.op.pool for a in definitions(source, "a", name="lake", bundle=bundle).assets} == {"lake_source"}
        assert {a.op.pool for a in definitions(source, "a", bundle=bundle, pool="shop").assets} == {"shop"}
    assert rd.build_export_asset(rd.Export(name="a", table="a"), source="shop").op.pool == "shop"


def test_an_export_waits_for_its_turn_where_the_pool_of_its_source_is_limited(
    tmp_path: Path, shop: rd.DatabaseResource
) -> None:
    (tmp_path / "home").mkdir()
    limited = {"concurrency": {"pools": {"default_limit": 1, "granularity": "op"}}}
    begun: list[bool] = []

    class Lake(rd.LocalIOManager):
        def open_destination(self, clients: Any) -> Any:
            begun.append(free.is_set())
            return super().open_destination(clients)

    free = threading.Event()
    orders = rd.build_export_asset(rd.Export(name="orders", table="orders"), source="shop")
    with dg.instance_for_test(temp_dir=str(tmp_path / "home"), overrides=limited) as home:
        storage = home.event_log_storage

        def other_export_ends() -> None:
            while not storage.get_concurrency_info("shop").pending_step_count:
                threading.Event().wait(0.05)
            free.set()
            storage.free_concurrency_slots_for_run("another run")

        storage.initialize_concurrency_limit_to_default("shop")
        assert storage.claim_concurrency_slot("shop", "another run", "an export").is_claimed
        other = threading.Thread(target=other_export_ends, daemon=True)
        other.start()
        resources = {"shop": shop, "io_manager": Lake(path=str(tmp_path / "lake"))}
        assert dg.materialize([orders], instance=home, resources=resources).success
        other.join(60)
    assert begun == [True]


def test_all_who_ask_a_resource_share_one_source() -> None:
    database = rd.DatabaseResource(url=URL)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(database.source())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert {id(one) for one in found} == {id(database.source())}
    assert rd.DatabaseResource(url=URL).source() is not database.source()
